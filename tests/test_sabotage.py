"""The table of breaks fits the code: each is a fault that can be put into it."""

from __future__ import annotations

import ast

import sabotage
from breaks import BREAKS

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
