"""Asks an agent about what was said earlier in its own session, and looks for the evidence in the request.

    python session_recall.py locomo.json [--window N ...] [--policy NAME|TOML|SETTINGS ...] [--peers] [--by kind|talk]
                                         [--every N]
    python session_recall.py chats --window 16000

The file is that of LoCoMo (Maharana et al., 2024). Each conversation is one running session of 16,000 to 26,000 tokens,
one speaker the user and the other the agent, and there is no memory service. A folder is one of BEAM's chats of about
120,000 tokens (Tavakoli et al., 2025), each with `chat.json` and `probing_questions.json`. Each question that has an
answer in its session is asked in a copy of that, through an ADK `Runner` with the plugin.

The columns are those of `memory_recall.py`. Of a chat, ``recall`` counts the user's messages that a question is
labelled with, ``sentence`` of each of them the one that has most in common with the answer, and ``assistant's`` the
same of the assistant's messages, which few questions are labelled with.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.events.event import Event
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from memory_recall import COLUMNS, Sink, arguments, asked, figures, heads, rows
from peers import PEERS
from sessions import Figures, policy_of, print_table
from turn_recall import Question, questions, said, turns

from aether_context.adk import ContextPackPlugin
from aether_context.retrieval import Entry

_KINDS = (
    "information_extraction", "knowledge_update", "multi_session_reasoning", "temporal_reasoning",
    "contradiction_resolution", "event_ordering",
)  # fmt: skip
_ANSWER = (
    "answer", "ideal_answer", "rubric", "key_facts_tested", "reasoning_steps", "time_points",
    "conversation_references",
)  # fmt: skip
_TELLING = {"sentence": (1.0, 3), "assistant's": (1.0, 3)}


@dataclass(frozen=True, kw_only=True)
class Talk:
    """A session's events, and the questions about them."""

    name: str
    events: list[Event]
    questions: list[Question]


def of_locomo(number: int, sample: dict[str, Any]) -> Talk:
    user = sample["conversation"]["speaker_a"]
    events = [said(at, turn, user) for at, turn in enumerate(turns(sample["conversation"]))]
    return Talk(name=f"{number}", events=events, questions=[question for question, _ in questions(sample)])


def of_beam(folder: Path) -> Talk:
    batches = json.loads((folder / "chat.json").read_text())
    messages = [message for batch in batches for turn in batch["turns"] for message in turn]
    texts = {message["id"]: re.sub(r"\s*->->.*$", "", message["content"]).strip() for message in messages}
    users = {message["id"] for message in messages if message["role"] == "user"}
    asked = []
    probes = json.loads((folder / "probing_questions.json").read_text())
    for kind, probe in ((one, probe) for one in _KINDS for probe in probes.get(one, ())):
        sources = sorted(map(int, set(re.findall(r"\d+", json.dumps(probe.get("source_chat_ids"))))))
        evidence = [texts[one] for one in sources if one in users]
        answer = words(" ".join(str(probe.get(key, "")) for key in _ANSWER))
        told = tuple(telling(text, answer) for text in evidence)
        answered = tuple(telling(texts[one], answer) for one in sources if one in texts and one not in users)
        if evidence or answered:
            asked.append(Question(probe["question"], kind.replace("_", " "), tuple(evidence), told, answered))
    events = []
    for number, message in enumerate(messages):
        turn = Entry(id="", text=texts[message["id"]], time=1.7e9 + 60.0 * number, speaker=message["role"])
        events.append(said(number // 2, turn))
    return Talk(name=folder.name, events=events, questions=asked)


def words(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z][A-Za-z'-]{2,}|\d[\d,.:%-]*\d|\d", text))


def telling(text: str, answer: set[str]) -> str:
    """The sentence of a message that has most in common with the answer, names and numbers thrice, for its length."""

    def weight(sentence: str) -> float:
        held = words(sentence)
        return (
            sum(3 if word[0].isupper() or word[0].isdigit() else 1 for word in held & answer) / (4 + len(held)) ** 0.5
        )

    return max((one for one in re.split(r"(?<=[.!?])\s+|\n+", text) if one.strip()), key=weight, default=text)


async def measure(
    talks: Sequence[Talk], args: argparse.Namespace, name: str, window: int
) -> Iterator[tuple[str, Figures]]:
    """The figures of each question, by its group."""
    held = []
    for talk in talks:
        service, sink = InMemorySessionService(), Sink(seen=[])
        ours = () if name in PEERS else [ContextPackPlugin(policy=policy_of(name, window), store="memory://bench")]
        agent = LlmAgent(name="agent", model=sink, static_instruction="You are a friend in a long conversation.")
        app = App(name="bench", root_agent=agent, plugins=[*ours] or PEERS[name](window))
        runner = Runner(app=app, session_service=service)
        for question in talk.questions[:: args.every]:
            session = (await service.create_session(app_name="bench", user_id="u")).id
            service.sessions["bench"]["u"][session].events.extend(one.model_copy() for one in talk.events)
            seen, spent = await asked(runner, sink, "u", question.text, session)
            group = {"kind": question.kind, "talk": talk.name}.get(args.by, "")
            held.append((group, figures(question, seen, spent, window)))
            await service.delete_session(app_name="bench", user_id="u", session_id=session)
    return iter(held)


if __name__ == "__main__":
    given = arguments(__doc__, 4_000).parse_args()
    chats = given.path.is_dir()
    if chats:
        talks = [of_beam(folder) for folder in sorted(given.path.iterdir())]
    else:
        talks = [of_locomo(number, sample) for number, sample in enumerate(json.loads(given.path.read_text()))]
    found = rows(given, PEERS, lambda name, window: measure(talks, given, name, window))
    columns = {name: COLUMNS[name] for name in ("recall", "over", "tokens")} | (_TELLING if chats else {})
    print_table(heads(given), columns, found)
