"""Recorded agent runs through ADK's own Runner: the model and the tools answer as they did."""

from __future__ import annotations

import json
import os
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from google.adk.tools.base_tool import BaseTool
from google.genai import types
from scripted import Chat

from aether_context import PackPolicy, PackStore


class Answering(BaseTool):
    """A tool that answers with recorded results, in their order."""

    def __init__(self, declared: Mapping[str, Any], results: deque[Any]) -> None:
        super().__init__(name=declared["name"], description=declared.get("description") or declared["name"])
        self._parameters = declared.get("parameters")
        self._results = results

    def _get_declaration(self) -> types.FunctionDeclaration:
        return types.FunctionDeclaration(
            name=self.name, description=self.description, parameters_json_schema=self._parameters
        )

    async def run_async(self, *, args: dict[str, Any], tool_context: Any) -> Any:
        return {"result": self._results.popleft() if self._results else "nothing more"}


def recorded_runs() -> Iterator[Mapping[str, Any]]:
    """The runs in the folder that AETHER_CONTEXT_DATA names; none without it."""
    folder = os.environ.get("AETHER_CONTEXT_DATA")
    if folder is not None:
        for line in Path(folder, "runs.jsonl").read_text(encoding="utf-8").splitlines():
            yield json.loads(line)


def played(run: Mapping[str, Any], store: PackStore, *, window: int, turns: int = 10) -> Chat:
    """A run's first turns, told again."""
    script: list[Any] = []
    results: defaultdict[str, deque[Any]] = defaultdict(deque)
    for turn in run["turns"][:turns]:
        for step in turn["steps"]:
            calls = [
                types.Part(function_call=types.FunctionCall(name=c["name"], args=c["args"])) for c in step["calls"]
            ]
            script.append([*([step["text"]] if step["text"] else []), *calls] or "…")
            for of_call in step["calls"]:
                results[of_call["name"]].append(of_call["result"])
        if turn["steps"] and turn["steps"][-1]["calls"]:
            script.append("done")
    chat = Chat(
        script=script,
        tools=[Answering(tool, results[tool["name"]]) for tool in run["tools"]],
        instruction=run["system"].replace("{", "(").replace("}", ")"),
        policy=PackPolicy(max_input_tokens=window),
        store=store,
        session=run["id"],
        app_name="recorded",
    )
    for turn in run["turns"][:turns]:
        chat.say(turn["user"])
    return chat
