"""Notes, memories and evidence that could enter a pack, and their tokens."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace

from aether_context import retrieval
from aether_context.canonical import strings
from aether_context.pack import RECALLED, Candidate, Layer, Outgoing, PackInput, Part, recalled_id
from aether_context.packing import payload
from aether_context.packing.draft import Draft, Rankings, SelectedCandidates
from aether_context.retrieval import Left, Ranking
from aether_context.retrieval.ranking import LEAST_QUOTED, breadth_of, most_turns
from aether_context.tokens.cache import PackCounter

_MOST_STANDING, _STANDING_SHARE = 20, 0.1
_SHORT_SHARE = 0.02
"""Of the window; what takes less costs nothing that a floor could save."""


def choose(draft: Draft, sent_contents: Sequence[Outgoing]) -> None:
    """Ranks the candidates, once an invocation: later calls keep what was chosen then.

    Args:
        sent_contents: the contents as they are sent; a candidate that is in them word for word is left out.
    """
    source, settings, counter = draft.input, draft.policy.retrieval, draft.counter
    if draft.epoch.has_chosen or source.host.passthrough_reason or not source.candidates:
        return
    if (request_index := source.request.request_index) is None:
        draft.rankings = Rankings(memory=_nowhere(source, "memory"), evidence=_nowhere(source, "evidence"))
        return
    query = retrieval.query_for(source, draft.policy.redact)
    turns_k = most_turns(settings, source)
    settings = settings.model_copy(update={"floor": settings.floor / breadth_of(source)})
    # Without an embedder: one may be behind a network, so meanings are compared where the candidates are gathered.
    now, redact = source.identity.last_event_time, draft.policy.redact
    candidates = retrieval.ranked(_demote_preferences(source, counter), query, asked=now, embedder=None, redact=redact)
    # The message to be answered in its own words: what its payload holds is what is chosen here.
    contents = [item.raw if item.origin == request_index else item.content for item in sent_contents]
    tail = "\n".join(_readable(part) for content in contents for part in content.parts)
    # A turn that is sent as an extract has its words there, without its media or its end.
    sent_ids = {
        recalled_id(source.request.positions[item.origin], item.raw.digest)
        for item in (sent_contents if any(candidate.source == RECALLED for candidate in candidates) else ())
        if item.form != "placeholder"
    }

    memories = [entry for entry in candidates if entry.source == "memory" and not entry.kind]
    memory_tokens = sum(memory.tokens for memory in _count_candidates(memories[: settings.memory_k], counter))
    is_short = len(memories) <= settings.memory_k and memory_tokens < _SHORT_SHARE * source.window
    stored = [candidate for candidate in candidates if candidate.layer == "evidence" and not candidate.kind]
    sent_ids |= payload.sent_results(stored, sent_contents)

    def retrieve_layer(layer: Layer, k: int) -> Ranking:
        result = retrieval.retrieve(
            [candidate for candidate in candidates if candidate.layer == layer],
            k=k,
            settings=settings,
            turns_k=turns_k,
            is_short=is_short,
            tail=tail,
            sent=sent_ids,
            now=now,
        )
        return result._replace(chosen=_count_candidates(result.chosen, counter))

    evidence = _within_share(retrieve_layer("evidence", settings.evidence_k), int(_RESULTS_SHARE * source.window))
    draft.rankings = Rankings(query, retrieve_layer("memory", settings.memory_k), evidence)
    draft.selected = SelectedCandidates(draft.rankings.memory.chosen, draft.rankings.evidence.chosen)


_RESULTS_SHARE = 0.02
"""Share of the window that the lines of stored results take at most, but for the first. Of the lines that a next step
quotes recorded runs at 8,000 tokens hold 94.9 % so, at a cost of .156; 93.5 % at twice as much, at .162."""


def _within_share(ranking: Ranking, most_tokens: int) -> Ranking:
    """The evidence with as many stored results, best first, as so many tokens take; one at least."""
    selected, rejected, used = list[Candidate](), list(ranking.left), 0
    for candidate in ranking.chosen:
        tokens = 0 if candidate.kind else candidate.tokens
        if tokens and used and used + tokens > most_tokens:
            rejected.append(Left(candidate=candidate, reason="over_allocation"))
        else:
            selected.append(candidate)
            used += tokens
    return Ranking(chosen=tuple(selected), left=tuple(rejected))


def leave_out_summarized(draft: Draft) -> None:
    """Leaves out memories that the summary says word for word, as it is once all else has its place."""
    ranking = draft.rankings.memory
    summary = " ".join(draft.history.summary.split()) if ranking.chosen else ""
    texts = {memory.id: " ".join(memory.text.split()) for memory in ranking.chosen if memory.kind != "preference"}
    quoted = {name for name, text in texts.items() if len(text) >= LEAST_QUOTED and text in summary}
    if quoted:
        selected = tuple(memory for memory in ranking.chosen if memory.id not in quoted)
        rejected = (Left(memory, "already_in_conversation") for memory in ranking.chosen if memory.id in quoted)
        draft.rankings = draft.rankings._replace(memory=Ranking(chosen=selected, left=(*ranking.left, *rejected)))
        memories = tuple(memory for memory in draft.selected.memory if memory.id not in quoted)
        draft.selected = draft.selected._replace(memory=memories)
        payload.write_payload(draft)


def _demote_preferences(source: PackInput, counter: PackCounter) -> list[Candidate]:
    """The candidates. Of the wishes that hold always the newest have a place, the others are memories like any."""
    now = source.identity.last_event_time
    wishes = [wish for wish in source.candidates if wish.kind == "preference" and not (wish.expires or now) < now]
    wishes.sort(key=lambda wish: (-(wish.time if wish.time is not None else math.inf), wish.id))
    tokens_left, placed_ids = int(source.window * _STANDING_SHARE), set()
    for wish in _count_candidates(wishes[:_MOST_STANDING], counter):
        if wish.tokens <= tokens_left:
            tokens_left -= wish.tokens
            placed_ids.add(wish.id)
    return [
        replace(candidate, kind="app_note")
        if candidate.kind == "preference" and candidate.id not in placed_ids
        else candidate
        for candidate in source.candidates
    ]


def _nowhere(source: PackInput, layer: Layer) -> Ranking:
    """Nothing of a layer: there is no human message to write a payload into."""
    candidates = (candidate for candidate in source.candidates if candidate.layer == layer)
    return Ranking(chosen=(), left=tuple(Left(candidate=candidate, reason="no_message") for candidate in candidates))


def _readable(part: Part) -> str:
    """The text of a part without the escapes of JSON."""
    if part.kind != "response":
        return part.text
    return "\n".join(text for _, text in strings(json.loads(part.text)))


def render_line(candidate: Candidate) -> str:
    return payload.memory_line(candidate) if candidate.layer == "memory" else payload.evidence_line(candidate)


def _count_candidates(candidates: Sequence[Candidate], counter: PackCounter) -> tuple[Candidate, ...]:
    """Candidates with their lines, and the tokens of these, each with the line break behind it."""
    lines = [render_line(candidate) for candidate in candidates]
    sized = zip(candidates, lines, counter.count_all(lines) if lines else (), strict=True)
    return tuple(replace(candidate, line=line, tokens=tokens + 1) for candidate, line, tokens in sized)
