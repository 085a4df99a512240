"""Tools with which agents work on the session's task board and record what they found.

    LlmAgent(name="planner", tools=planning_tools())
    LlmAgent(name="operator", tools=[search, *planning_tools(), *evidence_tools()])

A worker is known by its agent's name. A call that cannot be carried out answers with ``{"error": …}`` that says what to
do instead. The tools stay declared whatever tools a step names.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from google.adk.memory.memory_entry import MemoryEntry
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from aether_context.adk.deadlines import within
from aether_context.adk.declared import Declared
from aether_context.adk.keeping import keep_evidence as _keep
from aether_context.adk.marks import cut_request
from aether_context.adk.reading import ESSENTIAL_MARK
from aether_context.adk.records import Records
from aether_context.canonical import hash_text, short
from aether_context.errors import BoardError, MissingExtra, StateError, StoreError
from aether_context.evidence.offload import superseding
from aether_context.state import EvidenceShape, StepShape, knowledge
from aether_context.state.board import TaskBoard, change_plan
from aether_context.store import PackStore
from aether_context.store.urls import Allowed
from aether_context.text.spellings import as_kind

logger = logging.getLogger("aether_context")

_MEMORY_SECONDS = 10.0


def planning_tools() -> list[FunctionTool]:
    """Tools for the task board: ``list_steps``, ``add_step``, ``claim_step``, ``complete_step``, ``release_step``."""
    return _tools(list_steps, add_step, claim_step, complete_step, release_step)


def evidence_tools(store: PackStore | None = None, urls: Sequence[str] = ()) -> list[FunctionTool]:
    """Tools for what an agent finds: ``add_note``, ``record_evidence`` and ``keep_evidence``.

    Args:
        store: where ``keep_evidence`` puts texts; None takes the store of the app's `ContextPackPlugin`.
        urls: what agents may have read for them, as prefixes: ``https://docs.example.org/``, ``s3://bucket/reports/``.
            With any there is ``keep_url``, too. Nothing else is fetched, whatever a model asks for.

    Raises:
        PolicyError: one of ``urls`` is no URL.
    """
    tools = (add_note, record_evidence, _keeper(store))
    return _tools(*tools, _url_keeper(store, Allowed(urls))) if urls else _tools(*tools)


def memory_tools() -> list[FunctionTool]:
    """Tools for what outlives a step: ``record_decision`` and ``record_entity``; and what outlives the session:
    ``remember`` and ``remember_note``."""
    return _tools(record_decision, record_entity, remember, remember_note)


def context_tools() -> list[FunctionTool]:
    """Tools for what the model reads itself: ``cut_now``."""
    return _tools(cut_now)


def cut_now(tool_context: ToolContext) -> dict[str, Any]:
    """Clears older messages and tool results out of what you read, and keeps a summary of them.

    Use it when a piece of work is done and its details are not needed any more.
    """
    session = tool_context.session
    last = session.events[-1].id if session.events else "start"
    tool_context.state.update(cut_request(session.id, last))
    return {"cut": "before your next answer"}


def list_steps(tool_context: ToolContext) -> dict[str, Any]:
    """Lists the steps of the plan: their status, who has them, what they wait for, their acceptance items and notes."""

    def work() -> dict[str, Any]:
        board = TaskBoard.read(tool_context.state.get("plan"))
        return {
            "steps": [_summary(board, step) for step in board.steps],
            "can_be_claimed": [step.id for step in board.ready()],
        }

    return _answer(work)


def add_step(
    step_id: str,
    text: str,
    acceptance: list[str],
    tool_context: ToolContext,
    depends_on: list[str] = [],  # noqa: B006  # read by ADK as the declaration's default, never changed
    tools: list[str] = [],  # noqa: B006
    role: str = "",
    needs_evidence: bool = False,
) -> dict[str, Any]:
    """Adds a step at the end of the plan.

    Args:
        step_id: A short name that no other step has, such as "s1".
        text: What is to be done, in a sentence or two.
        acceptance: What has to be true when it is done, an item each; at least one.
        depends_on: Names of steps that have to be done before it.
        tools: Names of the only tools that it needs; empty for all.
        role: Who does it, such as "Operator" or "Reviewer".
        needs_evidence: Whether the step is done only when evidence is recorded for each acceptance item.
    """

    def work() -> dict[str, Any]:
        items, said = _lines(acceptance), _text(text)
        if not items or not said:
            raise BoardError("a step needs a text and at least one acceptance item: say when it is done", step=step_id)
        added = {
            "id": _text(step_id),
            "text": said,
            "role": _text(role),
            "acceptance": [
                {"id": f"{step_id}.a{at}", "text": item, "needs_evidence": needs_evidence}
                for at, item in enumerate(items, start=1)
            ],
            "depends_on": _lines(depends_on),
            "tools": _lines(tools) or None,
        }
        board = change_plan(Declared(tool_context), lambda board: board.add(added))
        return {"added": _summary(board, board.step(step_id))}

    return _answer(work)


def claim_step(step_id: str, tool_context: ToolContext) -> dict[str, Any]:
    """Claims a step for you and makes it the current one. Do this before you work on a step.

    Args:
        step_id: The step's name, as list_steps shows it.
    """

    def work() -> dict[str, Any]:
        board = change_plan(Declared(tool_context), lambda board: board.claim(step_id, by=_worker(tool_context)))
        return {"claimed": _summary(board, board.step(step_id))}

    return _answer(work)


def complete_step(
    step_id: str,
    tool_context: ToolContext,
    notes: list[str] = [],  # noqa: B006
) -> dict[str, Any]:
    """Marks a step that you claimed as done. Its acceptance items have to be true.

    Args:
        step_id: The step's name.
        notes: What the steps that depend on it should know, a line each.
    """

    def complete(board: TaskBoard) -> TaskBoard:
        done = board.complete(step_id, by=_worker(tool_context), notes=_lines(notes))
        lacking = [item.id for item in board.unproven(step_id, knowledge.covered(tool_context.state))]
        if lacking:
            raise BoardError(
                f"step {step_id!r} is not done: no evidence covers {', '.join(lacking)}; "
                "call record_evidence for each first",
                step=step_id,
            )
        return done

    def work() -> dict[str, Any]:
        board = change_plan(Declared(tool_context), complete)
        return {"done": step_id, "can_be_claimed": [step.id for step in board.ready()]}

    return _answer(work)


def release_step(step_id: str, tool_context: ToolContext) -> dict[str, Any]:
    """Gives a step that you claimed back, so that it can be claimed again.

    Args:
        step_id: The step's name.
    """

    def work() -> dict[str, Any]:
        change_plan(Declared(tool_context), lambda board: board.release(step_id, by=_worker(tool_context)))
        return {"released": step_id}

    return _answer(work)


def add_note(text: str, tool_context: ToolContext, step_id: str = "", keep_seconds: float = 0) -> dict[str, Any]:
    """Keeps a short working note, so that later requests can show it.

    Args:
        text: The note, in a sentence or two.
        step_id: The step it is for; the note goes with that step when it is done. Empty for a note of the whole task.
        keep_seconds: How long it stays true; 0 for ever.
    """

    def work() -> dict[str, Any]:
        note = knowledge.add_note(
            Declared(tool_context),
            _text(text),
            time=_now(tool_context),
            ttl_seconds=keep_seconds or None,
            step_id=_text(step_id) or None,
        )
        return {"noted": note.id}

    return _answer(work)


def record_evidence(uri: str, summary: str, covers: list[str], tool_context: ToolContext) -> dict[str, Any]:
    """Records a piece of evidence, so that later requests can show and cite it.

    Args:
        uri: Where the whole of it is kept, such as "artifact://report.md".
        summary: What it shows, in a sentence or two.
        covers: Ids of the acceptance items that it proves; empty where it proves none.
    """

    def work() -> dict[str, Any]:
        record = knowledge.add_evidence(
            Declared(tool_context),
            uri=_text(uri),
            summary=_text(summary),
            covers=_lines(covers),
            time=_now(tool_context),
        )
        return {"recorded": record.id, "covers": list(record.covers)}

    return _answer(work)


def _keeper(store: PackStore | None) -> Callable[..., Any]:
    """The tool that keeps a text as evidence in a store."""

    async def keep_evidence(text: str, source: str, covers: list[str], tool_context: ToolContext) -> dict[str, Any]:
        """Keeps a text as evidence, word for word, and records what it shows, so that later requests can cite it.

        Args:
            text: The text as it stands in its source.
            source: Where it is from: a URL, a file's name, or whose words they are.
            covers: Ids of the acceptance items that it proves; empty where it proves none.
        """
        try:
            record = await _keep(tool_context, _given(text), source=_text(source), covers=_lines(covers), store=store)
        except (StateError, StoreError) as error:
            return {"error": str(error)}
        return _said(record, tool_context)

    return keep_evidence


def _url_keeper(store: PackStore | None, allowed: Allowed) -> Callable[..., Any]:
    """The tool that keeps what stands at a URL as evidence in a store."""

    async def keep_url(url: str, covers: list[str], tool_context: ToolContext) -> dict[str, Any]:
        """Fetches what stands at a URL, keeps it whole as evidence, and records what it shows.

        Args:
            url: The URL of a page or a file.
            covers: Ids of the acceptance items that it proves; empty where it proves none.
        """
        url = _text(url)
        try:
            found = await asyncio.to_thread(allowed.read, url)
            record = await _keep(
                tool_context,
                found.content,
                source=url,
                media_type=found.media_type,
                covers=_lines(covers),
                store=store,
            )
        except (StateError, StoreError, MissingExtra) as error:
            return {"error": str(error)}
        return _said(record, tool_context)

    return keep_url


def _said(record: EvidenceShape, tool_context: ToolContext) -> dict[str, Any]:
    """What a tool answers that kept evidence."""
    records = Records()
    records.read(tool_context.session.state)
    answer = {"recorded": record.id, "uri": record.uri, "summary": record.summary, "covers": list(record.covers)}
    return superseding(answer, records.earlier(record.uri))


def record_decision(text: str, tool_context: ToolContext, reason: str = "") -> dict[str, Any]:
    """Keeps a decision for the rest of the session, so that later steps hold to it.

    Args:
        text: What was decided, in a sentence.
        reason: Why.
    """

    def work() -> dict[str, Any]:
        decision = knowledge.add_decision(
            Declared(tool_context), _text(text), reason=_text(reason), time=_now(tool_context)
        )
        return {"decided": decision.id}

    return _answer(work)


def record_entity(name: str, text: str, tool_context: ToolContext) -> dict[str, Any]:
    """Keeps what is known of a person, a system or another thing by its name, in place of what was known before.

    Args:
        name: Its name, always the same one.
        text: All that later steps should know of it, in a sentence or two.
    """

    def work() -> dict[str, Any]:
        entity = knowledge.add_entity(Declared(tool_context), _text(name), _text(text), time=_now(tool_context))
        return {"known": entity.id}

    return _answer(work)


async def remember(text: str, tool_context: ToolContext, kind: str = "") -> dict[str, Any]:
    """Keeps a fact beyond this session, for later conversations with this user. Do not keep what holds only today.

    Args:
        text: The fact, in a sentence that can be understood without this conversation.
        kind: "preference" for what this user said to hold always, such as a language; empty for any other fact.
    """
    said = _text(text)
    if not said:
        return {"error": "a memory needs a text: say what is to be remembered"}
    return await _kept(said, _now(tool_context), tool_context, as_kind(_text(kind)) == "preference")


async def remember_note(note_id: str, tool_context: ToolContext) -> dict[str, Any]:
    """Keeps a working note beyond this session, as it is, for later conversations with this user.

    Args:
        note_id: The note's id, as it was told when the note was made.
    """
    try:
        note = knowledge.find_note(Declared(tool_context), _text(note_id))
    except StateError as error:
        return {"error": str(error)}
    time = note.time if note.time is not None else _now(tool_context)
    return await _kept(note.text, time, tool_context, note.kind == "preference")


async def _kept(said: str, now: float | None, tool_context: ToolContext, preference: bool) -> dict[str, Any]:
    """Writes a text into the app's memory service; one that says the same is written over."""
    name = f"remembered_{short(hash_text(said))}"
    entry = MemoryEntry(
        id=name,
        content=types.Content(role="model", parts=[types.Part(text=said)]),
        author=_worker(tool_context),
        timestamp=datetime.fromtimestamp(now, UTC).isoformat() if now is not None else None,
        custom_metadata={"kind": "preference"} if preference else {},
    )
    try:
        await within(_MEMORY_SECONDS, tool_context.add_memory(memories=[entry]))
    except Exception as error:
        logger.warning("a memory could not be kept: %s", type(error).__name__, exc_info=error)
        return {"error": "it was not kept: this application has no memory that takes single facts, or it failed"}
    return {"remembered": name}


def _tools(*functions: Callable[..., Any]) -> list[FunctionTool]:
    tools = [FunctionTool(function) for function in functions]
    for tool in tools:
        tool.custom_metadata = {ESSENTIAL_MARK: True}
    return tools


def _answer(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a tool did, or why it did nothing."""
    try:
        return work()
    except StateError as error:
        return {"error": str(error)}


def _summary(board: TaskBoard, step: StepShape) -> dict[str, Any]:
    acceptance = [
        f"{item.id}: {item.text}{' (needs evidence)' if item.needs_evidence else ''}"
        for item in board.acceptance(step.id)
    ]
    fields = {
        "id": step.id,
        "text": step.text,
        "status": step.status,
        "claimed_by": step.claimed_by,
        "waits_for": list(board.waiting(step.id)),
        "acceptance": acceptance,
        "notes": list(step.notes),
    }
    return {name: value for name, value in fields.items() if value}


def _text(value: object) -> str:
    """What a model gave for a text: ADK does not check its arguments."""
    return _given(value).strip()


def _given(value: object) -> str:
    """The same, white space at its ends included."""
    return "" if value is None else str(value)


def _lines(values: object) -> list[str]:
    """What a model gave for a list of texts; a text stands for a list of it, and empty ones are left out."""
    given = values if isinstance(values, (list, tuple)) else [values]
    return [text for text in map(_text, given) if text]


def _worker(context: ToolContext) -> str:
    return context.agent_name


def _now(context: ToolContext) -> float | None:
    """The time of the session's last event, by which notes expire, too."""
    events = context.session.events
    return events[-1].timestamp if events else None
