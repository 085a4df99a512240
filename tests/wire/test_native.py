"""What providers receive through ADK's clients: Gemini's and Claude's own, and LiteLLM with ``-m integration``."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
from google.adk.tools import LongRunningFunctionTool
from google.genai import types
from matrix import but_slow
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
    breakers,
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
DOUBLED = ("transfer", "long-running")
"""The scenarios in which ADK itself sends two messages of one role behind each other."""
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
        faults = {fault.partition(":")[0] for fault in done.server.faults}
        assert faults <= ({"roles_alternate"} if scenario in DOUBLED else set())
        assert done.server.over == []
        if client in NATIVE:
            assert breakers(done.chat) <= {"cut", "pack"}, "nobody of the app is named"


@pytest.mark.parametrize("window", [8_000, 40_000])
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("client", NATIVE)
@pytest.mark.rows(2, slow=8)
def test_no_loss_of_a_cache_is_called_the_apps(client: str, scenario: str, window: int) -> None:
    with run(client, SCENARIOS[scenario](), window=window) as done:
        assert len(done.chat.manifests()) > 5
        assert breakers(done.chat) <= ({"cut", "pack"} if window == 8_000 else set())


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("client", NATIVE)
@pytest.mark.rows(3, slow=8)
def test_observing_changes_no_byte(client: str, scenario: str) -> None:
    bodies = []
    for way in ("alone", "observe"):
        with run(client, SCENARIOS[scenario](), way=way) as done:
            bodies.append([json.dumps(request.body) for request in done.server.requests])
            manifests = done.chat.manifests() if way == "observe" else []
    assert bodies[0] == bodies[1]
    assert len(manifests) >= len(bodies[1]) > 0
    assert {manifest.arm for manifest in manifests} == {"observe"}


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name not in DOUBLED])
@pytest.mark.parametrize("client", ["litellm-openai", "litellm-ollama"])
def test_roles_alternate_behind_cuts_as_they_do_without_the_plugin(client: str, scenario: str) -> None:
    with run(client, SCENARIOS[scenario](), window=3_500) as done:
        assert done.failed == []
        assert [fault for fault in done.server.faults if fault.startswith("roles_alternate")] == []


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "sse"])
@pytest.mark.parametrize("client", EVERY)
@pytest.mark.rows(2)
def test_ten_turns_are_valid_inside_the_window_and_cached(client: str, stream: bool) -> None:
    with run(client, mixed(), stream=stream) as done:
        assert done.failed == []
        assert done.server.faults == []
        assert len(done.server.requests) == 26
        # Where a prefix ends, Claude's thoughts leave, and what stands behind the first of them is read again.
        assert done.server.cached_share >= (0.75 if "claude" in client else 0.8) or client == "litellm-ollama"
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
        done.chat.replays(every=1)


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
@pytest.mark.rows(3)
def test_what_is_signed_is_whole_or_absent(client: str, window: int, scenario: Scenario) -> None:
    with run(client, scenario, window=window) as done:
        assert done.failed == []
        assert done.server.faults == []
        assert done.server.over == []
        done.chat.replays(every=1)


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
        done.chat.replays(every=1)


def test_a_signed_thought_that_holds_what_is_masked_is_told_of() -> None:
    turns = [(asks(0), [calls("k0", thought="Ann is ann@example.com."), answers(0)])]
    with run("claude", Scenario(lambda llm: clerk(llm, thinks=True), turns), policy=MASKED) as done:
        assert done.failed == []
        assert done.server.faults == []
        notes = [" ".join(manifest.degradations) for manifest in done.chat.manifests()]
        assert ["signed thought" in note for note in notes] == [False, True]


@pytest.mark.parametrize("stream", [True, False], ids=["sse", "whole"])
@pytest.mark.parametrize("client", NATIVE)
@pytest.mark.rows(2)
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
        done.chat.replays(every=1)


def _with_media(at: int, kind: str, *media: bytes) -> types.Content:
    parts = [types.Part.from_bytes(data=data, mime_type=kind) for data in media]
    return types.Content(role="user", parts=[types.Part(text=asks(at)), *parts])


def _png(seed: int, size: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x10\0\0\0\x10" + random.Random(seed).randbytes(size)


def _pdf(seed: int, pages: int) -> bytes:
    return b"%PDF-1.4\n" + b"%d" % seed + b"".join(b"<< /Type /Page /N %d >>\n" % page for page in range(pages))


LARGE = {
    "bytes": lambda at: _with_media(at, "image/png", _png(at, 5_000_000)),
    "media": lambda at: _with_media(at, "image/png", *(_png(at * 40 + number, 200) for number in range(40))),
    "pages": lambda at: _with_media(at, "application/pdf", _pdf(at, 40)),
}


@pytest.mark.parametrize("kind", but_slow(LARGE, "bytes"))
@pytest.mark.parametrize("client", NATIVE)
def test_bytes_media_and_pages_stay_under_what_a_provider_takes(client: str, kind: str) -> None:
    turns = [(LARGE[kind](at), [calls(f"k{at}"), answers(at)]) for at in range(6)]
    with run(client, Scenario(clerk, turns), window=600_000) as done:
        assert done.failed == []
        assert done.server.faults == []
        done.chat.replays(every=1)


REFUSED = {
    "claude": [
        Refusal(413, "Request exceeds the maximum size"),
        Refusal(400, "messages: too many images and documents: 112 + 0 > 100"),
        Refusal(400, "messages.2.content.1.pdf.source.base64.data: A maximum of 100 PDF pages may be provided."),
    ],
    "gemini": [
        Refusal(400, "Request payload size exceeds the limit: 20971520 bytes."),
        Refusal(413, "Request Entity Too Large"),
        Refusal(400, "The document contains 1200 pages which exceeds the supported page limit of 1000."),
    ],
}


@pytest.mark.parametrize(("client", "at"), [(client, at) for client in NATIVE for at in range(3)])
@pytest.mark.rows(3)
def test_a_refusal_for_bytes_media_or_pages_costs_no_turn(client: str, at: int) -> None:
    refusal, kind = REFUSED[client][at], "application/pdf" if at == 2 else "image/png"
    piece = (lambda seed: _pdf(seed, 3)) if at == 2 else (lambda seed: _png(seed, 2_000))
    turns = [(_with_media(number, kind, piece(number)), [answers(number)]) for number in range(4)]
    turns += [(asks(4), [refusal, answers(4)]), (asks(5), [answers(5)])]
    with run(client, Scenario(clerk, turns), window=60_000) as done:
        assert done.failed == []
        assert done.server.faults == []
        assert "is left out" in str(done.server.requests[-2].body)
        done.chat.replays(every=1)


@pytest.mark.parametrize("client", EVERY)
def test_parallel_calls_that_nothing_has_answered_are_pending(client: str) -> None:
    def order(item: str) -> None:
        """Orders an item, which takes days."""

    turns = [
        (asks(0), [Reply(calls=[("order", {"item": "a"}), ("order", {"item": "b"})]), answers(0)]),
        (asks(1), [Reply(calls=[("order", {"item": "c"}), ("look_up", {"key": "k"})]), answers(1)]),
        (asks(2), [answers(2)]),
    ]
    tools = [LongRunningFunctionTool(order), look_up]
    with run(client, Scenario(lambda llm: clerk(llm, tools=tools), turns)) as done:
        assert done.failed == []
        # ADK alone ends its run behind such calls, so that a user's message follows another one.
        assert [fault for fault in done.server.faults if not fault.startswith("roles_alternate")] == []
        assert "pending" in str(done.server.requests[-1].body)
        events = asyncio.run(done.chat.held()).events
        assert "pending" not in str([event.content for event in events])
        done.chat.replays(every=1)


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
        assert any("upload it once" in note for note in done.chat.latest().degradations)
        first = done.chat.manifests()[0]
        assert not any("upload" in note for note in first.degradations)
