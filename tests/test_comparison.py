"""What calls would have read without packs, as their manifests record it, against runs without the plugin."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import pytest
from click.testing import CliRunner
from google.adk.agents import LlmAgent, SequentialAgent
from plans import NARROW, planned
from scripted import Chat, Scripted, big_file, call, delete_all, look_up, send_mail
from unplugged import Reached, Witness

from aether_context import PackPolicy
from aether_context.cli import main
from aether_context.reading import Comparison, Reading

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


def test_a_plan_adds_nothing_to_it() -> None:
    tools = [look_up, big_file, send_mail, delete_all]
    script = [reply for at in range(8) for reply in (call("look_up", key=f"k{at}"), f"answer {at}")]
    given = {"tools": tools, "script": script, "state": planned(NARROW)}
    packed, plain = both(*QUESTIONS, policy=PackPolicy(max_input_tokens=3_000), **given)
    assert any(one.tools.left_out for one in packed.manifests())
    for one, request in zip(reached(compared(packed)), plain, strict=True):
        assert one.tokens == pytest.approx(request.tokens, abs=2)
        assert one.shared == pytest.approx(request.shared, abs=2)


def test_an_instruction_that_changes_shares_nothing() -> None:
    def ticking() -> Callable[[Any], str]:
        ticks = iter(range(100))
        return lambda _: f"You help. It is {next(ticks):02} past nine."

    witness = Witness()
    chats = [
        Chat(agent=LlmAgent(name="clerk", model=Scripted(sent=[], usage=False), instruction=ticking()), **options)
        for options in ({}, {"plugin": witness})
    ]
    for chat in chats:
        chat.say("one", "two", "three")
    found = compared(chats[0])
    assert reached(found) == witness.requests
    assert [one.unpacked.shared for one in found] == [0, 0, 0]


@pytest.mark.filterwarnings("ignore:SequentialAgent is deprecated:DeprecationWarning")
def test_agents_of_one_session_have_histories_of_their_own() -> None:
    def team() -> Chat:
        agents = [
            LlmAgent(name=name, model=Scripted(sent=[], usage=False), instruction=f"You are {name}.")
            for name in ("writer", "critic")
        ]
        return Chat(agent=SequentialAgent(name="team", sub_agents=agents), **options)

    options: dict[str, Any] = {"policy": PackPolicy(max_input_tokens=2_000)}
    packed = team()
    options = {"plugin": (witness := Witness())}
    plain = team()
    for chat in (packed, plain):
        chat.say(*(f"{question} and some more words to fill it" * 20 for question in QUESTIONS))
    assert reached(compared(packed)) == witness.requests


def test_results_that_are_kept_elsewhere_count_as_a_whole() -> None:
    packed, plain = both(*QUESTIONS, policy=PackPolicy(max_input_tokens=4_000))
    found = compared(packed)
    assert sum(one.packed.tokens for one in found) < sum(one.tokens for one in plain) / 4
    for one, request in zip(found, plain, strict=True):
        assert one.unpacked.tokens == pytest.approx(request.tokens, rel=0.03)
        assert one.unpacked.shared == pytest.approx(request.shared, rel=0.03)


def test_another_process_goes_on_with_what_was_cut() -> None:
    packed, plain = both(*QUESTIONS, policy=POLICIES["cuts"])
    packed.restart()
    packed.llm.script = ["one more answer"]
    packed.say("one more question")
    last = Comparison([packed.manifests()[-1]]).unpacked
    assert last.tokens > plain[-1].tokens
    assert last.tokens == pytest.approx(plain[-1].tokens, rel=0.05)


def test_what_providers_report_moves_both_sides() -> None:
    chat = Chat(tools=[look_up, big_file], policy=POLICIES["cuts"], script=answers())
    chat.say(*QUESTIONS)
    found, manifest = compared(chat)[-1], chat.manifests()[-1]
    assert manifest.calibration is not None
    assert found.packed.tokens == manifest.request_tokens != manifest.counted_tokens
    ratio = manifest.calibration.ratio
    counted = both(*QUESTIONS, policy=POLICIES["cuts"])[1][-1].tokens
    assert found.unpacked.tokens == pytest.approx(ratio * counted, rel=0.1)


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
