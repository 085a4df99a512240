"""A scripted model and a conversation through ADK's own Runner, with a witness on either side of the plugin.

The witnesses see each request as the plugin got it and as the plugin left it, and compare every event of the session
with what it was at first.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import pickle
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from google.adk.agents import BaseAgent, LlmAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.apps import App
from google.adk.artifacts.base_artifact_service import BaseArtifactService
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.memory.base_memory_service import BaseMemoryService, SearchMemoryResponse
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig
from google.adk.sessions.session import Session
from google.genai import types

from aether_context import Manifest, PackPolicy, PackStore
from aether_context.adk import ContextPackPlugin
from aether_context.store.replay import Replayed, Replayer

_numbers = itertools.count(1)


def new_store() -> PackStore:
    """An in-memory store that no other test sees."""
    return PackStore(f"memory://scripted-{next(_numbers)}")


# what a model was sent


@dataclass(frozen=True)
class Sent:
    """One request as it was at one moment, all copies. ``readers`` are those of evidence, which most agents with tools
    have; ``declared`` and ``dispatched`` are the others. ``doubled`` is that of `doubled`."""

    model: str
    agent: str
    system: Any
    pickled: bytes
    faults: tuple[str, ...]
    doubled: tuple[int, ...]
    declared: tuple[str, ...]
    other_tools: tuple[str, ...]
    dispatched: tuple[str, ...]
    readers: tuple[str, ...]
    tool_config: types.ToolConfig | None
    call: int = 0
    session: str = ""
    run: str = ""

    @cached_property
    def contents(self) -> tuple[types.Content, ...]:
        """Copied when they are first asked for: most requests of a long session are never looked at."""
        return pickle.loads(self.pickled)

    @property
    def wires(self) -> tuple[str, ...]:
        """Each content by all its fields, comparable."""
        return tuple(exact(content) for content in self.contents)

    @property
    def text(self) -> str:
        """All text parts, a line break between two."""
        return "\n".join(part.text for content in self.contents for part in content.parts or () if part.text)

    def answers(self, name: str = "") -> list[dict[str, Any]]:
        """What tools gave, in order; where one is named, that one alone."""
        parts = [part.function_response for content in self.contents for part in content.parts or ()]
        return [dict(one.response or {}) for one in parts if one is not None and name in ("", one.name)]

    def human(self) -> str:
        """The text of the last content that is somebody's words."""
        for content in reversed(self.contents):
            if content.role == "user" and not any(part.function_response for part in content.parts or ()):
                return "\n".join(part.text for part in content.parts or () if part.text)
        return ""


def exact(value: Any) -> str:
    """Everything a pydantic value holds, as text: set fields, bytes, NaN and lone surrogates included."""
    return repr(value.model_dump(exclude_unset=True)) if hasattr(value, "model_dump") else repr(value)


def is_reader(name: str, tool: object) -> bool:
    """Whether a tool is one that the package declares where a request names evidence, and no app's of that name."""
    return name in ("read_artifact", "search_artifact") and type(tool).__module__.startswith("aether_context.")


def sent(request: LlmRequest, agent: str = "", session: str = "", run: str = "") -> Sent:
    """A deep snapshot of a request."""
    config = request.config
    tools = list(config.tools or ()) if config is not None else []
    functions = [tool for tool in tools if isinstance(tool, types.Tool) and tool.function_declarations]
    names = [one.name or "" for tool in functions for one in tool.function_declarations or ()]
    readers = tuple(name for name, tool in request.tools_dict.items() if is_reader(name, tool))
    return Sent(
        model=request.model or "",
        agent=agent,
        session=session,
        run=run,
        system=config.system_instruction if config is not None else None,
        pickled=pickle.dumps(tuple(request.contents), protocol=pickle.HIGHEST_PROTOCOL),
        faults=tuple(faults(request.contents)),
        doubled=tuple(doubled(request.contents)),
        declared=tuple(name for name in names if name not in readers),
        other_tools=tuple(exact(tool) for tool in tools if tool not in functions),
        dispatched=tuple(name for name in request.tools_dict if name not in readers),
        readers=tuple(name for name in names if name in readers),
        tool_config=config.tool_config.model_copy(deep=True) if config is not None and config.tool_config else None,
    )


def faults(contents: Sequence[types.Content]) -> list[str]:
    """What a strict provider would reject: in the spirit of the bench's own check, written apart from the library."""
    found: list[str] = []
    if not contents:
        return ["no contents"]
    first = contents[0]
    if first.role != "user" or any(part.function_response for part in first.parts or ()):
        found.append("does not begin with a user message")
    pending: list[tuple[str, str]] = []
    for at, content in enumerate(contents):
        parts = content.parts or []
        if not parts:
            found.append(f"content {at} has no parts")
        for part in parts:
            if not part.model_dump(exclude_none=True):
                found.append(f"content {at} has an empty part")
        calls = [(one.function_call.id or "", one.function_call.name or "") for one in parts if one.function_call]
        answers = [
            (one.function_response.id or "", one.function_response.name or "") for one in parts if one.function_response
        ]
        if answers:
            if sorted(answers) != sorted(pending):
                found.append(f"content {at} does not answer the calls before it")
            pending = []
        elif pending:
            found.append(f"calls before content {at} have no responses")
            pending = []
        if calls and content.role != "model":
            found.append(f"content {at} calls as {content.role}")
        if answers and content.role == "model":
            found.append(f"content {at} answers as the model")
        pending = calls or pending
    if pending:
        found.append("the last calls have no responses")
    return found


def doubled(contents: Sequence[types.Content]) -> list[int]:
    """The places of contents of the same role as the one before. Results of tools are of none, as on many wires."""
    answers = [any(part.function_response for part in content.parts or ()) for content in contents]
    roles = [None if answer else content.role for content, answer in zip(contents, answers, strict=True)]
    return [at for at in range(1, len(roles)) if roles[at] is not None and roles[at] == roles[at - 1]]


# the scripted model


class Failure(Exception):
    """What a scripted model or service raises."""


Reply = Any
"""A text, a part, a list of parts, an `LlmResponse`, a tuple of responses (a stream), or an exception to raise."""


class Scripted(BaseLlm):
    """Answers from a script, then with ``ok``, once ``waits`` is over; keeps a deep snapshot of every request it was
    sent."""

    model: str = "gemini-2.5-flash"
    script: list[Any] = []
    sent: list[Any] = []
    usage: bool = True
    waits: Callable[[], Awaitable[object]] | None = None

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        if self.waits is not None:
            await self.waits()
        self.see(llm_request)
        reported = self.reported(llm_request)
        reply = self.script.pop(0) if self.script else "ok"
        if isinstance(reply, BaseException):
            raise reply
        for one in reply if isinstance(reply, tuple) else (reply,):
            yield self._response(one, reported)

    def see(self, llm_request: LlmRequest) -> None:
        self.sent.append(sent(llm_request))

    def reported(self, llm_request: LlmRequest) -> int:
        """The input tokens that its usage names."""
        return size(llm_request)

    def _response(self, reply: Reply, reported: int) -> LlmResponse:
        if isinstance(reply, LlmResponse):
            return reply
        parts = reply if isinstance(reply, list) else [reply]
        made = [types.Part(text=part) if isinstance(part, str) else part for part in parts]
        usage = types.GenerateContentResponseUsageMetadata(
            prompt_token_count=reported,
            cached_content_token_count=reported // 3,
            candidates_token_count=7,
            total_token_count=reported + 7,
        )
        return LlmResponse(
            content=types.Content(role="model", parts=made),
            usage_metadata=usage if self.usage else None,
            finish_reason=types.FinishReason.STOP,
        )


def size(request: LlmRequest) -> int:
    """What a provider might report for a request: a token for every four characters of its JSON, and 50 of its own."""
    texts = [one.model_dump_json(exclude_none=True) for one in request.contents]
    return 50 + (len(repr(request.config.system_instruction)) + sum(len(text) + 32 for text in texts)) // 4


def call(name: str, /, **args: Any) -> types.Part:
    """A part with a function call."""
    return types.Part(function_call=types.FunctionCall(name=name, args=args))


# helper tools


def look_up(key: str) -> dict[str, Any]:
    """Looks a key up. It answers with the key and forty lines."""
    return {"key": key, "lines": "\n".join(f"line {number} of {key}" for number in range(40))}


def big_file(name: str, lines: int = 400) -> dict[str, Any]:
    """Reads a file, which is long."""
    return {"result": "\n".join(f"{number}: value {number * 37 % 1009} in {name}" for number in range(lines))}


def send_mail(to: str) -> str:
    """Sends a mail."""
    return f"sent to {to}"


def delete_all() -> str:
    """Deletes everything."""
    return "gone"


# memory


class Memories(BaseMemoryService):
    """Finds the given entries for every query, or raises."""

    def __init__(self, *entries: MemoryEntry, error: Exception | None = None) -> None:
        self.entries, self.error = list(entries), error
        self.queries: list[tuple[str, str, str]] = []

    async def add_session_to_memory(self, session: Any) -> None:
        return None

    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        self.queries.append((app_name, user_id, query))
        if self.error is not None:
            raise self.error
        return SearchMemoryResponse(memories=self.entries)


def remembered(text: str, author: str | None = "user", timestamp: str | None = "2025-03-09T10:00:00") -> MemoryEntry:
    """A memory entry with one text part."""
    return MemoryEntry(
        content=types.Content(role="user", parts=[types.Part(text=text)]), author=author, timestamp=timestamp
    )


# witnesses


def _session(context: CallbackContext) -> str:
    return f"{context.session.user_id}/{context.session.id}"


class Sessions(InMemorySessionService):
    """ADK's own, but the copy of a session shares its events: to copy each of them at each message takes a quarter of a
    long conversation's time, and the witnesses notice an event that changes."""

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        stored = self.sessions.get(app_name, {}).get(user_id, {}).get(session_id)
        if stored is None or config is not None:
            return await super().get_session(app_name=app_name, user_id=user_id, session_id=session_id, config=config)
        copied = stored.model_copy(update={"events": [*stored.events], "state": copy.deepcopy(stored.state)})
        return self._merge_state(app_name, user_id, copied)


class Before(BasePlugin):
    """Sees what the plugin is about to get, and each event of the session as it is when it is first there."""

    def __init__(self, alter: Callable[[CallbackContext, LlmRequest], None] | None = None) -> None:
        super().__init__(name="before")
        self.alter = alter
        self.sent: list[Sent] = []
        self.events: dict[str, str] = {}

    async def before_model_callback(self, *, callback_context: CallbackContext, llm_request: LlmRequest) -> None:
        if self.alter is not None:
            self.alter(callback_context, llm_request)
        session = _session(callback_context)
        self.sent.append(sent(llm_request, callback_context.agent_name, session, callback_context.invocation_id))
        events = callback_context.session.events
        known = self.events if self.alter is None else {}  # contents that an application alters are those of events
        self.events |= {event.id: event.model_dump_json() for event in events if event.id not in known}


class After(BasePlugin):
    """Sees what the plugin left, and that the session's events are what they were."""

    def __init__(self, before: Before) -> None:
        super().__init__(name="after")
        self.before = before
        self.sent: list[Sent] = []
        self.touched: list[str] = []

    async def before_model_callback(self, *, callback_context: CallbackContext, llm_request: LlmRequest) -> None:
        session = _session(callback_context)
        self.sent.append(sent(llm_request, callback_context.agent_name, session, callback_context.invocation_id))
        # ADK itself takes some away where agents of a workflow run side by side.
        texts = ((event.id, event.model_dump_json()) for event in callback_context.session.events)
        if any(self.before.events.get(name, text) != text for name, text in texts):
            self.touched.append(f"call {len(self.sent)}: an event of the session changed")


@dataclass
class Chat:
    """A conversation with one app. ``say`` runs a user message and returns the events.

    ``raw`` and ``sent`` are the requests as the plugin got and left them, in order.
    """

    script: Sequence[Reply] = ()
    tools: Sequence[Any] = ()
    policy: PackPolicy | str | None = None
    state: Mapping[str, Any] = field(default_factory=dict)
    store: PackStore = field(default_factory=new_store)
    plugin: BasePlugin | None = None
    on_error: Any = "raise"
    memory: BaseMemoryService | None = None
    artifacts: BaseArtifactService | None = None
    sessions: BaseSessionService = field(default_factory=Sessions)
    model: str = "gemini-2.5-flash"
    instruction: str = "You help."
    agent: BaseAgent | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    app_settings: Mapping[str, Any] = field(default_factory=dict)
    app_name: str = "shop"
    user: str = "ann"
    session: str = "s1"
    alter: Callable[[CallbackContext, LlmRequest], None] | None = None
    use_plugin: bool = True

    def __post_init__(self) -> None:
        self.llm = Scripted(model=self.model, script=list(self.script), sent=[])
        if self.plugin is None:
            self.plugin = ContextPackPlugin(policy=self.policy, store=self.store, on_error=self.on_error)
        elif isinstance(self.plugin, ContextPackPlugin):
            self.store = self.plugin.store
        if self.agent is None:
            self.agent = LlmAgent(
                name="clerk", model=self.llm, instruction=self.instruction, tools=list(self.tools), **self.settings
            )
        self.checked = 0
        self.begun: set[tuple[str, str]] = set()
        self.before = Before(self.alter)
        self.after = After(self.before)
        plugins = [self.before, *([self.plugin] if self.use_plugin else []), self.after]
        self.app = App(name=self.app_name, root_agent=self.agent, plugins=plugins, **self.app_settings)
        self.runner = Runner(
            app=self.app, session_service=self.sessions, memory_service=self.memory, artifact_service=self.artifacts
        )

    @property
    def raw(self) -> list[Sent]:
        return self.before.sent

    @property
    def sent(self) -> list[Sent]:
        return self.after.sent

    async def tell(
        self,
        message: str | types.Content,
        *,
        user: str | None = None,
        session: str | None = None,
        stream: bool = False,
        recent_events: int | None = None,
    ) -> list[Event]:
        """Runs one user message to the end of its run, and checks what must hold after any run."""
        user, session = user or self.user, session or self.session
        await self._begin(user, session)
        content = types.UserContent(parts=[types.Part(text=message)]) if isinstance(message, str) else message
        config = RunConfig(
            streaming_mode=StreamingMode.SSE if stream else StreamingMode.NONE,
            get_session_config=GetSessionConfig(num_recent_events=recent_events) if recent_events else None,
        )
        run = self.runner.run_async(user_id=user, session_id=session, new_message=content, run_config=config)
        events = [event async for event in run]
        self.check(loads_all=recent_events is None)
        return events

    async def _begin(self, user: str, session: str) -> None:
        """Creates a session unless there is one; asked once, since a service answers with a copy of all events."""
        if (user, session) in self.begun:
            return
        if await self.sessions.get_session(app_name=self.app_name, user_id=user, session_id=session) is None:
            await self.sessions.create_session(
                app_name=self.app_name, user_id=user, session_id=session, state=dict(self.state)
            )
        self.begun.add((user, session))

    def say(self, *messages: str | types.Content, **options: Any) -> list[Event]:
        """Runs messages one after another, each in an event loop of its own, as `Runner.run` does."""
        return [event for message in messages for event in asyncio.run(self.tell(message, **options))]

    def check(self, *, loads_all: bool = True) -> None:
        """No event was changed, no valid request became an invalid one, and roles that alternate still do.

        What is not loaded stands in a request as ADK would send it if it were, with the neighbours that it has there.
        """
        assert self.after.touched == []
        assert len(self.raw) >= len(self.sent)
        # Of runs beside each other the later one may be the first whose request is left.
        for run in {(one.session, one.run) for one in self.raw[self.checked :]}:
            raws, lefts = ([one for one in sent if (one.session, one.run) == run] for sent in (self.raw, self.sent))
            for raw, left in zip(raws, lefts, strict=False):
                if not raw.faults:
                    assert left.faults == ()
                if loads_all and not raw.doubled:
                    assert left.doubled == ()
        self.checked = len(self.raw)

    def restart(self) -> None:
        """Puts a new plugin in the place of the old one, as in a new process: it knows what session and store hold."""
        plugins = self.runner.plugin_manager.plugins
        at = plugins.index(self.plugin)
        self.plugin = plugins[at] = ContextPackPlugin(policy=self.policy, store=self.store, on_error=self.on_error)

    async def held(self, user: str | None = None, session: str | None = None) -> Any:
        """The session as its service keeps it."""
        return await self.sessions.get_session(
            app_name=self.app_name, user_id=user or self.user, session_id=session or self.session
        )

    def manifests(self) -> list[Manifest]:
        return list(self.store.manifests())

    def latest(self) -> Manifest:
        """The newest manifest; of the others those alone are read that answer the same event, as a second try does."""
        places = [*self.store.listed()]
        answered = f"/pack_{places[-1].rpartition('/')[2].split('_')[1]}_"
        newest = [self.store.read(place) for place in places if answered in place]
        return max(newest, key=lambda manifest: (manifest.last_event_time, manifest.call, manifest.pack_id))

    def replays(self, every: int = 3) -> None:
        """Every pack in the store is intact and can be built again; of many that cut nothing, one of so many is."""
        replayer, manifests = Replayer(self.store), self.manifests()
        for at, manifest in enumerate(manifests):
            manifest.verify()
            is_one_of_many = len(manifests) > 8 and 0 < at < len(manifests) - 1
            if is_one_of_many and at % every and not (was_cut(manifest) or manifest.degradations):
                continue
            replayed = replayer.replay(manifest)
            assert replayed.matches
            accounted(replayer, replayed)


def sound(store: PackStore) -> list[Manifest]:
    """The packs of a store, each of which is unchanged and gives the same request when it is built again."""
    replayer, manifests = Replayer(store), list(store.manifests())
    for manifest in manifests:
        manifest.verify()
        assert replayer.replay(manifest).matches
    return manifests


def was_cut(manifest: Manifest) -> bool:
    return any(event.stage == "cut" for event in manifest.truncation_events)


def grow(sents: Sequence[Sent]) -> bool:
    """Whether each request begins with all contents of the one before it."""
    return all(later.wires[: len(one.wires)] == one.wires for one, later in itertools.pairwise(sents))


def inside(manifest: Manifest, window: int) -> bool:
    """Whether a request fits, in counted tokens less those that usage shows to be counted too much."""
    too_much = manifest.calibration.spare_tokens if manifest.calibration is not None else 0
    return sum(layer.used for layer in manifest.allocation.values()) - too_much <= window


def accounted(replayer: Replayer, replayed: Replayed) -> None:
    """``kept + dropped == candidates``: a row for each content and candidate, and no other."""
    resolved, source = replayer.resolve(replayed.manifest), replayed.pack.source
    rows = [row for row in resolved.rows.values() if row.layer in ("conversation", "task")]
    others = [row.id for row in resolved.rows.values() if row.layer not in ("conversation", "task")]
    assert sorted(row.hash for row in rows) == sorted(resolved.contents)
    if replayed.manifest.chose:
        assert sorted(others) == sorted(one.id for one in (*source.candidates, *source.instructions))
    for row in resolved.rows.values():
        if row.form == "left_out":
            assert row.reason is not None


async def set_state(chat: Chat, **values: Any) -> None:
    """Puts values into a session's state by an event, as an application would."""
    session = await chat.held()
    await chat.sessions.append_event(
        session, Event(author="app", invocation_id="app", actions=EventActions(state_delta=values))
    )


def results(events: list[Any]) -> list[dict[str, Any]]:
    """What the tools answered, in order."""
    return [dict(one.response or {}) for event in events for one in event.get_function_responses()]


def state_of(chat: Chat) -> dict[str, Any]:
    return dict(asyncio.run(chat.held()).state)
