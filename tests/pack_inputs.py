"""Small values below ADK: contents, candidates, the input of one pack, and that pack recorded."""

from __future__ import annotations

from packs import changed

from aether_context import PackPolicy, build_pack
from aether_context.canonical import hash_text
from aether_context.conversation.content_json import content_of_parts, part_of
from aether_context.pack import Candidate, Content, Identity, PackInput, Request, Step
from aether_context.store import Recording, record


def human(text: str = "hello") -> Content:
    return content_of_parts("user", [part_of({"text": text})])


def says(text: str = "well") -> Content:
    return content_of_parts("model", [part_of({"text": text})])


def calls(*names: str, ids: tuple[str, ...] = ()) -> Content:
    named = list(zip(names, ids or ("",) * len(names), strict=True))
    parts = [
        part_of({"function_call": {"name": name, "args": {}, **({"id": one} if one else {})}}) for name, one in named
    ]
    return content_of_parts("model", parts)


def answers(*names: str, ids: tuple[str, ...] = ()) -> Content:
    named = list(zip(names, ids or ("",) * len(names), strict=True))
    parts = [
        part_of({"function_response": {"name": name, "response": {"result": "x"}, **({"id": one} if one else {})}})
        for name, one in named
    ]
    return content_of_parts("user", parts)


IDENTITY = Identity(
    app="app", user="user", session="session", invocation="i1", agent="agent", last_event_time=1_768_900_000.0
)


def source(contents: list[Content], window: int = 16_000, **changes: object) -> PackInput:
    humans = [at for at, one in enumerate(contents) if one.role == "user" and not one.responses]
    request = Request(
        model="gemini-2.5-flash",
        system=str(changes.pop("system", "You help.")),
        tools=changes.pop("tools", ()),
        contents=tuple(contents),
        positions=tuple(range(len(contents))),
        human=humans[-1] if humans else None,
    )
    return changed(PackInput(IDENTITY, request, window, Step()), **changes)


def memory(name: str, text: str, **fields: object) -> Candidate:
    return Candidate(id=name, layer="memory", source="memory", text=text, digest=hash_text(text), **fields)


def evidence(name: str, text: str, **fields: object) -> Candidate:
    return Candidate(
        id=name, layer="evidence", source="state", text=text, digest=hash_text(text), uri=f"artifact://{name}", **fields
    )


def recording(text: str = "What is my dog called?", policy: PackPolicy | None = None, **identity: object) -> Recording:
    found = (memory("m1", "The dog is called Rex", time=1.0), memory("m2", "Tax law of 1971"))
    pack_input = source(
        [human("hi"), says("hello"), human(text)], candidates=found, identity=IDENTITY._replace(**identity)
    )
    policy = policy or PackPolicy(max_input_tokens=16_000)
    return record(build_pack(pack_input, policy), policy, "estimate", None)
