"""What calls would have read without packs, as their manifests record it, against runs without the plugin."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from copy import copy
from typing import Any

import pytest
from browsing import Browser, Page
from scripted import Chat, big_file, call, look_up, new_store
from terminal import run, told
from unplugged import Reached, Witness

from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin
from aether_context.canonical import hash_text
from aether_context.evidence import evidence_uri
from aether_context.lab.reading import Comparison, Reading

QUESTIONS = [f"question {at}" for at in range(8)]


def answers() -> list[Any]:
    """Looks something up or reads a large file before each answer."""
    calls = [call("big_file", name=f"k{at}") if at % 2 else call("look_up", key=f"k{at}") for at in range(8)]
    return [reply for at, one in enumerate(calls) for reply in (one, f"answer {at}")]


def both(*questions: str, policy: PackPolicy, **options: Any) -> tuple[Chat, list[Reached]]:
    """The same conversation with the plugin and without: its packs, and what the model is sent without."""
    witness = Witness()
    given = {"tools": [look_up, big_file], "script": answers(), **options}
    packed, plain = Chat(policy=policy, **given), Chat(plugin=witness, **given)
    for chat in (packed, plain):
        chat.llm.usage = False
        chat.say(*questions)
    return packed, witness.requests


def compared(chat: Chat) -> list[Comparison]:
    """A comparison for each call."""
    whole, made = Comparison(), list[Comparison]()
    for manifest in chat.manifests():
        made.append(copy(whole))
        made[-1].packed, made[-1].unpacked = Reading(), Reading()
        made[-1].add(manifest, manifest.usage({}))
    return made


def reached(comparisons: Sequence[Comparison]) -> list[Reached]:
    return [Reached(one.unpacked.totals.input_tokens, one.unpacked.shared) for one in comparisons]


WHOLE = {"mode": "off"}
POLICIES = {
    "cuts": PackPolicy(max_input_tokens=2_000, offload=WHOLE),
    "no cut": PackPolicy(),
    "sliding": PackPolicy(max_input_tokens=2_000, offload=WHOLE, conversation={"strategy": "sliding_turns"}),
    "placeholders": PackPolicy(max_input_tokens=8_000, offload=WHOLE, conversation={"strategy": "stable_prefix"}),
    "hashes": PackPolicy(max_input_tokens=2_000, offload=WHOLE, record="hashes"),
}


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.rows(3)
def test_it_is_what_a_run_without_the_plugin_sends(name: str) -> None:
    packed, plain = both(*QUESTIONS, policy=POLICIES[name])
    found = compared(packed)
    assert reached(found) == plain
    assert [one.packed.totals.input_tokens for one in found] == [one.request_tokens for one in packed.manifests()]
    if name != "no cut":
        assert sum(one.packed.totals.input_tokens for one in found) < sum(tokens for tokens, _ in plain) / 2


@pytest.mark.parametrize("window", [6_000, 30_000])
@pytest.mark.rows(1)
def test_what_read_a_result_back_is_left_out_without_packs(window: int) -> None:
    def script(reads: bool) -> list[Any]:
        made = list[Any]()
        for at in range(8):
            uri = evidence_uri(hash_text(big_file(f"k{at}")["result"]), "txt")
            back = [call("read_artifact", uri=uri, start_line=1), call("search_artifact", uri=uri, query=f"k{at}")]
            made += [call("big_file", name=f"k{at}"), *(back if reads else ()), f"answer {at}"]
        return made

    witness, policy = Witness(), PackPolicy(max_input_tokens=window)
    packed = Chat(policy=policy, tools=[big_file], script=script(True))
    plain = Chat(plugin=witness, tools=[big_file], script=script(False))
    for chat in (packed, plain):
        chat.llm.usage = False
        chat.say(*QUESTIONS)
    calls = compared(packed)
    answering = [one.unpacked.totals.input_tokens for at, one in enumerate(calls) if at % 4 == 3]
    assert len(calls) == 2 * len(witness.requests)
    assert answering == pytest.approx([one.tokens for one in witness.requests[1::2]], rel=0.05)
    assert "99: value 636 in k0" in packed.sent[2].wires[-1], "a result is really read back"
    cuts = [event for one in packed.manifests() for event in one.truncation_events if event.stage == "cut"]
    assert cuts


def test_usage_shows_both_sides() -> None:
    packed, plain = both(*QUESTIONS, policy=POLICIES["cuts"])
    shown = run("usage", store=packed.store).stdout
    rows = {line[:35].strip(): line[35:].split() for line in shown.splitlines()}
    sent = sum(one.request_tokens for one in packed.manifests())
    whole = sum(one.tokens for one in plain)
    assert rows["input tokens"] == [f"{sent:,}", f"{whole:,}"]
    over = sum(one.tokens > 2_000 for one in plain)
    assert rows["larger than the window"] == ["0", "calls", f"{over:,}", "calls"]
    value = told("usage", store=packed.store)["comparison"]
    summed = Comparison((one, one.usage({})) for one in packed.manifests()).packed.totals
    assert value["unpacked"]["tokens"] == whole
    assert value["unpacked"]["largest"] == max(one.tokens for one in plain)
    assert value["packed"]["cost_usd"] == pytest.approx(float(summed.cost_usd))
    assert 0 < value["packed"]["cost_usd"] < value["unpacked"]["cost_usd"]


def bill(chat: Chat) -> float:
    """US dollars for what the model reported, by the prices of gemini-flash-latest."""
    usages = [event.usage_metadata for event in asyncio.run(chat.held()).events if event.usage_metadata]
    assert len(usages) == len(chat.manifests())
    return (
        sum(
            0.3 * (one.prompt_token_count - one.cached_content_token_count)
            + 0.03 * one.cached_content_token_count
            + 2.5 * one.candidates_token_count
            for one in usages
        )
        / 1e6
    )


def figures(chat: Chat) -> tuple[dict[str, Any], list[dict[str, Any]], Page]:
    """What `usage` and `list` say, and the page of the session."""
    page = Browser(chat.store).open("/session?app=shop&user=ann&session=s1")
    return told("usage", store=chat.store), told("list", store=chat.store), page


def test_usage_list_and_viewer_add_up_to_the_bill() -> None:
    chat = Chat(policy=POLICIES["cuts"], tools=[look_up, big_file], script=answers())
    chat.say(*QUESTIONS)
    usage, listed, page = figures(chat)
    row_costs = re.findall(r'<td class="r">\$([\d.]+)</td>', page.html)
    shown = float(re.search(r"<dt>cost</dt><dd>\$([\d.]+)</dd>", page.html)[1])
    costs = [usage["all"]["cost_usd"], usage["comparison"]["packed"]["cost_usd"], sum(map(float, row_costs)), shown]
    assert [*costs, sum(one["cost_usd"] for one in listed)] == pytest.approx([bill(chat)] * 5, rel=0.01)
    assert not any(one["cost_estimated"] for one in (usage["all"], *listed))
    without = usage["comparison"]["unpacked"]
    assert without["cost_estimated"]
    saved = f"${without['cost_usd'] - usage['all']['cost_usd']:,.4f}"
    assert f"Saved: {saved}," in page.text
    assert f"tokens for ${without['cost_usd']:,.4f} estimated" in page.text
    assert page.html.count("estimated") == 1, "what was paid is no estimate"
    lines = run("usage", store=chat.store).stdout
    assert f"saved: {saved}, " in lines


def test_without_reports_both_sides_are_estimated_in_the_same_way() -> None:
    packed, _ = both(*QUESTIONS, policy=PackPolicy())
    usage, listed, page = figures(packed)
    sides = usage["comparison"]
    assert sum(one["cost_usd"] for one in listed) == pytest.approx(usage["all"]["cost_usd"])
    tokens = [(one.request_tokens, one.expected(one.prefix.shared_tokens or 0)) for one in packed.manifests()]
    expected = sum(0.3 * whole - 0.27 * shared for whole, shared in tokens) / 1e6
    assert usage["all"]["cost_usd"] == pytest.approx(expected, rel=0.01), "a cache serves what is shared"
    assert all(one["cost_estimated"] for one in (usage["all"], *sides.values(), *listed))
    assert sides["packed"]["cost_usd"] == pytest.approx(sides["unpacked"]["cost_usd"], rel=0.05), "nothing was cut"
    assert re.search(r"<dt>cost</dt><dd>\$[\d.]+ estimated</dd>", page.html)


def test_what_was_only_observed_is_paid_for_without_packs() -> None:
    plugin = ContextPackPlugin(policy=POLICIES["cuts"], store=new_store(), observe=True)
    chat = Chat(plugin=plugin, tools=[look_up, big_file], script=answers())
    chat.say(*QUESTIONS)
    chat.store = plugin.store
    usage, _, page = figures(chat)
    assert usage["comparison"]["unpacked"]["cost_usd"] == pytest.approx(bill(chat))
    assert usage["comparison"]["packed"]["cost_usd"] < bill(chat)
    assert "With packs the same calls would have read" in page.text


def test_people_read_expected_tokens_and_json_has_the_counted_ones() -> None:
    chat = Chat(policy=POLICIES["cuts"], tools=[look_up, big_file], script=answers())
    chat.say(*QUESTIONS)
    last = chat.latest()
    assert last.request_tokens != last.counted_tokens
    for command in ("list", f"inspect {last.number}"):
        text = run(*command.split(), store=chat.store).stdout
        assert f"{last.request_tokens:,}" in text
        assert f"{last.counted_tokens:,}" not in text
        assert str(last.counted_tokens) in run(*command.split(), "--json", store=chat.store).stdout
