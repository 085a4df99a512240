"""An index of texts that finds them by words and by meaning.

    index = HybridIndex.from_texts(["a", "b"], ["the red door", "the blue door"])
    [hit.id for hit in index.search("crimson entrance", limit=1)]

An index may be read by several threads while none writes to it.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aether_context.canonical import canonical_json, hash_bytes
from aether_context.errors import EmbeddingError, SearchIndexError
from aether_context.retrieval import terms
from aether_context.retrieval.arrays import Array, Floats, Rows, Slots, packed, smallest, unpacked
from aether_context.retrieval.embedders import Embedder, embedder_for
from aether_context.retrieval.lexical import InvertedIndex
from aether_context.retrieval.passages import LONGEST, titled_passages
from aether_context.retrieval.scoring import (
    CANDIDATES,
    Entry,
    Hit,
    Links,
    around,
    best,
    candidates,
    combined,
    linked,
    ranked,
)
from aether_context.retrieval.semantic import SemanticIndex

_PASSAGES_WEIGHT = 0.5
"""The share of an entry's passages in its score where texts are long; the whole text has the rest."""
_NEXT_BEST = (1.0, 0.1, 0.01)
"""How much the best passage of a text counts, the second and the third."""
_SAMPLED = 10_000
_EXHAUSTIVE = 200_000
"""Up to so many entries are compared with a query one by one."""
_NEARER, _NEAR_SHARE = 8, 32


class SlotIndex:
    """Finds entries by BM25 and vectors together, and knows them by slot; what they say is kept elsewhere.

    Slots are 0, 1, … in the order in which entries were added. The arguments are those of `HybridIndex`.
    """

    def __init__(self, embedder: str | Embedder | None = None, *, redact: Callable[[str], str] | None = None) -> None:
        self._embedder = embedder_for(embedder)
        self.redact: Callable[[str], str] = redact or str
        self._clear()

    def _clear(self) -> None:
        self._lexical = InvertedIndex()
        self._semantic = SemanticIndex(self._embedder)
        self._times = Rows(np.empty(0, dtype=np.float64))
        self._threads: dict[str, int] = {}
        self._thread_of = Rows(np.empty(0, dtype=np.int32))
        self._neighbours: Links | None = None

    def __len__(self) -> int:
        """How many entries there are, removed ones not counted."""
        return self._lexical.live

    @property
    def slots(self) -> int:
        """How many slots were given, those of removed entries counted."""
        return len(self._lexical)

    @property
    def living(self) -> Slots:
        """The slots of the entries that are there, sorted."""
        return np.flatnonzero(self._lexical.alive)

    @property
    def embedders(self) -> tuple[str, ...]:
        """What made the vectors, by the names that a manifest records."""
        return self._semantic.names

    def add(self, entries: Sequence[Entry]) -> None:
        """Gives entries the next slots.

        Raises:
            EmbeddingError: a local embedder failed; nothing was added.
        """
        searched = [self.redact(entry.searched) for entry in entries]
        self._semantic.add(searched)
        self._lexical.add(map(terms.terms, searched))
        self._times.extend(np.array([math.nan if entry.time is None else entry.time for entry in entries], dtype=float))
        self._thread_of.extend(self._numbers([entry.thread for entry in entries]))
        self._neighbours = None

    def extend(self, part: Mapping[str, Array]) -> None:
        """Gives the entries of a part the next slots, as they were in an index with the same embedders."""
        self._lexical.extend(part)
        self._semantic.extend(part, len(part["times"]))
        self._times.extend(part["times"])
        threads = self._numbers([*json.loads(part["threads"].tobytes()), None])
        self._thread_of.extend(threads[part["thread_of"]])
        self._neighbours = None

    def _numbers(self, threads: Sequence[str | None]) -> NDArray[np.int32]:
        """The numbers of threads, -1 of none; a new one gets the next."""
        found = [-1 if name is None else self._threads.setdefault(name, len(self._threads)) for name in threads]
        return np.array(found, dtype=np.int32)

    def part(self, slots: Slots) -> dict[str, Array]:
        """What is known of some entries but for their texts: terms, vectors, times, and threads by their names as JSON.

        Args:
            slots: sorted, none of them removed.
        """
        threads = self._thread_of.values[slots]
        used = np.unique(threads[threads >= 0])
        names = list(self._threads)
        return {
            **self._lexical.part(slots),
            **self._semantic.part(slots),
            "times": self._times.values[slots],
            "threads": np.frombuffer(json.dumps([names[number] for number in used]).encode(), dtype=np.uint8),
            "thread_of": np.where(threads >= 0, np.searchsorted(used, threads), -1).astype(np.int32),
        }

    def remove(self, slots: Slots) -> None:
        """Forgets entries, each of them once."""
        self._lexical.remove(slots)
        self._neighbours = None

    def compact(self) -> Slots:
        """Numbers the entries anew, without those that were removed; the slots that they had."""
        kept = self.living
        part = self.part(kept)
        self._clear()
        self.extend(part)
        return kept

    def search(
        self,
        query: str,
        limit: int,
        entries: Callable[[Slots], Sequence[Entry]],
        *,
        asked: float | None = None,
        passages: PassageIndex | None = None,
    ) -> list[Hit]:
        """As `HybridIndex.search`.

        Args:
            entries: says what stands in slots, in their order.
            passages: those of the same texts; they have half of the score.
        """
        if not len(self) or limit <= 0:
            return []
        query = self.redact(query)
        alone, scores = self.answers(query)
        lists = [scores["lexical"], scores["semantic"]]
        if passages is not None:
            lists.append(passages.scores(query, self.slots))
            scores["passages"] = lists[-1]
            alone = (1 - _PASSAGES_WEIGHT) * alone + _PASSAGES_WEIGHT * lists[-1]
        return ranked(
            query,
            limit,
            entries,
            slots=self._candidates(*lists),
            alone=alone,
            scores=scores,
            times=self._times.values,
            links=self._links(),
            asked=asked,
        )

    def answers(self, query: str) -> tuple[Floats, dict[str, Floats]]:
        """How well each entry answers a masked query without its neighbours and its time; and what that is made of.

        Raises:
            EmbeddingError: a local embedder failed.
        """
        bm25, ceiling = self._lexical.scores(terms.query_terms(query))
        cosine = np.where(self._lexical.alive, self._cosines(query, bm25), 0.0)

        usual = float(np.median(cosine[self._sample()]))
        return combined(query, bm25, ceiling, cosine, usual=usual, count=len(self), compared=bool(self._semantic.names))

    def _cosines(self, query: str, bm25: Floats) -> Floats:
        """The cosine of every entry with a query; in a large index of those that may be candidates, 0 of the others.

        These are the best by words, and many times as many as can be candidates by the signs of their vectors; what
        stands around the candidates that those give; and some of all, by which a median is told.
        """
        asked = self._semantic.asked(query)
        if len(self) <= _EXHAUSTIVE:
            return np.round(self._semantic.similarities(asked), 6)
        found = np.zeros(self.slots)
        compared = np.zeros(self.slots, dtype=bool)

        def compare(*lists: Slots) -> None:
            wanted = np.zeros(self.slots, dtype=bool)
            for slots in lists:
                wanted[slots[slots >= 0]] = True
            new = np.flatnonzero(wanted & ~compared)
            found[new] = np.round(self._semantic.similarities(asked, new), 6)
            compared[new] = True

        most = max(_NEARER * CANDIDATES, self.slots // _NEAR_SHARE)
        near = [table.near(vector, most) for table, vector in asked]
        compare(self._sample(), best(bm25, CANDIDATES), *near)
        compare(*chain(*around(self._links(), self._candidates(bm25, found))))
        return found

    def _sample(self) -> Slots:
        """Entries that stand for all of them, evenly spaced: at most 10,000."""
        return self.living[:: 1 + len(self) // _SAMPLED]

    def _candidates(self, *lists: Floats) -> Slots:
        return candidates(lists, self._links(), self._lexical.alive)

    def _links(self) -> Links:
        if self._neighbours is None:
            self._neighbours = linked(self._thread_of.values, self._lexical.alive)
        return self._neighbours


class PassageIndex:
    """The texts of an index in passages, so that a long one is found by what it says in one place.

    The passage of a short text is the text.
    """

    def __init__(self, embedder: str | Embedder | None = None) -> None:
        self._index = SlotIndex(embedder)
        self._texts = Rows(np.empty(0, dtype=np.int64))

    def __len__(self) -> int:
        """How many passages there are, those of removed texts not counted."""
        return len(self._index)

    def add(self, slots: Slots, texts: Sequence[Sequence[str]]) -> None:
        """Adds texts that stand in slots of an index, each in its passages.

        Raises:
            EmbeddingError: a local embedder failed; nothing was added.
        """
        pieces = [piece for text in texts for piece in text]
        self._index.add([Entry(id="", text=piece) for piece in pieces])
        self._texts.extend(np.repeat(slots, [len(text) for text in texts]))

    def extend(self, part: Mapping[str, Array]) -> None:
        """Adds what `part` gave of an index in which no text was removed."""
        self._index.extend(part)
        self._texts.extend(part["texts"].astype(np.int64))

    def part(self, slots: Slots) -> dict[str, Array]:
        """What is known of the texts in some slots, numbered by their places among these."""
        passages = self._index.living
        texts = np.searchsorted(slots, self._texts.values[passages])
        return {**self._index.part(passages), "texts": smallest(texts)}

    def remove(self, slots: Slots) -> None:
        """Forgets the texts in some slots."""
        living = self._index.living
        self._index.remove(living[np.isin(self._texts.values[living], slots)])

    def scores(self, query: str, texts: int) -> Floats:
        """How well each of so many texts answers a masked query: as its best passage does, and a share of the next.

        Raises:
            EmbeddingError: a local embedder failed.
        """
        alone, _ = self._index.answers(query)
        places = np.flatnonzero(alone > 0)
        owners, values = self._texts.values[places], alone[places]
        order = np.lexsort((-values, owners))
        owners, values = owners[order], values[order]
        found = np.zeros(texts)
        for share in _NEXT_BEST:
            first = np.ones(len(owners), dtype=np.bool_)
            first[1:] = owners[1:] != owners[:-1]
            found[owners[first]] += share * values[first]
            owners, values = owners[~first], values[~first]
        return found


_COMPACT_ABOVE = 1_000
_FILE = "index.bin"
"""A line of JSON about what follows it, then entries, terms, postings, vectors, times and threads, and passages."""
_PASSAGE_ARRAYS = "passages/"
_FORMAT = 4


class HybridIndex:
    """Entries found by BM25 and vectors together, long ones also by their passages.

    Args:
        embedder: a name, an embedder, or None for the default; ``"none"`` finds by words alone.
        redact: masks what must be neither searched by, nor embedded, nor sent to an embedding service.
        passages: False finds long texts as a whole alone, for an index that is made in a moment and soon forgotten.

    Raises:
        PolicyError: no embedder of that name is known.
        MissingExtra: the embedder needs a package that is not installed.
    """

    def __init__(
        self,
        embedder: str | Embedder | None = None,
        *,
        redact: Callable[[str], str] | None = None,
        passages: bool = True,
    ) -> None:
        self._embedder = embedder_for(embedder) or "none"
        self._cuts = passages
        self._index = SlotIndex(self._embedder, redact=redact)
        self._passages: PassageIndex | None = None  # where a text is long
        self._entries: list[Entry | None] = []
        self._slots: dict[str, int] = {}

    @classmethod
    def from_texts(
        cls,
        ids: Sequence[str],
        texts: Sequence[str],
        times: Sequence[float | None] | None = None,
        embedder: str | Embedder | None = None,
    ) -> HybridIndex:
        """An index of these texts; the other arguments are those of `HybridIndex` and `add_texts`."""
        index = cls(embedder)
        index.add_texts(ids, texts, times)
        return index

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def embedders(self) -> tuple[str, ...]:
        """What made the vectors, by the names that a manifest records."""
        return self._index.embedders

    def add_texts(self, ids: Sequence[str], texts: Sequence[str], times: Sequence[float | None] | None = None) -> None:
        """Adds texts without speaker or thread; see `add`.

        Raises:
            SearchIndexError: there are not as many ids, texts and times, or `add` does not take them.
        """
        times = [None] * len(ids) if times is None else times
        if not len(ids) == len(texts) == len(times):
            raise SearchIndexError(
                f"ids, texts and times have {len(ids)}, {len(texts)} and {len(times)} items: give one of each an entry"
            )
        self.add(Entry(id=id, text=text, time=time) for id, text, time in zip(ids, texts, times, strict=True))

    def add(self, entries: Iterable[Entry]) -> None:
        """Adds entries, each in the place of one of the same id.

        Raises:
            SearchIndexError: an id is there twice among them, or a time is no finite number; nothing was added.
            EmbeddingError: a local embedder failed; nothing was added.
        """
        new: dict[str, Entry] = {}
        for entry in entries:
            if entry.id in new:
                raise SearchIndexError(f"id {entry.id!r} is there twice: give each entry its own")
            if entry.time is not None and not math.isfinite(entry.time):
                raise SearchIndexError(
                    f"time {entry.time} of entry {entry.id!r} is not finite: None is an unknown time"
                )
            new[entry.id] = entry
        if new:
            entries = list(new.values())
            slots = np.arange(self._index.slots, self._index.slots + len(entries))
            self._index.add(entries)
            try:
                if self._cuts:
                    self._cut(slots, entries)
            except EmbeddingError:
                self._index.remove(slots)
                self._entries += [None] * len(entries)
                raise
            self._forget(new)
            self._keep(entries)

    def remove(self, ids: Iterable[str]) -> None:
        """Forgets entries in every part of the index; ids that are not there are passed over."""
        self._forget(ids)
        if len(self._entries) > _COMPACT_ABOVE + 2 * len(self._slots):
            slots = self._index.compact()
            if self._passages is not None:
                part = self._passages.part(slots)
                self._passages = PassageIndex(self._embedder)
                self._passages.extend(part)
            kept = self._at(slots)
            self._entries, self._slots = [], {}
            self._keep(kept)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes the index into a folder of its own, in the place of what it held.

        A process that is killed leaves the old state or the new one.

        Raises:
            SearchIndexError: the folder cannot be written.
        """
        slots = self._index.living
        rows = canonical_json([asdict(entry) for entry in self._at(slots)]).encode("utf-8", "surrogatepass")
        passages = {} if self._divided is None else self._divided.part(slots)
        body = packed(
            {"entries": np.frombuffer(rows, dtype=np.uint8)}
            | self._index.part(slots)
            | {_PASSAGE_ARRAYS + name: values for name, values in passages.items()}
        )
        head = {"format": _FORMAT, "embedders": list(self.embedders), "hash": hash_bytes(body)}
        root = Path(folder).expanduser()
        try:
            root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=root, prefix=".draft-") as draft:
                with open(Path(draft, _FILE), "wb") as file:
                    file.write(canonical_json(head).encode() + b"\n" + body)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(file.name, root / _FILE)
        except OSError as error:
            raise SearchIndexError(f"the index cannot be saved in {root}: {error}") from error

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        embedder: str | Embedder | None = None,
        *,
        redact: Callable[[str], str] | None = None,
    ) -> HybridIndex:
        """The index that was saved in a folder. Where its vectors are of another embedder, it is made anew.

        Raises:
            SearchIndexError: there is none, it is of another format, or a byte changed since it was written.
        """
        index = cls(embedder, redact=redact)
        path = Path(folder).expanduser() / _FILE
        try:
            line, _, body = path.read_bytes().partition(b"\n")
            head = json.loads(line)
            if head["format"] != _FORMAT:
                raise SearchIndexError(f"{path} has format {head['format']}, and this version reads {_FORMAT}")
            if hash_bytes(body) != head["hash"]:
                raise SearchIndexError(f"{path} is not what was written: build the index anew")
            arrays = unpacked(body)
            entries = [Entry(**row) for row in json.loads(arrays["entries"].tobytes())]
            if head["embedders"] == list(index.embedders):
                index._index.extend(arrays)
                index._read_passages(arrays, entries)
                index._keep(entries)
                return index
        except FileNotFoundError as error:
            raise SearchIndexError(f"there is no index in {folder}: give a folder that one was saved in") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SearchIndexError(f"{path} cannot be read: {error}") from error
        index.add(entries)
        return index

    def search(self, query: str, limit: int = 10, *, asked: float | None = None) -> list[Hit]:
        """The best entries for a query, best first; ties go to the id that sorts first.

        Args:
            asked: when the query is asked, seconds since 1970 UTC; None takes the latest time of any entry.
        """
        passages = self._passages and self._divided
        return self._index.search(query, limit, self._at, asked=asked, passages=passages)

    @property
    def _divided(self) -> PassageIndex | None:
        """The passages, None where every text is one."""
        passages = self._passages
        return passages if passages is not None and len(passages) > len(self) else None

    def _cut(self, slots: Slots, entries: Sequence[Entry]) -> None:
        """Adds the passages of entries; at the first long text also those of the entries that are there.

        Raises:
            EmbeddingError: a local embedder failed; nothing was added.
        """
        if self._passages is None and all(len(entry.text) <= LONGEST for entry in entries):
            return
        if self._passages is None:
            passages = PassageIndex(self._embedder)
            known = np.array(list(self._slots.values()), dtype=np.int64)
            slots, entries = np.concatenate([known, slots]), [*self._at(known), *entries]
        else:
            passages = self._passages
        passages.add(slots, [self._pieces(entry) for entry in entries])
        self._passages = passages

    def _read_passages(self, arrays: Mapping[str, Array], entries: Sequence[Entry]) -> None:
        """Takes the passages of a saved index; makes them where an index of long texts has none."""
        named = {
            name.removeprefix(_PASSAGE_ARRAYS): values
            for name, values in arrays.items()
            if name.startswith(_PASSAGE_ARRAYS)
        }
        if named:
            self._passages = PassageIndex(self._embedder)
            self._passages.extend(named)
        else:
            self._cut(np.arange(len(entries)), entries)

    def _pieces(self, entry: Entry) -> list[str]:
        text = self._index.redact(entry.searched)
        return [text] if len(entry.text) <= LONGEST else titled_passages(text)

    def _forget(self, ids: Iterable[str]) -> None:
        gone = [self._slots.pop(id) for id in dict.fromkeys(ids) if id in self._slots]
        for slot in gone:
            self._entries[slot] = None
        if gone:
            slots = np.array(gone, dtype=np.int64)
            self._index.remove(slots)
            if self._passages is not None:
                self._passages.remove(slots)

    def _keep(self, entries: Sequence[Entry]) -> None:
        """Keeps the entries of the last slots."""
        self._slots |= {entry.id: slot for slot, entry in enumerate(entries, start=len(self._entries))}
        self._entries += entries

    def _at(self, slots: Slots) -> list[Entry]:
        return [entry for slot in slots.tolist() if (entry := self._entries[slot]) is not None]
