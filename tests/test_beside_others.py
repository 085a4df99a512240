"""ADK's own plugins before and behind this one, with real runs."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from google.adk import plugins
from google.adk.artifacts import InMemoryArtifactService
from google.adk.events.event import Event
from google.adk.plugins.auto_tracing_plugin import AutoTracingPlugin
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.plugins.context_filter_plugin import ContextFilterPlugin
from google.adk.plugins.global_instruction_plugin import GlobalInstructionPlugin
from google.adk.plugins.multimodal_tool_results_plugin import MultimodalToolResultsPlugin
from google.adk.plugins.save_files_as_artifacts_plugin import SaveFilesAsArtifactsPlugin
from google.genai import types
from scripted import Chat, call, results

from aether_context import PackPolicy
from aether_context.store.replay import Replayer

RULE = "Answer in one sentence."
PLUGINS: dict[str, Callable[[Path], BasePlugin]] = {
    "AutoTracingPlugin": lambda _: AutoTracingPlugin(),
    "ContextFilterPlugin": lambda _: ContextFilterPlugin(num_invocations_to_keep=2),
    "DebugLoggingPlugin": lambda folder: plugins.DebugLoggingPlugin(output_path=str(folder / "debug.yaml")),
    "GlobalInstructionPlugin": lambda _: GlobalInstructionPlugin(RULE),
    "LoggingPlugin": lambda _: plugins.LoggingPlugin(),
    "MultimodalToolResultsPlugin": lambda _: MultimodalToolResultsPlugin(),
    "ReflectAndRetryModelPlugin": lambda _: plugins.ReflectAndRetryModelPlugin(),
    "ReflectAndRetryToolPlugin": lambda _: plugins.ReflectAndRetryToolPlugin(),
    "SaveFilesAsArtifactsPlugin": lambda _: SaveFilesAsArtifactsPlugin(),
    "ToolCallIntegrityPlugin": lambda _: plugins.ToolCallIntegrityPlugin(secret_key=b"k" * 32),
}

CHANGING = {"ContextFilterPlugin", "GlobalInstructionPlugin", "SaveFilesAsArtifactsPlugin"}
"""Those that change what the model gets to read."""


def test_these_are_all_that_need_no_cloud() -> None:
    names = [module.name for module in pkgutil.iter_modules(plugins.__path__) if "bigquery" not in module.name]
    modules = [importlib.import_module(f"{plugins.__name__}.{name}") for name in names]
    found = {
        name
        for module in modules
        for name, one in inspect.getmembers(module, inspect.isclass)
        if issubclass(one, BasePlugin) and one.__module__ == module.__name__ and one is not BasePlugin
    }
    assert found == set(PLUGINS)


def look_up(key: str) -> dict[str, str]:
    """Looks a key up; none has the name bad."""
    if key == "bad":
        raise ValueError("there is no such key")
    return {"result": f"{key}: " + " ".join(f"line {at} of {key}" for at in range(40))}


TURNS = 4
WINDOW = 1_900


def talked(other: BasePlugin | None = None, place: str = "") -> tuple[Chat, list[Event]]:
    """A conversation with a file, tool calls and a cut, another plugin in a place."""
    script = [reply for at in range(TURNS) for reply in (call("look_up", key=f"k{at}"), f"answer {at}")]
    chat = Chat(script, [look_up], PackPolicy(max_input_tokens=WINDOW), artifacts=InMemoryArtifactService())
    if other is not None:
        installed = chat.runner.plugin_manager.plugins
        installed.insert(installed.index(chat.plugin) + (place == "behind"), other)
    picture = types.Blob(data=b"\x89PNG" * 9, mime_type="image/png", display_name="plan.png")
    first = types.UserContent(parts=[types.Part(text="question 0"), types.Part(inline_data=picture)])
    return chat, chat.say(first, *(f"question {at}" for at in range(1, TURNS)))


@cache
def alone() -> list[str]:
    """The texts of the requests without another plugin."""
    return [one.text for one in talked()[0].sent]


def recorded(chat: Chat) -> list[str]:
    """The requests of the packs, in canonical JSON."""
    replayer = Replayer(chat.store)
    return [replayer.replay(manifest).request for manifest in chat.manifests()]


@pytest.mark.parametrize("place", ["before", "behind"])
@pytest.mark.parametrize("name", PLUGINS)
def test_runs_end_alike_and_every_call_has_its_pack(
    name: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What it wraps, in all modules of this process, is as it was for the tests behind this one.
    monkeypatch.setattr("google.adk.plugins.auto_tracing_plugin.setattr", monkeypatch.setattr, raising=False)
    chat, events = talked(PLUGINS[name](tmp_path), place)
    parts = [part for event in events if event.content and event.is_final_response() for part in event.content.parts]
    assert [part.text for part in parts] == [f"answer {at}" for at in range(TURNS)]
    assert len(results(events)) == TURNS
    manifests = chat.manifests()
    assert len(manifests) == len(chat.llm.sent) == 2 * TURNS
    chat.replays()
    expected = {"the boundary of the last cut is gone"} if (name, place) == ("ContextFilterPlugin", "before") else set()
    assert {note for manifest in manifests for note in manifest.degradations} == expected, "as docs/attach.md says"
    assert max(manifest.request_tokens for manifest in manifests) <= WINDOW
    if name not in CHANGING:
        assert [one.text for one in chat.sent] == alone()
        assert manifests[-1].epoch_reason or any(one.epoch_reason == "high_water" for one in manifests)


def test_an_instruction_for_all_agents_is_in_the_pack_where_its_plugin_comes_first() -> None:
    before, behind = (talked(GlobalInstructionPlugin(RULE), place)[0] for place in ("before", "behind"))
    assert all(RULE in str(one.system) for chat in (before, behind) for one in chat.sent)
    assert all(RULE in request for request in recorded(before))
    assert not any(RULE in request for request in recorded(behind)), "as docs/attach.md says"


def test_a_filter_behind_takes_turns_from_the_model_that_the_pack_has() -> None:
    chat, _ = talked(ContextFilterPlugin(num_invocations_to_keep=1), "behind")
    assert "question 2" in recorded(chat)[-1]
    assert "question 2" not in chat.sent[-1].text, "as docs/attach.md says"


def test_a_file_that_becomes_an_artifact_is_named_in_the_pack() -> None:
    for place in ("before", "behind"):
        chat = talked(SaveFilesAsArtifactsPlugin(), place)[0]
        assert "plan.png" in chat.sent[0].text
        assert "plan.png" in recorded(chat)[0]


def test_a_tool_that_fails_is_tried_again() -> None:
    for place in ("before", "behind"):
        chat = Chat([call("look_up", key="bad"), call("look_up", key="k1"), "done"], [look_up])
        installed = chat.runner.plugin_manager.plugins
        installed.insert(installed.index(chat.plugin) + (place == "behind"), plugins.ReflectAndRetryToolPlugin())
        chat.say("question")
        assert "reflection_guidance" in chat.sent[1].answers()[0]
        assert len(chat.manifests()) == 3
