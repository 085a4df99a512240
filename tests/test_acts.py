"""The ledger of a summary: what an agent did, and what it got for it, outlives the cuts that take the calls."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.agents import LlmAgent
from packs import answered, called, summary_of
from scripted import Chat, Scripted, call
from wording import SUMMARY_TITLE

from aether_context import PackPolicy


def page(key: str) -> dict[str, Any]:
    """Reads a page."""
    return {"key": key, "lines": "\n".join(f"line {number} of {key}" for number in range(100))}


def post_credit_note(invoice: str, eur: int) -> dict[str, Any]:
    """Posts a credit note."""
    return {"credit_note": "CN-20931"}


def buche_termin(tag: str) -> dict[str, Any]:
    """Bucht einen Termin."""
    return {"termin": "T-5512"}


def send_letter(to: str, text: str) -> dict[str, Any]:
    """Sends a letter."""
    return {"receipt": "RX-7781", "body": text}


def terminal(command: str) -> str:
    """Runs a command."""
    return "Created volume vol-0a9f31."


def robot(move: str) -> dict[str, Any]:
    """Works outside."""
    return {"pose": "PX-311"}


def quote(part: str) -> dict[str, Any]:
    """The price of a part."""
    return {"price": "EUR 19.31"}


def reserve(room: str) -> dict[str, Any]:
    """Reserves a room."""
    return {"error": "room R-818 is taken until 2026-07-03"}


def filler(count: int) -> list[Any]:
    return [reply for at in range(count) for reply in (call("page", key=f"page-{at}"), "Here is what it says.")]


def ledger(chat: Chat) -> list[str]:
    """The lines of the ledger in the last request."""
    text = chat.sent[-1].text
    return [line for line in text.splitlines() if line.startswith(("- did: ", "- failed: ", "- returned: "))]


def worked(script: list[Any], turns: int = 10, window: int = 3_000, tools: Any = (), **settings: Any) -> Chat:
    """A chat whose first turns are those of a script, and whose calls are cut at least twice behind it."""
    policy = PackPolicy(max_input_tokens=window, **settings)
    chat = Chat([*script, *filler(turns)], tools=[page, *tools], policy=policy)
    chat.say("Please begin.", *(f"Look at the next page, number {turn}." for turn in range(turns)))
    summaries = {sent.text.partition("\n\n")[0] for sent in chat.sent if SUMMARY_TITLE in sent.text}
    assert len(summaries) > 1, "one cut after another"
    return chat


@pytest.mark.parametrize(
    ("tool", "arguments", "line"),
    [
        (
            post_credit_note, {"invoice": "INV-777", "eur": 420},
            "- did: post_credit_note(eur: 420, invoice: INV-777) → credit_note: CN-20931",
        ),
        (buche_termin, {"tag": "2026-06-09"}, "- did: buche_termin(tag: 2026-06-09) → termin: T-5512"),
        (terminal, {"command": "mk"}, "- did: terminal(command: mk) → Created volume vol-0a9f31."),
        (
            reserve, {"room": "R-818"},
            "- failed: reserve(room: R-818) → error: room R-818 is taken until 2026-07-03",
        ),
    ],
)  # fmt: skip
@pytest.mark.rows(2)
def test_an_act_and_its_result_outlive_cut_after_cut(tool: Any, arguments: dict[str, Any], line: str) -> None:
    chat = worked([call(tool.__name__, **arguments), "Done."], tools=[tool])
    assert ledger(chat).count(line) == 1
    chat.replays()


@pytest.mark.parametrize("name", ["rent_bike", "calibrate_sensor", "dock_drone", "ping_supplier", "request_leave"])
def test_a_tools_name_tells_that_it_acts(name: str) -> None:
    assert f"\n- did: {name}" in f"\n{summary_of(called(name, '1'), answered(name, '1', 'B7'))}"


def test_calls_side_by_side_have_a_line_each() -> None:
    calls = [call("post_credit_note", invoice=f"INV-{n}", eur=n) for n in (1, 2)]
    chat = worked([[*calls, call("reserve", room="R-1")], "Done."], tools=[post_credit_note, reserve])
    assert [line.partition("(")[0] for line in ledger(chat)][:3] == [
        "- did: post_credit_note", "- did: post_credit_note", "- failed: reserve",
    ]  # fmt: skip


def test_a_small_summary_has_room_for_some_acts() -> None:
    acts = [one for n in range(4) for one in (call("post_credit_note", invoice=f"INV-{n}", eur=420 + n), "Done.")]
    chat = worked(acts, turns=14, tools=[post_credit_note])
    assert len(ledger(chat)) == 4


def test_of_a_long_act_both_ends_stand_and_no_line_is_long() -> None:
    text = "Dear Ann, " + "we write to you about the roof. " * 200 + "Yours, Bob."
    chat = worked([call("send_letter", to="ann", text=text), "Done."], tools=[send_letter])
    (line,) = (line for line in ledger(chat) if "send_letter" in line)
    assert all(text in line for text in ("to: ann", "Dear Ann", "Yours, Bob.", "receipt: RX-7781"))
    assert len(line) < 400


def test_a_policy_says_which_tools_act_and_others_leave_first() -> None:
    script = [call("robot", move="left"), "Done."]
    prices = [one for at in range(12) for one in (call("quote", part=f"P-{at:03}"), "It is cheap.")]
    for rules, stays in (({"robot": "acts"}, True), ({}, False)):
        chat = worked([*script, *prices], turns=18, tools=[robot, quote], offload={"tools": rules})
        lines = ledger(chat)
        assert ("- did: robot(move: left) → pose: PX-311" in lines) is stays
        others = [line for line in lines if line.startswith("- returned: ")]
        assert not others or "- returned: quote(part: P-011) → price: EUR 19.31" in others
        assert "- returned: quote(part: P-000) → price: EUR 19.31" not in lines


def test_what_another_agent_did_is_told_as_its_own() -> None:
    model = Scripted(script=[call("post_credit_note", invoice="INV-777", eur=420), "It is posted."], sent=[])
    expert = LlmAgent(name="expert", model=model, instruction="You post.", tools=[post_credit_note])
    script = [call("transfer_to_agent", agent_name="expert")]
    policy = PackPolicy(max_input_tokens=3_000)
    back = [call("transfer_to_agent", agent_name="desk")]
    model.script += back
    desk_model = Scripted(script=[*script, *filler(8)], sent=[])
    desk = LlmAgent(name="desk", model=desk_model, instruction="You help.", tools=[page], sub_agents=[expert])
    chat = Chat(agent=desk, policy=policy)
    chat.say("Post it.", *(f"Look at the next page, number {turn}." for turn in range(8)))
    line = "- did: expert's post_credit_note(eur: 420, invoice: INV-777) → credit_note: CN-20931"
    assert line in chat.sent[-1].text.splitlines()
    assert "transfer_to_agent" not in "".join(ledger(chat))


def test_the_store_masks_the_ledger_before_anything_is_cut_short() -> None:
    key = "sk-proj-" + "Ab3dE5gH7jK9mN1p" * 3
    text = f"the key is {key}, " + "and it is for the roof. " * 200
    script = [call("send_letter", to="ann", text=text), "Done."]
    chat = worked(script, tools=[send_letter], redact=["secrets"])
    recorded = "".join(str(chat.store.log(manifest).texts) for manifest in chat.manifests())
    assert "- did: send_letter" in recorded
    assert key[:14] not in recorded
