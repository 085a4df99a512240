"""What providers receive through ADK's clients: Gemini's and Claude's own, and LiteLLM with ``-m integration``."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("anthropic")

from scripted import Chat
from wire.rules import GEMINI_UNSIGNED
from wire.servers import Refusal, Reply
from wire.sessions import (
    BRIEF,
    CLIENTS,
    NATIVE,
    SCENARIOS,
    Scenario,
    answers,
    arguments,
    asks,
    calls,
    clerk,
    look_up,
    mixed,
    run,
    thinking,
    words,
)

from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin

pytestmark = pytest.mark.filterwarnings("ignore:The model .* is deprecated:DeprecationWarning")


LITE = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]
"""LiteLLM warns of itself, and leaves connections open."""
EVERY = [pytest.param(client, marks=() if client in NATIVE else LITE) for client in CLIENTS]


@pytest.fixture(autouse=True)
def _offline(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    if "litellm" in request.node.name:
        pytest.importorskip("litellm")


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("client", CLIENTS)
def test_every_scenario_is_valid_and_inside_the_window(client: str, scenario: str) -> None:
    with run(client, SCENARIOS[scenario]()) as done:
        assert done.failed == []
        assert done.server.faults == []
        assert done.server.over == []


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "sse"])
@pytest.mark.parametrize("client", EVERY)
def test_ten_turns_are_valid_inside_the_window_and_cached(client: str, stream: bool) -> None:
    with run(client, mixed(), stream=stream) as done:
        assert done.failed == []
        assert done.server.faults == []
        assert len(done.server.requests) == 26
        assert done.server.cached_share >= 0.8 or client == "litellm-ollama"
        if client not in NATIVE:
            return
        assert done.server.over == []
        # The agent that runs as a tool is in the ledger of its caller.
        assert _used(done.chat).totals.cached_share == pytest.approx(done.server.cached_share, abs=0.001)


def _used(chat: Chat) -> Any:
    """The account of the chat's session."""
    assert isinstance(chat.plugin, ContextPackPlugin)
    report = chat.plugin.usage(app=chat.app_name, user=chat.user, session=chat.session)
    assert report is not None
    return report.session


@pytest.mark.parametrize("client", NATIVE)
def test_the_first_extract_leaves_the_prefix_in_the_cache(client: str) -> None:
    def export(name: str) -> dict[str, str]:
        """Exports a journal."""
        return {"journal": words(f"journal {name}", 4_000)}

    turns = [(asks(at, 1_500), [calls(f"k{at}"), answers(at)]) for at in range(3)]
    turns.append((asks(3), [Reply(calls=[("export", {"name": "a"})]), answers(3)]))
    with run(client, Scenario(lambda llm: clerk(llm, tools=[look_up, export]), turns), window=32_000) as done:
        assert done.failed == []
        assert done.server.faults == []
        before, after = (request.usage for request in done.server.requests[-2:])
        assert "artifact://evidence/" in str(done.server.requests[-1].body)
        assert after.cached >= 0.95 * before.input


@pytest.mark.parametrize("client", NATIVE)
def test_the_summary_of_adks_own_compaction_is_a_users_message(client: str) -> None:
    with run(client, SCENARIOS["images"](), way="compaction") as done:
        assert {fault.partition(":")[0] for fault in done.server.faults} == {f"{client}_begins_with_the_user"}
    with run(client, SCENARIOS["images"](), way="both") as done:
        assert done.server.faults == []
        done.chat.replays()


@pytest.mark.parametrize("client", NATIVE)
def test_a_rate_limit_teaches_no_window(client: str) -> None:
    refusal = Refusal(429, "You exceeded your quota of 3000 input tokens per minute: prompt is too long")
    turns = [(asks(0), []), (asks(1), [refusal]), (asks(2), [])]
    with run(client, Scenario(lambda llm: clerk(llm, tools=[]), turns)) as done:
        assert len(done.failed) == 1
        assert done.server.faults == []
        assert {manifest.window for manifest in done.chat.manifests()} == {8_000}


@pytest.mark.parametrize(
    ("client", "window", "scenario"),
    [
        ("claude", 5_000, thinking(3_400, turns=3)),
        ("claude", 3_000, thinking(800, turns=3, steps=3)),
        ("claude", 2_000, thinking(500, turns=3)),
        ("gemini", 8_000, arguments(3_000, turns=3)),
        ("gemini", 2_000, arguments(700, turns=4)),
        ("claude", 2_000, arguments(700, turns=4)),
    ],
    ids=lambda value: str(value) if isinstance(value, (str, int)) else "",
)
def test_what_is_signed_is_whole_or_absent(client: str, window: int, scenario: Scenario) -> None:
    with run(client, scenario, window=window) as done:
        assert done.failed == []
        assert done.server.faults == []
        assert done.server.over == []
        done.chat.replays()


MASKED = PackPolicy(max_input_tokens=8_000, redact=("personal",), redact_prompt=True)


@pytest.mark.parametrize("client", NATIVE)
def test_a_masked_call_is_not_sent_under_the_signature_of_another(client: str) -> None:
    address = "ann@example.com"

    def turn(at: int) -> tuple[str, list[Reply]]:
        saving = Reply(calls=[("save", {"name": f"n{at}", "body": f"write to {address}"})], thought="To be saved.")
        return asks(at), [saving, calls(f"k{at}", thought="Now the report."), answers(at)]

    scenario = Scenario(lambda llm: clerk(llm, thinks=True, instruction=BRIEF), [turn(at) for at in range(3)])
    with run(client, scenario, policy=MASKED) as done:
        assert done.failed == []
        assert done.server.faults == []
        bodies = [str(request.body) for request in done.server.requests]
        assert len(bodies) == 9
        assert not any(address in body for body in bodies)
        assert "write to [email]" in bodies[1]
        assert [GEMINI_UNSIGNED in body for body in bodies] == [client == "gemini" and at > 0 for at in range(9)]
        done.chat.replays()


def test_a_signed_thought_that_holds_what_is_masked_is_told_of() -> None:
    turns = [(asks(0), [calls("k0", thought="Ann is ann@example.com."), answers(0)])]
    with run("claude", Scenario(lambda llm: clerk(llm, thinks=True), turns), policy=MASKED) as done:
        assert done.failed == []
        assert done.server.faults == []
        notes = [" ".join(manifest.degradations) for manifest in done.chat.manifests()]
        assert ["signed thought" in note for note in notes] == [False, True]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "sse"])
@pytest.mark.parametrize("client", NATIVE)
def test_a_refused_overflow_costs_the_user_no_turn(client: str, stream: bool) -> None:
    turns = [(asks(at), [answers(at)]) for at in range(9)]
    with run(client, Scenario(clerk, turns), window=20_000, limit=3_500, stream=stream) as done:
        assert done.failed == []
        assert done.server.faults == []
        assert sum(request.refused for request in done.server.requests) == 1
        manifests = done.chat.manifests()
        assert len(manifests) == len(done.server.requests)
        codes = [(done.chat.store.outcome(manifest) or {}).get("error_code") for manifest in manifests]
        assert codes.count("context_window_exceeded") == 1
        assert codes.count(None) == 9
        assert manifests[-1].window_mark == "learned"
        done.chat.replays()


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("client", [client for client in CLIENTS if client not in NATIVE])
def test_a_refused_overflow_costs_no_turn_through_litellm(client: str) -> None:
    turns = [(asks(at), [answers(at)]) for at in range(9)]
    with run(client, Scenario(clerk, turns), window=20_000, limit=3_500) as done:
        assert done.failed == []
        assert done.server.faults == []
        assert sum(request.refused for request in done.server.requests) >= 1


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("window", "scenario"),
    [
        (5_000, thinking(3_400, turns=4)),
        (3_000, thinking(800, turns=6, steps=4)),
        (2_000, thinking(500, turns=6)),
        (8_000, arguments(3_000)),
        (4_000, arguments(1_500)),
        (2_000, arguments(700)),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else "",
)
def test_large_thoughts_and_arguments_at_small_windows(client: str, window: int, scenario: Scenario) -> None:
    with run(client, scenario, window=window) as done:
        assert done.failed == []
        assert done.server.faults == []
        assert done.server.over == []


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore")
def test_a_pdf_that_is_uploaded_anew_at_every_call_is_told_of() -> None:
    pytest.importorskip("litellm")
    with run("litellm-openai", SCENARIOS["pdf"]()) as done:
        assert done.server.uploads > 1
        assert any("upload it once" in note for note in done.chat.manifests()[-1].degradations)
        first = done.chat.manifests()[0]
        assert not any("upload" in note for note in first.degradations)
