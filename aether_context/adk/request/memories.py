"""Memories and stored results as candidates: found by services, preloaded by ADK, given by a session's tools."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from heapq import nsmallest
from itertools import islice

from google.adk.memory.memory_entry import MemoryEntry
from google.genai import types

from aether_context.adk.bounds import Waits, aside
from aether_context.adk.call import ModelCall, words_of
from aether_context.adk.services.memory import HybridMemoryService
from aether_context.adk.session import Records
from aether_context.canonical import hash_text, short
from aether_context.evidence import EvidenceRecord, evidence_key
from aether_context.pack import UNTIL, Candidate, Content
from aether_context.packing.payload import answers_in
from aether_context.plans.spellings import is_preference
from aether_context.retrieval.ranking import searched, similarity, telling_words
from aether_context.text.decoding import visible
from aether_context.text.entities import artifact_uris
from aether_context.text.shorten import query_words

MOST_MEMORIES = 500
_LONGEST_MEMORY, _MOST_MEMORY_CHARACTERS = 50_000, 400_000
_MOST_RESULTS = 24
"""Stored results that are not in the conversation and are ranked for a pack. With all of 300 a manifest is 137 KB."""
_PRELOADED_STARTS = "The following content is from your previous conversations"
_PAST_OPENS, _PAST_CLOSES = "<PAST_CONVERSATIONS>\n", "\n</PAST_CONVERSATIONS>"
_TOKEN_CHARACTERS = 5


def preloaded(
    contents: Sequence[types.Content], user_content: types.Content | None
) -> tuple[int, tuple[Candidate, ...]] | None:
    """The block that ADK's ``preload_memory`` put among the request's last user contents: its position, and the
    memories in it; None where there is none."""
    for at in range(len(contents) - 1, -1, -1):
        parts = contents[at].parts or ()
        if contents[at].role != "user" or any(part.function_response for part in parts):
            break
        text = (parts[0].text or "") if len(parts) == 1 else ""
        is_block = text.startswith(_PRELOADED_STARTS) and (user_content is None or parts != user_content.parts)
        block = past_conversations(text) if is_block else None
        if block is None:
            continue
        time: str | None = None
        lines: list[str] = []
        memories: list[Candidate] = []
        for line in [*block[:_MOST_MEMORY_CHARACTERS].splitlines(), "Time: "]:
            if line.startswith("Time: "):
                if lines and len(memories) < MOST_MEMORIES:
                    memories.append(memory_candidate("\n".join(lines), timestamp=time))
                time, lines = line.removeprefix("Time: "), []
            elif line.strip():
                lines.append(line)
        return at, tuple(memories)
    return None


def found_memories(entries: Iterable[MemoryEntry], most_characters: int) -> Iterator[Candidate]:
    """Memories of any service as candidates, without those that have no text.

    The first 500 entries are looked at, 400,000 characters of them in all and 50,000 of each: services give the best
    first, and ranking more than that would take longer than a moment. It is ``most_characters`` where that is more.
    """
    characters_left = max(_MOST_MEMORY_CHARACTERS, most_characters)
    for entry in islice(entries, MOST_MEMORIES):
        room = min(characters_left, _LONGEST_MEMORY)
        texts: list[str] = []
        for part in entry.content.parts or ():
            if part.text and room > 0:
                texts.append(part.text[:room])
                room -= len(part.text)
        text = " ".join(texts)
        if text:
            characters_left -= len(text)
            preference, time = is_preference(entry.custom_metadata), entry.timestamp
            yield memory_candidate(text, author=entry.author, timestamp=time, name=entry.id, preference=preference)


def memory_candidate(
    text: str,
    *,
    timestamp: str | None,
    author: str | None = None,
    name: str | None = None,
    scores: Mapping[str, float] | None = None,
    preference: bool = False,
) -> Candidate:
    """A memory as a candidate; its id is its own or a hash. A preference is the user's, whoever wrote it down."""
    author, text = None if preference else author, visible(text)
    digest = hash_text(f"{author}: {text}" if author else text)
    try:
        time = datetime.fromisoformat(timestamp).timestamp() if timestamp else None
    except (ValueError, OverflowError):
        time = None
    return Candidate(
        id=f"mem_{name}" if name else f"mem_{short(digest)}",
        layer="memory",
        source="memory",
        text=text,
        speaker=author or "",
        digest=digest,
        time=time,
        scores=scores or {},
        kind="preference" if preference else "",
    )


def past_conversations(text: str) -> str | None:
    """The text between the first tag that opens a block of preloaded memories and the last one that closes it."""
    _, opening, remainder = text.partition(_PAST_OPENS)
    block, closing, _ = remainder.rpartition(_PAST_CLOSES)
    return block if opening and closing else None


async def search_memories(
    call: ModelCall, problems: list[str], waits: Waits, *, preloaded: bool, sees_session: bool
) -> tuple[list[Candidate], str]:
    """The app's memories, under one deadline, and what compared their meanings where they have a score.

    They are what the user wants always, as our own service keeps it, since a search for something else would not find
    it; and what a search for request and step finds, where ADK has not preloaded that. A failure is noted and costs
    nothing else. A service of ours gives no more than could enter, and their scores count. Of the session itself it
    gives none where all of it is shown or can be recalled (``sees_session``).
    """
    service, session, settings = call.invocation.memory_service, call.context.session, call.policy.retrieval
    within = partial(waits.within, f"memory {id(service)}", call.invocation.invocation_id)
    memories: list[Candidate] = []
    if settings.memory_k == 0:
        return memories, ""
    if isinstance(service, HybridMemoryService):
        try:
            for wish in await within(service.preferences(session.app_name, session.user_id)):
                memories.append(memory_candidate(wish.text, timestamp=wish.timestamp, name=wish.name, preference=True))
        except Exception as error:
            problems.append(f"preferences could not be read: {type(error).__name__}")
    query = searched(_query_text(call))
    if preloaded or not query:
        return memories, ""
    query = await aside(len(query), partial(call.policy.mask, query))
    room = call.window.tokens * _TOKEN_CHARACTERS
    try:
        if not isinstance(service, HybridMemoryService):
            entries = (await within(call.context.search_memory(query))).memories
            if len(entries) > MOST_MEMORIES:
                looked = f"only the first {MOST_MEMORIES} of {len(entries)} entries were looked at"
                problems.append(f"memory search: {looked}")
            return [*memories, *found_memories(entries, room)], ""
        # One more than can enter says that there are more of them than were found, so that a floor holds.
        # This session's own stand in the conversation or come back from it, and would take the place of others'.
        this_session = session.id if sees_session and settings.recall and call.policy.record == "full" else None
        search = partial(service.find, session.app_name, session.user_id, query, without_session=this_session)
        hits = await within(search(settings.memory_k + 1))
        for hit in hits:
            memory = hit.memory
            memories.append(
                memory_candidate(
                    memory.text,
                    author=memory.author,
                    timestamp=memory.timestamp,
                    name=memory.name,
                    scores={"similarity": similarity(hit.score), "cosine": round(hit.scores.get("cosine", 0.0), 6)}
                    | {name: hit.scores[name] for name in (UNTIL,) if name in hit.scores},
                    preference=is_preference(memory.metadata),
                )
            )
        return memories, service.memories.embedder if hits else ""
    except Exception as error:
        problems.append(f"memory search failed: {type(error).__name__}")
        return memories, ""


def _query_text(call: ModelCall) -> str:
    """What a call's message and step tell of what to look for."""
    texts = (words_of(call.context.user_content), call.planned.step.text)
    return " ".join(telling_words(text, call.policy.redact) for text in texts if text)


def stored_results(
    call: ModelCall, records: Sequence[EvidenceRecord], contents: Iterable[Content]
) -> tuple[Candidate, ...]:
    """Results of tools as candidates: those in the conversation, which a cut may take, and of the others, of which a
    session can have hundreds, those that have most words of the request, the latest first."""
    if not records:
        return ()
    sent_uris = {uri for content in contents for answer in answers_in(content) for uri in artifact_uris(answer)}
    words = query_words(_query_text(call).casefold())

    def worth(record: EvidenceRecord) -> tuple[int, float, str]:
        text = f"{record.source} {record.query} {record.summary}".casefold()
        return (-sum(word in text for word in words), -(record.time or 0.0), record.uri)

    best = nsmallest(_MOST_RESULTS, (record for record in records if record.uri not in sent_uris), key=worth)
    return tuple(record.candidate for record in (*(record for record in records if record.uri in sent_uris), *best))


def with_evidence(candidates: Sequence[Candidate], records: Records, can_read: bool) -> tuple[Candidate, ...]:
    """Candidates with what the session's records say of their addresses, and without addresses that only a reader
    resolves where the request declares none."""
    readings, hashes = records.readings, {record.uri: record.digest for record in records.by_digits.values()}
    completed: list[Candidate] = []
    for candidate in candidates:
        uri = candidate.uri
        if uri and can_read:
            content_hash = candidate.content_hash or hashes.get(uri, "")
            candidate = replace(candidate, superseded_by=readings.get(uri, ""), content_hash=content_hash)
        elif uri and evidence_key(uri) is not None:
            candidate = replace(candidate, uri="")
        completed.append(candidate)
    return tuple(completed)
