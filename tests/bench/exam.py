"""What calls of recorded runs used, and a cut had taken: the plugin's strategies beside what a user could pick.

    AETHER_CONTEXT_DATA=FOLDER python tests/bench/exam.py [--window 16000] [--limit N] [--files NAME ...]
                                                          [--ways NAME ...]

The folder holds ``runs.jsonl`` and ``runs-swe.jsonl`` (see tool_runs.py). Asked are the exam's questions about the raw
runs, in sessions whose whole history passes the window, of every way the same ones: could a call know the value or the
line that it used, that a result or a person said first, and that nobody has mentioned within a quarter of a window?

over       requests of more tokens than the window, in percent: not all that they hold could have been sent
cut        questions about what does not stand whole in the request, in percent; the next four are of these
answered   those whose need stands in the request beside a word of its line, or as a line
found      not answered, but one call of the plugin's ``search_artifact`` with the words that the model has then, its
           arguments and its text without the need, on the past or on the stored result that holds it, gives it
lost       neither
acts       answered or found, of those about results of 400 characters at most, such as acts give
tokens     of a request; see tool_runs.py

ADK's compaction is run with a token threshold of 80% of the window and two summarizers that bound any model's: one that
writes nothing, and one that quotes as much of the end of what it is given as a fifth of the window holds. So are
LangChain's summaries (a summary in front of the last 20 messages once 80% are passed, which takes their place for good,
so that a later one is written of it and what came since); its trimming keeps the last messages that fit, from a user's
on. `summarizer_tokens` are those that the model is sent to write these summaries.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from google.adk.apps.app import EventsCompactionConfig
from google.adk.apps.llm_event_summarizer import LlmEventSummarizer
from google.adk.events.event import Event
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from peers import PEERS, Contents, Method, size
from sessions import PERCENT, Figures, print_table, rows_of
from tool_runs import Request, play, read, texts_in, tokens
from turn_recall import turns

from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin
from aether_context.lab.exam import Question, questions
from aether_context.lab.exam.questions import ADDRESS, plain_text
from aether_context.pack import Content, Part

READERS = ("read_artifact", "search_artifact")
STRATEGIES = ("epochs", "stable_prefix", "sliding_turns", "heads_tails", "summarize")
COLUMNS = {"over": PERCENT, **dict.fromkeys(("cut", "answered", "found", "lost", "acts"), PERCENT), "tokens": (1.0, 0)}
_QUOTED = 0.2

Way = Callable[[int, str], tuple[list[BasePlugin], dict[str, Any]]]
"""The plugins, and the settings of the app, for a window and a store."""


class SummaryModel(BaseLlm):
    """Counts the tokens that it is sent, and answers with a placeholder."""

    sent: int = 0

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        self.sent += sum(map(tokens, read(llm_request).blocks))
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text="(summary)")]))


class Bound(LlmEventSummarizer):
    """ADK's own summarizer, whose summary quotes the end of what it is to summarize, up to some characters.

    ADK writes the prompt: the events since the last summary, in front of them that summary, and of a call's arguments
    and of a result 2,000 characters each. The quotation takes results whole, as a bound may.
    """

    def __init__(self, characters: int) -> None:
        self.model = SummaryModel(model="summarizer")
        super().__init__(llm=self.model)
        self.characters = characters

    async def maybe_summarize_events(self, *, events: list[Event]) -> Event | None:
        summary = await super().maybe_summarize_events(events=events)
        if self.characters and summary is not None and (compaction := summary.actions.compaction) is not None:
            parts = [part for event in events for part in (event.content.parts if event.content else None) or ()]
            said = "\n".join(text for part in parts for text in part_texts(part))
            compaction.compacted_content = types.Content(
                role="model", parts=[types.Part(text=said[-self.characters :])]
            )
        return summary


class Trimming(Method):
    """The last messages that fit, from a user's on."""

    def edit(self, contents: Contents, sizes: Sequence[int], room: int) -> Contents:
        if sum(sizes) <= room:
            return contents
        users = [at for at, content in enumerate(contents) if content.role == "user" and not answers_call(content)]
        fitting = [at for at in users if sum(sizes[at:]) <= room]
        return contents[(fitting or users[-1:] or [0])[0] :]


class Summaries(Method):
    """A summary in front of the last 20 messages: as much of the end of the others as it may quote.

    As LangChain's ``SummarizationMiddleware`` (1.5.2) does by default, its prompt and the last 4,000 tokens of what is
    to be summarized are sent. LangChain starts them with a user's message, and where there is none among them it asks
    no model and writes that they were too long; here they are sent and quoted all the same.
    """

    share = 0.8
    keep = 20
    quoted = 0.0
    max_sent = 4_000
    prompt_tokens = 683

    def __init__(self, window: int) -> None:
        super().__init__(window)
        self.sent = 0
        self.summaries: Contents = []
        self.cut = 0

    def edit(self, contents: Contents, sizes: Sequence[int], room: int) -> Contents:
        messages = [*self.summaries, *contents[self.cut :]]
        at = max(0, len(messages) - self.keep)
        while at and answers_call(messages[at]):
            at -= 1
        if sum(map(size, messages)) <= room or not at:
            return messages
        parts = (part for content in messages[:at] for part in content.parts or ())
        said = "\n".join(text for part in parts for text in part_texts(part))
        characters = int(4 * self.quoted * self.window)
        text = "Here is a summary of the conversation to date:\n" + (said[-characters:] if characters else "")
        self.sent += self.prompt_tokens + min(self.max_sent, sum(map(size, messages[:at])))
        self.cut += at - len(self.summaries)
        self.summaries = [types.UserContent(text)]
        return [*self.summaries, *messages[at:]]


class QuotingSummaries(Summaries):
    quoted = _QUOTED


def summarizer_tokens(plugins: Sequence[BasePlugin], settings: Mapping[str, Any]) -> int:
    """The tokens that a session's summaries were written from, none of which a cache serves."""
    config = settings.get("events_compaction_config")
    summarizers = [plugin for plugin in plugins if isinstance(plugin, Summaries)]
    return (config.summarizer.model.sent if config else 0) + sum(plugin.sent for plugin in summarizers)


def answers_call(content: types.Content) -> bool:
    return any(part.function_response for part in content.parts or ())


def part_texts(part: types.Part) -> list[str]:
    if part.function_call:
        return [f"{part.function_call.name} {json.dumps(part.function_call.args, default=str)}"]
    if part.function_response:
        return list(texts_in(part.function_response.response))
    return [part.text] if part.text else []


def with_strategy(*names: str) -> Way:
    def way(window: int, url: str) -> tuple[list[BasePlugin], dict[str, Any]]:
        sliding = {"sliding_turns": {"tokens": int(0.9 * window)}} if names == ("sliding_turns",) else {}
        policy = PackPolicy(max_input_tokens=window, conversation={"strategy": names, **sliding} if names else {})
        return [ContextPackPlugin(policy=policy, store=url)], {}

    return way


def compaction(share: float) -> Way:
    def way(window: int, url: str) -> tuple[list[BasePlugin], dict[str, Any]]:
        config = EventsCompactionConfig(
            summarizer=Bound(int(4 * share * window)),
            compaction_interval=10**6,
            overlap_size=0,
            token_threshold=int(0.8 * window),
            event_retention_size=10,
        )
        return [], {"events_compaction_config": config}

    return way


WAYS: Mapping[str, Way] = {
    "defaults": with_strategy(),
    **{f"`{name}`": with_strategy(name) for name in STRATEGIES},
    "ADK's compaction, an empty summary": compaction(0),
    "ADK's compaction, quoting": compaction(_QUOTED),
    **{name: lambda window, url, name=name: (PEERS[name](window), {}) for name in PEERS if "filter" in name},  # type: ignore[misc]
    "LangChain's summaries, empty": lambda window, url: ([Summaries(window)], {}),
    "LangChain's summaries, quoting": lambda window, url: ([QuotingSummaries(window)], {}),
    "LangChain's trimming": lambda window, url: ([Trimming(window)], {}),
}


def contents_of(run: Mapping[str, Any]) -> tuple[list[Content], list[int]]:
    """A run as messages, and the number of them before each model call."""
    contents: list[Content] = []
    lengths: list[int] = []

    def add(role: str, *parts: Part) -> None:
        calls = tuple(part for part in parts if part.kind == "call")
        contents.append(Content(role=role, parts=parts, wire="", digest="", calls=calls))

    for turn in run["turns"]:
        add("user", Part(kind="text", text=turn["user"] or ".", wire=""))
        for step in turn["steps"]:
            lengths.append(len(contents))
            calls = [
                Part(kind="call", text=json.dumps(one["args"]), wire="", name=one["name"]) for one in step["calls"]
            ]
            add("model", *([Part(kind="text", text=step["text"], wire="")] if step["text"] else []), *calls)
            if calls:
                add(
                    "user",
                    *(Part(kind="response", text=one["result"], wire="", name=one["name"]) for one in step["calls"]),
                )
    return contents, lengths


class Searching(BasePlugin):
    """Searches, behind the plugin and at each call that questions are about, as its model could."""

    def __init__(self, asked: Sequence[Question]) -> None:
        super().__init__(name="searching")
        self.asked, self.call, self.found = asked, -1, set[Question]()

    async def before_model_callback(self, *, callback_context: Any, llm_request: LlmRequest) -> None:
        self.call += 1
        asked = [question for question in self.asked if question.call == self.call]
        tool = llm_request.tools_dict.get("search_artifact")
        shown = list(dict.fromkeys(ADDRESS.findall(read(llm_request).said))) if asked and tool is not None else []
        context = ToolContext(callback_context._invocation_context, function_call_id="exam")
        for question, uri, query in ((one, uri, query) for one in asked for uri in shown for query in one.queries):
            if tool is not None and question not in self.found:
                answer = await tool.run_async(args={"uri": uri, "query": query}, tool_context=context)
                if any(question.is_in(passage["text"]) for passage in answer.get("found", ())):
                    self.found.add(question)


def asked_of(run: Mapping[str, Any], window: int) -> Sequence[Question]:
    contents, lengths = contents_of(run)
    always = run["system"] + json.dumps(run["tools"])
    return questions(contents, [(length, window // 4) for length in lengths], always=always, readers=READERS)


def figures(run: Mapping[str, Any], requests: Sequence[Request], searching: Searching, window: int) -> Figures:
    contents, _ = contents_of(run)
    sums = dict.fromkeys(("cut", "answered", "found", "lost", "acts", "acts kept"), 0)
    for question in searching.asked:
        said = requests[question.call].said
        sources = (plain_text(part.text) for part in contents[question.place].parts)
        if any(question.is_in(source) and source in said for source in sources):
            continue
        mark = "answered" if question.is_answered(said) else "found" if question in searching.found else "lost"
        sums["cut"] += 1
        sums[mark] += 1
        sums["acts"] += question.source == "acts"
        sums["acts kept"] += (question.source == "acts") and mark != "lost"
    sizes = [sum(map(tokens, request.blocks)) for request in requests]
    return {
        "over": (sum(size > window for size in sizes), len(sizes)),
        "cut": (sums["cut"], len(searching.asked)),
        **{mark: (sums[mark], sums["cut"]) for mark in ("answered", "found", "lost")},
        "acts": (sums["acts kept"], sums["acts"]),
        "tokens": (sum(sizes), len(sizes)),
    }


def chats(path: Path) -> list[dict[str, Any]]:
    """The conversations of LoCoMo as runs."""
    runs = []
    for sample in json.loads(path.read_text()):
        user = sample["conversation"]["speaker_a"]
        said = [
            (is_users, "\n".join(turn.text for turn in group))
            for is_users, group in groupby(turns(sample["conversation"]), key=lambda turn: turn.speaker == user)
        ]
        said = said if said[0][0] else [(True, "Hello."), *said]
        pairs = zip(said[::2], said[1::2], strict=False)
        runs.append(
            {"system": "You are a friend of the user.", "tools": [],
             "turns": [{"user": asked[1], "steps": [{"text": reply[1], "calls": []}]} for asked, reply in pairs]}
        )  # fmt: skip
    return runs


def long_runs(path: Path, window: int, fits: bool = False) -> list[Mapping[str, Any]]:
    """The runs of a file whose whole history passes the window; where ``fits``, the others."""
    runs = chats(path) if path.suffix == ".json" else map(as_played, rows_of(path))
    return [run for run in runs if (size_of(run) <= window) == fits]


def as_played(run: Mapping[str, Any]) -> Mapping[str, Any]:
    """A run whose turns end as ADK ends them, with the first step that calls nothing.

    A person may interrupt an agent, so that a recorded turn ends with a call. ADK asks the model once more then, and
    without a step for that each later message would be played after more calls than are counted here.
    """
    played = []
    for turn in run["turns"]:
        user, steps = turn["user"], []
        for step in turn["steps"]:
            steps.append(step)
            if not step["calls"]:
                played.append({"user": user, "steps": steps})
                user, steps = "", []
        if steps or not turn["steps"]:
            played.append({"user": user, "steps": [*steps, {"text": "ok", "calls": []}]})
    return {**run, "turns": played}


def size_of(run: Mapping[str, Any]) -> int:
    return sum(tokens(part.text) for content in contents_of(run)[0] for part in content.parts)


def measured(runs: Sequence[Mapping[str, Any]], name: str, window: int) -> list[Figures]:
    rows = []
    for at, run in enumerate(runs):
        url = f"memory://exam-{len(name)}-{name[:6].strip('`')}-{at}"
        plugins, settings = WAYS[name](window, url)
        searching = Searching(asked_of(run, window))
        requests = asyncio.run(play(run, *plugins, searching, **settings))
        rows.append(figures(run, requests, searching, window))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--window", type=int, default=16_000)
    parser.add_argument("--limit", type=int, help="only so many sessions of each file")
    parser.add_argument("--files", nargs="+", default=["runs.jsonl", "runs-swe.jsonl"], metavar="NAME")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), metavar="NAME")
    given = parser.parse_args()
    if not (data := os.environ.get("AETHER_CONTEXT_DATA")):
        print("skipped: AETHER_CONTEXT_DATA names no folder with recorded runs")
        return
    rows = (
        ([file, way], measured(runs, way, given.window))
        for file in given.files
        if (runs := long_runs(Path(data, file), given.window)[: given.limit])
        for way in given.ways
    )
    print_table(("file", "way"), COLUMNS, rows)


if __name__ == "__main__":
    main()
