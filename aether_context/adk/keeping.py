"""Evidence that an app or an agent keeps itself: texts, files, bytes, and what stood at a URL.

    record = await keep_evidence(tool_context, page, source="https://example.org/prices", covers=["a1"])

The whole of it goes to the store under its content's hash, its address into the session's state for the readers, and a
summary of its own lines into the session's knowledge.
"""

from __future__ import annotations

import asyncio
import mimetypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from google.adk.agents.callback_context import CallbackContext

from aether_context.adk.declared import Declared
from aether_context.adk.offloading import STORE_SECONDS
from aether_context.adk.plugin import ContextPackPlugin
from aether_context.adk.records import put_record, session_of
from aether_context.canonical import hash_bytes
from aether_context.errors import KnowledgeError, StoreError
from aether_context.evidence import EvidenceRecord, evidence_uri
from aether_context.evidence.extracts import show, tokens_of
from aether_context.evidence.lines import MEDIA_TYPES, is_text
from aether_context.evidence.record import Form, size_words
from aether_context.state import EvidenceShape, Problems, acceptance_of, current_step, knowledge, read_plan
from aether_context.store import PackStore
from aether_context.tokens import counter_for

_SUMMARY_TOKENS = 200
_ASKED_CHARACTERS = 400
_SOURCE_CHARACTERS = 500
_BINARY = "bin"
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
    store = store or _store_of(context)
    covers = (covers,) if isinstance(covers, str) else tuple(covers)
    data = await asyncio.to_thread(_read, content)
    source = source or (str(content) if isinstance(content, Path) else "")
    query = _query(context, covers)
    found = await asyncio.to_thread(_described, data, source, media_type, query)
    if summary:
        found, query = replace(found, form="described"), ""
    record = _record(context, found, source, query)
    said = summary or found.summary
    _add(Declared(context, dry=True), record, said, covers)
    await _write(store, context, record, data)
    shape = _add(Declared(context), record, said, covers)
    put_record(context, record)
    return shape


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What bytes are; ``ending`` is that of their address."""

    digest: str
    size_bytes: int
    media_type: str
    ending: str
    summary: str
    lines: int = 1
    tokens: int = 0
    form: Form = "described"


def _store_of(context: CallbackContext) -> PackStore:
    """The store of the app's plugin."""
    plugins = context.get_invocation_context().plugin_manager.plugins
    found = next((plugin.store for plugin in plugins if isinstance(plugin, ContextPackPlugin)), None)
    if found is None:
        raise StoreError("there is no store for evidence: give store, or add ContextPackPlugin to the app's plugins")
    return found


def _read(content: str | bytes | Path) -> bytes:
    if isinstance(content, Path):
        try:
            data = content.read_bytes()
        except OSError as error:
            said = f"content = {content}: {error.strerror}: name a file that can be read"
            raise KnowledgeError(said, field="content") from error
    else:
        data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else bytes(content)
    if not data.strip():
        raise KnowledgeError("evidence needs a content: there is nothing in what was given", field="content")
    return data


def _described(data: bytes, source: str, media_type: str | None, query: str) -> _Found:
    """What bytes are, with a summary of their own lines where they are text."""
    digest = hash_bytes(data)
    named = media_type or _TYPES.guess_type(source.partition("?")[0].rsplit("/", 1)[-1])[0] or ""
    text = _text_of(data)
    if text is None or (media_type and not is_text(media_type)):
        kind = MEDIA_TYPES["data"][0] if not named or is_text(named) else named
        said = f"{source or 'data'}: {kind}, {size_words(len(data))}"
        return _Found(digest=digest, size_bytes=len(data), media_type=kind, ending=_BINARY, summary=said)
    counter = counter_for("")
    shown = show(
        text,
        extract_tokens=_SUMMARY_TOKENS,
        whole_tokens=_SUMMARY_TOKENS,
        data_tokens=_SUMMARY_TOKENS,
        counter=counter,
        query=query,
    )
    usual, ending = MEDIA_TYPES[shown.kind]
    return _Found(
        digest=digest,
        size_bytes=len(data),
        media_type=named if is_text(named) and shown.kind != "data" else usual,
        ending=ending,
        summary=f"{shown.text}\n(also mentions {shown.names})" if shown.names else shown.text,
        lines=shown.total,
        tokens=tokens_of(text, counter),
        form="whole" if shown.is_whole else "described" if shown.kind == "data" else "extract",
    )


def _text_of(data: bytes) -> str | None:
    """The text that bytes are in UTF-8, None where they are not."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return None


def _query(context: CallbackContext, covers: Sequence[str]) -> str:
    """What is asked of evidence: the user's request, the step, and the items that it covers, each cut short."""
    parts = (context.user_content.parts if context.user_content is not None else None) or ()
    asked = [" ".join(part.text for part in parts if part.text)]
    plan = read_plan(context.session.state.get("plan"), Problems()).plan
    if plan is not None:
        current = current_step(plan, context.agent_name)
        steps = [*([current] if current is not None else []), *plan.steps]
        asked += [current.text] if current is not None else []
        items = {item.id: item.text for step in steps for item in acceptance_of(plan, step)}
        asked += [items[name] for name in covers if name in items]
    return "\n".join(text[:_ASKED_CHARACTERS] for text in asked if text)


def _record(context: CallbackContext, found: _Found, source: str, query: str) -> EvidenceRecord:
    events = context.session.events
    return EvidenceRecord(
        uri=evidence_uri(found.digest, found.ending),
        digest=found.digest,
        size_bytes=found.size_bytes,
        lines=found.lines,
        tokens=found.tokens,
        media_type=found.media_type,
        source=source[:_SOURCE_CHARACTERS],
        agent=context.agent_name,
        invocation=context.invocation_id,
        time=events[-1].timestamp if events else None,
        form=found.form,
        query=query,
    )


def _add(state: Declared, record: EvidenceRecord, summary: str, covers: Sequence[str]) -> EvidenceShape:
    return knowledge.add_evidence(state, uri=record.uri, summary=summary, covers=covers, time=record.time)


async def _write(store: PackStore, context: CallbackContext, record: EvidenceRecord, data: bytes) -> None:
    """Puts evidence into the store within a deadline."""
    writing = asyncio.to_thread(store.write_evidence, *session_of(context), record, data)
    try:
        await asyncio.wait_for(writing, STORE_SECONDS)
    except TimeoutError as error:
        raise StoreError(f"{store.url} took no evidence within {STORE_SECONDS:g} s: try again later") from error
