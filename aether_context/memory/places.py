"""Where memories are kept: the paths of files, and the URIs of databases."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from urllib.parse import unquote_plus

FILE_NAME = "memories.sqlite"
"""The file's name where a folder is given."""
_SCHEMES = ("postgresql://", "postgres://")


def located(path: str | os.PathLike[str]) -> Path:
    """The file that a path means: itself, or the one in the folder that it is or, having no suffix, is going to be."""
    found = Path(os.path.expanduser(path))
    return found / FILE_NAME if os.path.isdir(found) or not (found.suffix or os.path.exists(found)) else found


def is_postgres(uri: str) -> bool:
    """Whether a URI names a database of PostgreSQL."""
    return uri.startswith(_SCHEMES)


def shown(uri: str) -> str:
    """A path or URI as it may be printed: that of a database without user, password and options."""
    scheme, mark, rest = uri.partition("://")
    if not is_postgres(uri.removeprefix("hybrid+")):
        return uri
    return scheme + mark + rest.rpartition("@")[2].partition("?")[0]


def without(uri: str, names: Collection[str]) -> tuple[str, dict[str, str]]:
    """A URI without the options of some names, and these."""
    base, _, query = uri.partition("?")
    options: dict[str, str] = {}
    others: list[str] = []
    for option in filter(None, query.split("&")):
        name, _, value = option.partition("=")
        if name in names:
            options[name] = unquote_plus(value)
        else:
            others.append(option)
    return "?".join(filter(None, [base, "&".join(others)])), options
