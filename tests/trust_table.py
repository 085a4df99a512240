"""The table of figures that the tests in ``tests/trust`` take together.

A test takes a figure by the fixture ``figure``; a row of the table adds up, or takes the worst of, what all tests gave
for it. ``python tests/trust_table.py`` runs them all and writes the table into ``docs/deploy.md``.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

PAGE = Path(__file__).parent.parent / "docs" / "deploy.md"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


class Row(NamedTuple):
    """A row: what is counted, the goal in words, how values of many tests become one, and its format."""

    what: str
    goal: str
    together: Callable[[Iterable[float]], float]
    form: str


ROWS: Mapping[str, Row] = {
    "lost": Row(
        "acknowledged receipts and memories lost over kills, outages, full disk, refused writes, hangs",
        "0",
        sum,
        "{:.0f}",
    ),
    "lives": Row("processes that were killed for it", "", sum, "{:,.0f}"),
    "store_seconds": Row("most seconds that a fault of a store adds to a turn", "≤ 1", max, "{:.2f}"),
    "service_seconds": Row("most seconds that a memory service or an embedder adds to a turn", "≤ 2.5", max, "{:.2f}"),
    "calls_made": Row("model calls made while a collaborator fails", "100 %", min, "{:.0%}"),
    "acceptance_kept": Row("those of a plan that keep its ACCEPTANCE", "100 %", min, "{:.0%}"),
    "over_window": Row("requests over the window", "0", sum, "{:.0f}"),
    "invalid": Row("invalid requests", "0", sum, "{:.0f}"),
    "failed_calls": Row("failed calls of a session whose model takes less than is known of it", "≤ 1", max, "{:.0f}"),
    "shrunk": Row(
        "windows that words which an error repeats made smaller, of others than their author", "0", sum, "{:.0f}"
    ),
    "over_limit": Row("requests over the bytes, media or pages that their provider takes", "0", sum, "{:.0f}"),
    "failed_large": Row("failed calls of a session that is refused for bytes, media or pages", "0", max, "{:.0f}"),
    "returned": Row("requests with words that a rewind took back, where few events are loaded", "0", sum, "{:.0f}"),
    "foreign": Row("tokens of another user, app or session that were found", "0", sum, "{:.0f}"),
    "isolation_runs": Row("runs in which they were looked for", "", sum, "{:,.0f}"),
    "forged": Row("lines of a payload that untrusted text forged", "0", sum, "{:.0f}"),
    "secrets": Row(
        "planted secrets found in store, spool, evidence, memory files, spans, logs and pages with `redact` on",
        "0",
        sum,
        "{:.0f}",
    ),
    "stall_seconds": Row("most seconds that 300 KB of hostile text stall the event loop", "≤ .2", max, "{:.2f}"),
    "not_copied": Row("packed requests that could not be copied deeply or pickled", "0", sum, "{:.0f}"),
    "denied": Row("words of a stored text whose search denies them", "0", sum, "{:.0f}"),
    "wrong_previews": Row("previews and cut-offs that an event of the host's changes", "0", sum, "{:.0f}"),
    "wrong_receipts": Row("messages that a receipt calls whole though they were cut", "0", sum, "{:.0f}"),
    "state_failures": Row("calls that odd values in session state stop", "0", sum, "{:.0f}"),
    "useless_summaries": Row("requests of a session to a summarizer that never answers in JSON", "≤ 2", max, "{:.0f}"),
    "state_kilobytes": Row(
        "most KB of session state of a conversation of 36 turns in a window of 4,000 tokens", "≤ 9", max, "{:.1f}"
    ),
    "state_bytes_a_turn": Row(
        "bytes that a turn adds to it after the first cut, cuts aside", "≤ 1,600", max, "{:,.0f}"
    ),
    "wide_stall_seconds": Row(
        "most seconds that a result of 200,000 values, or .3 MB of JSON in a string, adds to ADK's own stall",
        "≤ .2",
        max,
        "{:.2f}",
    ),
    "hidden": Row("controls, reordering marks and tags of others' text that a model was sent", "0", sum, "{:.0f}"),
    "packs_in_a_round": Row(
        "most packs in one round of the event loop, of 60 sessions that wake together", "≤ 5", max, "{:.0f}"
    ),
    "woken_alone_seconds": Row(
        "most seconds that ADK alone stalls the loop where 200 sessions wake together", "", max, "{:.2f}"
    ),
    "woken_seconds": Row("the same with the plugin", "", max, "{:.2f}"),
    "least_count": Row(
        "least share of the tokens of digits, rare scripts and boxes that is counted", "≥ .90", min, "{:.2f}"
    ),
    "log_lines": Row("most log lines of one outage", "≤ 5", max, "{:.0f}"),
}


def take(node: pytest.Item, row: str, value: float) -> None:
    """Adds a value of one test to a row."""
    if row not in ROWS:
        raise KeyError(f"{row!r} is no row of the table: {', '.join(ROWS)}")
    node.user_properties.append(("trust", [row, float(value)]))


def table(reports: Iterable[object]) -> list[str]:
    """The table in Markdown, of the rows that any report holds a value for; empty where there is none."""
    values: dict[str, list[float]] = defaultdict(list)
    for report in reports:
        for name, value in getattr(report, "user_properties", ()):
            if name == "trust" and getattr(report, "when", "") == "call":
                values[value[0]].append(value[1])
    lines = ["| figure | goal | measured |", "| --- | --- | --- |"]
    lines += [
        f"| {row.what} | {row.goal} | {row.form.format(row.together(values[key]))} |"
        for key, row in ROWS.items()
        if values[key]
    ]
    return lines if len(lines) > 2 else []


def main(arguments: Sequence[str]) -> int:
    """Runs all tests of the suite but those that need servers, and writes their table into the page."""

    class Writer:
        def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
            lines = table(report for reports in terminalreporter.stats.values() for report in reports)
            before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
            page = "\n".join([f"{before}{BEGIN}", "", *lines, "", f"{END}{rest.split(END)[1]}"])
            PAGE.write_text(page, encoding="utf-8")

    folder = str(Path(__file__).parent / "trust")
    return int(pytest.main([folder, "-m", "not integration", *arguments], plugins=[Writer()]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
