"""The table of the suite: rows add up or take the worst value, whichever process took it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import trust_table


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
