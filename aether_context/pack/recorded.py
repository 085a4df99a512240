"""Values that stores and session states hold, and how they are read again."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import Any, ClassVar, Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from aether_context.canonical import JSON

__all__ = ["METADATA", "NOTHING", "Recorded", "describe", "noted", "pack_of_event", "valid", "values_of"]


def describe(schema: dict[str, JSON], kind: type) -> None:
    """Adds the docstrings below a class's fields to its JSON Schema. Classes name it as ``json_schema_extra``.

    pydantic's own ``use_attribute_docstrings`` reads the source when a class is created, which takes 80 ms at import.
    """
    for name, text in (item for base in reversed(kind.__mro__) for item in _descriptions(base).items()):
        if name in schema["properties"]:
            schema["properties"][name]["description"] = text


@cache
def _descriptions(kind: type) -> Mapping[str, str]:
    """The docstrings below a class's fields; none where its source is not available."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    except (OSError, TypeError):
        return {}
    assert isinstance(tree, ast.ClassDef)
    return {
        ast.unparse(statement.target): inspect.cleandoc(ast.literal_eval(following.value))
        for statement, following in pairwise(tree.body)
        if isinstance(statement, ast.AnnAssign) and isinstance(following, ast.Expr)
    }


class Recorded:
    """A value that manifests and session states hold: unknown fields are errors, the docstring below a field describes
    it in schema and docs, and a `TypeAdapter` is built at its first use, not at import."""

    __slots__ = ()
    __pydantic_config__: ClassVar = {"extra": "forbid", "json_schema_extra": describe, "defer_build": True}


METADATA: Final = "aether_context"
"""The key of this package in an event's ``custom_metadata``."""


NOTHING: Final[Mapping[Any, Any]] = {}
"""The default of a named tuple's mapping; what a value holds is never changed in place."""


def noted(event: Any) -> Mapping[str, Any]:
    """The metadata that this package wrote into an event of a session."""
    found = (event.custom_metadata or {}).get(METADATA)
    return found if isinstance(found, Mapping) else NOTHING


def pack_of_event(event: Any) -> tuple[int, str]:
    """The number in its session, and the id, of the pack whose answer an event of the session holds; 0 and empty where
    it holds none."""
    number, pack_id = (noted(event).get(name) for name in ("number", "pack_id"))
    return (number, pack_id) if type(number) is int and number > 0 and isinstance(pack_id, str) else (0, "")


def values_of(record: object, *names: str) -> dict[str, Any]:
    """Fields of a value, by the names that they have in another one as well."""
    return {name: getattr(record, name) for name in names}


_Value = TypeVar("_Value")


def valid(adapter: TypeAdapter[_Value], value: object) -> _Value | None:
    """The value read from a session's state or a store; None where it is not valid."""
    try:
        return adapter.validate_python(value)
    except ValidationError:
        return None
