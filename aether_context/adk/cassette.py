"""Records what models answer, and plays it again, so that tests of an agent run free and without a network."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import re
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from difflib import SequenceMatcher, unified_diff
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast, get_args

from google.adk.agents.callback_context import CallbackContext
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from pydantic import BaseModel

from aether_context.adk.call import AgentKey, agent_key_of
from aether_context.adk.plugin import ContextPackPlugin
from aether_context.adk.refusal import Refusal
from aether_context.canonical import JSON, hash_json, plain, short
from aether_context.errors import CassetteError
from aether_context.packing.payload import day
from aether_context.redaction import masker

Mode: TypeAlias = Literal["record", "play", "off"]

_MODE = "AETHER_CONTEXT_CASSETTES"
_VERSION = 1
_MOST_LINES = 60
_ID_CHARACTERS = 16
"""Ids of sessions that are as long as this are generated ones, mostly."""
_CLOCK = r"(?:[ T]\d\d:\d\d(?::\d\d(?:\.\d+)?)?)?"
_BINARY = frozenset({"data", "thought_signature"})
_NOT_COMPARED = frozenset({"system_instruction", "tools", "labels", "http_options", "response_schema"})
"""Settings that are compared otherwise, or that do not reach the model."""


class Cassette(BasePlugin):
    """Records the answers of an app's models in a file, or plays them in the models' place.

        App(name="…", root_agent=agent, plugins=[ContextPackPlugin(), Cassette("tests/refund.json", mode="play")])

    Put it last in the list of plugins: what it tells calls apart by is then what is sent. A request is known by model,
    contents, system instruction, declarations and settings. Ids of calls, long ids of sessions, and the day and time at
    which the session runs are not told apart. Equal requests get their answers in the order in which they were
    recorded, and the last one again where there are no more. Callbacks before and after the model run in both modes.

    Args:
        path: the file, JSON that people can read; one a test.
        mode: ``record`` asks the models and writes the file anew; ``play`` asks none, and ends the run with a
            `CassetteError` where a request is not in the file; ``off`` does nothing. None takes what the environment
            variable ``AETHER_CONTEXT_CASSETTES`` says, else ``play``.
        redact: what is masked in the file and told apart no longer: names of patterns or regular expressions, as in the
            policy's ``retrieval.redact_before_retrieval``; None takes that of the app's `ContextPackPlugin`.

    Raises:
        CassetteError: the mode does not exist, or the file cannot be read.
        PolicyError: what is to be redacted is neither a pattern's name nor a regular expression.
    """

    def __init__(
        self,
        path: str | Path,
        mode: Mode | None = None,
        redact: Sequence[str] | None = None,
        name: str = "cassette",
    ) -> None:
        super().__init__(name=name)
        chosen = mode or os.environ.get(_MODE) or "play"
        if chosen not in get_args(Mode):
            raise CassetteError(f"mode = {chosen!r}: it is one of {', '.join(get_args(Mode))}")
        self.mode = chosen
        self.path = Path(path)
        self._mask = None if redact is None else masker(redact)
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._varying: set[str] = set()
        self._calls: list[dict[str, JSON]] = []
        if chosen == "play":
            self._load()
        self._answers: dict[str, deque[dict[str, JSON]]] = {}
        for call in self._calls:
            self._answers.setdefault(hash_json(call["request"]), deque()).append(call)
        self._open: dict[AgentKey, dict[str, JSON]] = {}

    async def before_model_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        invocation = callback_context.get_invocation_context()
        if self.mode == "off" or invocation.live_request_queue is not None:
            return None
        with self._lock:
            asked = self._told_apart(callback_context, llm_request)
        if self.mode == "record":
            with self._lock:
                call: dict[str, JSON] = {"agent": callback_context.agent_name, "request": asked}
                self._calls.append(call)
                self._open[agent_key_of(callback_context)] = call
            return None
        # ADK asks none of the callbacks that come after an answer in the model's place.
        before = getattr(invocation.agent, "canonical_before_model_callbacks", ())
        answer = await _first(before, callback_context=callback_context, llm_request=llm_request)
        if answer is not None:
            return answer
        with self._lock:
            answers = self._answers.get(hash_json(asked)) or self._answers_today(callback_context, asked)
            found = None if not answers else answers.popleft() if len(answers) > 1 else answers[0]
        if found is None:
            return Refusal.of(CassetteError(self._miss(callback_context.agent_name, asked)))
        if "error" in found:
            return Refusal.of(CassetteError(f"the model failed when {self.path} was recorded: {found['error']}"))
        response = LlmResponse.model_validate(found["response"])
        after = (
            invocation.plugin_manager.run_after_model_callback,
            *getattr(invocation.agent, "canonical_after_model_callbacks", ()),
        )
        return await _first(after, callback_context=callback_context, llm_response=response) or response

    async def after_model_callback(self, *, callback_context: CallbackContext, llm_response: LlmResponse) -> None:
        if self.mode != "record" or llm_response.partial is True:
            return
        value = llm_response.model_dump(mode="json", exclude_none=True, exclude={"custom_metadata", "partial"})
        value = _changed(value, self._masker(callback_context))
        with self._lock:
            call = self._open.get(agent_key_of(callback_context))
            if call is None:
                return
            if "response" in call:  # a stream of several whole answers
                first, content = call["response"], value.get("content") or {}
                content = {"role": "model", **content, "parts": [*_parts(first), *_parts(value)]}
                value = {**first, **value, "content": content}
            call["response"] = value
        await asyncio.to_thread(self._save)

    async def on_model_error_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest, error: Exception
    ) -> None:
        with self._lock:
            call = self._open.get(agent_key_of(callback_context)) if self.mode == "record" else None
            if call is None:
                return
            call["error"] = self._masker(callback_context)(f"{type(error).__name__}: {error}")
        await asyncio.to_thread(self._save)

    def _masker(self, context: CallbackContext) -> Callable[[str], str]:
        """Masks what the cassette redacts."""
        if self._mask is not None:
            return self._mask
        plugins = context.get_invocation_context().plugin_manager.plugins
        policies = [plugin.policy for plugin in plugins if isinstance(plugin, ContextPackPlugin)]
        return masker(policies[0].retrieval.redact_before_retrieval if policies else ())

    def _told_apart(self, context: CallbackContext, request: LlmRequest) -> JSON:
        """What of a request tells it apart: without what is redacted, and what is another in each run."""
        mask, vary = self._masker(context), self._vary(context)
        return _changed(_readable(request), lambda text: vary(mask(text)))

    def _answers_today(self, context: CallbackContext, asked: JSON) -> deque[dict[str, JSON]] | None:
        """The answers to a request that was recorded with the date of this run in it, when that was another day's."""
        vary, known = self._vary(context), self._answers.values()
        return next((answers for answers in known if _changed(answers[0]["request"], vary) == asked), None)

    def _vary(self, context: CallbackContext) -> Callable[[str], str]:
        """Takes out of a text what is another in each run."""
        session = context.session
        varying = self._varying | {day(event.timestamp) for event in session.events} - {""}
        if len(session.id) >= _ID_CHARACTERS:
            varying.add(session.id)
        pattern = re.compile(f"({'|'.join(map(re.escape, sorted(varying))) or '(?!)'}){_CLOCK}")

        def vary(found: re.Match[str]) -> str:
            self._varying.add(found[1])
            return "[varies]"

        return lambda text: pattern.sub(vary, text)

    def _save(self) -> None:
        """Writes the file whole or not at all; what a request has in common with the one before it is not repeated."""
        with self._writing:
            with self._lock:
                answered, varies = [{**call} for call in filter(_is_answered, self._calls)], sorted(self._varying)
            calls = [
                {**call, "request": _after(before["request"] if before else None, call["request"])}
                for before, call in zip([None, *answered], answered, strict=False)
            ]
            value = {"version": _VERSION, "varies": varies, "calls": calls}
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle, written = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
            try:
                with os.fdopen(handle, "w", encoding="utf-8", errors="surrogatepass", newline="\n") as file:
                    json.dump(value, file, ensure_ascii=False, indent=2)
                    file.write("\n")
                Path(written).chmod(0o644)
                Path(written).replace(self.path)
            except BaseException:
                Path(written).unlink(missing_ok=True)
                raise

    def _load(self) -> None:
        """Reads the file, where there is one."""
        try:
            value = json.loads(self.path.read_text("utf-8", "surrogatepass"))
            if value["version"] != _VERSION:
                raise ValueError(f"its version is {value['version']}, not {_VERSION}: record it again")
            self._varying |= set(value["varies"])
            before: Mapping[str, JSON] = {}
            for call in value["calls"]:
                request = dict(call["request"])
                kept = {name: before[name] for name in request.pop("same", ())}
                contents = before.get("contents", [])[: request.pop("begins", 0)]
                before = {**request, **kept, "contents": [*contents, *request["contents"]]}
                self._calls.append({**call, "request": before})
        except FileNotFoundError:
            return
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise CassetteError(f"{self.path} cannot be played: {type(error).__name__}: {error}") from error

    def _miss(self, agent: str, asked: JSON) -> str:
        """What a request that is not in the file has where the nearest one that is has something else."""
        again = f"record it again with {_MODE}=record"
        if not self._calls:
            return f"{self.path} holds no calls: {again}"
        lines = _lines(asked)

        def nearness(call: Mapping[str, JSON]) -> tuple[bool, float]:
            return (
                call["agent"] == agent,
                SequenceMatcher(None, _lines(call["request"]), lines, autojunk=False).ratio(),
            )

        nearest = max(self._calls, key=nearness)
        name = f"call {self._calls.index(nearest) + 1} of {len(self._calls)}"
        diff = list(unified_diff(_lines(nearest["request"]), lines, name, "this call", n=2, lineterm=""))
        rest = [f"… and {len(diff) - _MOST_LINES} more lines"] if len(diff) > _MOST_LINES else []
        told = "\n".join([*diff[:_MOST_LINES], *rest])
        return f"{self.path} has no answer to this call of {agent}: {again}\n{told}"


def _readable(request: LlmRequest) -> JSON:
    """A request as JSON that people can read: texts in lines, declarations and binary data by their hashes."""
    config = request.config
    settings = _plain(config, _NOT_COMPARED)
    schema = config.response_schema
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        settings["response_schema"] = schema.model_json_schema()
    declared: dict[str, str] = {}
    for tool in config.tools or ():
        kinds = _plain(tool)
        functions = {function["name"]: function for function in kinds.pop("function_declarations", ())}
        declared |= {name: short(hash_json(value)) for name, value in (functions | kinds).items()}
    ids: dict[str, str] = {}
    parts = [(content.role, _part(_plain(part), ids)) for content in request.contents for part in content.parts or ()]
    turns = groupby(parts, key=lambda part: part[0])
    value = {
        "model": request.model,
        "settings": settings,
        "tools": declared,
        "system": _plain(config.system_instruction),
        "contents": [{"role": role, "parts": [part for _, part in turn]} for role, turn in turns],
    }
    return _changed(value, lambda text: text.split("\n") if "\n" in text else text)


def _plain(value: Any, exclude: Set[str] = frozenset()) -> JSON:
    """A value of google-genai as JSON; what is none of those but for texts, by the name of its type."""
    if isinstance(value, BaseModel):
        return plain(value.model_dump(exclude_none=True, exclude=set(exclude)))
    return value if value is None or isinstance(value, str) else {type(value).__name__: ""}


def _part(part: dict[str, JSON], ids: dict[str, str]) -> JSON:
    """A part without its signature, and with calls numbered in their order."""
    part.pop("thought_signature", None)
    for found in (part.get("function_call"), part.get("function_response")):
        if found and "id" in found:
            found["id"] = ids.setdefault(found["id"], f"call {len(ids) + 1}")
    return part


def _changed(value: JSON, change: Callable[[str], JSON]) -> JSON:
    """A value with its texts changed, but for binary data."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {name: inner if name in _BINARY else _changed(inner, change) for name, inner in value.items()}
    return [_changed(inner, change) for inner in value] if isinstance(value, list) else value


def _is_answered(call: Mapping[str, JSON]) -> bool:
    return "response" in call or "error" in call


async def _first(callbacks: Iterable[Callable[..., Any]], **given: Any) -> LlmResponse | None:
    """What the first of the callbacks that gives something gives, as ADK calls them."""
    for callback in callbacks:
        found = callback(**given)
        found = await found if inspect.isawaitable(found) else found
        if found:
            return cast(LlmResponse, found)
    return None


def _parts(response: Mapping[str, JSON]) -> Sequence[JSON]:
    return (response.get("content") or {}).get("parts") or ()


def _lines(request: JSON) -> list[str]:
    return json.dumps(request, ensure_ascii=False, indent=1, sort_keys=True).splitlines()


def _after(before: Mapping[str, JSON] | None, request: Mapping[str, JSON]) -> Mapping[str, JSON]:
    """A request without what the one before it has, too: ``same`` are names, ``begins`` counts contents."""
    if before is None:
        return request
    same = [name for name in request if name != "contents" and request[name] == before[name]]
    pairs = zip(before["contents"], request["contents"], strict=False)
    begins = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
    rest = {name: value for name, value in request.items() if name not in same}
    return {"same": same, "begins": begins, **rest, "contents": request["contents"][begins:]}
