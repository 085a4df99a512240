"""`aether-context doctor`: what is installed, whether the store works, and what recent packs could not do as asked."""

from __future__ import annotations

import os
import platform
from collections import Counter
from importlib.metadata import version
from importlib.util import find_spec

from aether_context import __version__
from aether_context.canonical import JSON
from aether_context.errors import AetherContextError, PackNotFound
from aether_context.lab.cli import packs
from aether_context.lab.cli.terminal import FAILED, one_line, print_json, print_table, say
from aether_context.policy import PackPolicy
from aether_context.retrieval.embedders import embedder_for
from aether_context.store import PackStore
from aether_context.store.packs import name_of
from aether_context.store.spool import spool_of

EXTRAS = {
    "gcs": "gcsfs", "mcp": "mcp", "postgres": "psycopg_pool", "s3": "s3fs",
    "sentence-transformers": "sentence_transformers", "tokenizers": "tokenizers", "viewer": "jinja2",
}  # fmt: skip
"""The extras for users, each with a module that it brings."""
_RECENT = 20
"""The newest packs, in which faults are looked for."""


def show_findings(url: str, *, as_json: bool) -> int:
    """Prints the findings; the exit code is 1 where one of them is a problem."""
    problems = Counter[str]()
    versions = [f"{name} {version(name)}" for name in ("google-adk", "google-genai")]
    findings: dict[str, JSON] = {
        "versions": [f"aether-context-adk {__version__}", *versions, f"python {platform.python_version()}"],
        "extras": [name for name, module in EXTRAS.items() if find_spec(module)],
        "store": url,
    }
    for find in (_in_policy, _in_store):
        try:
            findings |= find(url, problems)
        except PackNotFound as error:
            problems[f"{one_line(error)}; send a message with the plugin attached, or name another store"] += 1
        except AetherContextError as error:
            problems[one_line(error)] += 1
    sentences = [f"{problem} ({count} times)" if count > 1 else problem for problem, count in problems.most_common()]
    if as_json:
        print_json(findings | {"problems": sentences})
    else:
        cells = (cell if type(cell) is str else ", ".join(cell) or "none is installed" for cell in findings.values())
        print_table(("", ""), zip(findings, cells, strict=True))
        for sentence in sentences:
            say(f"problem: {sentence}", "red")
        if not sentences:
            say("no problem: the store takes writes, and the newest packs did all that was asked", "green")
    return FAILED if problems else 0


def _in_policy(_: str, problems: Counter[str]) -> dict[str, JSON]:
    name = os.environ.get("AETHER_CONTEXT_POLICY") or None
    policy = PackPolicy.load(name)
    embedder_for(policy.retrieval.embedder)
    return {"policy": f"{policy.profile}, {'from AETHER_CONTEXT_POLICY' if name else 'where the app names none'}"}


def _in_store(url: str, problems: Counter[str]) -> dict[str, JSON]:
    store = packs.require(PackStore(url))
    try:
        store.files.try_writing()
    except AetherContextError as error:
        problems[one_line(error)] += 1
    if (spool := spool_of(store.files)) and (waiting := len(spool.paths())):
        problems[f"{waiting:,} writes wait on this machine, since the store did not take them"] += 1
    listed = packs.selected_packs(store)
    findings: dict[str, JSON] = {"packs": f"{len(listed):,}"}
    for place, manifest, outcome in store.calls(dict(list(listed.items())[-_RECENT:]), outcomes=True):
        if isinstance(manifest, AetherContextError):
            problems[f"{name_of(place)} unreadable: {one_line(manifest)}"] += 1
            continue
        problems.update(manifest.degradations)
        if outcome and outcome.get("error_code") is not None:
            problems[f"a call of {manifest.model} failed: {outcome['error_code']}"] += 1
        findings |= {
            "last pack": f"{manifest.pack_id} of {manifest.agent} in {manifest.app}",
            "counter": manifest.counter,
            "embedder": manifest.embedder,
        }
    return findings
