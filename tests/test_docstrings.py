"""The docstrings of the package describe arguments that there are; its star imports bring no names of other modules."""

from __future__ import annotations

import ast
import re

import pytest
from house import PACKAGE

import aether_context.pack

_SECTION = re.compile(r"^(?P<margin> *)(?:Args|Attributes):\n(?P<body>(?:(?P=margin) +\S.*\n|\n)+)", re.MULTILINE)
_ENTRY = re.compile(r"`*(\w+(?:, \w+)*)`*:(?: |$)")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def entries(docstring: str) -> list[str]:
    """The names that the sections for arguments and attributes describe."""
    names: list[str] = []
    for section in _SECTION.finditer(f"{docstring}\n"):
        lines = [line for line in section["body"].splitlines() if line]
        margin = min(len(line) - len(line.lstrip()) for line in lines)
        for line in (line[margin:] for line in lines if not line[margin].isspace()):
            entry = _ENTRY.match(line)
            names += entry[1].split(", ") if entry is not None else [line]
    return names


def arguments(function: Function) -> set[str]:
    return {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}


def fields(kind: ast.ClassDef) -> set[str]:
    """The names that a class's docstring may describe: its fields, what methods set, and its arguments."""
    targets = [node.target for node in kind.body if isinstance(node, ast.AnnAssign)]
    attributes = [node for node in ast.walk(kind) if isinstance(node, ast.Attribute)]
    names = {node.attr for node in attributes if isinstance(node.ctx, ast.Store)}
    constructors = [node for node in kind.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    return names.union(map(ast.unparse, targets), *map(arguments, constructors))


def described(source: str) -> list[tuple[str, bool]]:
    """Every entry of a source's docstrings, after the name of its definition, and whether it describes a part of it."""
    return [
        (f"{node.name}: {name}", name in (fields(node) if isinstance(node, ast.ClassDef) else arguments(node)))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, Function | ast.ClassDef)
        for name in entries(ast.get_docstring(node) or "")
    ]


def test_every_described_argument_is_one():
    found = {path: described(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")}
    assert sum(map(len, found.values())) > 400
    wrong = [(path.name, name) for path, names in found.items() for name, is_there in names if not is_there]
    assert wrong == []


@pytest.mark.parametrize(
    ("entry", "is_there"),
    [
        ("size: in bytes.", True),
        ("size, unit: in bytes\n            where: it says so.", True),
        ("length: in bytes.", False),
        ("size: in bytes.\n        length: in bytes.", False),
        ("unit, length: in bytes.", False),
        ("size in bytes", False),
    ],
)
def test_an_entry_that_describes_nothing_is_found(entry, is_there):
    docstring = f'"""Reads.\n\n    Args:\n        {entry}\n\n    Raises:\n        OSError: always.\n    """'
    names = described(f"def read(size, *, unit):\n    {docstring}")
    assert [known for _, known in names].count(False) == (not is_there)
    names = described(f"class Reader:\n    {docstring}\n    size: int\n    def __init__(self, unit): ...")
    assert [known for _, known in names].count(False) == (not is_there)


def test_the_values_of_a_pack_bring_no_names_of_other_modules():
    names = {name: value for name, value in vars(aether_context.pack).items() if not name.startswith("_")}
    modules = {"epoch", "pack", "recorded", "request", "selection"}
    assert {name for name in ("Pack", "Content", "Layer", "valid", "NOTHING", *modules) if name not in names} == set()
    assert {name for name in names if name not in modules and name not in exported()} == set()


def exported() -> set[str]:
    """The public names that the modules of `aether_context.pack` define."""
    names: set[str] = set()
    for path in (PACKAGE / "pack").glob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            targets += [node.target] if isinstance(node, ast.AnnAssign) else []
            names |= {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}
            names |= {node.name} if isinstance(node, Function | ast.ClassDef) else set()
    return names
