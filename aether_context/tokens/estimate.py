"""Counts tokens without the model's tokenizer, from a small table fitted to its vocabulary.

A tokenizer cuts text before some characters and not before others. The estimate is the sum, over all characters, of
how many tokens start there on average in that context, with one refinement: a word that the vocabulary holds as one
token is never cut inside. A table therefore has two parts:

known   2**21 bits, the hashed set of the vocabulary's words (with and without a leading space) and of its pieces of one
        to three characters in scripts that do not part words by spaces; one strange word in twelve passes for known
costs   2**16 contexts, in 1/16384 token: average tokens that start at a character, given it and the one before it

In scripts from Devanagari on (Thai, kana, Han, Hangul, symbols, emoji) the context is not the pair of characters, of
which there are too many, but which pieces around the place the vocabulary knows. A long repetition of one character has
contexts of its own.

Everything is integer arithmetic, so that a count is the same on every machine.
"""

from __future__ import annotations

import functools
import hashlib
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any, TypeAlias

from aether_context.pack import Accuracy
from aether_context.tokens.counters import CachedCounter, TokenCounter
from aether_context.tokens.model_limits import bare_model_name

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.uint32]
    Keys: TypeAlias = NDArray[np.uint64]
    Bytes: TypeAlias = NDArray[np.uint8]
    Flags: TypeAlias = NDArray[np.bool_]
    Places: TypeAlias = NDArray[np.intp]


UNIT = 16384
"""What one token is in a table's costs."""

KNOWN_BITS = 21
COST_BITS = 16
WORDLESS = 0x0900
"""The first code point whose scripts are read by known pieces, not by words: the start of Devanagari."""

LOWER, UPPER = 1, 2
"""Classes of letters in scripts that write words: without case or lower case, and upper case. 0 is everything else."""

MOST_WORD_CHARACTERS = 16
"""Longer words, a leading space included, are not looked for in the filter."""

_CHUNK = 1 << 15
_BEFORE, _AFTER = 33, 18
_MARGIN = _BEFORE + _AFTER
_PAD_BEFORE = ("\r\n" * _BEFORE)[-_BEFORE:]
_PAD_AFTER = "\n" * _AFTER
_HAN = range(0x3400 >> 7, 0xA000 >> 7)
_PIECE, _COMMON_PIECE = 1, 2
_INSIDE, _NO_WORD, _START, _START_AFTER_SPACE = range(4)


@dataclass(frozen=True, slots=True)
class Table:
    """One vocabulary's figures, ready to be looked up.

    Attributes:
        known: the filter, eight bits a byte, the lowest first. uint8[2**18].
        costs: uint32[2**16] in 1/16384 token.
        letters: the class of each code point, uint8[2**16].
        pair_costs: `costs` for two ASCII characters, at first + 256 * second. uint32[2**15].
        pair_edges: what the second is to words, as `_edges` tells it, at the same place. uint8[2**15].
    """

    known: Bytes
    costs: Ints
    letters: Bytes
    pair_costs: Ints
    pair_edges: Bytes


class EstimateCounter:
    """Counts by the named tables; with several, by the highest cost and the fewest known words among them.

    Args:
        family: the name of the family that it counts for, as `family_of` returns it.
        tables: names of the tables beside this module, one or more.
        accuracy: how close the counts are.
        percent: scales the count: 110 counts a tenth more than the tables say.
    """

    def __init__(self, family: str, tables: tuple[str, ...], *, accuracy: Accuracy, percent: int = 100) -> None:
        self.family = family
        self.accuracy: Accuracy = accuracy
        self._tables = tables
        self._percent = percent

    @functools.cached_property
    def name(self) -> str:
        """The family, the scale in percent, and a hash over the bytes of the tables."""
        digest = hashlib.sha256(b"".join(_table_bytes(name) for name in self._tables)).hexdigest()
        return f"estimate/{self.family}@{self._percent}%-{digest[:12]}"

    def count(self, text: str) -> int:
        """Tokens of the text, rounded to the nearest whole one and at least 1; 0 for the empty text."""
        return self.count_all((text,))[0]

    def count_all(self, texts: Sequence[str]) -> list[int]:
        """The same for many texts in a few passes over all of them; a pass costs about as much as a short text."""
        costs = [0] * len(texts)
        for places, chunks in _passes(texts):
            for place, cost in zip(places, _costs(chunks, load_table(self._tables)), strict=True):
                costs[place] += cost
        return [self._tokens(cost) if text else 0 for text, cost in zip(texts, costs, strict=True)]

    def _tokens(self, cost: int) -> int:
        return max(1, (cost * self._percent // 50 + UNIT) // (2 * UNIT))


def _passes(texts: Sequence[str]) -> Iterator[tuple[list[int], list[str]]]:
    """The padded chunks of all texts in groups of one pass each, with the places of their texts.

    A group is either all ASCII or not, and ends with the chunk that fills 32,768 characters.
    """
    for ascii_only in (True, False):
        places: list[int] = []
        chunks: list[str] = []
        size = 0
        for place, text in enumerate(texts):
            for chunk in padded_chunks(text) if text else ():
                if chunk.isascii() is not ascii_only:
                    continue
                places.append(place)
                chunks.append(chunk)
                size += len(chunk)
                if size >= _CHUNK:
                    yield places, chunks
                    places, chunks, size = [], [], 0
        if chunks:
            yield places, chunks


def padded_chunks(text: str) -> Iterator[str]:
    """The text in pieces of at most 32,768 characters, each with the 33 before it and the 18 after it.

    Before and after the text stand line ends, before it CR and LF in turn, so that no repetition starts outside it.
    """
    text = _PAD_BEFORE + text + _PAD_AFTER
    for start in range(0, len(text) - _MARGIN, _CHUNK):
        yield text[start : start + _CHUNK + _MARGIN]


def scan(chunk: str, known: Bytes, letters: Bytes) -> tuple[Ints, Places, Places]:
    """The context of each character of a padded chunk, and where the words that are one token start and end.

    Contexts are uint32[n] below 2**16; starts and ends are equally long, ends exclusive, counted without the padding.
    """
    points = _code_points(chunk)
    starts, ends = _known_words(_edges(points, letters), _folded(points), known)
    return _contexts(points, known), starts, ends


def word_key(word: str) -> tuple[int, int]:
    """The two 64-bit numbers under which the filter knows a word of at most 16 characters."""
    data = _folded(_code_points(word)).ljust(MOST_WORD_CHARACTERS, b"\0")
    return int.from_bytes(data[:8], "little"), int.from_bytes(data[8:], "little")


def piece_key(piece: str, *, common: bool) -> tuple[int, int]:
    """The same for a piece of one to three characters, known at all or known as a common one."""
    packed = sum(ord(character) << 21 * place for place, character in enumerate(piece))
    return packed, _COMMON_PIECE if common else _PIECE


def filter_places(low: Keys, high: Keys) -> Places:
    """The bit of the filter that stands for each key."""
    import numpy as np

    mixed = low * np.uint64(0x9E3779B97F4A7C15) ^ high * np.uint64(0xC2B2AE3D27D4EB4F)
    return (mixed >> np.uint64(64 - KNOWN_BITS)).view(np.int64)


@functools.cache
def load_table(names: tuple[str, ...]) -> Table:
    """Reads the tables; of several, the costs are the highest and the known pieces those that all know."""
    import numpy as np

    known, costs, letters = zip(*map(_read_table, names), strict=True)
    return _with_pairs(functools.reduce(np.bitwise_and, known), functools.reduce(np.maximum, costs), letters[0])


def _with_pairs(known: Bytes, costs: Ints, letters: Bytes) -> Table:
    import numpy as np

    first, second = np.tile(np.arange(256, dtype=np.uint32), 128), np.repeat(np.arange(128, dtype=np.uint32), 256)
    edges = _pair_edges(letters.take(first), letters.take(second), first == ord(" "))
    return Table(known, costs, letters, costs.take(_bucket(_pair_mix(first, second))), edges)


def _costs(chunks: Sequence[str], table: Table) -> list[int]:
    """Tokens of each padded chunk, in 1/16384 token: all characters' costs without those inside known words.

    The chunks are looked at as one text, in which the padding keeps them apart. They are all ASCII, or all are not.
    """
    import numpy as np

    joined = "".join(chunks)
    if chunks[0].isascii():
        folded = joined.encode()
        pairs = _windows(folded, "<u2", _BEFORE - 2, len(joined) - _MARGIN + 2).astype(np.intp)
        costs, edges = table.pair_costs.take(pairs[1:-1]), table.pair_edges.take(pairs[1:])
        if (triples := pairs[1:-1] == pairs[:-2]).any():
            _set_repeated_costs(costs, folded, triples.nonzero()[0], table)
    else:
        points = _code_points(joined)
        folded = _folded(points)
        costs, edges = table.costs.take(_contexts(points, table.known)), _edges(points, table.letters)
    sizes = np.fromiter(map(len, chunks), np.intp, len(chunks))
    lasts = sizes.cumsum() - _MARGIN
    firsts = lasts - sizes + _MARGIN
    starts, ends = _known_words(edges, folded, table.known)
    inside = ends <= lasts.take(firsts.searchsorted(starts, "right") - 1)
    starts, ends = starts[inside], ends[inside]
    # Sums may pass 2**32; what lies between two of one chunk cannot, so their difference is right all the same.
    sums = np.concatenate([[0], costs.cumsum(dtype=np.uint32)]).astype(np.uint32)
    whole = (sums[lasts] - sums[firsts]).astype(np.int64)
    saved = np.concatenate([[0], (sums[ends] - sums[starts + 1]).cumsum(dtype=np.int64)])
    left: list[int] = (whole - saved[starts.searchsorted(lasts)] + saved[starts.searchsorted(firsts)]).tolist()
    return left


def _set_repeated_costs(costs: Ints, folded: bytes, places: Places, table: Table) -> None:
    """Prices the ASCII characters at those of the places that end five equal ones, as `_repetitions` tells them."""
    import numpy as np

    fours = _windows(folded, "<u4", 0, len(folded) - 3)
    places = places[fours[places + _BEFORE - 3] == fours[places + _BEFORE - 4]]
    characters = np.frombuffer(folded, np.uint8)
    points = characters[places + _BEFORE].astype(np.uint32)
    repeated = 1 + (points == characters[places + _BEFORE - 32]).astype(np.uint32)
    costs[places] = table.costs.take(_bucket(_pair_mix(points, points) + _repeated_mix(repeated)))


def _code_points(text: str) -> Ints:
    import numpy as np

    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")


def _folded(points: Ints) -> bytes:
    """A byte for each code point, ASCII as it is, other scripts' letters apart from each other."""
    import numpy as np

    return ((points + (points >> np.uint32(8)) * np.uint32(0x35)) & np.uint32(255)).astype(np.uint8).tobytes()


def _windows(data: bytes, kind: str, offset: int, count: int) -> Any:
    """Overlapping little-endian numbers, one at each byte, without a copy."""
    import numpy as np

    return np.ndarray((count,), kind, data, offset, (1,))


def _contexts(points: Ints, known: Bytes) -> Ints:
    here, before = points[_BEFORE:-_AFTER], points[_BEFORE - 1 : -_AFTER - 1]
    mixed = _pair_mix(before, here)
    places = (here >= WORDLESS).nonzero()[0]
    if len(places):
        mixed[places] = _piece_mix(points, known)
    if (here == before).any():
        mixed += _repeated_mix(_repetitions(points))
    return _bucket(mixed)


def _pair_mix(before: Ints, here: Ints) -> Ints:
    import numpy as np

    return here * np.uint32(0x9E3779B1) + before * np.uint32(0x85EBCA77)


def _repeated_mix(repeated: Ints) -> Ints:
    import numpy as np

    return repeated * np.uint32(0xC2B2AE3D)


def _bucket(mixed: Ints) -> Ints:
    """A context's place among the costs."""
    import numpy as np

    mixed = (mixed ^ (mixed >> np.uint32(15))) * np.uint32(0x2C1B3C6D)
    bucket: Ints = mixed >> np.uint32(32 - COST_BITS)
    return bucket


def _repetitions(points: Ints) -> Ints:
    """1 where a character ends five equal ones, 2 where the one 32 before is equal too, else 0."""
    import numpy as np

    same = points[_BEFORE - 3 : -_AFTER] == points[_BEFORE - 4 : -_AFTER - 1]
    five = same[:-3] & same[1:-2] & same[2:-1] & same[3:]
    far = points[_BEFORE:-_AFTER] == points[_BEFORE - 32 : -_AFTER - 32]
    repeated: Ints = five.astype(np.uint32) + (five & far)
    return repeated


def _piece_mix(points: Ints, known: Bytes) -> Ints:
    """Contexts of the wordless characters only, by which pieces around each are known.

    They are the character, three pairs (each unknown, known or common) and three triples, those that touch the place.
    """
    import numpy as np

    around = _around_wordless(points)
    wordless = around >= WORDLESS
    keys = around.astype(np.uint64)
    pair_keys = keys[:-1] | keys[1:] << np.uint64(21)
    in_pair = wordless[1:] & wordless[:-1]
    pairs = (_is_known(pair_keys, _PIECE, known) & in_pair).astype(np.uint32)
    pairs += pairs * _is_known(pair_keys, _COMMON_PIECE, known)
    in_triple = in_pair[1:] & in_pair[:-1]
    triples = _is_known(pair_keys[:-1] | keys[2:] << np.uint64(42), _PIECE, known) & in_triple
    state: Ints = _is_known(keys[2:-2], _PIECE, known).astype(np.uint32)
    for bit, triple in ((2, triples[:-2]), (4, triples[1:-1]), (8, triples[2:])):
        state += triple * np.uint32(bit)
    for weight, pair in ((16, pairs[:-3]), (48, pairs[1:-2]), (144, pairs[2:-1])):
        state += pair * np.uint32(weight)
    block, gap = _blocks(around)
    state += gap * np.uint32(432)
    mixed: Ints = block * np.uint32(0x9E3779B1) + state * np.uint32(0x85EBCA77) + np.uint32(77777)
    return mixed[wordless[2:-2]]


def _around_wordless(points: Ints) -> Ints:
    """The wordless characters and the two on either side of each, joined: no two groups touch by wordless ones."""
    import numpy as np

    wordless = points[_BEFORE:-_AFTER] >= WORDLESS
    near = np.zeros(len(wordless) + 4, np.bool_)
    for shift in range(5):
        near[shift : len(near) - 4 + shift] |= wordless
    return points[_BEFORE - 2 : 2 - _AFTER][near]


def _blocks(around: Ints) -> tuple[Ints, Ints]:
    """Each character's block, and what the one before is: 0 space or control, 1 ASCII, 2 another, 3 of the same block.

    A block is 128 code points, all of Han, or beyond the basic plane 65,536 code points.
    """
    import numpy as np

    block = np.where(around < 1 << 16, around >> np.uint32(7), (around >> np.uint32(16)) + np.uint32(1024))
    block = np.where((block >= _HAN.start) & (block < _HAN.stop), np.uint32(_HAN.start), block)
    before = around[1:-3]
    gap = (before > 32).astype(np.uint32) + (before > 127)
    return block[2:-2], np.where(block[2:-2] == block[1:-3], np.uint32(3), gap)


def _edges(points: Ints, letters: Bytes) -> Bytes:
    """What each character and the one after the last is to words, uint8[n + 1]; see `_pair_edges`."""
    here, before = points[_BEFORE : 1 - _AFTER], points[_BEFORE - 1 : -_AFTER]
    return _pair_edges(letters.take(before, mode="clip"), letters.take(here, mode="clip"), before == ord(" "))


def _pair_edges(before: Bytes, here: Bytes, space: Flags) -> Bytes:
    """0 inside a word or outside all, 1 just after one, 2 the start of one, 3 the start of one after a space.

    Words are runs of letters, parted before an upper-case letter that follows a lower-case one.
    """
    import numpy as np

    edge = (here != before) & ((here != LOWER) | (before != UPPER))
    kind = np.where(here > 0, np.where(space, _START_AFTER_SPACE, _START), _NO_WORD)
    return np.where(edge, kind, _INSIDE).astype(np.uint8)


def _known_words(edges: Bytes, folded: bytes, known: Bytes) -> tuple[Places, Places]:
    """Where the words start and end that the filter knows, by their characters and the space before them."""
    places = (edges > 0).nonzero()[0]
    kinds = edges[places]
    words = (kinds[:-1] >= _START).nonzero()[0]
    starts, ends = places[words], places[words + 1]
    first = starts - (kinds[words] - _START)
    length = ends - first
    low_masks, high_masks = _masks()
    eights = _windows(folded, "<u8", _BEFORE, len(folded) - _BEFORE - 7)
    low = eights[first] & low_masks.take(length, mode="clip")
    high = eights[first + 8] & high_masks.take(length, mode="clip")
    found = _is_known(low, high, known).nonzero()[0]
    return starts[found], ends[found]


@functools.cache
def _masks() -> tuple[Keys, Keys]:
    """What keeps of two times eight bytes as many as a word has characters, uint64[18] each, the last for longer words.

    Of those nothing is kept, and the key that is left, 0, is in no filter.
    """
    import numpy as np

    lengths = range(MOST_WORD_CHARACTERS + 1)
    low = [(1 << 8 * min(length, 8)) - 1 for length in lengths]
    high = [(1 << 8 * min(max(length - 8, 0), 8)) - 1 for length in lengths]
    return np.array([*low, 0], np.uint64), np.array([*high, 0], np.uint64)


def _is_known(low: Keys, high: Keys | int, known: Bytes) -> Flags:
    import numpy as np

    places = filter_places(low, np.array([high], np.uint64) if isinstance(high, int) else high)
    bits: Bytes = known[places >> 3] >> (places & 7).astype(np.uint8) & np.uint8(1)
    return bits.view(np.bool_)


@functools.cache
def _table_bytes(name: str) -> bytes:
    return resources.files(__package__).joinpath("tables", f"{name}.npz").read_bytes()


def _read_table(name: str) -> tuple[Flags, Ints, Bytes]:
    """Filter, costs and letters. A file holds the costs' square roots, one byte each, so that small costs stay fine."""
    import numpy as np

    with np.load(io.BytesIO(_table_bytes(name)), allow_pickle=False) as file:
        return file["known"], file["roots"].astype(np.uint32) ** 2, file["letters"]


# Which vocabulary counts for which model.


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Models that count alike.

    Attributes:
        pattern: regular expression at the start of a bare model name.
        tables: the vocabularies' tables; of several, the most tokens count.
        percent: what the tables' count is scaled by.
    """

    name: str
    pattern: str
    tables: tuple[str, ...]
    accuracy: Accuracy
    percent: int = 100


GENERIC = Family(name="generic", pattern="", tables=("gemini", "openai", "claude"), accuracy="heuristic")
"""For models whose vocabulary is not known: rarely under any of those that are."""

FAMILIES = (
    Family(name="gemini-3", pattern=r"gemini-(?:[3-9]|flash-|pro-)", tables=("gemini",), accuracy="approximate"),
    Family(name="gemini", pattern=r"gemini|gemma|learnlm", tables=("gemini",), accuracy="approximate"),
    Family(
        name="openai",
        pattern=r"gpt-(?:4o|4\.|[5-9]|oss|chat|realtime|audio)|chatgpt|o[1-9](?:-|$)|codex|computer-use",
        tables=("openai",),
        accuracy="approximate",
    ),
    Family(
        name="claude",
        pattern=r"claude-(?:v?[12]|instant|3|(?:opus|sonnet|haiku)-4(?:-[0-6])?(?:[-@]\d{8}|$)|4-)",
        tables=("claude",),
        accuracy="heuristic",
        percent=110,
    ),
    Family(name="claude-4.7", pattern="claude", tables=("claude",), accuracy="heuristic", percent=148),
    GENERIC,
)
"""In order; the first whose pattern matches counts.

Gemini counts by Gemma 3's vocabulary, which Google's SDK uses for it too (`google.genai.local_tokenizer`); for some
versions from 3.1 on that names Gemma 4's, which may differ. Media differ from 3 on. OpenAI's models from GPT-4o on
share the vocabulary o200k. Anthropic publishes only the vocabulary of Claude 2: 110% of it matches the usage reported
in a recorded session of Claude Sonnet 4.5, and models from 4.7 on are documented to need up to 1.35 times the tokens of
those before (platform.claude.com, "What's new in Claude Opus 4.7").
"""


def family_of(model: str) -> str:
    """The name of the family whose rules count the model's text and media, `generic` for a model that is not known."""
    return _family(bare_model_name(model)).name


def estimate_for(model: str) -> TokenCounter:
    """The built-in estimate of a model; models of one family share it and what it remembers."""
    return _counter(_family(bare_model_name(model)))


def _family(bare: str) -> Family:
    return next(family for family in FAMILIES if re.match(family.pattern, bare))


@functools.cache
def _counter(family: Family) -> TokenCounter:
    estimate = EstimateCounter(family.name, family.tables, accuracy=family.accuracy, percent=family.percent)
    return CachedCounter(estimate)
