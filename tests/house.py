"""How graspable the package is, in figures: of its text, and of the way that one model call takes through it.

    python tests/house.py                 all figures
    python tests/house.py --list KIND     what stands behind a figure: homonyms, vague, clauses, imports

`tests/test_walk.py` holds each figure below a ceiling. The text's figures import nothing of the package. The call is a
planned session's first and second one, from `before_model_callback` on.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import threading
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import chain, pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, TypeAlias

_SPEC = find_spec("aether_context")
assert _SPEC is not None, "install the package, or name its folder in PYTHONPATH"
PACKAGE = Path(str(_SPEC.origin)).parent
"""The package that would be imported: that of this checkout, or an installed one."""
CLAUSES = ("what ", "whether ", "how ", "where ", "which ", "who ", "why ")
"""What a relative clause begins with: a docstring begins with a noun or an imperative."""
VAGUE = frozenset(
    re.findall(
        r"\w+",
        """given made standing told kept noted found held asked said left gone served read sent lost meant
        wanted placed known chosen carried changed spoken packed seen beside above before after own way
        piece one others rest most least place past look acts shown filled judged handed settled late early
        alone lent answers""",
    )
)
"""Words that name nothing by themselves."""
_BESIDE_CALLS = ("lab/", "memory/")
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Text(NamedTuple):
    """The figures of the package's text, and what stands behind each of them.

    ``code`` are lines that are neither blank, nor a comment, nor in a docstring; ``run_by_calls`` those of them that a
    call can run, all but the lab's and the memory services'; ``homonyms`` public names that several
    modules define; ``clauses`` docstrings that begin with a relative clause; ``vague`` bindings by a vague word;
    ``imports`` those of the package's own modules, by the module that imports them.
    """

    code: int
    run_by_calls: int
    comments: int
    docstrings: int
    homonyms: dict[str, list[str]]
    clauses: list[str]
    vague: Counter[str]
    imports: Counter[str]

    @property
    def figures(self) -> dict[str, float]:
        return {
            "code": self.code,
            "code that a call can run": self.run_by_calls,
            "comments per 1,000 lines of code": round(1_000 * self.comments / self.code),
            "homonyms": len(self.homonyms),
            "clauses%": round(100 * len(self.clauses) / self.docstrings, 1),
            "vague": sum(self.vague.values()),
            "imports": max(self.imports.values()),
        }


class Walk(NamedTuple):
    """The way of one call: files and functions that it enters, their lines, and moves from one file to another."""

    files: int
    functions: int
    lines: int
    moves: int


def code_lines(source: str, tree: ast.AST | None = None) -> int:
    """The lines of a module that are neither blank, nor a comment, nor in a docstring or a bare string."""
    strings: set[int] = set()
    for node in ast.walk(tree or ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            strings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(map(str.strip, source.split("\n")), 1)
    return sum(bool(line) and not line.startswith("#") and at not in strings for at, line in lines)


def text() -> Text:
    """Reads every module of the package."""
    code = run_by_calls = comments = docstrings = 0
    definitions: defaultdict[str, list[str]] = defaultdict(list)
    clauses, vague, imports = list[str](), Counter[str](), Counter[str]()
    for path in sorted(PACKAGE.rglob("*.py")):
        name, source = path.relative_to(PACKAGE).as_posix(), path.read_text(encoding="utf-8")
        tree = ast.parse(source)
        code += (lines := code_lines(source, tree))
        run_by_calls += 0 if name.startswith(_BESIDE_CALLS) else lines
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        comments += sum(token.type == tokenize.COMMENT for token in tokens)
        for node in ast.walk(tree):
            docstring = ast.get_docstring(node) if isinstance(node, _Definition | ast.Module) else None
            docstrings += docstring is not None
            if docstring is not None and docstring.lower().startswith(CLAUSES):
                clauses.append(f"{name}:{getattr(node, 'lineno', 1)}  {docstring.splitlines()[0]}")
            binding = _binding(node)
            if binding.strip("_").lower() in VAGUE:
                vague[f"{binding} in {name}"] += 1
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE.name):
                imports[name] += 1
        for node in tree.body:
            if isinstance(node, _Definition) and not node.name.startswith("_"):
                definitions[node.name].append(name)
    homonyms = {name: files for name, files in definitions.items() if len(set(files)) > 1}
    return Text(code, run_by_calls, comments, docstrings, homonyms, clauses, vague, imports)


def _binding(node: ast.AST) -> str:
    """The name that a node binds, empty where it binds none."""
    if isinstance(node, _Definition):
        return node.name
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    return node.arg if isinstance(node, ast.arg) else ""


Step: TypeAlias = tuple[str, str, int]
"""A function that a call enters: its file, its name, its first line."""


@contextmanager
def walking() -> Iterator[list[Step]]:
    """Notes the functions of the package that are entered meanwhile: when it is over, those of one thread behind those
    of another, however they took turns."""
    steps, by_thread = list[Step](), defaultdict[int, list[Step]](list)

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        # What Python writes for an expression inside a function is no function that anybody reads.
        inner = code.co_qualname.endswith(("<lambda>", "comp>", "<genexpr>"))
        if event == "call" and not inner and code.co_filename.startswith(f"{PACKAGE}/"):
            step = code.co_filename.removeprefix(f"{PACKAGE}/"), code.co_qualname, code.co_firstlineno
            by_thread[threading.get_ident()].append(step)

    sys.setprofile(note)
    threading.setprofile(note)
    try:
        yield steps
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
        steps.extend(chain.from_iterable(by_thread.values()))


def walks() -> tuple[list[Walk], set[tuple[str, str]]]:
    """The walks of a planned session's first and second call, and the functions that the second one enters.

    Run it in a process of its own: what was loaded, registered and remembered before changes the way.
    """
    from plans import NARROW, planned
    from scripted import Chat, look_up, new_store

    from aether_context.adk import ContextPackPlugin

    ways: list[list[Step]] = []

    class Walked(ContextPackPlugin):
        async def before_model_callback(self, **arguments: Any) -> Any:
            with walking() as steps:
                ways.append(steps)
                return await super().before_model_callback(**arguments)

    state = planned(NARROW, knowledge={"notes": ["The rate is 19 percent", "The office opens at nine"]})
    plugin = Walked(store=new_store(), on_error="raise")
    chat = Chat(plugin=plugin, tools=[look_up], state=state, script=["a", "b"])
    chat.say("hello", "Find the key A-17 please")
    assert "The rate is 19 percent" in chat.sent[-1].human()
    spans = {file: dict(_spans(PACKAGE / file)) for file in {file for way in ways for file, _, _ in way}}
    rows = [
        Walk(
            files=len({file for file, _, _ in way}),
            functions=len(set(way)),
            lines=sum(spans[file].get(first, 0) for file, _, first in set(way)),
            moves=sum(before[0] != after[0] for before, after in pairwise(way)),
        )
        for way in ways
    ]
    return rows, {(file, name) for file, name, _ in ways[-1]}


def _spans(path: Path) -> Iterator[tuple[int, int]]:
    """The first line of each function in a module, its decorators included, and how many lines it has."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            yield first, (node.end_lineno or node.lineno) - node.lineno + 1


if __name__ == "__main__":
    figures = text()
    if "--list" in sys.argv:
        kind = sys.argv[sys.argv.index("--list") + 1]
        behind = getattr(figures, kind)
        print("\n".join(behind if isinstance(behind, list) else (f"{key}: {value}" for key, value in behind.items())))
        raise SystemExit
    (first, later), entered = walks()
    report = {"first call": first._asdict(), "later call": later._asdict(), "entered": sorted(entered)}
    print(json.dumps(figures.figures | report if "--json" in sys.argv else figures.figures))
    if "--json" not in sys.argv:
        print(f"first call {first}\nlater call {later}")
