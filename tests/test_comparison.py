"""What calls would have read without packs, as their manifests record it, against runs without the plugin."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import copy
from typing import Any

import pytest
from click.testing import CliRunner
from scripted import Chat, big_file, call, look_up
from unplugged import Reached, Witness

from aether_context import PackPolicy
from aether_context.canonical import hash_text
from aether_context.evidence import evidence_uri
from aether_context.lab.cli import main
from aether_context.lab.reading import Comparison, Reading
from aether_context.usage import CallUsage

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
        made[-1].add(manifest)
    return made


def reached(comparisons: Sequence[Comparison]) -> list[Reached]:
    return [Reached(one.unpacked.tokens, one.unpacked.shared) for one in comparisons]


WHOLE = {"mode": "off"}
POLICIES = {
    "cuts": PackPolicy(max_input_tokens=2_000, offload=WHOLE),
    "no cut": PackPolicy(),
    "sliding": PackPolicy(max_input_tokens=2_000, offload=WHOLE, conversation={"strategy": "sliding_turns"}),
    "placeholders": PackPolicy(max_input_tokens=8_000, offload=WHOLE, conversation={"strategy": "stable_prefix"}),
    "hashes": PackPolicy(max_input_tokens=2_000, offload=WHOLE, record="hashes"),
}


@pytest.mark.parametrize("name", POLICIES)
def test_it_is_what_a_run_without_the_plugin_sends(name: str) -> None:
    packed, plain = both(*QUESTIONS, policy=POLICIES[name])
    found = compared(packed)
    assert reached(found) == plain
    assert [one.packed.tokens for one in found] == [one.request_tokens for one in packed.manifests()]
    if name != "no cut":
        assert sum(one.packed.tokens for one in found) < sum(tokens for tokens, _ in plain) / 2


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
    answering = [one.unpacked.tokens for at, one in enumerate(calls) if at % 4 == 3]
    assert len(calls) == 2 * len(witness.requests)
    assert answering == pytest.approx([one.tokens for one in witness.requests[1::2]], rel=0.05)
    assert "99: value 636 in k0" in packed.sent[2].wires[-1], "a result is really read back"
    cuts = [event for one in packed.manifests() for event in one.truncation_events if event.stage == "cut"]
    assert cuts


def test_usage_shows_both_sides() -> None:
    packed, plain = both(*QUESTIONS, policy=POLICIES["cuts"])
    result = CliRunner().invoke(main, ["usage", "--store", packed.store.url])
    rows = {line[:35].strip(): line[35:].split() for line in result.stdout.splitlines()}
    sent = sum(one.request_tokens for one in packed.manifests())
    whole = sum(one.tokens for one in plain)
    assert rows["input tokens"] == [f"{sent:,}", f"{whole:,}"]
    over = sum(one.tokens > 2_000 for one in plain)
    assert rows["larger than the window"] == ["0", "calls", f"{over:,}", "calls"]
    value = json.loads(CliRunner().invoke(main, ["usage", "--json", "--store", packed.store.url]).stdout)["comparison"]
    summed = Comparison(packed.manifests())
    assert value["unpacked"]["tokens"] == whole
    assert value["unpacked"]["largest"] == max(one.tokens for one in plain)
    assert value["packed"]["cost_usd"] == pytest.approx(float(summed.packed.cost_usd or 0))
    assert 0 < value["packed"]["cost_usd"] < value["unpacked"]["cost_usd"]


def test_what_is_saved_is_measured_like_the_bill() -> None:
    chat = Chat(policy=POLICIES["cuts"], tools=[look_up, big_file], script=answers())
    chat.say(*QUESTIONS)
    manifests = chat.manifests()
    usages = [
        CallUsage.of_outcome(outcome, one.request_tokens)
        for one in manifests
        if (outcome := chat.store.outcome(one)) is not None
    ]
    billed, cached = Comparison(), Comparison(manifests)
    for manifest, usage in zip(manifests, usages, strict=True):
        billed.add(manifest, usage)
    assert billed.packed.cost_usd is not None
    assert billed.unpacked.cost_usd is not None
    assert cached.packed.cost_usd is not None
    assert billed.packed.cost_usd > cached.packed.cost_usd, "a third alone was cached"
    bill = sum(usage.priced(chat.llm.model, 0).cost_usd or 0 for usage in usages if usage is not None)
    assert float(billed.packed.cost_usd) == pytest.approx(float(bill), rel=0.2), "but for the answers"
    lines = CliRunner().invoke(main, ["usage", "--store", chat.store.url]).stdout.splitlines()
    saved = billed.unpacked.cost_usd - billed.packed.cost_usd
    assert (
        f"  saved: ${saved:,.4f}, {saved / billed.unpacked.cost_usd:.0%} of the cost of the same calls without" in lines
    )


def test_people_read_expected_tokens_and_json_has_the_counted_ones() -> None:
    chat = Chat(policy=POLICIES["cuts"], tools=[look_up, big_file], script=answers())
    chat.say(*QUESTIONS)
    last = chat.manifests()[-1]
    assert last.request_tokens != last.counted_tokens
    for command in ("list", f"inspect {last.number}"):
        words = [*command.split(), "--store", chat.store.url]
        text = CliRunner().invoke(main, words).stdout
        assert f"{last.request_tokens:,}" in text
        assert f"{last.counted_tokens:,}" not in text
        assert str(last.counted_tokens) in CliRunner().invoke(main, [*words, "--json"]).stdout
