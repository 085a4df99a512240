"""Violations, cached share and input price of every client and scenario: alone, with ADK's compaction, with the plugin.

PYTHONPATH=.:tests python tests/wire/measure.py [CLIENT ...]
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

from wire.sessions import CLIENTS, NATIVE, SCENARIOS, Run, run


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
        sums: dict[str, list[float]] = {}
        for name, made in SCENARIOS.items():
            for way in ("alone", "compaction", "plugin"):
                with run(client, made(), way=way) as done:
                    print(line(client, name, 8_000, way, done), flush=True)
                    server = done.server
                    usages = [request.usage for request in server.requests if not request.refused]
                    found = [len(server.requests), server.invalid, len(done.failed)]
                    found += [sum(u.cached for u in usages), sum(u.input for u in usages), server.input_price]
                    sums[way] = [a + b for a, b in zip(sums.get(way, [0] * 6), found, strict=True)]
                    for failure in done.failed:
                        print("   ", failure)
        for way, (requests, invalid, failed, cached, total, price) in sums.items():
            start = f"| {client} | all | 8,000 | {way} | {requests} | {invalid} | | {failed} |"
            print(f"{start} {cached / total:.0%} | {price:,} | |")


if __name__ == "__main__":
    main()
