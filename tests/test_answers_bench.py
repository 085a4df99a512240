"""What the benchmark of answers takes for right, and how it compares two sets of requests; no model is needed."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "bench"))
    return importlib.import_module("answers")


@pytest.mark.parametrize(
    ("answer", "gold", "right"),
    [
        ("She went on May 7th, 2023.", "7 May 2023", True), ("2023-05-07", "May 7, 2023", True),
        ("on 7 May", "7 May 2023", True), ("8 May 2023", "7 May 2023", False), ("May 2023", "7 May 2023", False),
        ("7 June 2023", "June 2023", True), ("June 2022", "June 2023", False), ("In 2022", "2022", True),
        ("I don't know", "2022", False), ("To Lisbon, by the sea", "Lisbon", True), ("2 times", "two times", True),
        ("a shiny red car", "A shiny orange car", True), ("a car", "A shiny orange car", False),
        ("Porto\nor Lisbon", "Lisbon", False),
    ],
)  # fmt: skip
def test_an_answer_is_right_by_its_dates_and_its_words(
    answers: ModuleType, answer: str, gold: str, right: bool
) -> None:
    assert answers.right(answer, gold) is right


@pytest.mark.parametrize(
    ("gold", "fact"),
    [
        ("May 1, 2023", True), ("a rainbow sidewalk", True), ("The week before 9 June 2023", False),
        ("pottery, camping", False), ("Yes", False), ("by carving out some time each day", False),
    ],
)  # fmt: skip
def test_asked_is_what_has_a_short_fact_for_an_answer(answers: ModuleType, gold: str, fact: bool) -> None:
    assert answers.is_fact(gold) is fact


def row(number: int, message: str, there: float, tokens: int) -> dict[str, object]:
    told = {"question": "Where?", "gold": "Lisbon", "evidence": ["1 May 2023, Ann: Lisbon"] if number else ["Ann: hm"]}
    return {"id": f"talk/{number}", "system": "", "message": message, "there": there, "tokens": tokens, **told}


def test_requests_are_compared_over_what_the_evidence_alone_answers(
    answers: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    base = [row(0, "Lisbon", 1, 9), row(1, "", 0, 900), row(2, "Lisbon", 1, 900), row(3, "", 1, 900)]
    new = [row(0, "Lisbon", 1, 9), row(1, "Lisbon", 1, 300), row(2, "Lisbon", 1, 300), row(3, "Lisbon", 1, 300)]
    pairs = list(answers.compared(base, new, lambda system, message: message.partition("\n")[0]))
    answers.print_comparison(pairs, ["base", "new"])
    _, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in capsys.readouterr().out.splitlines()
    ]
    assert rows == [
        ["base", "3", "0.333 [0.000, 1.000]", "0.500 [0.000, 1.000]", "0.667 [0.000, 1.000]", "900"],
        ["new", "3", "1.000", "1.000", "1.000", "300"],
        ["difference", "3", "+0.667 [+0.000, +1.000]", "+0.500 [+0.000, +1.000]", "+0.333 [+0.000, +1.000]", "-600"],
    ]


def test_stores_of_other_questions_are_not_compared(answers: ModuleType) -> None:
    with pytest.raises(SystemExit, match="not of the same questions: talk/1 and talk/2"):
        list(answers.compared([row(1, "", 0, 9)], [row(2, "", 0, 9)], lambda system, message: ""))
