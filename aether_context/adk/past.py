"""Reads a session's past for `evidence.past`, which writes it as the text that ``artifact://history`` stands for.

What the host loads is taken from the session's events; what came before these, from the turns that the store keeps of
this agent and branch. The store's turns begin anew at a rewind and at a compaction of the host's: behind one, all
events are loaded.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any

from google.adk.events.event import Event
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from aether_context.adk.bounds import within
from aether_context.adk.call import agent_key_of
from aether_context.adk.request.read import REWOUND, session_note, turns_begin
from aether_context.adk.request.reader import Reader, media_marks
from aether_context.adk.results import as_json
from aether_context.adk.session import live_events
from aether_context.canonical import JSON, hash_bytes
from aether_context.errors import StoreError
from aether_context.evidence.offload import stored_bytes
from aether_context.evidence.past import PastPart, PastTurn, past_lines
from aether_context.pack import pack_of_event
from aether_context.redaction import Masker
from aether_context.store.files import Files
from aether_context.store.turns import TurnFiles

logger = logging.getLogger("aether_context")

_SECONDS = 5.0
"""The time that a session service has to load all events, half of that of the tool."""


async def past_events(context: ToolContext) -> Sequence[Event]:
    """The loaded events, but all of them where the history was rewritten, since the store's turns begin anew there."""
    session, invocation = context.session, context.get_invocation_context()
    note = session_note(session.state, REWOUND, session.id)
    if _loads_all(context) or not note or "is_first" in note:
        return session.events
    load = partial(invocation.session_service.get_session, app_name=session.app_name)
    try:
        whole = await within(_SECONDS, load(user_id=session.user_id, session_id=session.id))
    except Exception as error:
        logger.warning(
            "a session's past is read from its loaded events alone: %s", type(error).__name__, exc_info=error
        )
        whole = None
    return whole.events if whole is not None else session.events


def read_past(
    context: ToolContext,
    events: Sequence[Event],
    files: Files,
    mask: Masker | None,
    sees_own: bool,
    addresses: Mapping[str, str],
) -> bytes:
    """The past of the agent and branch whose tool is running, masked as it is recorded.

    Args:
        events: those of `past_events`.
        sees_own: whether other agents' turns are left out.
        addresses: those of stored results, by the hashes of what the store keeps.
    """
    reader = Reader()
    turns = (*_stored(context, events, files, reader), *_loaded(context, events, reader))
    shown = (turn for turn in turns if not sees_own or turn.author in ("user", context.agent_name))

    def written(response: JSON) -> str:
        data = stored_bytes(mask.json(response) if mask else response)
        address = addresses.get(hash_bytes(data), "")
        return f"{address and f'{address}: '}{data.decode('utf-8', 'surrogatepass')}"

    text = "\n".join(chain.from_iterable(past_lines(shown, context.agent_name, written)))
    return (mask(text) if mask else text).encode("utf-8", "surrogatepass")


def _loads_all(context: ToolContext) -> bool:
    return getattr(context.get_invocation_context().run_config, "get_session_config", None) is None


def _loaded(context: ToolContext, events: Sequence[Event], reader: Reader) -> Iterator[PastTurn]:
    """The turns in events that ADK shows this agent."""
    invocation = context.get_invocation_context()
    scope, branch = getattr(invocation, "isolation_scope", None), invocation.branch or ""
    is_alone = getattr(invocation.agent, "include_contents", "default") == "none"
    for event in live_events(events)[0]:
        in_branch = not branch or not event.branch or f"{branch}.".startswith(f"{event.branch}.")
        in_scope = getattr(event, "isolation_scope", None) == scope
        if is_alone and event.invocation_id != invocation.invocation_id:
            continue
        if event.content is not None and not event.partial and in_branch and in_scope:
            yield _turn(event.author, event.timestamp, event.content, reader, pack_of_event(event)[0])


def _stored(context: ToolContext, events: Sequence[Event], files: Files, reader: Reader) -> Sequence[PastTurn]:
    """The turns before these events, as the store keeps them; none where the host loads all."""
    stored = dict[int, Mapping[str, Any]]()
    if _loads_all(context):
        return ()
    with suppress(StoreError):
        begin = turns_begin(context.session.state, context.session.id)
        stored = TurnFiles(files, *agent_key_of(context), begin).read()
    loaded, turns = {event.id for event in events}, list[PastTurn]()
    for at in sorted(stored):
        author, time, event = (stored[at].get("origin") or ("", None, ""))[:3]
        if event in loaded:
            break
        content = types.Content.model_validate_json(json.dumps(stored[at]["content"]))
        turns.append(_turn(author or _speaker(content, context.agent_name, reader), time, content, reader))
    return turns


def _speaker(content: types.Content, agent: str, reader: Reader) -> str:
    """Who wrote a turn of an agent's history whose event is not known: as ADK shows another agent's, that one."""
    return agent if content.role == "model" else reader.content(content, "").agent or "user"


def _turn(author: str, time: float | None, content: types.Content, reader: Reader, number: int = 0) -> PastTurn:
    parts = list[PastPart]()
    for part in content.parts or ():
        if part.text and not part.thought:
            parts.append(("text", "", part.text))
        elif part.inline_data is not None or part.file_data is not None:
            marks = media_marks(reader.content(types.UserContent(parts=[part]), ""))
            parts.append(("text", "", " ".join(marks.values())))
        elif (call := part.function_call) is not None:
            parts.append(("call", call.name or "", as_json(call.args or {}) or {}))
        elif (answer := part.function_response) is not None:
            parts.append(("response", answer.name or "", as_json(answer.response or {})))
    return PastTurn(author, time, content.role == "model", parts, number)
