"""What a transfer leaves in other agents' requests: nothing, where nothing is lost by it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from google.genai import types
from scripted import Chat, Sent, call, grow
from teams import agent, passing

from aether_context import PackPolicy, why
from aether_context.conversation.content_json import content_of_parts, text_part
from aether_context.conversation.quotes import attributed
from aether_context.conversation.turns import bare_transfers
from aether_context.lab.reading import read_view
from aether_context.store.replay import Replayer

WIDE = PackPolicy(max_input_tokens=64_000)
MARK = "transfer_to_agent"


def go(to: str, **more: str) -> types.Part:
    return call(MARK, agent_name=to, **more)


def team_of(clerk: list[Any], policy: PackPolicy = WIDE, **scripts: list[Any]) -> Chat:
    """A conversation with a clerk, and with sub-agents that answer from their scripts."""
    others = [agent(name, script) for name, script in scripts.items()]
    return Chat(agent=agent("clerk", clerk, sub_agents=others), policy=policy)


def sents(chat: Chat, name: str) -> list[Sent]:
    return [one for one in chat.sent if one.agent == name]


def rows(chat: Chat) -> list[tuple[str, str]]:
    """Source and form of the rows of the last pack that name a transfer."""
    last = Replayer(chat.store).resolve(chat.latest())
    return [(row.source, row.form) for row in last.rows.values() if row.reason == "transfer"]


def round_trips(count: int, policy: PackPolicy = WIDE) -> Chat:
    """A clerk who sends so many messages to and fro, to travel and to billing in turn, each of which says something."""
    clerk = [part for at in range(count) for part in (go(("travel", "billing")[at % 2]), f"Done {at}.")]
    script = {name: [passing(f"{name} did {at}.", "clerk") for at in range(count)] for name in ("travel", "billing")}
    chat = team_of(clerk, policy, **script)
    for at in range(count):
        chat.say(f"Please settle trip {at}.")
        if at == count // 2:
            chat.restart()
    return chat


def test_words_alone_are_left_of_those_who_hand_over_to_and_fro() -> None:
    chat = round_trips(5)
    for name in ("clerk", "travel", "billing"):
        assert not any(f"`{MARK}`" in one.text for one in sents(chat, name))
        assert grow(sents(chat, name)), "what was decided once stays so, after a restart, too"
    assert {one.contents[-1].role for one in chat.sent} == {"user"}
    assert "travel did 2." in chat.sent[-1].text
    assert "Please settle trip 4." in sents(chat, "travel")[-1].contents[-1].parts[-1].text
    assert Counter(rows(chat)) == {
        (name, form): count for name, count in (("travel", 3), ("billing", 2)) for form in ("extract", "left_out")
    }
    chat.replays()


def test_ten_transfers_of_a_team_of_three_cost_the_others_nothing() -> None:
    chat = round_trips(5)
    whole = sum(manifest.whole_history_tokens for manifest in chat.manifests())
    counted = sum(manifest.request_tokens for manifest in chat.manifests())
    assert counted < 0.7 * whole


def test_a_transfer_that_nobody_says_anything_beside_stays() -> None:
    chat = team_of([go("travel"), "Alone."], travel=[go("clerk")])
    chat.say("To Rome.", "And back.")
    assert [f"`{MARK}`" in one.text for one in chat.sent] == [False, False, True, True]
    assert grow(sents(chat, "clerk"))
    chat.replays()


@pytest.mark.parametrize("more", [{"transfer_reason": "You know Rome."}, {"note": "mind the dog"}])
def test_what_a_transfer_says_beside_the_name_stays(more: dict[str, str]) -> None:
    chat = team_of([go("travel", **more)], travel=["Booked.", "Again."])
    chat.say("To Rome.", "And back.")
    assert all(next(iter(more.values())) in one.text for one in sents(chat, "travel"))
    assert not rows(chat)
    chat.replays()


def test_what_was_called_beside_a_transfer_stays() -> None:
    chat = team_of([["On it.", call("query_orders", page="a"), go("travel")]], travel=["Booked.", "Again."])
    chat.say("To Rome.", "And back.")
    for one in sents(chat, "travel"):
        assert "On it." in one.text
        assert one.text.count("`query_orders`") == 2, "the call and what it gave"
        assert f"`{MARK}`" not in one.text
    assert rows(chat) == [("clerk", "extract")] * 2
    assert grow(sents(chat, "travel"))
    chat.replays()


def test_a_user_who_writes_what_looks_like_a_transfer_is_read() -> None:
    chat = team_of([go("travel")], travel=["Booked.", "Again."])
    chat.say("To Rome.")
    shown = chat.raw[-1].contents[1].parts
    posed = types.UserContent(parts=[types.Part(text=part.text.replace("travel", "billing")) for part in shown])
    chat.say(posed)
    assert chat.sent[-1].text.count(f"`{MARK}`") == 1
    chat.replays()


@pytest.mark.parametrize(
    ("window", "settings"),
    [(3_000, {}), (64_000, {"sees": "own"}), (3_000, {"conversation": {"strategy": "sliding_turns"}})],
)
def test_small_windows_and_other_policies_keep_it_so(window: int, settings: dict[str, Any]) -> None:
    clerk = [part for at in range(4) for part in (call("query_orders", page=f"{at}"), go("travel"), f"Done {at}.")]
    travel = [passing(f"Trip {at} is booked. " * 30, "clerk") for at in range(4)]
    chat = team_of(clerk, PackPolicy(max_input_tokens=window, **settings), travel=travel)
    chat.say(*(f"Please settle trip {at}." for at in range(4)))
    manifests = chat.manifests()
    assert settings or {one.prefix.broken_by for one in manifests} <= {"cut", "tools_changed", None}
    assert not any(f"`{MARK}`" in one.text for one in sents(chat, "clerk"))
    assert not any(one.faults for one in chat.sent)
    chat.replays()


def test_what_was_sent_alone_stays_where_a_cut_brings_it_beside_a_message() -> None:
    chat = team_of([go("travel"), "Alone."], travel=[go("clerk")])
    chat.say("To Rome.")
    shown = [[text_part(part.text) for part in one.parts or () if part.text] for one in chat.raw[1].contents]
    contents = [attributed(content_of_parts("user", parts)) for parts in shown]
    assert bare_transfers(contents, (0, 1, 2)) == {1: (1,), 2: (1,)}
    assert bare_transfers(contents, (0, 3, 4)) == {}, "the agent's own call stood between them"


def test_it_is_explained() -> None:
    chat = round_trips(1)
    answer = why(chat.store, "tool `transfer_to_agent` with parameters", session="s1")
    assert any("handed over to another" in str(place) for place in answer.places)
    assert "left out" not in read_view(Replayer(chat.store), chat.latest()).in_short
