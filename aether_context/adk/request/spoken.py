"""What was said in a session, as an agent is shown it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from google.adk.events.event import Event
from google.genai import types

from aether_context.conversation.quotes import said
from aether_context.retrieval.ranking import room_for_turns

if TYPE_CHECKING:
    from aether_context.retrieval import Entry

LOADER = "load_memory"


class EarlierTurns(NamedTuple):
    """What was said before the human message.

    ``room`` are the most tokens for what is recalled of it, ``turns`` all that can be, none where there is no room.
    ``loading`` are places in the history with what ``load_memory`` found.
    """

    room: int
    turns: Sequence[Entry]
    loading: Sequence[int]


def read_spoken(
    history: Sequence[types.Content], events: Sequence[Event], end: int, *, most: float, mask: Callable[[str], str]
) -> EarlierTurns:
    """What was said before ``end``: the turns that are words alone, with time and author of their events.

    Their ids are places in the history; long turns come in passages, whose ids go on with a number. A content without
    an event, like an instruction or a summary of the host's, is no turn. Of events that say the same the latest belong
    to the latest contents, since histories lose their beginning first. What ADK quotes of another agent belongs to that
    agent's event; a user's message that only looks like that belongs to the user's.

    Args:
        most: tokens for recalled turns where nothing but turns was said.
        mask: what the words of turns are put through.
    """
    texts = [_texts(content) for content in history]
    words = [*map(_words, texts)]
    loading = [place for place, content in enumerate(history[:end]) if _loads(content)]
    size = sum(map(len, words[:end]))
    # To write out calls and results takes long, and mostly their texts alone are so many that too little is left.
    room = room_for_turns(size, sum(map(characters, history[:end])), most)
    room = room and room_for_turns(size, sum(map(_written, history[:end])), most)
    if not room:
        return EarlierTurns(0, (), loading)
    from aether_context.retrieval.call_indexes import turn_entries

    # Of each text the events that say it, by author: their numbers in the session, which tell the latest, and times.
    saying: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for number, event in enumerate(events):
        if event.content is not None and not event.partial and (text := _words(_texts(event.content))):
            saying.setdefault(text, {}).setdefault(event.author, []).append((number, event.timestamp))
    turns: dict[int, tuple[str, str, float]] = {}
    for place in range(len(history) - 1, -1, -1):
        quoted = said(texts[place]) if words[place] not in saying else None
        if quoted is not None and (sources := saying.get(quoted.words, {}).get(quoted.agent)):
            turns[place] = quoted.words, quoted.agent, sources.pop()[1]
    for place in range(len(history) - 1, -1, -1):
        latest = [(sources[-1], author) for author, sources in saying.get(words[place], {}).items() if sources]
        if latest:
            (_, time), author = max(latest)
            saying[words[place]][author].pop()
            turns[place] = words[place], author, time
    entries = (
        turn_entries(place, mask(text), time=time, speaker=author)
        for place, (text, author, time) in sorted(turns.items())
        if place < end
    )
    return EarlierTurns(room, [*chain.from_iterable(entries)], loading)


def _texts(content: types.Content) -> list[str]:
    """The texts of a content without its thoughts; none where it calls or answers a call."""
    parts = content.parts or ()
    if any(part.function_call is not None or part.function_response is not None for part in parts):
        return []
    return [part.text for part in parts if part.text and not part.thought]


def _words(texts: Sequence[str]) -> str:
    return "\n".join(texts).strip()


def _loads(content: types.Content) -> bool:
    responses = (part.function_response for part in content.parts or ())
    return any(response is not None and response.name == LOADER for response in responses)


def _written(content: types.Content) -> int:
    """The characters of a content with its calls and results written out, and one more."""
    size = 1
    for part in content.parts or ():
        call, response = part.function_call, part.function_response
        exchanged = (call and call.args, response and response.response)
        size += len(part.text or "") + sum(len(repr(value)) for value in exchanged if value)
    return size


def characters(content: types.Content) -> int:
    """The length of a content, of calls and answers only the texts that stand at their top, and one more."""
    size = 1
    for part in content.parts or ():
        size += len(part.text or "")
        call, response = part.function_call, part.function_response
        for values in (call and call.args, response and response.response):
            for value in values.values() if values else ():
                if isinstance(value, str):
                    size += len(value)
    return size
