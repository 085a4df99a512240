"""Tools with which agents work on the task board and record what they find, and evidence that an app keeps itself.

    LlmAgent(name="planner", tools=planning_tools())
    LlmAgent(name="operator", tools=[search, *planning_tools(), *evidence_tools()])

A worker is known by its agent's name. A call that cannot be carried out answers with ``{"error": …}`` that says what to
do instead. The tools stay declared whatever tools a step names.
"""

from __future__ import annotations

import asyncio
import logging
import mimetypes
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from google.adk.agents.callback_context import CallbackContext
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from aether_context.adk.acceptance import named_by
from aether_context.adk.bounds import within
from aether_context.adk.call import ESSENTIAL_MARK, session_key, time_of, words_of
from aether_context.adk.evidence import ASKED_CHARACTERS, STORE_SECONDS
from aether_context.adk.request import marks
from aether_context.adk.services.memory import HybridMemoryService
from aether_context.adk.session import Declared, Records, put_records
from aether_context.canonical import hash_bytes, hash_text, plain, short, strings
from aether_context.errors import BoardError, KnowledgeError, MissingExtra, StateError, StoreError
from aether_context.evidence import EvidenceRecord, evidence_uri
from aether_context.evidence.offload import superseding
from aether_context.evidence.record import size_words
from aether_context.evidence.show import MEDIA_TYPES, is_text, show
from aether_context.pack import values_of
from aether_context.plans import PlanShape, parse_plan
from aether_context.plans.spellings import as_kind
from aether_context.state import EvidenceShape, StepShape, acceptance_of, current_step, knowledge
from aether_context.state.board import TaskBoard, change_plan
from aether_context.store import PackStore
from aether_context.text.decoding import visible
from aether_context.text.entities import SCHEME, artifact_uris
from aether_context.text.shorten import tokens_of
from aether_context.tokens import counter_for

logger = logging.getLogger("aether_context")

_SUMMARY_TOKENS = 200
_SOURCE_CHARACTERS = 500
_MEMORY_SECONDS = 10.0
_TYPES = mimetypes.MimeTypes()


async def keep_evidence(
    context: CallbackContext,
    content: str | bytes | Path,
    *,
    source: str = "",
    media_type: str | None = None,
    covers: Sequence[str] = (),
    summary: str = "",
    store: PackStore | None = None,
) -> EvidenceShape:
    """Keeps evidence whole and records it in the session; nothing is written to the session where that fails.

    A later text of the same ``source`` supersedes an earlier one.

    Args:
        context: of a tool or a callback.
        content: a text, bytes, or a file to read.
        source: where it is from, such as a URL whose text this is; a file's path where it is empty.
        media_type: None goes by the name that ``source`` ends in, else by the content.
        covers: ids of the acceptance items that it proves.
        summary: what it shows; where it is empty, the content's own lines that the step, the items that it covers and
            the user's request ask for, of 200 tokens at most.
        store: None takes the store of the app's `ContextPackPlugin`.

    Returns:
        The record as it is in the session's knowledge; its ``uri`` is the address of the whole.

    Raises:
        KnowledgeError: the content is empty, the file cannot be read, or ``covers`` names an item of no checklist.
        StateError: the agent's state schema has no ``knowledge``.
        StoreError: there is no store, or it could not be written.
    """
    if store is None:
        plugins = context.get_invocation_context().plugin_manager.plugins
        stores = [getattr(plugin, "store", None) for plugin in plugins]
        store = next((candidate for candidate in stores if isinstance(candidate, PackStore)), None)
    if store is None:
        raise StoreError("there is no store for evidence: give store, or add ContextPackPlugin to the app's plugins")
    covers = (covers,) if isinstance(covers, str) else tuple(covers)
    plan = parse_plan(context.session.state.get("plan")).plan or PlanShape()
    current = [*filter(None, [current_step(plan, context.agent_name)])]
    items = {item.id: item.text for step in (*current, *plan.steps) for item in acceptance_of(plan, step)}
    query_texts = [words_of(context.user_content), *(step.text for step in current)]
    query_texts += [items[name] for name in covers if name in items]
    query = "\n".join(text[:ASKED_CHARACTERS] for text in query_texts if text)
    data, record, own_lines = await asyncio.to_thread(_described, content, source, media_type, query)
    origin = {"agent": context.agent_name, "invocation": context.invocation_id, "time": time_of(context)}
    record = record.model_copy(update={**origin, "form": "described", "query": ""} if summary else origin)
    add = partial(knowledge.add_evidence, uri=record.uri, summary=summary or own_lines, covers=covers, time=record.time)
    add(Declared(context, dry=True))
    writing = asyncio.to_thread(store.write_evidence, *session_key(context), record, data)
    try:
        await asyncio.wait_for(writing, STORE_SECONDS)
    except TimeoutError as error:
        raise StoreError(f"{store.url} took no evidence within {STORE_SECONDS:g} s: try again later") from error
    shape = add(Declared(context))
    put_records(context, [record], Records.of)
    return shape


def _described(
    content: str | bytes | Path, source: str, media_type: str | None, query: str
) -> tuple[bytes, EvidenceRecord, str]:
    """The bytes of a content, their record, and a summary: of their own lines where they are text."""
    if isinstance(content, Path):
        source = source or str(content)
        try:
            data = content.read_bytes()
        except OSError as error:
            message = f"content = {content}: {error.strerror}: name a file that can be read"
            raise KnowledgeError(message, field="content") from error
    else:
        data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else bytes(content)
    if not data.strip():
        raise KnowledgeError("evidence needs a content: there is nothing in what was given", field="content")
    digest = hash_bytes(data)
    named = media_type or _TYPES.guess_type(source.partition("?")[0].rsplit("/", 1)[-1])[0] or ""
    try:
        text = data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        text = None
    fields: dict[str, Any]
    if text is None or (media_type and not is_text(media_type)):
        usual, ending = MEDIA_TYPES["data"]
        kind = usual if not named or is_text(named) else named
        summary = f"{source or 'data'}: {kind}, {size_words(len(data))}"
        fields = {"media_type": kind, "form": "described"}
    else:
        counter = counter_for("")
        limit = _SUMMARY_TOKENS
        extract, kind = show(
            text, extract_tokens=limit, whole_tokens=limit, data_tokens=limit, counter=counter, query=query
        )
        usual, ending = MEDIA_TYPES[kind]
        summary = visible(f"{extract.text}\n(also mentions {extract.names})" if extract.names else extract.text)
        fields = {
            "lines": extract.total,
            "tokens": tokens_of(text, counter),
            "media_type": named if is_text(named) and kind != "data" else usual,
            "form": "whole" if extract.is_whole else "described" if kind == "data" else "extract",
        }
    uri, size = evidence_uri(digest, ending), len(data)
    source = source[:_SOURCE_CHARACTERS]
    return data, EvidenceRecord(uri=uri, digest=digest, size_bytes=size, source=source, query=query, **fields), summary


def planning_tools() -> list[FunctionTool]:
    """Tools for the task board: ``list_steps``, ``add_step``, ``claim_step``, ``complete_step``, ``release_step``."""
    return [_Tool(function) for function in (list_steps, add_step, claim_step, complete_step, release_step)]


def evidence_tools(store: PackStore | None = None) -> list[FunctionTool]:
    """Tools for what an agent finds: ``add_note``, ``record_evidence`` and ``keep_evidence``.

    Args:
        store: where ``keep_evidence`` puts texts; None takes the store of the app's `ContextPackPlugin`.
    """

    return [_Tool(add_note), _Tool(record_evidence), _Tool(_keep, store=store)]


async def _keep(
    text: str, source: str, covers: list[str], tool_context: ToolContext, store: PackStore | None = None
) -> dict[str, Any]:
    """Keeps a text as evidence, word for word, and records what it shows, so that later requests can cite it.

    Args:
        text: The text as it stands in its source.
        source: Where it is from: a URL, a file's name, or whose words they are.
        covers: Ids of the acceptance items that it proves; empty where it proves none.
    """
    content, found_in = "" if text is None else str(text), _text(source)
    record = await keep_evidence(tool_context, content, source=found_in, covers=_lines(covers), store=store)
    answer = {"recorded": record.id, "uri": record.uri, "summary": record.summary, "covers": list(record.covers)}
    return superseding(answer, Records.of(tool_context).earlier(record.uri))


_keep.__name__ = "keep_evidence"  # what models call it; the function of that name here is the app's


def memory_tools() -> list[FunctionTool]:
    """Tools for what outlives a step: ``record_decision`` and ``record_entity``; and what outlives the session:
    ``remember``, ``remember_note`` and ``correct_memory``."""
    return [_Tool(function) for function in (record_decision, record_entity, remember, remember_note, correct_memory)]


def context_tools() -> list[FunctionTool]:
    """Tools for what the model reads itself: ``cut_now``."""
    return [_Tool(_cut)]


def _cut(tool_context: ToolContext) -> dict[str, Any]:
    """Clears older messages and tool results out of what you read, and keeps a summary of them.

    Use it when a piece of work is done and its details are not needed any more.
    """
    tool_context.state.update(marks.cut_now(tool_context.session).actions.state_delta)
    return {"cut": "before your next answer"}


_cut.__name__ = "cut_now"  # what models call it; the function of that name in `request.marks` is the app's


def list_steps(tool_context: ToolContext) -> dict[str, Any]:
    """Lists the steps of the plan: their status, who has them, what they wait for, their acceptance items and notes."""
    board = TaskBoard.read(tool_context.state.get("plan"))
    return {
        "steps": [_summary(board, step) for step in board.steps],
        "can_be_claimed": [step.id for step in board.ready()],
    }


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
    text, items = _text(text), _lines(acceptance)
    if not items or not text:
        raise BoardError("a step needs a text and at least one acceptance item: say when it is done", step=step_id)
    added = {
        "id": _text(step_id),
        "text": text,
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


def claim_step(step_id: str, tool_context: ToolContext) -> dict[str, Any]:
    """Claims a step for you and makes it the current one. Do this before you work on a step.

    Args:
        step_id: The step's name, as list_steps shows it.
    """
    board = change_plan(Declared(tool_context), lambda board: board.claim(step_id, by=tool_context.agent_name))
    return {"claimed": _summary(board, board.step(step_id))}


def complete_step(
    step_id: str,
    tool_context: ToolContext,
    notes: list[str] = [],  # noqa: B006
) -> dict[str, Any]:
    """Marks your step as done. Its acceptance items have to be true.

    Args:
        step_id: The step's name.
        notes: What the steps that depend on it should know, a line each.
    """

    def complete(board: TaskBoard) -> TaskBoard:
        step, tools = board.step(step_id), tool_context.state.get("tools")
        # Beside the tools that a step names, claim_step is not declared.
        if step.status == "ready" and (step.tools, board.plan.tools, tools) != (None, None, None):
            board = board.claim(step_id, by=tool_context.agent_name)
        done = board.complete(step_id, by=tool_context.agent_name, notes=_lines(notes))
        lacking = [item.id for item in board.unproven(step_id, knowledge.covered(tool_context.state))]
        if lacking:
            raise BoardError(
                f"step {step_id!r} is not done: no evidence covers {', '.join(lacking)}; "
                "call record_evidence for each first",
                step=step_id,
            )
        return done

    board = change_plan(Declared(tool_context), complete)
    return {"done": step_id, "can_be_claimed": [step.id for step in board.ready()]}


def release_step(step_id: str, tool_context: ToolContext) -> dict[str, Any]:
    """Gives a step that you claimed back, so that it can be claimed again.

    Args:
        step_id: The step's name.
    """
    change_plan(Declared(tool_context), lambda board: board.release(step_id, by=tool_context.agent_name))
    return {"released": step_id}


def add_note(text: str, tool_context: ToolContext, step_id: str = "", keep_seconds: float = 0) -> dict[str, Any]:
    """Keeps a short working note, so that later requests can show it.

    Args:
        text: The note, in a sentence or two.
        step_id: The step it is for; the note goes with that step when it is done. Empty for a note of the whole task.
        keep_seconds: How long it stays true; 0 for ever.
    """
    note = knowledge.append_note(
        Declared(tool_context),
        _text(text),
        time=time_of(tool_context),
        ttl_seconds=keep_seconds or None,
        step_id=_text(step_id) or None,
    )
    return {"noted": note.id}


async def record_evidence(uri: str, summary: str, covers: list[str], tool_context: ToolContext) -> dict[str, Any]:
    """Records a piece of evidence, so that later requests can show and cite it.

    Args:
        uri: Where the whole of it is kept, as a tool's result or the user named it, such as "artifact://report.md".
        summary: What it shows, in a sentence or two.
        covers: Ids of the acceptance items that it proves; empty where it proves none.
    """
    uri = _text(uri)
    if uri.startswith(SCHEME) and not await _is_there(uri, tool_context):
        raise KnowledgeError("nothing has that uri: take one that a tool or the user named, as it stands", field="uri")
    record = knowledge.add_evidence(
        Declared(tool_context), uri=uri, summary=_text(summary), covers=_lines(covers), time=time_of(tool_context)
    )
    return {"recorded": record.id, "covers": list(record.covers)}


async def _is_there(uri: str, context: ToolContext) -> bool:
    """Tells whether an address is more than a model's word: a record or an artifact of the session has it, or a user, a
    tool or the application names it."""
    records = Records.of(context).by_digits.values()
    state_values = [context.session.state.get(key) for key in ("plan", "knowledge")]
    state_values.append(getattr(context.get_invocation_context().agent, "instruction", ""))
    if named_by([uri], context.session.events)[0] or uri in {record.uri for record in records}:
        return True
    if any(uri in artifact_uris(text, [uri]) for _, text in strings(plain(state_values))):
        return True
    has_files = context.get_invocation_context().artifact_service is not None
    return has_files and uri.removeprefix(SCHEME) in await context.list_artifacts()


def record_decision(text: str, tool_context: ToolContext, reason: str = "") -> dict[str, Any]:
    """Keeps a decision for the rest of the session, so that later steps hold to it.

    Args:
        text: What was decided, in a sentence.
        reason: Why.
    """
    state, time = Declared(tool_context), time_of(tool_context)
    return {"decided": knowledge.add_decision(state, _text(text), reason=_text(reason), time=time).id}


def record_entity(name: str, text: str, tool_context: ToolContext) -> dict[str, Any]:
    """Keeps what is known of a person, a system or another thing by its name, in place of what was known before.

    Args:
        name: Its name, always the same one.
        text: All that later steps should know of it, in a sentence or two.
    """
    entity = knowledge.add_entity(Declared(tool_context), _text(name), _text(text), time=time_of(tool_context))
    return {"known": entity.id}


async def remember(text: str, tool_context: ToolContext, kind: str = "") -> dict[str, Any]:
    """Keeps a fact beyond this session, for later conversations with this user. Do not keep what holds only today.

    Args:
        text: The fact, in a sentence that can be understood without this conversation.
        kind: "preference" for what this user said to hold always, such as a language; empty for any other fact.
    """
    text = _text(text)
    if not text:
        return {"error": "a memory needs a text: say what is to be remembered"}
    return await _remember(text, time_of(tool_context), tool_context, as_kind(_text(kind)) == "preference")


async def remember_note(note_id: str, tool_context: ToolContext) -> dict[str, Any]:
    """Keeps a working note beyond this session, as it is, for later conversations with this user.

    Args:
        note_id: The note's id, as it was told when the note was made.
    """
    note = knowledge.find_note(Declared(tool_context), _text(note_id))
    time = note.time if note.time is not None else time_of(tool_context)
    return await _remember(note.text, time, tool_context, note.kind == "preference")


async def correct_memory(old: str, text: str, tool_context: ToolContext) -> dict[str, Any]:
    """Corrects a memory of this user: later conversations see until when it held, and the fact that holds now.

    Args:
        old: The words of the memory as they stand, without its date and speaker.
        text: The fact that holds now, in a sentence that can be understood without this conversation.
    """
    old, text = _text(old), _text(text)
    if not old or not text:
        return {"error": "a correction needs the old memory and a text: say what held, and what holds now"}
    return await _remember(text, time_of(tool_context), tool_context, is_preference=False, old=old)


async def _remember(
    text: str, time: float | None, tool_context: ToolContext, is_preference: bool, old: str = ""
) -> dict[str, Any]:
    """Writes a text into the app's memory service, in the place of an old one that has other words; one that says the
    same is written over."""
    name = f"remembered_{short(hash_text(text))}"
    entry = MemoryEntry(
        id=name,
        content=types.Content(role="model", parts=[types.Part(text=text)]),
        author=tool_context.agent_name,
        timestamp=datetime.fromtimestamp(time, UTC).isoformat() if time is not None else None,
        custom_metadata={"kind": "preference"} if is_preference else {},
    )
    service, session = tool_context.get_invocation_context().memory_service, tool_context.session
    try:
        if old and isinstance(service, HybridMemoryService):
            correction = service.correct(app_name=session.app_name, user_id=session.user_id, old=old, memory=entry)
            if not await within(_MEMORY_SECONDS, correction):
                return {"error": "no memory of this user has these words: give the old one as it stands"}
            return {"remembered": name, "corrected": old}
        await within(_MEMORY_SECONDS, tool_context.add_memory(memories=[entry]))
    except Exception as error:
        logger.warning("a memory could not be kept: %s", type(error).__name__, exc_info=error)
        return {"error": "it was not kept: this application has no memory that takes single facts, or it failed"}
    return {"remembered": name}


class _Tool(FunctionTool):
    """A tool that no step narrows away; where it cannot do what a model asks, it answers with the reason. No model sees
    or sets ``fixed`` arguments."""

    def __init__(self, function: Callable[..., Any], **fixed: Any) -> None:
        super().__init__(function)
        self.custom_metadata, self._fixed = {ESSENTIAL_MARK: True}, fixed
        self._ignore_params.extend(fixed)

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        try:
            return await super().run_async(args={**args, **self._fixed}, tool_context=tool_context)
        except (StateError, StoreError, MissingExtra) as error:
            return {"error": str(error)}


def _summary(board: TaskBoard, step: StepShape) -> dict[str, Any]:
    needs = {True: " (needs evidence)", False: ""}
    fields = {
        **values_of(step, "id", "text", "status", "claimed_by"),
        "waits_for": list(board.waiting(step.id)),
        "acceptance": [f"{item.id}: {item.text}{needs[item.needs_evidence]}" for item in board.acceptance(step.id)],
        "notes": list(step.notes),
    }
    return {name: value for name, value in fields.items() if value}


def _text(value: object) -> str:
    """Reads a model's argument as a text: ADK does not check arguments."""
    return "" if value is None else str(value).strip()


def _lines(values: object) -> list[str]:
    """Reads a model's argument as a list of texts; a text stands for a list of it, and empty ones are left out."""
    items = values if isinstance(values, (list, tuple)) else [values]
    return [text for text in map(_text, items) if text]
