"""The scripts that compare: what their cells say, and that each plays its material to the end."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from google.adk.apps.llm_event_summarizer import LlmEventSummarizer
from google.adk.events.event import Event
from google.genai import types

pytestmark = pytest.mark.integration

RUN = {
    "system": "You fix what is broken.",
    "tools": [{"name": "read", "description": "Reads a file", "parameters": {"type": "object", "properties": {}}}],
    "turns": [
        {
            "user": "Why does it fail?",
            "steps": [
                {
                    "text": "",
                    "calls": [
                        {
                            "name": "read",
                            "args": {"path": "src/a_1.py"},
                            "result": "see b_2.py: import b_2\n" + "x += 1  # more\n" * 200,
                        }
                    ],
                },
                {"text": "", "calls": [{"name": "read", "args": {"path": "b_2.py"}, "result": "y = 2"}]},
                {"text": "b_2 has no x.", "calls": []},
            ],
        }
    ],
}
TALK = {
    "conversation": {
        "speaker_a": "Ann",
        "session_1_date_time": "1:00 pm on 8 May, 2023",
        "session_1": [
            {"dia_id": "D1:1", "speaker": "Ann", "text": "I moved to Lisbon in spring."},
            {"dia_id": "D1:2", "speaker": "Ben", "text": "Then you are near the sea at last!"},
        ],
    },
    "qa": [
        {"question": "Where did Ann move to?", "category": 4, "evidence": ["D1:1"]},
        {"question": "Where did Ben move to?", "category": 5, "evidence": ["D1:1"]},
    ],
}
SCRIPTS = Path(__file__).parent / "bench"


Table = Callable[..., list[dict[str, str]]]


@pytest.fixture(autouse=True)
def _scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Table:
    """Runs a command, and gives the rows that it prints by their heads."""

    def run(*command: object) -> list[dict[str, str]]:
        monkeypatch.setattr(sys, "argv", [*map(str, command)])
        try:
            runpy.run_path(str(SCRIPTS / str(command[0])), run_name="__main__")
        finally:
            logging.disable(logging.NOTSET)
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
        heads, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        return [dict(zip(heads, row, strict=True)) for row in rows]

    return run


def written(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def test_a_cell_is_a_mean_over_sessions_with_its_interval() -> None:
    sessions = importlib.import_module("sessions")
    long_and_short = [{"kept": (900, 1_000)}, *({"kept": (at % 2, 1)} for at in range(20)), {"kept": (0, 0)}]
    assert sessions.cell(long_and_short, "kept", 100.0, 1) == "51.9 [28.6, 71.4]"
    assert sessions.cell([{"kept": (1, 2)}, {"kept": (2, 4)}], "kept", 1.0, 2) == "0.50"
    assert sessions.cell([{"kept": (0, 0)}], "kept", 1.0, 2) == ""


def test_runs_are_played_under_policies_and_what_could_be_picked_instead(table: Table, tmp_path: Path) -> None:
    files = written(tmp_path / "a.jsonl", RUN), written(tmp_path / "b.jsonl", RUN, RUN)
    options = ["--policy", "balanced", "offload.mode=off", "--peers", "--by", "file", "--window", 600]
    rows = table("tool_runs.py", *files, *options)
    rows_of_b = {row["policy"]: row for row in rows if row["file"] == "b"}
    full = rows_of_b["full history"]
    assert (full["grounded"], full["over"], full["invalid"]) == ("100.0", "66.7", "0.0")
    assert rows_of_b["`balanced`"]["over"] == "0.0"
    assert (rows_of_b["sessions"]["cost"], rows_of_b["effective"]["grounded"]) == ("2", "2.0")


def test_a_look_up_is_complete_where_each_value_stands_in_its_request(table: Table, tmp_path: Path) -> None:
    found, lost = [2, [["import b_2", "y = 2"]]], [1, [["y = 2"]]]
    path = written(tmp_path / "l.jsonl", {"run": RUN, "need": [found]}, {"run": RUN, "need": [found, lost]})
    rows = table("lookups.py", path, "--peers")
    assert {row["complete"] for row in rows[:-2]} == {"50.0 [0.0, 100.0]"}
    assert {row["values"] for row in rows[:-2]} == {"75.0 [50.0, 100.0]"}


@pytest.mark.parametrize("script", ["memory_recall.py", "session_recall.py"])
def test_what_holds_an_answer_is_looked_for_in_the_request(table: Table, tmp_path: Path, script: str) -> None:
    path = tmp_path / "locomo.json"
    path.write_text(json.dumps([TALK]), encoding="utf-8")
    rows = {row["what"]: row for row in table(script, path, "--peers", "--by", "kind")}
    assert rows["balanced"]["recall"] == "1.000"
    assert (rows["balanced"]["kind"], rows["sessions"]["recall"]) == ("one turn", "1")


def test_an_interrupted_turn_moves_no_later_message() -> None:
    exam = importlib.import_module("exam")
    (turn,) = RUN["turns"]
    interrupted = {"user": "Fix it.", "steps": turn["steps"][:2]}
    continued = {"user": "And then?", "steps": [{"text": "One moment.", "calls": []}, *turn["steps"]]}
    run = exam.as_played(RUN | {"turns": [interrupted, continued, {"user": "Stop here.", "steps": []}, turn]})
    contents, lengths = exam.contents_of(run)
    requests = asyncio.run(exam.play(run))
    assert len(requests) == len(lengths)
    for request, length in zip(requests, lengths, strict=True):
        assert len(request.shape) == length
        assert contents[length - 1].parts[0].text in request.said


def test_a_chat_counts_messages_and_their_telling_sentences(table: Table, tmp_path: Path) -> None:
    folder = tmp_path / "chats" / "7"
    folder.mkdir(parents=True)
    said = ["I like rain. My train leaves at 9:40 from Porto. ->-> 1,1", "Then pack a coat. Buy ticket 77 first."]
    messages = [{"id": at, "role": role, "content": said[at]} for at, role in enumerate(("user", "assistant"))]
    (folder / "chat.json").write_text(json.dumps([{"turns": [messages]}]), encoding="utf-8")
    probe = {"question": "When does it leave?", "answer": "At 9:40, with ticket 77", "source_chat_ids": [0, 1]}
    (folder / "probing_questions.json").write_text(json.dumps({"temporal_reasoning": [probe]}), encoding="utf-8")
    (row, *_) = table("session_recall.py", tmp_path / "chats")
    assert (row["recall"], row["sentence"], row["assistant's"]) == ("1.000", "1.000", "1.000")


def test_documents_are_ranked_beside_rank_bm25(table: Table, tmp_path: Path) -> None:
    written(
        tmp_path / "corpus.jsonl",
        *({"_id": f"{at}", "text": text} for at, text in enumerate(["a cat", "a dog", "ice"])),
    )
    written(tmp_path / "queries.jsonl", {"_id": "q", "text": "Which dog?"}, {"_id": "r", "text": "unjudged"})
    (tmp_path / "qrels.tsv").write_text("query\tdocument\tgrade\nq\t1\t2\n", encoding="utf-8")
    rows = table("search_sets.py", tmp_path, "--embedder", "none")
    assert [(row["what"], row["nDCG@10"]) for row in rows[:2]] == [("none", "1.000"), ("rank-bm25", "1.000")]


def test_near_alike_rules_are_told_apart_better_than_by_words_alone(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "rules"
    monkeypatch.setattr(sys, "argv", ["policy_documents.py", str(folder)])
    runpy.run_path(str(SCRIPTS / "policy_documents.py"), run_name="__main__")
    scores = {row["what"]: float(row["nDCG@10"].split()[0]) for row in table("search_sets.py", folder)[:3]}
    assert scores["static"] > max(scores["none"], scores["rank-bm25"])


def test_only_summaries_are_paid_for_beside_the_calls_of_the_agent() -> None:
    exam = importlib.import_module("exam")
    steps = [{"text": f"Answer {at}: " + "so it is. " * 40, "calls": []} for at in range(60)]
    run = RUN | {"turns": [*RUN["turns"], *({"user": "Go on.", "steps": [step]} for step in steps)]}
    sent = {}
    for way in exam.WAYS:
        plugins, settings = exam.WAYS[way](4_000, "memory://summarizers")
        asyncio.run(exam.play(run, *plugins, **settings))
        sent[way] = exam.summarizer_tokens(plugins, settings)
    summaries = {way for way in sent if way.startswith(("ADK's compaction", "LangChain's summaries"))}
    assert {way for way, tokens in sent.items() if tokens} == summaries
    assert sent["ADK's compaction, quoting"] > sent["ADK's compaction, an empty summary"]


def test_a_summarizer_of_adk_is_sent_results_up_to_2_000_characters() -> None:
    exam = importlib.import_module("exam")
    response = types.Part.from_function_response(name="read", response={"result": "x" * 9_000})
    events = [Event(author="agent", content=types.UserContent(part)) for part in ("Why?" * 100, response)]
    bound = exam.Bound(20)
    summary = asyncio.run(bound.maybe_summarize_events(events=events))
    assert summary.actions.compaction.compacted_content.parts[0].text == "x" * 20
    prompt = len(LlmEventSummarizer._DEFAULT_PROMPT_TEMPLATE) / 4
    assert 600 < bound.model.sent - prompt < 650


def test_a_summary_takes_the_place_of_its_messages_for_good() -> None:
    exam = importlib.import_module("exam")
    method = exam.Summaries(10_000)
    contents = [types.UserContent(f"{at} " + "word " * 400) for at in range(30)]
    first = method.edit(contents, [], 12_000)
    assert (len(first), method.sent) == (21, method.prompt_tokens + method.max_sent)
    contents.append(types.UserContent("Go on."))
    second = method.edit(contents, [], 12_000)
    assert (second[:-1], method.sent) == (first, method.prompt_tokens + method.max_sent)
    third = method.edit([*contents, types.UserContent("word " * 4_000)], [], 12_000)
    assert (len(third), third[1]) == (21, contents[12])
    assert method.sent < 2 * (method.prompt_tokens + method.max_sent)


def test_a_tool_that_is_not_declared_is_found_at_a_price(table: Table, tmp_path: Path) -> None:
    things = ["bridge", "garden", "invoice", "guitar", "passport", "kettle", "lantern", "saddle", "violin", "wagon"]
    things += ["anchor", "basket", "candle", "dagger"]
    words = "It takes the number of one of them, and gives back what is known of it. " * 20
    written(tmp_path / "corpus.jsonl", *({"_id": f"{it}.renew", "text": f"Renews a {it}. {words}"} for it in things))
    asked = [{"_id": at, "text": f"Please renew my {thing}"} for at, thing in enumerate((things[0], things[-1]))]
    written(tmp_path / "queries.jsonl", *asked)
    qrels = "query\tdocument\tgrade\n" + "\n".join(f"{at}\t{things[-at]}.renew\t1" for at in (0, 1))
    (tmp_path / "qrels.tsv").write_text(qrels, encoding="utf-8")
    row, *_ = table("tool_sets.py", tmp_path, "--tools", len(things), "--window", 8_000)
    assert (row["declared"], row["found"], row["either"]) == ("50.0", "100.0", "100.0")
    sent, whole, extra = (int(row[name].replace(",", "")) for name in ("sent", "all", "extra"))
    assert (sent < whole, extra > sent / 10) == (True, True)
