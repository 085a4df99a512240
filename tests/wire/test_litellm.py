"""What OpenAI, Claude and Ollama receive through LiteLLM, and every scenario through every client of ADK's."""

from __future__ import annotations

import pytest
from wire.sessions import (
    CLIENTS,
    NATIVE,
    SCENARIOS,
    Scenario,
    answers,
    arguments,
    asks,
    clerk,
    mixed,
    run,
    thinking,
)

pytestmark = [
    pytest.mark.integration,
    # LiteLLM's own, and unclosed connections of its clients.
    pytest.mark.filterwarnings("ignore"),
]
LITE = tuple(client for client in CLIENTS if client not in NATIVE)
CACHING = tuple(client for client in CLIENTS if client != "litellm-ollama")


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    pytest.importorskip("litellm")
    pytest.importorskip("anthropic")


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("client", CLIENTS)
def test_every_scenario_is_valid_and_inside_the_window(client: str, scenario: str) -> None:
    with run(client, SCENARIOS[scenario]()) as done:
        assert done.failed == []
        assert done.server.faults == []
        assert done.server.over == []


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "sse"])
@pytest.mark.parametrize("client", LITE)
def test_ten_turns_are_valid_and_cached(client: str, stream: bool) -> None:
    with run(client, mixed(), stream=stream) as done:
        assert done.failed == []
        assert done.server.faults == []
        assert len(done.server.requests) == 26
        assert done.server.cached_share >= 0.8 or client not in CACHING


@pytest.mark.parametrize("client", LITE)
def test_a_refused_overflow_costs_no_turn(client: str) -> None:
    turns = [(asks(at), [answers(at)]) for at in range(9)]
    with run(client, Scenario(clerk, turns), window=20_000, limit=3_500) as done:
        assert done.failed == []
        assert done.server.faults == []
        assert sum(request.refused for request in done.server.requests) >= 1


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


def test_a_pdf_that_is_uploaded_anew_at_every_call_is_told_of() -> None:
    with run("litellm-openai", SCENARIOS["pdf"]()) as done:
        assert done.server.uploads > 1
        assert any("upload it once" in note for note in done.chat.manifests()[-1].degradations)
        first = done.chat.manifests()[0]
        assert not any("upload" in note for note in first.degradations)
