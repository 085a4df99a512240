"""How much code the package is, how far a call leads through it, and whether docs/architecture.md shows the way.

`CODE` only goes down, or up by what a feature is granted. `FILES`, `FUNCTIONS` and `SETTINGS` are ceilings a little
above the figures, so that a call cannot grow longer unnoticed. Where a change makes it shorter, they go down with it.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from plans import NARROW, planned, small, turns
from pydantic import BaseModel
from scripted import Chat, look_up, new_store

import aether_context
from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin
from aether_context.policy import Limit, Range

CODE = 22_026
"""Code lines: neither blank, nor a comment, nor in a docstring."""
SETTINGS = 54
FILES = 58
FUNCTIONS = 386
MOST_NAMED = 32
PACKAGE = Path(aether_context.__file__).parent
PAGE = (Path(__file__).parent.parent / "docs" / "architecture.md").read_text(encoding="utf-8")


class Walked(ContextPackPlugin):
    """Notes the functions of the package that the callback before each model call enters, in its threads, too."""

    def __init__(self, **given: Any) -> None:
        super().__init__(store=new_store(), on_error="raise", **given)
        self.calls: list[set[tuple[str, str]]] = []

    @property
    def entered(self) -> set[tuple[str, str]]:
        return set().union(*self.calls)

    async def before_model_callback(self, **given: Any) -> Any:
        entered: set[tuple[str, str]] = set()

        def note(frame: FrameType, event: str, _: object) -> None:
            code = frame.f_code
            if event == "call" and code.co_filename.startswith(f"{PACKAGE}/"):
                entered.add((code.co_filename.removeprefix(f"{PACKAGE}/"), code.co_qualname))

        sys.setprofile(note)
        threading.setprofile(note)
        try:
            return await super().before_model_callback(**given)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
            # What Python writes for an expression inside a function is no function that anybody reads.
            self.calls.append({one for one in entered if not one[1].endswith(("<lambda>", "comp>", "<genexpr>"))})


def settings_of(model: type[BaseModel]) -> int:
    """How many values a policy's section has that somebody can set, those of its sections included."""
    kinds = (field.annotation for field in model.model_fields.values())
    return sum(settings_of(kind) if _is_section(kind) else 1 for kind in kinds)


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel) and kind not in (Range, Limit)


def test_there_are_no_more_settings() -> None:
    assert settings_of(PackPolicy) <= SETTINGS


def code_lines(source: str) -> int:
    """The lines of a module that are neither blank, nor a comment, nor in a docstring or a bare string."""
    strings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            strings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(map(str.strip, source.split("\n")), 1)
    return sum(bool(line) and not line.startswith("#") and at not in strings for at, line in lines)


def test_code_lines_are_those_that_do_something() -> None:
    assert code_lines('"""Module.\n\nMore."""\n\n# why\nA = 1  # one\n"""What A is."""\n') == 1


def test_the_package_does_not_grow() -> None:
    code = sum(code_lines(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py"))
    assert code <= CODE, f"{code:,} code lines"


def planned_call() -> list[tuple[str, str]]:
    """Files and functions that the second call of a planned session enters."""
    plugin = Walked()
    state = planned(NARROW, knowledge={"notes": ["The rate is 19 percent", "The office opens at nine"]})
    chat = Chat(plugin=plugin, tools=[look_up], state=state, script=["a", "b"])
    chat.say("hello", "Find the key A-17 please")
    assert "The rate is 19 percent" in chat.sent[-1].human()
    return sorted(plugin.calls[-1])


def test_a_planned_call_enters_few_files_and_functions() -> None:
    # In a process of its own: what other tests have loaded, registered and remembered changes the way.
    paths = os.pathsep.join(path for path in sys.path if path)
    code = "import json, test_walk; print(json.dumps(test_walk.planned_call()))"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": paths, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    entered = [(file, name) for file, name in json.loads(run.stdout)]
    files = {file for file, _ in entered}
    assert ("adk/packer.py", "RequestPacker.before_model") in entered
    assert any(file.startswith("packing/") for file in files)
    found = f"{len(files)} files, {len(entered)} functions"
    assert len(files) <= FILES, found
    assert len(entered) <= FUNCTIONS, found


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
    house = re.search(r"## The house\n.*?```text\n(.*?)```", PAGE, re.DOTALL)
    assert house is not None
    drawn = [name for line in house[1].splitlines() for name in re.split(r" · ", re.split(r"\s{2,}", line)[0])]
    assert sorted(drawn) == sorted(rooms(PACKAGE) | modules(PACKAGE))


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
