"""Violations, cached share and input price of every client and scenario: alone, with ADK's compaction, with the plugin.

PYTHONPATH=.:tests python tests/wire/measure.py [CLIENT ...]

``fits`` sums up the scenarios whose requests alone stay within the input budget, which is nine tenths of the window;
``long`` the others, ``all`` both.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

from wire.sessions import CLIENTS, NATIVE, SCENARIOS, Run, run

WINDOW, BUDGET = 8_000, 7_200


def line(client: str, name: str, window: int, way: str, done: Run) -> str:
    server = done.server
    kinds = sorted({fault.partition(":")[0] for fault in server.faults})
    return (
        f"| {client} | {name} | {window:,} | {way} | {len(server.requests)} | {server.invalid} | {len(server.over)} | "
        f"{len(done.failed)} | {server.cached_share:.0%} | {server.input_price:,} | {' '.join(kinds)} |"
    )


def main() -> None:
    clients = sys.argv[1:] or list(NATIVE)
    print("| client | scenario | window | way | requests | invalid | over | failed | cached | price | rules |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for client in clients:
        assert client in CLIENTS
        sums: dict[tuple[str, str], list[float]] = {}
        for name, made in SCENARIOS.items():
            kind = ""
            for way in ("alone", "compaction", "plugin"):
                with run(client, made(), way=way) as done:
                    print(line(client, name, WINDOW, way, done), flush=True)
                    server = done.server
                    usages = [request.usage for request in server.requests if not request.refused]
                    kind = kind or ("fits" if max(u.input for u in usages) <= BUDGET else "long")
                    found = [len(server.requests), server.invalid, len(done.failed)]
                    found += [sum(u.cached for u in usages), sum(u.input for u in usages), server.input_price]
                    for group in (kind, "all"):
                        sums[group, way] = [a + b for a, b in zip(sums.get((group, way), [0] * 6), found, strict=True)]
                    for failure in done.failed:
                        print("   ", failure)
        for (group, way), (requests, invalid, failed, cached, total, price) in sorted(sums.items()):
            start = f"| {client} | {group} | {WINDOW:,} | {way} | {requests} | {invalid} | | {failed} |"
            print(f"{start} {cached / total:.0%} | {price:,} | |")


if __name__ == "__main__":
    main()
