"""The demo: a research agent reads this package's own source in a window that is too small for it.

Everything is real but the model: ADK's runner, tools that read files, packs in a store. Without a model's name a script
stands in for the model, so that it runs offline and takes the same calls on every machine; the agent then runs a second
time without the plugin, to compare.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from rich.console import Console

from aether_context.demo import report
from aether_context.policy import PackPolicy
from aether_context.store import PackStore

_PACKAGE = Path(__file__).parent.parent


def run_demo(*, model: str | None, store: str, window: int, console: Console) -> int:
    """Runs the agent, and prints what its model got to read and what was left out.

    Args:
        model: a Gemini model to call with ``GOOGLE_API_KEY``; None for the script.
        store: where the packs go, any fsspec URL.
        window: tokens that cap the model's window.

    Returns:
        0; 1 where a pack does not verify, its replay differs or its request is larger than the window; 2 where a live
        model lacks its key.

    Raises:
        StoreError: packs cannot be written there.
    """
    if model is not None and not os.environ.get("GOOGLE_API_KEY"):
        console.print(f"{model} needs GOOGLE_API_KEY: set it, or leave the model out to run the demo offline.")
        return 2
    from aether_context.adk import ContextPackPlugin
    from aether_context.demo.agent import LIKE, research

    packs = PackStore(store)
    packs.files.try_writing()
    policy = PackPolicy.load("research", max_input_tokens=window)
    report.opening(console, model=model, window=window)
    plugin = ContextPackPlugin(policy=policy, store=packs)
    run = asyncio.run(research(model=model, plugin=plugin, folder=_PACKAGE))
    manifests = list(packs.manifests(run.app, run.user, run.session))
    report.answers(console, run.answers)
    report.table(console, manifests)
    fit = report.too_large(console, manifests)
    report.left_out(console, manifests)
    if model is None:
        plain = asyncio.run(research(model=None, plugin=None, folder=_PACKAGE))
        report.comparison(console, run.requests, plain.requests, window=window, model=LIKE)
    same = report.replays(console, packs, manifests)
    report.next_commands(console, packs, manifests)
    return 0 if same and fit else 1
