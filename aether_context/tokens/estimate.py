"""Counts tokens without the model's tokenizer, from a small table fitted to its vocabulary.

A tokenizer splits text before some characters and not before others. The estimate is the sum, over all characters, of
how many tokens start there on average in that context, with one refinement: a word that the vocabulary holds as one
token is never split. A table therefore has two parts:

known   2**21 bits, a hashed set (a filter) of the vocabulary's words, with and without a leading space, and of its
        pieces of one to three characters in scripts that do not separate words by spaces; one unknown word in twelve is
        taken for known
costs   2**16 contexts, in 1/16384 token: average tokens that start at a character, given it and the one before it

In scripts from Devanagari on (Thai, kana, Han, Hangul, symbols, emoji) there are too many pairs of characters. There
the context is which pieces around the character the vocabulary knows. Long repetitions of one character have contexts
of their own.

All arithmetic is on integers, so that a count is the same on every machine. `EstimateCounter` loads this module, and
numpy with it, at its first count.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.uint32]
Keys: TypeAlias = NDArray[np.uint64]
Bytes: TypeAlias = NDArray[np.uint8]
Flags: TypeAlias = NDArray[np.bool_]
Places: TypeAlias = NDArray[np.intp]

UNIT = 16384
"""The cost of one token in a table."""

KNOWN_BITS = 21
COST_BITS = 16
WORDLESS = 0x0900
"""The first code point of the scripts that are counted by known pieces, not by words: the start of Devanagari."""

LOWER, UPPER = 1, 2
"""Classes of letters in scripts with words: lower case or without case, and upper case. All other characters are 0."""

MOST_WORD_CHARACTERS = 16
"""Longer words, a leading space included, are not looked up in the filter."""

_CHUNK = 1 << 15
_BEFORE, _AFTER = 33, 18
_MARGIN = _BEFORE + _AFTER
_PAD_BEFORE = ("\r\n" * _BEFORE)[-_BEFORE:]
_PAD_AFTER = "\n" * _AFTER
_HAN = range(0x3400 >> 7, 0xA000 >> 7)
PIECE, COMMON_PIECE = 1, 2
_START = 2
_REPEATED = np.uint32(0xC2B2AE3D)

# Masks that keep as many of two times eight bytes as a word has characters, uint64[18] each. The last ones, for longer
# words, keep nothing: the key is then 0, which is in no filter.
_LENGTHS = range(MOST_WORD_CHARACTERS + 1)
_LOW_MASKS = np.array([*((1 << 8 * min(length, 8)) - 1 for length in _LENGTHS), 0], np.uint64)
_HIGH_MASKS = np.array([*((1 << 8 * max(length - 8, 0)) - 1 for length in _LENGTHS), 0], np.uint64)


@dataclass(frozen=True, slots=True)
class Table:
    """One vocabulary's table, ready for lookups.

    Attributes:
        known: the filter, eight bits a byte, the lowest first. uint8[2**18].
        costs: uint32[2**16] in 1/16384 token.
        letters: the class of each code point, uint8[2**16].
    """

    known: Bytes
    costs: Ints
    letters: Bytes


@functools.cache
def table_bytes(name: str) -> bytes:
    """A table's file."""
    return resources.files(__package__).joinpath("tables", f"{name}.npz").read_bytes()


@functools.cache
def load_table(names: tuple[str, ...]) -> Table:
    """Reads the tables; of several, the highest costs, and the words and pieces that all know.

    A file holds the costs' square roots, one byte each, so that small costs stay precise.
    """
    files = [np.load(io.BytesIO(table_bytes(name)), allow_pickle=False) for name in names]
    known_bits = functools.reduce(np.bitwise_and, [file["known"] for file in files])
    costs = functools.reduce(np.maximum, [file["roots"].astype(np.uint32) ** 2 for file in files])
    return Table(known_bits, costs, files[0]["letters"])


def text_costs(texts: Sequence[str], names: tuple[str, ...]) -> list[int]:
    """The cost of each text by the named tables, in 1/16384 token.

    Chunks are counted in passes of about 32,768 characters: a pass takes about as long as a short text.
    """
    table = load_table(names)
    costs = [0] * len(texts)
    pending: list[tuple[int, str]] = []

    def count() -> None:
        for (index, _), cost in zip(pending, _costs([chunk for _, chunk in pending], table, names), strict=True):
            costs[index] += cost
        pending.clear()

    size = 0
    for index, text in enumerate(texts):
        for chunk in padded_chunks(text):
            pending.append((index, chunk))
            size += len(chunk)
            if size >= _CHUNK:
                count()
                size = 0
    if pending:
        count()
    return costs


def padded_chunks(text: str) -> Iterator[str]:
    """The text in chunks of at most 32,768 characters, each with the 33 before it and the 18 after it.

    The text is padded with line ends, before it with CR and LF in turn, so that no repetition starts outside it.
    """
    text = _PAD_BEFORE + text + _PAD_AFTER
    for start in range(0, len(text) - _MARGIN, _CHUNK):
        yield text[start : start + _CHUNK + _MARGIN]


def scan(chunk: str, known_bits: Bytes, letters: Bytes) -> tuple[Ints, Places, Places]:
    """The context of each character of a padded chunk, and where the words that are one token start and end.

    Contexts are uint32[n] below 2**16; starts and ends are equally long, ends exclusive, indices without the padding.
    """
    points = np.frombuffer(chunk.encode("utf-32-le", "surrogatepass"), "<u4")
    starts, ends = _known_words(_edges(points, letters), fold_case(points), known_bits)
    return _contexts(points, known_bits), starts, ends


_RARE = np.array(
    [0x0D80, 0x0E00, 0x0E80, 0x0F00, 0x1000, 0x10A0, 0x1200, 0x13A0, 0x1780, 0x1800, 0x2500, 0x2580], np.uint32
)
"""Where Sinhala begins and ends, Lao, Tibetan, Burmese, Ethiopic, Khmer and box drawing, which the texts that tables
were fitted to hardly hold."""
_MARGINS: Mapping[tuple[str, ...], Ints] = {
    names: np.array([100, sinhala, 100, lao, tibetan, burmese, 100, ethiopic, 100, khmer, 100, box, 100], np.uint32)
    for names, (sinhala, lao, tibetan, burmese, ethiopic, khmer, box) in {
        ("openai",): (105, 120, 125, 100, 122, 105, 170),
        ("gemini",): (160, 130, 125, 100, 165, 125, 110),
        ("claude",): (125, 125, 125, 125, 125, 125, 125),
        (): (120, 120, 145, 165, 120, 120, 120),
    }.items()
}
"""Percent of their costs that are counted, by table; the last row is for several tables.

Held against o200k and Gemma 3's vocabulary, and for several tables against cl100k too, over a page of prose and the
names of languages, countries and currencies in each script: counts are .90 of the truth or more, and were .63 and more
without. Tibetan, and Claude's vocabularies, were not at hand.
"""


def _with_margins(text: str, costs: Ints, names: tuple[str, ...]) -> None:
    """Raises costs where a table is known to be below the truth.

    All vocabularies but Gemini's, which has a token a digit, take three digits for a token, which the average over
    ordinary numbers does not show in a long run of them.
    """
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")[_BEFORE:-_AFTER]
    if points.max(initial=0) >= _RARE[0]:
        percent = _MARGINS.get(names, _MARGINS[()])[np.searchsorted(_RARE, points, side="right")]
        rare = percent != 100
        costs[rare] = np.minimum(costs[rare] * percent[rare] // np.uint32(100), np.uint32(3 * UNIT))
    digits = (points >= ord("0")) & (points <= ord("9"))
    if len(names) == 1 and names != ("gemini",) and digits.any():
        places = np.arange(len(points))
        run = places - np.maximum.accumulate(np.where(digits, -1, places))
        costs[digits] = np.where(run[digits] % 3 == 1, np.uint32(UNIT), np.uint32(0))


def _costs(chunks: Sequence[str], table: Table, names: tuple[str, ...]) -> list[int]:
    """The cost of each padded chunk, in 1/16384 token: all characters' costs without those inside known words.

    The chunks are processed as one text, in which the padding separates them.
    """
    text = "".join(chunks)
    contexts, starts, ends = scan(text, table.known, table.letters)
    costs = table.costs.take(contexts)
    _with_margins(text, costs, names)
    words = np.zeros(len(costs) + 1, np.int8)
    words[starts + 1] = 1
    words[ends] -= 1
    costs *= words[:-1].cumsum(dtype=np.uint8) == 0  # of a known word its first character has the cost
    bounds = np.array([0, *map(len, chunks)]).cumsum().repeat(2)[1:-2]
    bounds[1::2] -= _MARGIN
    result: list[int] = np.add.reduceat(costs, bounds, dtype=np.int64)[::2].tolist()
    return result


def fold_case(points: Ints) -> bytes:
    """A byte for each code point: ASCII as it is, letters of other scripts mapped to different bytes."""
    return ((points + (points >> np.uint32(8)) * np.uint32(0x35)) & np.uint32(255)).astype(np.uint8).tobytes()


def _contexts(points: Ints, known_bits: Bytes) -> Ints:
    current, previous = points[_BEFORE:-_AFTER], points[_BEFORE - 1 : -_AFTER - 1]
    mixed: Ints = current * np.uint32(0x9E3779B1) + previous * np.uint32(0x85EBCA77)
    wordless = current >= WORDLESS
    if wordless.any():
        mixed[wordless] = _piece_mix(points, wordless, known_bits)
    if (current == previous).any():
        # 1 for the last of five equal characters, 2 where the one 32 before is equal as well, else 0.
        repeats = points[_BEFORE - 3 : -_AFTER] == points[_BEFORE - 4 : -_AFTER - 1]
        five = repeats[:-3] & repeats[1:-2] & repeats[2:-1] & repeats[3:]
        repeats32 = current == points[_BEFORE - 32 : -_AFTER - 32]
        mixed += (five.astype(np.uint32) + (five & repeats32)) * _REPEATED
    mixed = (mixed ^ (mixed >> np.uint32(15))) * np.uint32(0x2C1B3C6D)
    return mixed >> np.uint32(32 - COST_BITS)


def _piece_mix(points: Ints, wordless: Flags, known_bits: Bytes) -> Ints:
    """Contexts of the wordless characters only, by which pieces around each are known.

    A context consists of the character's block, whether the three pairs around it are unknown, known or common, whether
    the three triples around it are known, and the kind of the character before: 0 space or control, 1 ASCII, 2 another,
    3 of the same block. A block is 128 code points, all of Han, or beyond the basic plane 65,536 code points.
    """
    # The wordless characters with the two on either side of each, joined. The neighbours keep groups apart.
    selected = np.zeros(len(wordless) + 4, np.bool_)
    for shift in range(5):
        selected[shift : len(selected) - 4 + shift] |= wordless
    points_near = points[_BEFORE - 2 : 2 - _AFTER][selected]
    wordless = points_near >= WORDLESS
    keys = points_near.astype(np.uint64)
    pair_keys = keys[:-1] | keys[1:] << np.uint64(21)
    in_pair = wordless[1:] & wordless[:-1]
    pairs = (_is_known(pair_keys, PIECE, known_bits) & in_pair).astype(np.uint32)
    pairs += pairs * _is_known(pair_keys, COMMON_PIECE, known_bits)
    in_triple = in_pair[1:] & in_pair[:-1]
    triples = _is_known(pair_keys[:-1] | keys[2:] << np.uint64(42), PIECE, known_bits) & in_triple
    state: Ints = _is_known(keys[2:-2], PIECE, known_bits).astype(np.uint32)
    for bit, triple in ((2, triples[:-2]), (4, triples[1:-1]), (8, triples[2:])):
        state += triple * np.uint32(bit)
    for weight, pair in ((16, pairs[:-3]), (48, pairs[1:-2]), (144, pairs[2:-1])):
        state += pair * np.uint32(weight)
    block = np.where(
        points_near < 1 << 16, points_near >> np.uint32(7), (points_near >> np.uint32(16)) + np.uint32(1024)
    )
    block = np.where((block >= _HAN.start) & (block < _HAN.stop), np.uint32(_HAN.start), block)
    previous = points_near[1:-3]
    gap = np.where(block[2:-2] == block[1:-3], np.uint32(3), (previous > 32).astype(np.uint32) + (previous > 127))
    state += gap * np.uint32(432)
    mixed: Ints = block[2:-2] * np.uint32(0x9E3779B1) + state * np.uint32(0x85EBCA77) + np.uint32(77777)
    return mixed[wordless[2:-2]]


def _edges(points: Ints, letters: Bytes) -> Bytes:
    """The edge of each character and of the one after the last, uint8[n + 1].

    0 inside or outside a word, 1 just after one, 2 its start, 3 its start after a space. Words are runs of letters,
    split before an upper-case letter that follows a lower-case one.
    """
    classes = letters.take(points[_BEFORE - 1 : 1 - _AFTER], mode="clip")
    previous, current = classes[:-1], classes[1:]
    space = points[_BEFORE - 1 : -_AFTER] == ord(" ")
    edge = (current != previous) & ((current != LOWER) | (previous != UPPER))
    edges: Bytes = edge * ((current > 0) * (space + np.uint8(1)) + np.uint8(1))
    return edges


def _known_words(edges: Bytes, folded: bytes, known_bits: Bytes) -> tuple[Places, Places]:
    """Start and end indices of the words that the filter knows, by their characters and the space before them."""
    places = (edges > 0).nonzero()[0]
    kinds = edges[places]
    words = (kinds[:-1] >= _START).nonzero()[0]
    starts, ends = places[words], places[words + 1]
    first = starts - (kinds[words] - _START)
    length = ends - first
    eights: Keys = np.ndarray((len(folded) - _BEFORE - 7,), "<u8", folded, _BEFORE, (1,))  # overlap, one at each byte
    low = eights[first] & _LOW_MASKS.take(length, mode="clip")
    high = eights[first + 8] & _HIGH_MASKS.take(length, mode="clip")
    known_words = _is_known(low, high, known_bits).nonzero()[0]
    return starts[known_words], ends[known_words]


def _is_known(low: Keys, high: Keys | int, known_bits: Bytes) -> Flags:
    """Tells whether the filter has the bit of each key."""
    high = np.array([high], np.uint64) if isinstance(high, int) else high
    mixed = low * np.uint64(0x9E3779B97F4A7C15) ^ high * np.uint64(0xC2B2AE3D27D4EB4F)
    places = (mixed >> np.uint64(64 - KNOWN_BITS)).view(np.int64)
    bits: Bytes = known_bits[places >> 3] >> (places & 7).astype(np.uint8) & np.uint8(1)
    return bits.view(np.bool_)
