"""The command line as its users run it."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from aether_context import PackStore
from aether_context.lab.cli import main


def run(*words: object, store: PackStore | None = None, code: int | None = 0) -> Result:
    """Runs a command; its exit code is this one, or any where ``code`` is None."""
    url = ["--store", store.url] if store is not None else []
    result = CliRunner().invoke(main, [*map(str, words), *url])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise AssertionError(f"{words} ended in {result.exception!r}") from result.exception
    assert code is None or result.exit_code == code, result.output
    return result


def told(*words: object, store: PackStore | None = None, code: int | None = 0) -> Any:
    """What a command prints for programs."""
    return json.loads(run(*words, "--json", store=store, code=code).stdout)
