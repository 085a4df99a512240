"""The table of breaks fits the code: each is a fault that can be put into it."""

from __future__ import annotations

import ast

import sabotage
from breaks import BREAKS

PACKAGE = sabotage.ROOT / sabotage.PACKAGE


def test_the_breaks_are_sixty_with_names_of_their_own() -> None:
    assert len({item.name for item in BREAKS}) == len(BREAKS) == 60


def test_each_break_is_another_program() -> None:
    sources = {item: (PACKAGE / item.path).read_text(encoding="utf-8") for item in BREAKS}
    trees = {source: ast.dump(ast.parse(source)) for source in sources.values()}
    same = [
        item.name
        for item, source in sources.items()
        if ast.dump(ast.parse(sabotage.broken(item, source))) == trees[source]
    ]
    assert same == []


def test_each_room_has_a_break() -> None:
    paths = [path for path in PACKAGE.rglob("*.py") if not path.name.startswith("__")]
    rooms = {sabotage.room_of(path.relative_to(PACKAGE).as_posix()) for path in paths}
    assert rooms == {sabotage.room_of(item.path) for item in BREAKS}
