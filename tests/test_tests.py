"""What holds for the tests themselves: loops that run, breaks that fit the code, and rows of the table of failures."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import sabotage
import trust_table
from breaks import BREAKS

FOLDER = Path(__file__).parent
MAY_BE_EMPTY = {
    "test_python_runs": "a page without code",
    "test_links_lead_somewhere": "a page without links",
    "test_python_imports_public_names": "the syntax tree of a page's code",
    "test_the_final_request_of_the_user_is_whole_while_it_fits": "a run of hypothesis",
    "test_any_plan_is_read_and_is_a_board_or_an_error": "a plan of hypothesis, which may have no step that is ready",
    "test_no_history_makes_any_number_smaller": "a history of hypothesis",
    "test_no_user_ever_sees_what_is_anothers": "so many operations as somebody asks for",
    "test_no_line_of_foreign_text_starts_at_the_margin": "a text of hypothesis",
    "test_a_larger_window_never_loses_what_a_smaller_one_keeps": "windows of hypothesis",
    "test_only_whole_turns_go": "a history of hypothesis",
    "test_a_longer_history_never_brings_a_turn_back": "sizes of hypothesis",
    "test_whatever_the_history_the_boundary_is_monotonic_and_people_are_whole": "a history of hypothesis",
    "test_a_wrong_value_is_named": "the words of a case",
    "test_a_search_finds_words_across_the_pieces_of_a_line": "steps through a text of a fixed size",
    "test_a_result_that_is_posted_later_is_sent_with_its_call_from_then_on": "two chats, and a number of messages",
}
"""Tests whose loops may run not at all, or surely run, with what they go through."""


def always_runs(loop: ast.expr) -> bool:
    """Tells whether a loop's values are written where it stands, or in a constant."""
    if isinstance(loop, ast.Call):
        inner = loop.func.value if isinstance(loop.func, ast.Attribute) else None
        parts = [*([inner] if inner is not None else []), *loop.args]
        numbers = bool(loop.args) and inner is None and all(isinstance(part, ast.Constant) for part in loop.args)
        return numbers or any(map(always_runs, parts))
    literal = isinstance(loop, ast.Tuple | ast.List | ast.Set) and bool(loop.elts)
    return literal or (isinstance(loop, ast.Name) and loop.id.isupper())


def asserts(body: list[ast.stmt], in_loop: bool = False) -> Iterator[bool]:
    """Whether each assertion of a body stands in a loop that may run not at all."""
    for node in body:
        if isinstance(node, ast.Assert):
            yield in_loop
            continue
        loops = isinstance(node, ast.For | ast.AsyncFor) and not always_runs(node.iter)
        for name in ("body", "orelse", "finalbody"):
            yield from asserts(getattr(node, name, []), in_loop or loops or isinstance(node, ast.While))


def unsure(source: str) -> list[str]:
    """The tests of a module that assert only in such loops."""
    functions = [
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    tests = [(node.name, list(asserts(node.body))) for node in functions if node.name.startswith("test_")]
    return [name for name, in_loops in tests if in_loops and all(in_loops)]


MODULES = sorted(FOLDER.rglob("test_*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_what_asserts_only_in_loops_asserts_that_they_run(path: Path) -> None:
    names = set(unsure(path.read_text(encoding="utf-8"))) - MAY_BE_EMPTY.keys()
    assert not names, f"assert before the loop what it goes through, as in `assert chat.manifests()`: {sorted(names)}"


def test_the_check_tells_loops_that_may_be_empty_from_others() -> None:
    assert unsure("def test_a():\n    for at in found():\n        assert at\n") == ["test_a"]
    assert unsure("def test_a():\n    assert found\n    for at in found:\n        assert at\n") == []
    assert unsure("def test_a():\n    for at in (1, 2):\n        assert at\n") == []
    assert unsure("def test_a():\n    with a:\n        for at in found:\n            assert at\n") == ["test_a"]


PACKAGE = sabotage.ROOT / sabotage.PACKAGE


def test_the_breaks_are_sixty_with_names_of_their_own() -> None:
    assert len({item.name for item in BREAKS}) == len(BREAKS) == 60


def test_each_break_is_another_program() -> None:
    same = []
    for item in BREAKS:
        _, function, _ = sabotage.around(item, (PACKAGE / item.path).read_text(encoding="utf-8"))
        head = "if True:\n" if function.startswith(" ") else ""
        trees = [ast.dump(ast.parse(head + text)) for text in (function, function.replace(item.old, item.new))]
        same += [item.name] if trees[0] == trees[1] else []
    assert same == []


def test_each_room_has_a_break() -> None:
    paths = [path for path in PACKAGE.rglob("*.py") if not path.name.startswith("__")]
    rooms = {sabotage.room_of(path.relative_to(PACKAGE).as_posix()) for path in paths}
    assert rooms == {sabotage.room_of(item.path) for item in BREAKS}


def report(*values: tuple[str, float], when: str = "call") -> SimpleNamespace:
    return SimpleNamespace(when=when, user_properties=[("trust", list(value)) for value in values])


def test_values_of_many_tests_become_one_row() -> None:
    lines = trust_table.table(
        [report(("lost", 0), ("store_seconds", 0.25)), report(("lost", 2), ("store_seconds", 0.5))]
    )
    assert [line.rsplit("|", 2)[1].strip() for line in lines[2:]] == ["2", "0.50"]
    assert trust_table.table([report(("lost", 1), when="setup")]) == []


def test_a_row_that_is_not_in_the_table_is_an_error(request: pytest.FixtureRequest) -> None:
    with pytest.raises(KeyError, match="no row"):
        trust_table.take(request.node, "unknown", 1)
