"""What the plugin leaves in the host's own database: bytes in events and session state over recorded runs.

    python tests/bench/session_bytes.py RUNS.jsonl [--window 16000] [--most 20] [--planned] [--usage]

A run is a line of JSON as in `tool_runs`. Each is played through ADK's runner with a model and tools that answer as
recorded, and all that the plugin adds to the session's events is measured as JSON: the metadata of each model event,
and the values that a call writes into the session's state, the calls that cut apart from the others.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.events.event import Event
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools.base_tool import BaseTool
from google.genai import types

sys.path.insert(0, str(Path(__file__).parent.parent))

from plans import planned
from tool_runs import Run

from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin

MODEL = "gemini-2.5-flash"


class Recorded(BaseLlm):
    """Answers as a run's model did. ``usage`` reports a token for every four characters of the request."""

    steps: list[Any]
    usage: bool = True

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        step = self.steps.pop(0)
        parts = [types.Part(text=step["text"])] if step["text"] or not step["calls"] else []
        parts += [
            types.Part(function_call=types.FunctionCall(name=call["name"], args=call["args"])) for call in step["calls"]
        ]
        usage = None
        if self.usage:
            tokens = sum(len(content.model_dump_json(exclude_none=True)) for content in llm_request.contents) // 4
            usage = types.GenerateContentResponseUsageMetadata(
                prompt_token_count=tokens,
                cached_content_token_count=tokens // 2,
                candidates_token_count=50,
                total_token_count=tokens + 50,
            )
        yield LlmResponse(content=types.Content(role="model", parts=parts), usage_metadata=usage)


class RecordedTool(BaseTool):
    """Answers with the recorded results, in their order."""

    def __init__(self, declaration: dict[str, Any], results: list[Any]) -> None:
        super().__init__(name=declaration["name"], description=declaration["description"])
        self.parameters, self.results = declaration["parameters"], results

    def _get_declaration(self) -> types.FunctionDeclaration:
        return types.FunctionDeclaration(
            name=self.name, description=self.description, parameters_json_schema=self.parameters
        )

    async def run_async(self, *, args: Any, tool_context: Any) -> Any:
        return {"result": self.results.pop(0) if self.results else "nothing"}


async def play(run: Run, policy: PackPolicy, *, usage: bool, state: dict[str, Any]) -> Sequence[Event]:
    """The events of a run's session."""
    steps = [step for turn in run["turns"] for step in turn["steps"]]
    results: dict[str, list[Any]] = defaultdict(list)
    for step in steps:
        for call in step["calls"]:
            results[call["name"]].append(call["result"])
    declared = {tool["name"]: tool for tool in run["tools"]}
    for name in results:
        declared.setdefault(name, {"name": name, "description": "", "parameters": {"type": "object"}})
    tools = [RecordedTool(declared[name], results[name]) for name in declared]
    for turn in run["turns"]:
        # A turn that ends with calls would go on: the model is asked once more.
        if turn["steps"] and turn["steps"][-1]["calls"]:
            turn["steps"].append({"text": "Done.", "calls": []})
    steps = [step for turn in run["turns"] for step in turn["steps"]]
    model = Recorded(model=run.get("model") or MODEL, steps=list(steps), usage=usage)
    instruction = run["system"]
    agent = LlmAgent(name="agent", model=model, instruction=lambda _: instruction, tools=list(tools))
    plugin = ContextPackPlugin(policy=policy, store=f"memory://{run['id']}")
    runner = InMemoryRunner(app=App(name="bytes", root_agent=agent, plugins=[plugin]))
    service = runner.session_service
    session = await service.create_session(app_name="bytes", user_id="u", session_id="s", state=state)
    for turn in run["turns"]:
        if not turn["steps"]:
            continue
        message = types.UserContent(turn["user"] or ".")
        async for _ in runner.run_async(user_id="u", session_id="s", new_message=message):
            pass
    await runner.close()
    session = await service.get_session(app_name="bytes", user_id="u", session_id="s")
    return session.events


def size(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


def written(event: Event) -> dict[str, int]:
    """Bytes of what an event writes into the session's state, by key without scope."""
    found: dict[str, int] = defaultdict(int)
    for key, value in event.actions.state_delta.items():
        if key.startswith("aether:"):
            found[key.split(":")[1]] += size(value) + len(key)
    return found


def spread(values: list[int]) -> str:
    ordered = sorted(values) or [0]
    return (
        f"n={len(values)} median={ordered[len(ordered) // 2]} p95={ordered[int(0.95 * (len(ordered) - 1))]} "
        f"max={ordered[-1]} sum={sum(values)}"
    )


async def measure(options: argparse.Namespace) -> None:
    policy = PackPolicy(max_input_tokens=options.window)
    runs = [json.loads(line) for line in options.path.read_text().splitlines() if line.strip()][: options.most]
    metadata: list[int] = []
    fields: dict[str, list[int]] = defaultdict(list)
    cuts: dict[str, list[int]] = defaultdict(list)
    others: dict[str, list[int]] = defaultdict(list)
    for run in runs:
        cut_count: dict[str, int] = {}
        for event in await play(run, policy, usage=options.usage, state=dict(planned()) if options.planned else {}):
            noted = (event.custom_metadata or {}).get("aether_context")
            if noted is not None:
                metadata.append(size(noted))
                for name, value in noted.items():
                    fields[name].append(size(value))
            if event.content is None or event.content.role != "model":
                continue
            keys = written(event)
            cut = False
            for key, value in event.actions.state_delta.items():
                if key.startswith("aether:epoch:"):
                    cut = value.get("cut_count", 0) > cut_count.get(key, 0)
                    cut_count[key] = value.get("cut_count", 0)
            into = cuts if cut else others
            into["all"].append(sum(keys.values()))
            for key, taken in keys.items():
                into[key].append(taken)
    print(f"window {options.window}{', planned' if options.planned else ''}: {len(runs)} runs")
    print("metadata", spread(metadata))
    for name, values in fields.items():
        print("   ", name, spread(values))
    for title, found in (("cuts", cuts), ("other calls", others)):
        print(title)
        for name, values in found.items():
            print("   ", name, spread(values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--window", type=int, default=16_000)
    parser.add_argument("--most", type=int, help="runs (default: all)")
    parser.add_argument("--planned", action="store_true", help="give each run a step")
    parser.add_argument("--usage", action="store_true", help="the model reports what it used")
    logging.disable(logging.WARNING)
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
