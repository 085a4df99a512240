"""Recorded packs without ADK: contents, pack_input, and sessions that end up in a store.

`Session` is a host in miniature: it keeps the history, carries the epoch from call to call, and records each pack the
way the plugin does. `talk`, `chain` and `remembering` are sessions that tests need again and again.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from wording import MANIFEST, SUMMARY_TITLE

from aether_context.canonical import canonical_json, hash_text
from aether_context.conversation import Conversation, Decision, strategies_of, units
from aether_context.conversation.content_json import content_of_parts, part_of
from aether_context.pack import (
    AcceptanceItem,
    Candidate,
    Content,
    ContentForm,
    Epoch,
    Identity,
    Pack,
    PackInput,
    Request,
    Step,
    Tool,
)
from aether_context.packing import build_pack, next_input
from aether_context.policy import ConversationSettings, PackPolicy
from aether_context.store import Manifest, PackStore, Recording, Tip, record
from aether_context.store.pack_file import LOG, numbers_of, read_segment
from aether_context.tokens import counter_for
from aether_context.tokens.cache import TokenCache

MODEL = "gemini-2.5-flash"
BEGIN = 1_735_700_000.0
"""The time of a session's first event, 2025-01-01 UTC."""

IDENTITY = Identity(
    app="shop", user="ada", session="s1", invocation="i1", agent="writer", last_event_id="e1", last_event_time=BEGIN
)

# contents


def said(text: str, role: str = "user") -> Content:
    """A message."""
    return content_of_parts(role, [part_of({"text": text})])


def called(name: str, call_id: str, **arguments: Any) -> Content:
    """A model's call of a function."""
    return content_of_parts("model", [part_of({"function_call": {"id": call_id, "name": name, "args": arguments}})])


def answered(name: str, call_id: str, text: str) -> Content:
    """A function's response."""
    response = {"id": call_id, "name": name, "response": {"result": text}}
    return content_of_parts("user", [part_of({"function_response": response})])


def summarized(text: str) -> Content:
    """The message that holds a summary."""
    return said(f"{SUMMARY_TITLE}:\n{text}")


def is_human(content: Content) -> bool:
    """Tells whether a content is somebody's words to the model."""
    return content.role == "user" and not (content.responses or content.calls or content.agent)


def torn(contents: Sequence[Content]) -> list[int]:
    """The indices of contents with responses that answer no call among the contents."""
    singles = [unit.indices[0] for unit in units(contents) if unit.kind == "message"]
    return [index for index in singles if contents[index].responses]


def tool(name: str, purpose: str = "does its work") -> Tool:
    """A declaration."""
    wire = canonical_json({"name": name, "description": purpose})
    return Tool(name=name, signature=f"{name}(): {purpose}", wire=wire, digest=hash_text(wire))


def calls(*names: str, ids: Sequence[str] = ()) -> Content:
    """Parallel calls."""
    parts = [
        part
        for name, call_id in zip(names, ids or [""] * len(names), strict=True)
        for part in called(name, call_id).parts
    ]
    return content_of_parts("model", parts)


def answers(*names: str, ids: Sequence[str] = ()) -> Content:
    """The answers to parallel calls, in one content."""
    pairs = zip(names, ids or [""] * len(names), strict=True)
    return content_of_parts("user", [part for name, call_id in pairs for part in answered(name, call_id, "x").parts])


def memory(name: str, text: str, time: float | None = None, **more: Any) -> Candidate:
    """A memory that could enter a pack."""
    return Candidate(id=name, layer="memory", source="memory", text=text, digest=hash_text(text), time=time, **more)


def evidence(name: str, text: str, covers: Sequence[str] = (), **more: Any) -> Candidate:
    """An evidence record that could enter a pack."""
    uri = f"artifact://evidence/{name}.md"
    digest = hash_text(f"{uri}\n{text}")
    more |= {"uri": uri, "covers": tuple(covers)}
    return Candidate(id=name, layer="evidence", source="state", text=text, digest=digest, **more)


STEP = Step(
    task_id="42",
    task="Write the refund guide",
    step_id="3",
    text="Describe how a refund is approved",
    role="Operator",
    acceptance=(
        AcceptanceItem(id="a1", text="Names who approves a refund", needs_evidence=True),
        AcceptanceItem(id="a2", text="Cites the limit in euros", needs_evidence=True),
    ),
)


def lines(topic: str, count: int) -> str:
    """So many different lines about a topic, about ten tokens each."""
    return "\n".join(f"{topic}: line {at} says that item {at * 7} is due on day {at % 28}" for at in range(count))


def turns(count: int, size: int = 8) -> list[Content]:
    """So many turns, an exchange with so many lines in each, and a message that waits for its answer."""
    contents = []
    for at in range(count):
        contents += [
            said(f"question {at}"),
            called("look_up", f"c{at}", key=f"k{at}"),
            answered("look_up", f"c{at}", lines(f"result {at}", size)),
            said(f"answer {at}", "model"),
        ]
    return [*contents, said("and now?")]


# packs


def pack_input(
    contents: Sequence[Content],
    *,
    identity: Identity = IDENTITY,
    window: int = 16_000,
    system: str = "You help with the shop's papers.",
    tools: Sequence[Tool] = (),
    step: Step | None = None,
    candidates: Sequence[Candidate] = (),
    **more: Any,
) -> PackInput:
    """What a pack is built from. ``contents`` are all of the host's list; ``more`` are further fields."""
    humans = [at for at, content in enumerate(contents) if is_human(content)]
    request = Request(
        model=MODEL,
        system=system,
        tools=tuple(tools),
        contents=tuple(contents),
        positions=tuple(range(len(contents))),
        request_index=humans[-1] if humans else None,
    )
    validity = "valid" if step is not None else "unplanned"
    given = PackInput(identity, request, window, step or Step(), validity=validity, candidates=tuple(candidates))
    return changed(given, **more)


def changed(given: PackInput, **fields: Any) -> PackInput:
    """An input with other fields, its own or those of the values in it."""
    for name in ("request", "host", "usage", "search", "previous"):
        inside = getattr(given, name)
        values = {key: fields.pop(key) for key in inside._fields if key in fields}
        given = given._replace(**{name: inside._replace(**values)})
    return given._replace(**fields)


def paths_of(store: PackStore, manifest: Manifest) -> tuple[str, str]:
    """The paths of a pack's manifest, and of the segment of the log that holds its record."""
    folder = f"{store.files.place(*manifest.session_key)}/{LOG}"
    segments = [file.path for file in store.files.files(folder) if manifest.number in numbers_of(file.name)]
    if len(segments) > 1:  # that of its outcome is another one
        segments = [path for path in segments if manifest.record in read_segment(store.files.read(path))[0]]
    return f"{store.place(manifest)}/{MANIFEST}", segments[0]


def rewrite(store: PackStore, manifest: Manifest, way: Callable[[bytes], bytes], file: int = 0) -> None:
    """Changes a file of a pack: 0 the manifest, 1 what is in its segment of the log."""
    path = paths_of(store, manifest)[file]
    data = store.files.read(path)
    text = gzip.decompress(data) if file == 1 else data
    changed = way(text)
    assert changed != text
    store.files.replace(path, gzip.compress(changed) if file == 1 else changed)


def write(store: PackStore, pack: Pack, policy: PackPolicy | None = None, tip: Tip | None = None) -> Manifest:
    """Records a pack and writes it."""
    return store.write(record(pack, policy or PackPolicy(), counter_for(MODEL).name, tip)).model_copy()


def recording(text: str = "What is my dog called?", policy: PackPolicy | None = None, **identity: Any) -> Recording:
    """One pack of a short chat with memories, which nothing holds yet; ``identity`` is what is other of whose it is."""
    whose = IDENTITY._replace(**{"app": "app", "user": "user", "session": "session", **identity})
    found = (memory("m1", "The dog is called Rex", time=1.0), memory("m2", "Tax law of 1971"))
    policy = policy or PackPolicy()
    contents = [said("hi"), said("hello", "model"), said(text)]
    return record(build_pack(pack_input(contents, identity=whose, candidates=found), policy), policy, "estimate", None)


class Session:
    """A host in miniature.

    Args:
        given: further arguments of `pack_input` for every call.
    """

    def __init__(
        self, store: PackStore, policy: PackPolicy | None = None, *, identity: Identity = IDENTITY, **given: Any
    ) -> None:
        self.store = store
        self.policy = policy or PackPolicy()
        self.history: list[Content] = []
        self.packs: list[Pack] = []
        self.manifests: list[Manifest] = []
        self._identity = identity._replace(call=0)
        self._given = given
        self._tip: Tip | None = None
        self._cache = TokenCache()

    def ask(self, text: str) -> Manifest:
        """A new invocation begins with this message; its first model call."""
        number = sum(map(is_human, self.history)) + 1
        self.history.append(said(text))
        self._identity = self._identity._replace(invocation=f"i{number}", call=0)
        return self._call()

    def answer(self, text: str) -> None:
        """The model's answer ends the invocation."""
        self.history.append(said(text, "model"))

    def use(self, name: str, result: str) -> Manifest:
        """The model calls a function, which answers; the next model call."""
        call_id = f"call-{len(self.history)}"
        self.history += [called(name, call_id, query=name), answered(name, call_id, result)]
        return self._call()

    def _call(self) -> Manifest:
        time = BEGIN + 10 * len(self.manifests)
        self._identity = self._identity._replace(
            call=self._identity.call + 1, last_event_id=f"e{time:.0f}", last_event_time=time
        )
        source = self._source()
        counter = counter_for(MODEL)
        pack = build_pack(source, self.policy, counter=counter, cache=self._cache)
        before = self.manifests[-1].digest if self.manifests else ""
        number = len(self.manifests) + 1
        recording = record(pack, self.policy, counter.name, self._tip, number=number, before=before)
        self._tip = recording.tip
        self.packs.append(pack)
        self.manifests.append(self.store.write(recording))
        return self.manifests[-1]

    def _source(self) -> PackInput:
        before = self.packs[-1] if self.packs else None
        source = pack_input(
            self.history,
            identity=self._identity,
            sent=before.sent if before is not None else None,
            pack_id=self.manifests[-1].pack_id if self.manifests else "",
            **self._given,
        )
        epoch = before.epoch if before is not None else Epoch(number=0)
        return next_input(
            source, len(self.history), self.history.__getitem__, epoch, request_index=source.request.request_index
        )


# sessions


def talk(store: PackStore, turns: int = 12, window: int = 2_000, policy: PackPolicy | None = None) -> list[Manifest]:
    """A conversation of so many turns, a manifest each; by default long enough to be cut."""
    session = Session(store, policy, window=window)
    for turn in range(turns):
        session.ask(f"Question {turn}: {lines('refunds', 6)}")
        session.answer(f"Answer {turn}: {lines('approval', 6)}")
    return session.manifests


def chain(store: PackStore, calls: int = 4, policy: PackPolicy | None = None, **given: Any) -> list[Manifest]:
    """An invocation with so many model calls, one tool result more at each; every manifest extends the one before."""
    session = Session(store, policy, tools=[tool("search"), tool("read_file")], **given)
    session.ask("Find out who approves refunds.")
    for at in range(1, calls):
        session.use("search", lines(f"result {at}", 5))
    return session.manifests


MEMORIES = (
    memory("m_approver", "Refunds above 200 euros are approved by the branch manager", time=BEGIN - 86_400),
    memory("m_limit", "The refund limit without approval is 200 euros", time=BEGIN - 172_800),
    memory("m_lunch", "Zebras graze before dawn"),
)


def remembering(store: PackStore, policy: PackPolicy | None = None, **given: Any) -> Manifest:
    """A planned pack with evidence and memories; one of those is dropped, and one tool is not the step's.

    Two memories have a place of their own, so that the third one has to answer the request.
    """
    policy = policy or PackPolicy(retrieval={"memory_k": 2})
    fields: Mapping[str, Any] = {
        "candidates": [*MEMORIES, evidence("ev_rules", "Rules of approval, section 4", covers=["a1"])],
        "step": replace(STEP, tools=("search",)),
        "tools": [tool("search"), tool("delete_all")],
        **given,
    }
    return Session(store, policy, **fields).ask("Who approves refunds above 200 euros?")


# strategies without a pack


def trim(conversation: Conversation, settings: ConversationSettings) -> Decision:
    """Has the one strategy of a policy decide."""
    (strategy,) = strategies_of(settings)
    return strategy.trim(conversation, conversation.budget.cut_to)


def staying(conversation: Conversation, decision: Decision) -> tuple[int, ...]:
    """The indices of the contents that a decision leaves."""
    gone = set(decision.removed)
    return tuple(at for at in range(len(conversation.contents)) if at not in gone)


def rendered(conversation: Conversation, decision: Decision) -> tuple[Content, ...]:
    """The contents that a decision leaves, with the summary as a message in its place."""
    left = conversation.apply(decision)
    if not left.recap.summary:
        return left.contents
    at = sum(index < min(decision.forms, default=0) for index in staying(conversation, decision))
    return (*left.contents[:at], summarized(left.recap.summary), *left.contents[at:])


def summary_of(*contents: Content, earlier: str = "", max_tokens: int = 20_000) -> str:
    """The summary of contents that are all cut, behind that of earlier cuts."""
    conversation = Conversation.of(contents, window=100)  # so small that no line has room of its own
    conversation = replace(conversation, recap=conversation.recap._replace(summary=earlier))
    return conversation.summarized(
        {at: ContentForm("left_out", "threshold") for at in range(len(contents))}, max_tokens
    )
