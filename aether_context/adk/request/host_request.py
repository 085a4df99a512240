"""ADK's request as one value: what the model is told, may call and is shown, and which message it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, takewhile
from typing import Any

from google.adk.events.event import Event
from google.genai import types

from aether_context.adk.call import ModelCall, looks_quoted
from aether_context.adk.request.entries import same_until
from aether_context.adk.request.memories import past_conversations, preloaded
from aether_context.adk.request.reader import Reader, additions
from aether_context.adk.request.sessions import AgentSession
from aether_context.adk.session import Records
from aether_context.conversation.quotes import says
from aether_context.conversation.turns import INSTRUCTION
from aether_context.evidence.record import READERS
from aether_context.pack import Candidate, Host, Identity, Request
from aether_context.usage.prices import cached_share

_USUAL_CACHED_PRICE = 0.1
_DAY_SECONDS = 86_400
_PENDING = {"status": "pending"}
"""The answer of a call that none has come for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRequest:
    """ADK's request. ``head`` is all but its contents, ``preloaded`` the memories that ADK put among these, None where
    it did not.

    ``contents`` are the others, each call with an answer. ``last_answer`` is the number of those up to the model's last
    one: what follows may be of this call alone, like instructions, and results may still change. ``request_index`` is
    the index of the message that the model answers, None where there is none. ``same`` is that of the first content
    that is another one than the session's entry for it.
    """

    head: Request
    contents: Sequence[types.Content]
    preloaded: tuple[Candidate, ...] | None
    last_answer: int
    request_index: int | None
    same: int


def host_request(call: ModelCall, reader: Reader, session: AgentSession) -> HostRequest:
    """Reads a request of ADK's by an agent's session, as its last call left it. Where nothing has changed before the
    last content that a model gave, what is before that is not gone through again."""
    user_content = call.context.user_content
    contents = list(call.request.contents)
    block = preloaded(contents, user_content)
    if block is not None:
        del contents[block[0]]
    same = same_until(session.entries, contents, reader, compared=_sent_places(call))
    if same < session.stable_end:  # all may stand elsewhere
        same = same_until(session.entries, contents, reader)
    answered = session.stable_end if session.stable_end <= same else 0
    if not call.passthrough_reason and not are_answered(contents[max(0, answered - 1) :]):
        contents, answered = with_pending(contents), 0
        same = same_until(session.entries, contents, reader)
    return HostRequest(
        head=reader.head(call.request),
        contents=contents,
        preloaded=block[1] if block is not None else None,
        last_answer=next((at for at in range(len(contents), 0, -1) if contents[at - 1].role == "model"), 0),
        request_index=_request_index(contents, user_content, session, answered),
        same=same,
    )


def host_of(call: ModelCall, head: Request, records: Records, identity: Identity, by_hand: Mapping[str, Any]) -> Host:
    """The host's side of a call, but for what the conversation decides."""
    window, takes = call.window, additions(call.request)
    price = cached_share(call.model, int(identity.last_event_time // _DAY_SECONDS))
    return Host(
        passthrough_reason=call.passthrough_reason,
        # A limit counts cached input in full.
        cached_price=1.0 if call.near_limit else _USUAL_CACHED_PRICE if price is None else round(price, 4),
        can_mask="gemini" in call.model and takes.names,
        can_find=takes.functions and takes.is_free,
        forced=takes.forced,
        can_read=any(tool.essential and tool.name in READERS for tool in head.tools),
        asked=by_hand["id"][:200] if isinstance(by_hand.get("id"), str) else "",
        window_mark=window.mark,
        most_window=window.max_tokens,
        readings={**dict.fromkeys(records.artifacts, ""), **records.readings},
        planners=tuple(sorted({*call.policy.planners, *records.planners})),
        binds_thoughts=any("AnthropicLlm" in model.kinds or "claude" in model.name.lower() for model in call.models),
    )


def _sent_places(call: ModelCall) -> Sequence[int]:
    """The places that the call before was packed from; none where what a cut took may have changed since."""
    if (last := call.last) is None:
        return ()
    new = takewhile(lambda event: event.id != last.pack.identity.last_event_id, reversed(call.context.session.events))
    # A message, a posted result, a rewind and a compaction are a user's: between them a host appends.
    return () if any(event.author == "user" for event in new) else last.pack.source.request.positions


def _request_index(
    contents: Sequence[types.Content], user_content: types.Content | None, session: AgentSession, answered: int
) -> int | None:
    """The result of `request_index_of`, looked for behind the contents that are ``answered`` alone where the message
    is the one that was answered last."""
    words = [part.text for part in (user_content.parts if user_content is not None else None) or ()]
    last_words, at = session.request
    if words and words == last_words and at < answered and _texts(contents[at]) == words:
        later = range(len(contents) - 1, answered - 1, -1)
        return next((position for position in later if _texts(contents[position]) == words), at)
    index = request_index_of(contents, user_content)
    is_theirs = index is not None and bool(words) and _texts(contents[index]) == words
    session.request = (words, index) if index is not None and is_theirs else ([], -1)
    return index


def _texts(content: types.Content) -> list[str | None] | None:
    """The texts of the parts of a user's message; None where it is none."""
    parts = content.parts or ()
    if content.role != "user" or any(part.function_response or part.function_call for part in parts):
        return None
    return [part.text for part in parts]


def with_pending(contents: Sequence[types.Content]) -> list[types.Content]:
    """The contents with a response of their own for calls that nothing has answered, as of long-running tools: Gemini
    and Claude refuse a call without one. Where `are_answered`, they are the contents themselves."""
    answered: list[types.Content] = []
    calls: list[types.FunctionCall] = []
    for content in (*contents, None):
        parts = (content.parts if content is not None else None) or ()
        responses = [part.function_response for part in parts if part.function_response is not None]
        for response in responses:
            same = (call for call in calls if (call.id, call.name) == (response.id, response.name))
            if (call := next(same, None)) is not None:
                calls.remove(call)
        if calls and not responses:
            results = [types.FunctionResponse(id=call.id, name=call.name, response=dict(_PENDING)) for call in calls]
            pending = [types.Part(function_response=answer) for answer in results]
            if any(part.function_response for part in answered[-1].parts or ()):
                pending = [*(answered.pop().parts or ()), *pending]
            answered.append(types.Content(role="user", parts=pending))
        if content is not None:
            answered.append(content)
        if not responses:
            calls = [part.function_call for part in parts if part.function_call is not None]
    return answered


def are_answered(contents: Sequence[types.Content]) -> bool:
    """Tells whether as many responses follow each content as it has calls, as in nearly all requests."""
    for at, content in enumerate(contents):
        if content.role == "model":
            calls = [part for part in content.parts or () if part.function_call is not None]
            following_parts = contents[at + 1].parts or () if calls and at + 1 < len(contents) else ()
            if calls and sum(part.function_response is not None for part in following_parts) < len(calls):
                return False
    return True


def request_index_of(contents: Sequence[types.Content], user_content: types.Content | None) -> int | None:
    """The index of the human message that the model answers, None where there is none.

    It is the last content with the words of ``user_content``; where none has them, the last human one that is neither a
    block of preloaded memories nor a loaded artifact nor the agent's own instruction. An agent that is shown nothing
    but other agents' turns answers the last of them in which something is said, or the last one where nothing is.
    """
    words = [part.text for part in (user_content.parts if user_content is not None else None) or ()]
    human: int | None = None
    quoted: int | None = None
    heard = False
    for at in range(len(contents) - 1, -1, -1):
        texts = _texts(contents[at])
        if texts is None:
            continue
        if words and texts == words:
            return at
        if human is not None and not words:
            break
        if looks_quoted(contents[at]):
            if not heard:
                heard = says(texts)
                quoted = at if heard or quoted is None else quoted
        elif human is None and not (texts and ((texts[0] or "").startswith(INSTRUCTION) or _is_artifact(texts))):
            human = None if any(text and past_conversations(text) is not None for text in texts) else at
    return quoted if human is None else human


def _is_artifact(texts: Sequence[str | None]) -> bool:
    """Tells whether these are the parts in which ADK's ``load_artifacts`` shows an artifact, for one call."""
    first = texts[0] or ""
    return len(texts) == 2 and first.startswith("Artifact ") and first.endswith(" is:")


def transient_contents(contents: Sequence[types.Content], events: Sequence[Event], human: types.Content | None) -> int:
    """Counts the contents that ADK adds for one call alone, such as instructions: they stand among the last users'
    ones."""
    count = 0
    for content in takewhile(lambda content: content.role == "user", reversed(contents)):
        if not looks_quoted(content) and not any(part.function_response for part in content.parts or ()):
            messages = chain((human,), (event.content for event in reversed(events) if event.author == "user"))
            count += not any(earlier is not None and earlier.parts == content.parts for earlier in messages)
    return count
