"""A request as the host made it: contents and their parts, declarations, the step, and whose call it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, fields
from functools import wraps
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar, TypeVarTuple

from aether_context.canonical import fold, short

__all__ = [
    "LEAST_WINDOW_READ", "RECALLED", "STEP_WORDS", "UNTIL", "AcceptanceItem", "Content", "Identity", "Part",
    "PartKind", "Quote", "Request", "Step", "Tool", "Validity", "content_name", "content_place", "recalled_id",
    "with_content",
]  # fmt: skip

_Arguments = TypeVarTuple("_Arguments")
_Result = TypeVar("_Result")

PartKind: TypeAlias = Literal["text", "thought", "call", "response", "media", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a content.

    ``text`` is what a model reads of it: the text itself, or the canonical JSON of a call's arguments, of a response or
    of an unknown kind of part; it is empty for media. ``wire`` is the part's canonical JSON as it is sent, with binary
    data replaced by its digest. ``size_bytes`` is the size of that data, ``media_count`` that of images, documents
    and the like in it, and ``pages`` what its PDF documents name of theirs.
    """

    kind: PartKind
    text: str
    wire: str
    name: str = ""
    call_id: str = ""
    mime_type: str = ""
    size_bytes: int = 0
    media_tokens: int = 0
    media_count: int = 0
    pages: int = 0
    shape: str = ""
    """The size of its media for people: in pixels, pages or bytes; empty where it is not known."""
    is_signed: bool = False
    """Whether the model's provider signed it, and may refuse it in other words."""
    is_instruction: bool = False
    """Whether it holds an instruction that is active, so that no extract of it is sent."""

    @property
    def is_thought(self) -> bool:
        """Tells whether it is a model's thought, in words or (redacted) in a signature alone."""
        return self.kind == "thought" or (self.kind == "other" and json.loads(self.wire).get("thought") is True)


class Quote(NamedTuple):
    """A quote of another agent's words or call, or of a tool's response to it, as the host writes it into a message.

    ``text`` is the quoted text, ``name`` the tool's, and ``at`` the index of the part.
    """

    kind: Literal["said", "call", "response"]
    agent: str
    text: str
    at: int
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """One message of a request. ``digest`` is the hash of ``wire``, the canonical JSON of role and parts.

    ``calls`` and ``responses`` are the tool calls and responses among its parts. ``agent`` is set where the message is
    another agent's turn, which the host shows as a user message; ``quotes`` then holds its parts as that agent's.
    ``has_media`` is set where one of its parts is or holds a medium. ``signed_thoughts`` is the number of the thoughts
    among its parts that the model's provider signed.
    """

    role: str
    parts: tuple[Part, ...]
    wire: str
    digest: str
    calls: tuple[Part, ...] = ()
    responses: tuple[Part, ...] = ()
    agent: str = ""
    quotes: tuple[Quote, ...] = ()
    has_media: bool = False
    signed_thoughts: int = 0
    derived: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Results of `with_content`, which live as long as the content."""

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def text(self) -> str:
        """The text parts, a line break between two; thoughts, calls and responses left out."""
        if len(self.parts) == 1:
            return self.parts[0].text if self.parts[0].kind == "text" else ""
        return "\n".join(part.text for part in self.parts if part.kind == "text")

    @property
    def words(self) -> str:
        """The words in it: its text, or in another agent's turn what that agent said, without what the host adds."""
        if not self.agent:
            return self.text
        return "\n".join(quote.text for quote in self.quotes if quote.kind == "said")


def with_content(derive: Callable[[Content, *_Arguments], _Result]) -> Callable[[Content, *_Arguments], _Result]:
    """A function of a content, and of what can be hashed, that works once: the content keeps the result.

    So nothing is known any more of contents that nobody holds, however many sessions a process has served.
    """

    @wraps(derive)
    def once(content: Content, *arguments: *_Arguments) -> _Result:
        key = (derive, *arguments)
        if key not in content.derived:
            content.derived[key] = derive(content, *arguments)
        result: _Result = content.derived[key]
        return result

    return once


def content_name(place: int, digest: str) -> str:
    """A content's id: its index in the host's list and the beginning of its hash."""
    return f"c{place}_{short(digest)}"


def content_place(name: str) -> int:
    """The index in the host's list by a `content_name`; 0 where it is none."""
    place = name.removeprefix("c").partition("_")[0]
    return int(place) if place.isdecimal() else 0


LEAST_WINDOW_READ: Final = 4_000
"""The window in tokens from which on agents that may be cut have the tools that read the past: of it they take 7 parts
in a hundred."""
RECALLED = "conversation"
"""The source of candidates that are turns of the conversation itself."""
UNTIL = "until"
"""The score of a memory that is the time, in seconds since 1970, since when another one says otherwise."""


def recalled_id(place: int, digest: str) -> str:
    """A content's id as a candidate for memory. For a passage of it, ``#`` and a number follow."""
    return f"turn_{content_name(place, digest)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function declaration. ``signature`` is its line in the payload; an ``essential`` one is never left out."""

    name: str
    signature: str
    wire: str
    digest: str
    essential: bool = False


class Request(NamedTuple):
    """A request as the host made it.

    ``contents`` are those that no earlier cut removed; ``positions`` are their indices in the host's own list.
    ``request_index`` is the index within ``contents`` of the final human message, None where there is none; it is
    another agent's turn where the host shows no message of the user. ``other_tools`` are the wires of tools that are
    not functions. ``first_call`` is set at an invocation's first call, and at the first that answers what another agent
    handed over. ``rewritten`` is set where the host changed history that an earlier cut or request relied on.
    """

    model: str
    system: str = ""
    system_is_text: bool = True
    tools: tuple[Tool, ...] = ()
    other_tools: tuple[str, ...] = ()
    contents: tuple[Content, ...] = ()
    positions: tuple[int, ...] = ()
    request_index: int | None = None
    first_call: bool = True
    rewritten: bool = False

    @property
    def from_agent(self) -> bool:
        """Tells whether the final human message is another agent's turn, which was handed to this agent."""
        return self.request_index is not None and bool(self.contents[self.request_index].agent)


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceItem:
    """One item of a step's checklist. ``needs_evidence`` is set where only proof completes it."""

    id: str
    text: str
    needs_evidence: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The agent's present task, from the session's plan or from the user's request.

    ``role_lines`` are what a model is told of a common role; other roles are passed on in the plan's own words.
    """

    task_id: str = ""
    task: str = ""
    goal: str = ""
    step_id: str = ""
    text: str = ""
    role: str = ""
    role_lines: tuple[str, ...] = ()
    acceptance: tuple[AcceptanceItem, ...] = ()
    constraints: tuple[str, ...] = ()
    expected_tool_calls: int | None = None
    risk: Literal["low", "medium", "high"] | None = None
    open_questions: tuple[str, ...] | None = None
    next: tuple[str, ...] = ()
    stop_when: tuple[str, ...] = ()
    tools: tuple[str, ...] | None = None

    @property
    def key(self) -> str:
        """A hash that identifies the step in its session by its id, or by its text where it has no id."""
        return short(fold([self.task_id, self.step_id or self.text]))


STEP_WORDS: Final = tuple(
    item.name
    for item in fields(Step)
    if item.name
    not in ("task_id", "step_id", "role", "role_lines", "acceptance", "expected_tool_calls", "risk", "tools")
)
"""The fields of a `Step` that hold words of the plan, which are shortened where a step is too large. A new field is one
of them unless it is named here."""

Validity: TypeAlias = Literal["unplanned", "valid", "invalid"]


class Identity(NamedTuple):
    """Whose model call a pack is for.

    ``call`` counts the model calls of one agent in one invocation from 1. ``caller`` is the session whose tool this one
    runs in: app, user, session.
    """

    app: str
    user: str
    session: str
    invocation: str
    agent: str
    branch: str = ""
    call: int = 1
    last_event_id: str = ""
    last_event_time: float = 0.0
    caller: tuple[str, str, str] | None = None
