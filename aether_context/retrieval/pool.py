"""A pool of texts, and how they answer a query: in words and in meaning, beside their neighbours, and in time; and an
index of entries, which searches one.

A pool is arrays with one place a text, in the order in which they were added. Forgetting and searching take time in
proportion to the pool, so that nothing has to be kept sorted: of 100,000 short texts a search reads 10 MB of terms and
25 MB of vectors. Adding takes time in proportion to what is added, since the arrays keep spare room behind them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from aether_context.errors import SearchIndexError
from aether_context.retrieval import terms
from aether_context.retrieval.embedders import (
    Embedder,
    Rows,
    embedder_for,
    lengths_of,
    products,
    vectors_of,
    word_by_word,
)

Floats: TypeAlias = NDArray[np.float64]
Places: TypeAlias = NDArray[np.int64]
"""Numbers of texts: 0, 1, … in the order in which they were added."""

K1, B, K3 = 2.5, 0.75, 8.0
_FULL_WORDS = 8
_TERM = np.dtype("<u4")
_MARKS = 2 * _TERM.itemsize
_SEMANTIC_WEIGHT, _MODEL_WEIGHT = 0.4, 0.6
"""The share of meaning in the sum, by the packaged table of words and by a model that reads sentences; words have the
rest. Anything from 0.3 to 0.5, and from 0.5 to 0.7, finds as much."""
_WORDS_WEIGHT, _COMPARED = 0.5, 128
"""The share of the words one by one in the score of the texts that answer best without them, and how many these are."""
_NEIGHBOURS = (0.4, 0.2, 0.1)
"""How much of its score an entry lends to those one, two and three places from it in its talk."""
_PREVIOUS_SHARE = 0.5
"""The share of the vector of the text before in what a text means: what is said answers that."""
_TALK = 0.2
"""The share of what the best of its talk answers that each text of it has, beside one of the poorest talk."""
_PAUSE_SECONDS = 6 * 3_600.0
"""What is said so much later in a thread is another talk."""
_NAMED, _DATED, _ASKING = 1.5, 1.4, 0.9
"""Factors for what somebody said who is meant in the query, for texts with a time where one is asked for, and for
those that end in a question."""
_SAME_NUMBER = 2.0
"""A factor for texts with a noun and its number that the query names, like clause 29."""
_SMALL_POOL = 10
_LONGEST_STATEMENT, _MOST_CORRECTIONS = 24, 8
_NEAR_STATEMENT, _SAME_STATEMENT = 0.3, 0.5
"""Terms of a statement that another one may correct, and how many may; the cosine of two in which a speaker tells of
themselves, and of any other two."""
_TIME_WEIGHT, _RECENCY_WEIGHT = 0.2, 0.1
"""Added in full where a time agrees with one that the question names, and to what is of now where it asks for that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A text in an index.

    Attributes:
        time: seconds since 1970 UTC, None where it is unknown.
        speaker: who said it, "user" for who asks.
        thread: the conversation it belongs to; entries of one thread are neighbours in the order they were added.
    """

    id: str
    text: str
    time: float | None = None
    speaker: str | None = None
    thread: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """An entry that was found.

    Attributes:
        score: the one it is ranked by.
        scores: what that was made of: ``bm25`` (0 and more) and its share ``lexical`` (0 to 1), ``cosine`` (-1 to 1)
            and what it exceeds the pool's median by, ``semantic``; then ``words`` (0 to 1), ``neighbours``, ``time``
            and ``recency`` where they played a part, and the factor of all of it, ``weight``.
    """

    entry: Entry
    score: float
    scores: Mapping[str, float] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The entry's."""
        return self.entry.id

    @property
    def text(self) -> str:
        """The entry's, whole."""
        return self.entry.text


class Pool:
    """Texts, by the hashes of their terms, their vectors, times and threads. All vectors are of one embedder."""

    def __init__(self, embedder: Embedder | None) -> None:
        is_model = embedder is not None and not str(getattr(embedder, "name", "")).startswith("static-")
        self._weight, self._is_model = _MODEL_WEIGHT if is_model else _SEMANTIC_WEIGHT, is_model
        self._marks = np.empty((0, 2), dtype=_TERM)
        self._terms, self._lengths = joined_hashes([])
        self.vectors: Rows = np.empty((0, 0), dtype=np.int8)
        self._threads = np.empty(0, dtype=np.int64)
        self._times, self._norms, self._alike = np.empty(0), np.empty(0), np.empty(0)
        self._changes = np.empty((0, 2), dtype=np.bool_)
        self._last_places: dict[int, int] = {}
        self._speakers: set[bytes] = set()
        self._talks: _Talks | None = None

    def __len__(self) -> int:
        return len(self._lengths)

    def extend(
        self, term_hashes: Sequence[bytes], vectors: Rows, times: Sequence[float | None], threads: Sequence[int]
    ) -> None:
        """Adds the next texts.

        Args:
            term_hashes: what `terms.hash_terms` gives of each masked text.
            vectors: a row for each text, of no dimensions where there is none.
            times: seconds since 1970 UTC.
            threads: a number for each thread, below 0 for none.
        """
        marks = np.frombuffer(b"".join(of_text[:_MARKS] for of_text in term_hashes), dtype=_TERM).reshape(-1, 2)
        new_terms, new_lengths = joined_hashes([of_text[_MARKS:] for of_text in term_hashes])
        self._marks, self._terms = _grown(self._marks, marks), _grown(self._terms, new_terms)
        self._lengths = _grown(self._lengths, new_lengths)
        self._times = _grown(self._times, np.array(times, dtype=np.float64))  # None becomes NaN
        self._threads = _grown(self._threads, np.array(threads, dtype=np.int64))
        width = max(self.vectors.shape[1], vectors.shape[1])
        if width != self.vectors.shape[1]:
            self.vectors = np.zeros((len(self.vectors), width), np.int8)
        self.vectors = _grown(self.vectors, vectors if vectors.size else np.zeros((len(vectors), width), np.int8))
        signs = [_with_any(new_terms, new_lengths, keys) for keys in (terms.CHANGE_TERMS, terms.SELF)]
        self._changes = _grown(self._changes, np.stack(signs, axis=1))
        self._link(len(self) - len(term_hashes))

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Forgets all other texts; those behind them move up.

        Args:
            mask: says so of each place.
        """
        self._terms = self._terms[np.repeat(mask, self._lengths)].copy()
        self._marks, self._lengths = self._marks[mask].copy(), self._lengths[mask].copy()
        self._times, self._threads = self._times[mask].copy(), self._threads[mask].copy()
        self.vectors = self.vectors[mask].copy()
        self._norms, self._alike, self._last_places, self._speakers = np.empty(0), np.empty(0), {}, set()
        self._changes = self._changes[mask].copy()
        self._link(0)

    def _link(self, first: int) -> None:
        """Works out the length of the vectors from a place on, their cosines with the text before in their thread, and
        who speaks."""
        previous = list[int]()
        for at, thread in enumerate(self._threads[first:].tolist(), first):
            previous.append(self._last_places.get(thread, at))
            self._last_places[thread] = at
        self._norms, self._talks = _grown(self._norms, lengths_of(self.vectors[first:])), None
        alike = np.einsum("ij,ij->i", self.vectors[first:], self.vectors[previous], dtype=np.int32).astype(np.float64)
        lengths = self._norms[first:] * self._norms[previous]
        self._alike = _grown(self._alike, np.divide(alike, lengths, out=np.zeros(len(alike)), where=lengths > 0))
        self._speakers.update(mark.tobytes() for mark in np.unique(self._marks[first:, 0]))

    def named(self, query: str) -> tuple[str, NDArray[np.bool_]]:
        """A query without the names of those who speak here, which stand in half of all texts; and which texts are
        those of speakers that it means."""
        stripped, marks = terms.without_names(query, self._speakers)
        return stripped, np.isin(self._marks[:, 0], np.frombuffer(b"".join(marks), dtype=_TERM))

    def _in_talks(self) -> _Talks:
        if self._talks is None:
            order = np.flatnonzero(self._threads >= 0)
            order = order[np.argsort(self._threads[order], kind="stable")]
            threads, times = self._threads[order], self._times[order]
            begins = (np.diff(threads) != 0) | (np.abs(np.diff(times)) > _PAUSE_SECONDS)
            numbers = np.cumsum(np.concatenate([np.zeros(min(1, len(order)), np.bool_), begins]))
            self._talks = _Talks(order, numbers)
        return self._talks

    def score(
        self, query: str, query_vector: Rows, texts_at: Callable[[Places], Sequence[str]]
    ) -> tuple[Floats, dict[str, Floats]]:
        """Scores each text against a masked query without its neighbours and its time; returns the parts of the score,
        too.

        Args:
            query: as of `named`.
            query_vector: the vector of the query, of no dimensions where meanings are not compared.
            texts_at: gives the masked texts at places.
        """
        is_latin = terms.is_latin(query)
        if not (is_latin or self._is_model):
            query_vector = query_vector[:, :0]
        matched, ceiling = bm25(terms.query_terms(query), self._terms, self._lengths)
        # A share of what the best entry reaches alone makes the best of a poor lot look good, a share of what any
        # entry can reach makes every entry of a long query look poor: taken is the geometric mean of the two.
        best_match = float(matched.max(initial=0.0))
        lexical = matched / math.sqrt(best_match * max(best_match, ceiling)) if best_match > 0 else matched
        # In a pool about one subject everything is a little alike, and neighbours would add that up, so that what is
        # usual is taken off. The median of a small pool says little and counts for less.
        cosine = np.round(self._cosines(query_vector), 6)
        median = max(0.0, float(np.median(cosine))) if len(self) else 0.0
        semantic = np.maximum(0.0, cosine - median * len(self) / (len(self) + _SMALL_POOL))
        # The more of the words are identifiers, the less meaning tells.
        named = min(1.0, len(terms.identifiers(query)) / max(1, len(query.split())))
        weight = self._weight * (1.0 - named) if query_vector.size else 0.0
        base = (1 - weight) * lexical + weight * semantic
        scores = {"bm25": matched, "cosine": cosine, "lexical": lexical, "semantic": semantic}
        if query_vector.size and is_latin:
            places = best(base, _COMPARED)
            places = places[np.argsort(-base[places], kind="stable")[:_COMPARED]]
            if (words := word_by_word(query, texts_at(places))).any():
                weight, scores["words"] = _WORDS_WEIGHT * (1.0 - named), np.zeros(len(self))
                scores["words"][places] = words
                base = (1 - weight) * base + weight * scores["words"]
        if pattern := terms.numbered(query):
            places = best(base, _COMPARED)
            base[places[[pattern.search(text) is not None for text in texts_at(places)]]] *= _SAME_NUMBER
        return base, scores

    def _cosines(self, query: Rows) -> Floats:
        """The cosine of each text, and half of the one before it in its talk, with a query; 0 where either has no
        vector."""
        if not query.any() or not self.vectors.size:
            return np.zeros(len(self))
        (order, numbers), norms = self._in_talks(), self._norms
        lengths = norms * lengths_of(query)
        cosines = np.divide(products(self.vectors, query)[0], lengths, out=np.zeros(len(self)), where=lengths > 0)
        at, previous = order[1:], order[:-1]
        share = _PREVIOUS_SHARE * (numbers[1:] == numbers[:-1])
        lengths = np.sqrt((norms[at] > 0) + share**2 * (norms[previous] > 0) + 2 * share * self._alike[at])
        joined: Floats = cosines.copy()
        joined[at] = np.divide(
            cosines[at] + share * cosines[previous], lengths, out=np.zeros(len(at)), where=lengths > 0
        )
        return joined

    def ranked(
        self,
        query: str,
        limit: int,
        entries: Callable[[Places], Sequence[Entry]],
        base: Floats,
        scores: Mapping[str, Floats],
        is_named: NDArray[np.bool_],
        *,
        asked: float | None = None,
        every: bool = False,
        without_thread: int | None = None,
    ) -> list[Hit]:
        """The best entries for a masked query, best first; ties go to the id that sorts first.

        Args:
            entries: says what stands at places, in their order.
            base: how well each text answers by itself; ``scores`` is what that is made of, both as of `score`.
            is_named: which texts are those of speakers that the query means, as of `named`.
            asked: when the query is asked, seconds since 1970 UTC; None takes the latest time of any text.
            every: whether texts that answer nothing of it are hits, too.
            without_thread: the number of a thread whose texts are no hits.
        """
        if terms.ASKS_WHEN.search(query):
            base = base * np.where(_with_any(self._terms, self._lengths, terms.DATED), _DATED, 1.0)
        total = self._beside_neighbours(base)
        scores = {**scores, "neighbours": total - base}
        if not np.isnan(self._times).all():
            now = float(np.nanmax(self._times)) if asked is None else asked
            if spans := terms.named_times(query, now=now):
                scores["time"] = _TIME_WEIGHT * terms.closeness(self._times, spans)
                total = total + scores["time"]
            if terms.ASKS_FOR_RECENT.search(query):
                scores["recency"] = _RECENCY_WEIGHT * terms.freshness(self._times, now=now)
                total = total + scores["recency"]
        asking = np.where(self._marks[:, 1] == terms.hashes_of([terms.QUESTION]), _ASKING, 1.0)
        scores["weight"] = np.where(is_named, _NAMED, 1.0) * asking
        total = np.round(total * scores["weight"], 9)
        if without_thread is not None:
            total = np.where(self._threads == without_thread, 0.0, total)

        places = np.arange(len(self)) if every else best(total, limit)
        listed = entries(places)
        ranks = total[places].tolist()
        order = sorted(range(len(listed)), key=lambda rank: (-ranks[rank], listed[rank].id))[:limit]
        rounded = [np.round(values[places[order]], 6).tolist() for values in scores.values()]
        return [
            Hit(entry=listed[rank], score=ranks[rank], scores=dict(zip(scores, row, strict=True)))
            for rank, row in zip(order, zip(*rounded, strict=True), strict=True)
        ]

    def corrections(self, places: Places) -> list[list[tuple[int, float, bool]]]:
        """Finds for each place later statements of its speaker that are near to it in meaning.

        Returns their places, the nearest first, when they were said, and whether they tell of a change and are so near
        that they are about the same; none where vectors do not tell.
        """
        short, speakers = self._lengths <= _LONGEST_STATEMENT, self._marks[:, 0]
        is_later = self._times > np.fmin.reduce(self._times[places], initial=np.inf)
        later = np.flatnonzero(short & (self._norms > 0) & is_later & np.isin(speakers, speakers[places]))
        cosines = products(self.vectors[later], self.vectors[places]) / self._norms[later]
        cosines /= np.maximum(1.0, self._norms[places])[:, None]
        result = list[list[tuple[int, float, bool]]]()
        for at, near in zip(places.tolist(), cosines, strict=True):
            is_later = (speakers[later] == speakers[at]) & (self._times[later] > self._times[at]) & short[at]
            best_first = np.argsort(-np.where(is_later, near, 0.0), kind="stable")[:_MOST_CORRECTIONS]
            nearest = best_first[((near >= _NEAR_STATEMENT) & is_later)[best_first]]
            both_tell = self._changes[later, 1] & self._changes[at, 1]
            is_same = self._changes[later, 0] & (near >= np.where(both_tell, _NEAR_STATEMENT, _SAME_STATEMENT))
            times = self._times[later[nearest]]
            result.append(list(zip(later[nearest].tolist(), times.tolist(), is_same[nearest].tolist(), strict=True)))
        return result

    def _beside_neighbours(self, base: Floats) -> Floats:
        """Scores with what the texts before and behind lend in their talks, and the best of them."""
        order, numbers = self._in_talks()
        ordered = base[order]
        shared = ordered.copy()
        for distance, share in enumerate(_NEIGHBOURS, start=1):
            near = numbers[distance:] == numbers[:-distance]
            shared[distance:] += share * ordered[:-distance] * near
            shared[:-distance] += share * ordered[distance:] * near
        if len(order):
            highest = np.maximum.reduceat(ordered, np.flatnonzero(np.diff(numbers, prepend=-1)))
            shared += _TALK * (highest - highest.min())[numbers]
        total = base.copy()
        total[order] = shared
        return total


class _Talks(NamedTuple):
    """The order of texts in their conversations, worked out once.

    ``order`` is the places of those in threads, by thread; ``numbers`` those of their talks, in that order.
    """

    order: Places
    numbers: Places


def _grown(table: NDArray[Any], rows: NDArray[Any]) -> NDArray[Any]:
    """A table with rows behind its own, in the spare room behind it or in an eighth as much room again."""
    size, room = len(table) + len(rows), table.base
    if not isinstance(room, np.ndarray) or len(room) < size:
        room = np.empty((size + size // 8, *rows.shape[1:]), table.dtype)
        room[: len(table)] = table
    room[len(table) : size] = rows
    return room[:size]


def joined_hashes(hashes: Sequence[bytes]) -> tuple[NDArray[np.uint32], NDArray[np.int32]]:
    """The hashes of the terms of texts, one text after the other, and how many each text has."""
    lengths = np.array([len(of_text) // _TERM.itemsize for of_text in hashes], dtype=np.int32)
    return np.frombuffer(b"".join(hashes), dtype=_TERM), lengths


def bm25(query: Sequence[str], term_hashes: NDArray[np.uint32], lengths: NDArray[np.int32]) -> tuple[Floats, float]:
    """BM25 of texts for the terms of a query; and what any text can reach.

    Scores are those of ``BM25Plus`` of rank-bm25 with ``delta=0``; the weight of a term is ``log((N + 1) / n)``, which
    stays positive in small pools. What a query says again counts more, as of Okapi at TREC-3 (Robertson and others,
    1994): the words that a long question repeats tell what it is about. A text reaches most that says the eight
    weightiest of the terms over and over. Of 200,000 terms about five share a hash with another.

    Args:
        term_hashes: as of `joined_hashes`; so are ``lengths``.
    """
    words = int(lengths.sum(dtype=np.int64))
    keys, repeats = np.unique(terms.hashes_of(query), return_counts=True)
    if not words or not len(keys):
        return np.zeros(len(lengths)), 0.0
    norms = K1 * (1 - B) + (K1 * B * len(lengths) / words) * lengths
    places = np.flatnonzero(_among(term_hashes, keys))
    # The query's term at each place, or the next one by its hash where another stands there.
    terms_at = np.minimum(np.searchsorted(keys, term_hashes[places]), len(keys) - 1)
    is_term = keys[terms_at] == term_hashes[places]
    texts = np.searchsorted(np.cumsum(lengths), places[is_term], side="right")
    pairs, counts = np.unique(terms_at[is_term] * len(lengths) + texts, return_counts=True)
    term, holders = np.divmod(pairs, len(lengths))
    frequencies = np.maximum(1, np.bincount(term, minlength=len(keys)))
    weights = np.log((len(lengths) + 1) / frequencies) * (K3 + 1) * repeats / (K3 + repeats)
    worth = weights[term] * (K1 + 1) * counts / (norms[holders] + counts)
    scores = np.zeros(len(lengths))
    np.add.at(scores, holders, worth)
    return scores, (K1 + 1) * float(np.sort(weights)[-_FULL_WORDS:].sum())


def _with_any(hashes: NDArray[np.uint32], lengths: NDArray[np.int32], keys: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Tells which texts have any of some terms, by their hashes."""
    places = np.flatnonzero(_among(hashes, keys))
    places = places[np.isin(hashes[places], keys)]
    result = np.zeros(len(lengths), dtype=np.bool_)
    result[np.searchsorted(np.cumsum(lengths), places, side="right")] = True
    return result


def _among(hashes: NDArray[np.uint32], keys: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """The texts that hold any of many keys, and a few other terms: in one pass, however many are asked for."""
    low = np.zeros(2**16, dtype=np.bool_)
    low[keys.astype(np.uint16)] = True
    return low.take(hashes.astype(np.uint16))


def best(scores: Floats, limit: int) -> Places:
    """The places of the highest scores above 0, and of those that equal the last of them."""
    places = np.flatnonzero(scores > 0)
    if len(places) > limit:
        values = scores[places]
        places = places[values >= np.partition(values, -limit)[-limit]]
    return places


class HybridIndex:
    """Entries found by BM25 and vectors together. Threads may share an index that does not change.

        index = HybridIndex.from_texts(["a", "b"], ["the red door", "the blue door"])
        [hit.id for hit in index.search("crimson entrance", limit=1)]

    Args:
        embedder: a name, an embedder, or None for the default; ``"none"`` finds by words alone.
        redact: masks what must be neither searched by, nor embedded, nor sent to an embedding service.

    Raises:
        SearchIndexError: an id is there twice, or a time is no finite number.
        PolicyError: no embedder of that name is known.
        MissingExtra: the embedder needs a package that is not installed.
        EmbeddingError: the embedder failed.
    """

    def __init__(
        self,
        entries: Iterable[Entry],
        embedder: str | Embedder | None = None,
        *,
        redact: Callable[[str], str] | None = None,
    ) -> None:
        self._embedder = embedder_for(embedder)
        self._redact: Callable[[str], str] = redact or str
        self._entries: list[Entry] = []
        self._said: list[str] = []
        self._threads: dict[str | None, int] = {None: -1}
        self._texts = Pool(self._embedder)
        self.extend(entries)

    def __len__(self) -> int:
        return len(self._entries)

    def extend(self, entries: Iterable[Entry]) -> None:
        """Adds entries. Errors as of `HybridIndex`, and nothing is added then."""
        new, ids = list(entries), set(map(attrgetter("id"), self._entries))
        for entry in new:
            if entry.id in ids:
                raise SearchIndexError(f"id {entry.id!r} is there twice: give each entry its own")
            if entry.time is not None and not math.isfinite(entry.time):
                raise SearchIndexError(
                    f"time {entry.time} of entry {entry.id!r} is not finite: None is an unknown time"
                )
            ids.add(entry.id)
        numbers = [self._threads.setdefault(entry.thread, len(self._threads)) for entry in new]
        texts = [self._redact(entry.text) for entry in new]
        hashes = [terms.hash_terms(text, entry.speaker) for text, entry in zip(texts, new, strict=True)]
        self._texts.extend(hashes, vectors_of(self._embedder, texts), [entry.time for entry in new], numbers)
        self._entries, self._said = self._entries + new, self._said + texts

    @classmethod
    def from_texts(
        cls,
        ids: Sequence[str],
        texts: Sequence[str],
        times: Sequence[float | None] | None = None,
        embedder: str | Embedder | None = None,
        speakers: Sequence[str | None] | None = None,
    ) -> HybridIndex:
        """An index of these texts, with their times in seconds since 1970 UTC and who said them; with speakers they are
        one conversation in its order.

        Raises:
            SearchIndexError: there are not as many ids, texts, times and speakers, or `HybridIndex` does not take them.
        """
        thread = None if speakers is None else ""
        times, speakers = times or [None] * len(ids), speakers or [None] * len(ids)
        if not len(ids) == len(texts) == len(times) == len(speakers):
            counts = f"{len(ids)}, {len(texts)}, {len(times)} and {len(speakers)}"
            raise SearchIndexError(f"ids, texts, times and speakers have {counts} items: give one of each an entry")
        rows = zip(ids, texts, times, speakers, strict=True)
        entries = (
            Entry(id=id, text=text, time=time, speaker=speaker, thread=thread) for id, text, time, speaker in rows
        )
        return cls(entries, embedder)

    def search(self, query: str, limit: int = 10, *, asked: float | None = None, every: bool = False) -> list[Hit]:
        """The best entries for a query, best first; ties go to the id that sorts first.

        Args:
            asked: when the query is asked, seconds since 1970 UTC; None takes the latest time of any entry.
            every: whether entries that answer nothing of it are hits, too, with their scores.
        """
        if not self._entries or limit <= 0:
            return []
        query = self._redact(query)
        plain, is_named = self._texts.named(query)
        vector = vectors_of(self._embedder, [plain], "query")

        def entries(places: Places) -> list[Entry]:
            return [self._entries[row] for row in places.tolist()]

        base, scores = self._texts.score(plain, vector, lambda places: [self._said[at] for at in places.tolist()])
        return self._texts.ranked(query, limit, entries, base, scores, is_named, asked=asked, every=every)
