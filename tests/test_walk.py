"""How much code the package is, how far a call leads through it, and whether docs/architecture.md shows the way.

`CEILINGS` are a little above the figures, so that neither the package nor a call's way through it grows unnoticed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import house
import pytest
from plans import planned, small, turns
from pydantic import BaseModel
from scripted import Chat, look_up, new_store

import aether_context
from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin
from aether_context.policy import Limit, Range

CEILINGS = {
    "code": 29_210,
    "code that a call can run": 23_140,
    "homonyms": 0,
    "clauses%": 3.0,
    "vague": 216,
    "imports": 27,
    "first call: files": 88,
    "first call: functions": 660,
    "first call: lines": 8_020,
    "first call: moves": 690,
    "later call: files": 71,
    "later call: functions": 498,
    "later call: lines": 6_170,
    "later call: moves": 600,
    "settings": 56,
}
"""Figures of `house`, and how many values of a policy somebody can set, each with room for some ten ordinary changes.
They go down with the figures. Whoever meets one looks at what stands behind it (`python tests/house.py`) and makes
something shorter; a feature that is worth more raises it by what it needs, and its commit says for what."""
MOST_NAMED = 32
PACKAGE = Path(aether_context.__file__).parent
PAGE = (Path(__file__).parent.parent / "docs" / "architecture.md").read_text(encoding="utf-8")


class Walked(ContextPackPlugin):
    """Notes the functions of the package that the callbacks before model calls enter."""

    entered: set[tuple[str, str]]

    def __init__(self, **arguments: Any) -> None:
        super().__init__(store=new_store(), on_error="raise", **arguments)
        self.entered = set()

    async def before_model_callback(self, **arguments: Any) -> Any:
        steps: list[house.Step] = []
        try:
            with house.walking() as steps:
                return await super().before_model_callback(**arguments)
        finally:
            self.entered |= {(file, name) for file, name, _ in steps}


def settings_of(model: type[BaseModel]) -> int:
    """How many values a policy's section has that somebody can set, those of its sections included."""
    kinds = (field.annotation for field in model.model_fields.values())
    return sum(settings_of(kind) if _is_section(kind) else 1 for kind in kinds)


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel) and kind not in (Range, Limit)


@cache
def figures() -> dict[str, float]:
    # In a process of its own: what other tests have loaded, registered and remembered changes the way.
    paths = os.pathsep.join(path for path in sys.path if path)
    run = subprocess.run(
        [sys.executable, house.__file__, "--json"],
        env={**os.environ, "PYTHONPATH": paths, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    report = json.loads(run.stdout)
    entered = {tuple(function) for function in report.pop("entered")}
    assert ("adk/packer.py", "RequestPacker.before_model") in entered
    assert any(file.startswith("packing/") for file, _ in entered)
    walks = {name: report.pop(name) for name in ("first call", "later call")}
    by_walk = {f"{name}: {figure}": value for name, walk in walks.items() for figure, value in walk.items()}
    return {**report, **by_walk, "settings": settings_of(PackPolicy)}


@pytest.mark.parametrize("name", CEILINGS)
def test_no_figure_grows(name: str) -> None:
    figure, ceiling = figures()[name], CEILINGS[name]
    assert figure <= ceiling, (
        f"{name}: {figure:,} of at most {ceiling:,}. An ordinary change has room below a ceiling. Where it is used up,"
        " look at what stands behind the figure (python tests/house.py --list KIND) and make something of it shorter;"
        " or raise the ceiling by what the change needs, and say in the commit for what."
    )


def test_code_lines_are_those_that_do_something() -> None:
    assert house.code_lines('"""Module.\n\nMore."""\n\n# why\nA = 1  # one\n"""What A is."""\n') == 1


def test_the_page_names_the_functions_of_the_way_and_calls_enter_them() -> None:
    way = PAGE.split("## The way of a call")[1].split("```text\n")[1].split("```")[0]
    named = re.findall(r"^ *(\w+) +(\w+(?:/\w+)*) {2,}\S", way, re.MULTILINE)
    assert len(named) == len(way.splitlines()) <= MOST_NAMED
    plugin = Walked(policy=small())
    Chat(plugin=plugin, tools=[look_up], state=planned(), script=list("abcdefgh")).say(
        *turns(8)
    )  # long enough for cuts
    entered = {
        (file.removesuffix("/__init__.py").removesuffix(".py"), name.split(".")[-1]) for file, name in plugin.entered
    }
    assert [f"{file} {name}" for name, file in named if (file, name) not in entered] == []


def rooms(folder: Path) -> set[str]:
    return {path.parent.name for path in folder.glob("*/__init__.py")}


def modules(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.py") if not path.stem.startswith("__")}


def test_the_page_draws_every_room_of_the_house_and_no_other() -> None:
    pictures = re.findall(r"```text\n(.*?)```", PAGE.split("## The house")[1].split("\n## ")[0], re.DOTALL)
    for folder, picture in zip((PACKAGE, PACKAGE / "lab"), pictures, strict=True):
        drawn = [name for line in picture.splitlines() for name in re.split(r" · ", re.split(r"\s{2,}", line)[0])]
        assert sorted(drawn) == sorted(rooms(folder) | modules(folder))


def test_the_page_lists_every_room_of_the_edge_and_no_other() -> None:
    table = PAGE.split("| room of `adk` | holds |")[1].split("\n\n")[0]
    listed = re.findall(r"^\| `(\w+)/` \| (.*) \|$", table, re.MULTILINE)
    assert sorted(name for name, _ in listed) == sorted(rooms(PACKAGE / "adk"))
    for name, holds in listed:
        named = set(re.findall(r"\(`?([\w`, ]+)\)", holds)) and set(re.findall(r"`(\w+)`", holds))
        assert named <= modules(PACKAGE / "adk" / name), name


def test_every_module_that_the_page_names_is_there() -> None:
    """Paths such as `state/schema` and `packing/__init__.py`, in the text and along the way of a call."""
    tops = "|".join(sorted(rooms(PACKAGE)))
    named = set(re.findall(rf"(?<![\w/])((?:{tops})(?:/\w+)+)(?:\.py)?", PAGE))
    assert len(named) > 20
    assert [path for path in sorted(named) if not exists(PACKAGE / path)] == []


def exists(path: Path) -> bool:
    return path.is_dir() or path.with_suffix(".py").is_file()
