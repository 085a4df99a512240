"""Whatever a request holds: no exception, no torn exchange, no changed event, inside the window, and all accounted for.

The default run takes the same examples each time. ``HYPOTHESIS_PROFILE=long`` takes fifty times as many, at random, and
shrinks what it finds; ``FUZZ_EXAMPLES`` sets the number of examples.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import re
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from google.adk.agents import LlmAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.sessions import InMemorySessionService
from google.adk.sessions.session import Session
from google.adk.tools import FunctionTool
from google.genai import types
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from scripted import accounted, delete_all, doubled, faults, look_up, new_store, send_mail

from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin
from aether_context.adk.request.reader import Reader
from aether_context.conversation import units
from aether_context.conversation.turns import protected
from aether_context.pack import Content, Outgoing, Pack
from aether_context.packing.payload import step_text
from aether_context.store.replay import Replayer
from aether_context.tokens import counter_for, framing_of
from aether_context.tokens.cache import TokenCache

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"


def fuzz(examples: int) -> Any:
    """Settings of one test: how many examples by default."""
    asked = os.environ.get("FUZZ_EXAMPLES")
    number = int(asked or (examples * 50 if LONG else examples))
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
    phases = [phase for phase in Phase if LONG or phase not in (Phase.shrink, Phase.explain)]
    return settings(
        max_examples=number, suppress_health_check=slow, phases=phases, derandomize=not (LONG or asked), print_blob=True
    )


WORDS = (
    "alpha", "beta", "gamma", "tax", "rate", "file.txt", "id_12345", "héllo", "日本語", "🙂", "\n", "\t", "- x", "Z:",
)  # fmt: skip
LONG_ID = "c" * 1_500

ids = st.sampled_from([None, None, "", "a", "b", "c", LONG_ID])
names = st.sampled_from(["look_up", "send_mail", "big_file", "nobody", "", "n" * 200])


@st.composite
def texts(draw: st.DrawFn, most: int = 1_500) -> str:
    """Text of up to some thousand characters, from a few words so that shrinking is quick."""
    kind = draw(st.sampled_from(["short", "short", "any", "lines", "run", "empty"]))
    if kind == "empty":
        return draw(st.sampled_from(["", " ", "\n"]))
    if kind == "any":
        return draw(st.text(max_size=60))
    count = draw(st.integers(1, 12 if kind == "short" else most))
    if kind == "run":
        return draw(st.sampled_from(["x", "=", "é", "字", "\n"])) * count
    start = draw(st.integers(0, 50))
    parting = "\n" if kind == "lines" else " "
    return parting.join(f"{WORDS[(start + at * 7) % len(WORDS)]}{(start * at) % 97}" for at in range(count))


surrogates = st.sampled_from(["\ud800", "a\udfffb", "\ud83d alone"])
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=12),
    st.binary(max_size=8),
    surrogates,
    texts(),
)


def nested(depth: int) -> Any:
    value: Any = "deep"
    for _ in range(depth):
        value = {"d": [value]}
    return value


values = st.one_of(
    scalars,
    st.recursive(
        scalars,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.tuples(inner),
            st.dictionaries(st.one_of(st.text(max_size=4), surrogates), inner, max_size=3),
        ),
        max_leaves=6,
    ),
    st.integers(1, 120).map(nested),
)
plain_values = st.one_of(st.none(), st.integers(0, 999), st.text(max_size=8), texts(3_000))


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(["result", "key", "x", "y"]), inner, max_size=3)


@st.composite
def parts(draw: st.DrawFn) -> types.Part:
    """A part of any kind."""
    kind = draw(
        st.sampled_from(["text", "text", "thought", "call", "response", "media", "file", "code", "empty", "mix"])
    )
    if kind == "text":
        return types.Part(text=draw(texts()), thought_signature=draw(st.sampled_from([None, None, b"\xff\x00"])))
    if kind == "thought":
        return types.Part(text=draw(texts(40)), thought=True)
    if kind == "call":
        return types.Part(
            function_call=types.FunctionCall(id=draw(ids), name=draw(names), args=draw(containers(values))),
            thought_signature=draw(st.sampled_from([None, b"sig"])),
        )
    if kind == "response":
        answer = draw(st.one_of(st.none(), containers(values)))
        return types.Part(function_response=types.FunctionResponse(id=draw(ids), name=draw(names), response=answer))
    if kind == "media":
        blob = types.Blob(
            data=draw(st.binary(max_size=40)), mime_type=draw(st.sampled_from(["image/png", "x/y", None]))
        )
        return types.Part(inline_data=blob)
    if kind == "file":
        return types.Part(file_data=types.FileData(file_uri="gs://b/f", mime_type="video/mp4"))
    if kind == "code":
        return types.Part(executable_code=types.ExecutableCode(code=draw(texts(20)), language=types.Language.PYTHON))
    if kind == "mix":
        return types.Part(text=draw(texts(10)), inline_data=types.Blob(data=b"\x00", mime_type="audio/wav"))
    return types.Part()


wild_contents = st.builds(
    lambda role, held: types.Content(role=role, parts=held),
    st.sampled_from(["user", "user", "model", "model", None, "function"]),
    st.one_of(st.none(), st.lists(parts(), max_size=4)),
)


@st.composite
def exchanges(draw: st.DrawFn) -> list[types.Content]:
    """A valid exchange: calls, and one content that answers all of them, ids kept, lost or long."""
    count = draw(st.integers(1, 3))
    identified = draw(st.sampled_from(["none", "ids", "long"]))
    calls, answers = [], []
    for at in range(count):
        one = {"none": None, "ids": f"call-{at}", "long": LONG_ID + str(at)}[identified]
        name = draw(st.sampled_from(["look_up", "big_file"]))
        calls.append(
            types.Part(function_call=types.FunctionCall(id=one, name=name, args=draw(containers(plain_values))))
        )
        response = draw(st.one_of(containers(plain_values), containers(values)))
        answers.append(types.Part(function_response=types.FunctionResponse(id=one, name=name, response=response)))
    if draw(st.booleans()):
        calls.insert(0, types.Part(text=draw(texts(30)) or "."))
    if draw(st.booleans()):
        answers.reverse()
    return [types.Content(role="model", parts=calls), types.Content(role="user", parts=answers)]


def said(role: str, text: str) -> types.Content:
    return types.Content(role=role, parts=[types.Part(text=text or ".")])


@st.composite
def conversations(draw: st.DrawFn) -> list[types.Content]:
    """A valid conversation of up to eight turns, from the first human message on."""
    contents: list[types.Content] = []
    for _ in range(draw(st.integers(1, 8))):
        message = said("user", draw(texts(2_000)))
        if draw(st.integers(0, 6)) == 0:
            message.parts.append(types.Part(inline_data=types.Blob(data=b"\x89PNG", mime_type="image/png")))
        contents.append(message)
        for _ in range(draw(st.integers(0, 3))):
            contents += draw(exchanges())
        if draw(st.integers(0, 5)):
            contents.append(said("model", draw(texts(300))))
        if draw(st.integers(0, 8)) == 0:
            contents.append(copy.deepcopy(contents[0]))
    return contents


STRATEGIES = (
    "epochs", "epochs", "stable_prefix", "sliding_turns", "heads_tails", "summarize", "none",
    ("stable_prefix", "sliding_turns"), ("sliding_turns", "epochs"), ("stable_prefix", "heads_tails", "summarize"),
)  # fmt: skip
windows = st.one_of(st.integers(256, 1_500), st.integers(256, 20_000))

STEP = {"id": "s", "text": "find the tax rate", "acceptance": [{"text": "named", "needs_evidence": True}]}
STATES: list[dict[str, Any]] = [
    {},
    {},
    {"plan": {"task": "t", "step": STEP}},
    {"plan": {"task": "t", "step": {**STEP, "tools": ["look_up"]}, "next": ["then"]}},
    {"plan": {"task": "t", "step": "no acceptance"}},
    {
        "plan": {"task_id": "1", "goal": "g", "step": STEP},
        "knowledge": {
            "notes": ["the tax rate is nineteen", {"text": "alpha beta gamma", "time": 1.7e9}],
            "evidence": [{"uri": f"artifact://e{at}", "summary": "tax " * at, "covers": ["a1"]} for at in range(4)],
        },
    },
    {"knowledge": {"memories": [f"tax rate memory {at} " + "alpha " * at for at in range(20)]}},
]


@st.composite
def policies(draw: st.DrawFn) -> PackPolicy:
    strategy = draw(st.sampled_from(STRATEGIES))
    shares = [0.2] if "summarize" in strategy else [0.2, 0]
    return PackPolicy(
        max_input_tokens=draw(windows),
        conversation={
            "summary_share": draw(st.sampled_from(shares)),
            "last_turns": draw(st.sampled_from([1, 3])),
            "strategy": strategy,
            "sliding_turns": {"tokens": draw(st.sampled_from([0, 400, 100_000]))},
        },
        payload={"contract": draw(st.sampled_from(["system", "payload", "off"])), "recitation": draw(st.booleans())},
        tools={"scope": draw(st.sampled_from(["auto", "off", "prune", "mask"]))},
    )


models = st.sampled_from(["gemini-2.5-flash", "claude-sonnet-4-5", "unheard-of"])
wild = st.lists(wild_contents, min_size=1, max_size=10)


TOOLS = (look_up, send_mail, delete_all)
"""Plain functions, which ADK wraps in new tools at each call."""


class Run:
    """A session whose contents grow one at a time, each put through the plugin as a model call."""

    def __init__(self, policy: PackPolicy, state: dict[str, Any], model: str = "gemini-2.5-flash") -> None:
        if policy.max_input_tokens is not None and model.startswith("claude"):
            # What the provider adds where tools are declared would fill the smallest windows by itself.
            policy = policy.changed(max_input_tokens=policy.max_input_tokens + 800)
        self.policy, self.model, self.store = policy, model, new_store()
        self.plugin = self.fresh()
        self.session = Session(id="s", app_name="app", user_id="u", state=copy.deepcopy(state))
        self.agent = LlmAgent(name="clerk", model=model)
        self.services = InMemorySessionService()
        self.reader = Reader()
        self.invocation = 0
        self.asked: types.Content | None = None
        self.originals: list[str] = []
        self.skip = 0
        self.packs: list[Pack] = []
        self.cache = TokenCache()

    def fresh(self) -> ContextPackPlugin:
        return ContextPackPlugin(policy=self.policy, store=self.store, on_error="raise")

    def append(self, content: types.Content) -> None:
        """Puts a content into the session, a human one as a new invocation."""
        human = content.role == "user" and not any(part.function_response for part in content.parts or ())
        if human or not self.invocation:
            self.invocation += 1
            self.asked = content if human else None
        author = "user" if human else "clerk"
        event = Event(
            author=author, invocation_id=f"i{self.invocation}", content=content, timestamp=1.7e9 + len(self.originals)
        )
        self.session.events.append(event)
        self.originals.append(repr(event.model_dump()))

    def context(self) -> CallbackContext:
        return CallbackContext(
            InvocationContext(
                session_service=self.services,
                invocation_id=f"i{self.invocation}",
                agent=self.agent,
                session=self.session,
                user_content=self.asked,
            )
        )

    def request(self) -> LlmRequest:
        contents = [copy.copy(event.content) for event in self.session.events[self.skip :] if event.content]
        for content in contents:
            content.parts = list(content.parts) if content.parts is not None else None
        request = LlmRequest(
            model=self.model, contents=contents, config=types.GenerateContentConfig(system_instruction="You help.")
        )
        request.append_tools([FunctionTool(tool) for tool in TOOLS])
        return request

    async def call(self) -> LlmRequest:
        """One model call; everything that must hold for a single one is checked here."""
        context, request = self.context(), self.request()
        raw = list(request.contents)
        answer = await self.plugin.before_model_callback(callback_context=context, llm_request=request)
        assert answer is None
        if not faults(raw):
            assert faults(request.contents) == []
        if not doubled(raw):
            assert doubled(request.contents) == []
        pack = self.plugin._packer.last(context).pack
        self.packs.append(pack)
        self.check_written(pack, request)
        self.check_window(pack)
        await self.plugin.after_model_callback(
            callback_context=context, llm_response=LlmResponse(content=types.Content(role="model"))
        )
        return request

    def check_written(self, pack: Pack, request: LlmRequest) -> None:
        """The account is of what leaves."""
        left = [self.reader.content(content, self.model).parts for content in request.contents]
        messages = list[list[Outgoing]]()
        for item in pack.contents:
            if item.joined:
                messages[-1].append(item)
            else:
                messages.append([item])
        assert left == [tuple(part for item in message for part in item.content.parts) for message in messages]
        assert [block.digest for block in pack.sent.contents] == [item.content.digest for item in pack.contents]
        assert request.config.system_instruction == pack.system
        declared = [one.name for tool in request.config.tools or () for one in tool.function_declarations or ()]
        assert declared == [tool.name for tool in pack.tools.sent]
        assert list(request.tools_dict) == declared
        finals = sum(layer.final for layer in pack.allocation.layers.values())
        assert finals <= pack.source.window, account(pack)

    def check_window(self, pack: Pack) -> None:
        room = pack.allocation.budget
        if self.least(pack) <= room:
            assert pack.tokens.expected <= pack.source.window, account(pack)

    def least(self, pack: Pack) -> int:
        """Tokens of what no rung may take: the fixed layers, and the contents that always stay, at their smallest."""
        count = counter_for(self.model).count
        source = pack.source
        contents = source.request.contents
        parts = units(contents)
        stay = {index for at in protected(parts, source.request.request_index) for index in parts[at].indices}
        fixed = pack.sent.system.tokens + sum(block.tokens for block in pack.sent.tools)
        fixed += 2 * count(step_text(source.step)) + sum(count(tool.signature) + 2 for tool in pack.tools.sent) + 80
        fixed += sum(pack.allocation.layers[layer].used for layer in ("evidence", "memory"))
        fixed += int(0.06 * pack.allocation.budget) + 30
        fixed += 700 if self.policy.payload.contract == "payload" else 0
        human = source.request.request_index
        return fixed + sum(self.smallest(contents[at], at == human, count) for at in stay)

    def smallest(self, content: Content, human: bool, count: Any) -> int:
        framing = framing_of(self.model)
        total = max(4, framing.message)
        for part in content.parts:
            size = count(part.text) if part.text else 0
            if part.kind == "response":
                total += min(size, 60) + count(part.name) + part.media_tokens + framing.response + 2
            elif part.kind == "call":
                total += size + count(part.name) + framing.call + framing.argument * len(json.loads(part.text)) + 2
            elif part.kind == "media":
                total += part.media_tokens
            elif not (human and part.kind == "text"):
                total += size
        return total + (min(count(content.text), 130) if human and content.text else 0)

    async def finish(self) -> None:
        """What must hold of the whole: events as they were, everything recorded, accounted for and replayable."""
        await self.plugin.close()
        assert [repr(event.model_dump()) for event in self.session.events] == self.originals
        manifests = list(self.store.manifests())
        assert len(manifests) == len(self.packs)
        by_call = {(pack.identity.invocation, pack.identity.call, pack.checksum): pack for pack in self.packs}
        replayer = Replayer(self.store)
        for manifest in manifests:
            manifest.verify()
            replayed = replayer.replay(manifest)
            assert replayed.matches
            pack = by_call[(manifest.invocation, manifest.call, manifest.checksum)]
            both = [[(item.content.wire, item.joined) for item in one.contents] for one in (replayed.pack, pack)]
            assert both[0] == both[1]
            assert sum(budget.tokens for budget in manifest.layer_budgets.values()) <= manifest.window
            assert round(sum(budget.share for budget in manifest.layer_budgets.values()), 9) <= 1
            accounted(replayer, replayed)
        MemoryFileSystem.store.clear()


def account(pack: Pack) -> str:
    """A pack in a few lines, for the message of a failing assertion."""
    contents = [(one.form, one.content.role, one.tokens, one.origin) for one in pack.contents]
    layers = {layer: (one.nominal, one.final, one.used) for layer, one in pack.allocation.layers.items()}
    events = [(event.stage, event.reason, event.tokens_before, event.tokens_after) for event in pack.events]
    return (
        f"call {pack.identity.call}, {pack.tokens.expected} tokens of {pack.source.window}\n"
        f"  contents {contents}, human {pack.source.request.request_index}\n  layers {layers}\n  events {events}\n"
        f"  degradations {pack.verdict.problems}"
    )


def grow(
    contents: Sequence[types.Content], run: Run, *, every: bool = False, restart_at: frozenset[int] = frozenset()
) -> list[LlmRequest]:
    """Puts the contents through the plugin, one content or (as ADK does) one user content at a time.

    At those in ``restart_at`` a new plugin goes on.
    """

    async def go() -> list[LlmRequest]:
        requests = []
        for at, content in enumerate(contents):
            if at in restart_at:
                await run.plugin.close()
                run.plugin = run.fresh()
            run.append(content)
            if every or content.role == "user":
                requests.append(await run.call())
        await run.finish()
        return requests

    return asyncio.run(go())


@given(wild, policies(), st.sampled_from(STATES), models)
@fuzz(4)
def test_any_contents_at_all(
    contents: list[types.Content], policy: PackPolicy, state: dict[str, Any], model: str
) -> None:
    grow(contents, Run(policy, state, model), every=True)


@given(conversations(), policies(), st.sampled_from(STATES), models)
@fuzz(16)
@pytest.mark.slow
def test_valid_conversations_stay_valid(
    contents: list[types.Content], policy: PackPolicy, state: dict[str, Any], model: str
) -> None:
    grow(contents, Run(policy, state, model))


@given(conversations())
@fuzz(2)
def test_without_plan_memory_or_overflow_nothing_changes(contents: list[types.Content]) -> None:
    run = Run(PackPolicy(max_input_tokens=10**8), {})
    for request in grow(contents, run):
        raw = contents[: len(request.contents)]  # but for escapes of what a tool's result hides
        assert [repr(content) for content in request.contents] == [
            repr(Reader().freeze(content, "")[1] or content) for content in raw
        ]
        assert request.config.system_instruction == "You help."
    assert all(not pack.events and {item.form for item in pack.contents} <= {"whole"} for pack in run.packs)


_NOTED = re.compile("left out|…", re.IGNORECASE)
"""What a note says of what is missing in a text."""


@given(conversations(), policies())
@fuzz(8)
@pytest.mark.slow
def test_the_final_request_of_the_user_is_whole_while_it_fits(
    contents: list[types.Content], policy: PackPolicy
) -> None:
    run = Run(policy, STATES[2])
    grow(contents, run)
    for pack in run.packs:
        human = pack.source.request.request_index
        assert human is not None
        text = pack.source.request.contents[human].text
        sent = next(one for one in pack.contents if human in {one.origin, *(origin for origin, _ in one.members)})
        shortened = any(event.layer == "task" and event.stage == "emergency" for event in pack.events)
        if not shortened and "payload" == sent.form and not _NOTED.search(sent.content.text):
            # A session's state cannot hold NUL, and packed text is sent again from there.
            assert sent.content.text.endswith((text, text.replace("\0", "\ufffd")))
        if sent.form == "whole":
            assert sent.content.text == text
        if sent.form == "merged" and not shortened and not _NOTED.search(sent.content.text):
            assert text in sent.content.text


HUGE: dict[str, dict[str, Any]] = {
    "dominant": {"main": "alpha beta\n" * 20_000, "rest": "gamma delta " * 2_000},
    "rows": {"rows": [{"id": at, "name": f"row {at}"} for at in range(5_000)]},
    "long key": {"key " * 10_000: "short"}, "many keys": {f"key{at}": at for at in range(20_000)},
    "run": {"one": "x" * 300_000}, "han": {"one": "字" * 100_000}, "escapes": {"one": '\\"\n' * 50_000},
    "list": {"one": ["tail"] * 30_000}, "deep": nested(99), "bytes": {"b": b"\xff" * 1_000_000},
}  # fmt: skip


@pytest.mark.parametrize(("name", "window"), list(product(HUGE, [1_000, 4_000])))
@pytest.mark.rows(2, slow=6)
def test_one_huge_response_of_any_shape_is_made_to_fit(name: str, window: int) -> None:
    call = types.Part(function_call=types.FunctionCall(name="look_up", args={"key": "a"}))
    answer = types.Part(function_response=types.FunctionResponse(name="look_up", response=HUGE[name]))
    contents = [
        said("user", "look"),
        types.Content(role="model", parts=[call]),
        types.Content(role="user", parts=[answer]),
    ]
    run = Run(PackPolicy(max_input_tokens=window), {})
    grow(contents, run)
    assert run.packs[-1].tokens.expected <= window
