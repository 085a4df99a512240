"""`aether-context demo`: runs an agent in a small window, and shows what its requests held, what they left out and
why."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from aether_context.lab.cli.rendering import print_comparison
from aether_context.lab.cli.terminal import FAILED, WRONG_USAGE, head, print_table, say, say_error
from aether_context.lab.reading import Comparison
from aether_context.pack import FIXED_LAYERS, LAYERS
from aether_context.policy import PackPolicy
from aether_context.store import Manifest, PackStore
from aether_context.store.packs import name_of
from aether_context.store.verification import Verifier

_PACKAGE = Path(__file__).parent.parent.parent

_LEGEND = (
    "prefix: the beginning shared with the call before, which a provider's cache serves for less · cut: old parts left",
    "together · emergency: one too large part became an extract · first call, step changed: arranged anew",
)
"""The meaning of the table's columns."""
_COMMANDS = {
    "inspect {0}": "what it was sent, what was left out and why",
    "replay {0}": "the request again, checked against its checksum",
    "why settings": "why the model saw a word, or did not",
    "verify": "whether the store is intact",
}
"""Commands to go on with, the number of a call in place of the braces."""
_KEYS = {("gpt", "openai"): "OPENAI_API_KEY", ("claude", "anthropic"): "ANTHROPIC_API_KEY"}
"""The variable that holds a provider's key, by the beginnings of its models' names; Gemini's for all others."""


def run_demo(*, model: str | None, url: str, window: int) -> int:
    """Runs the agent, and prints what its model was sent beside what the run takes without the plugin.

    It fails where a pack does not verify, its replay differs, or its request is larger than the window. ``model`` is
    called with its provider's key from the environment; None for the script.
    """
    key = next((key for starts, key in _KEYS.items() if (model or "").startswith(starts)), "GOOGLE_API_KEY")
    if model is not None and not os.environ.get(key):
        say(f"{model} needs {key}: set it, or leave the model out to run the demo offline.")
        return WRONG_USAGE
    from aether_context.adk import ContextPackPlugin
    from aether_context.lab.demo import research

    store = PackStore(url)
    store.files.try_writing()
    # With offload, extracts would replace its long files and leave nothing to cut.
    policy = PackPolicy.load("research", max_input_tokens=window, offload={"mode": "off"})
    model_name = model or "a script in the model's place, offline"
    head(f"A research agent reads this package's source (model: {model_name})")
    if sys.stderr.isatty():
        say_error("about 29 calls …")
    plugin = ContextPackPlugin(policy=policy, store=store)
    session, _ = asyncio.run(research(model=model, plugin=plugin, root=_PACKAGE))
    manifests = list(store.manifests("demo", "reader", session))
    ends = store.outcomes(manifests)
    compared = Comparison((manifest, manifest.usage(ends.of(manifest))) for manifest in manifests)
    verifier, paths = Verifier(store, replays=True), store.places("demo", "reader", session)
    faults = {path: fault for path in paths if (fault := verifier.fault(path))}
    head(compared.headline(window))
    _show_calls(manifests)
    print_comparison(compared, in_short=True)
    say()
    say(f"{len(paths) - len(faults)} of {len(paths)} packs verify and replay to their checksum")
    for path, fault in faults.items():
        say(f"  - {name_of(path)}: {fault}")
    if any(manifest.over_window for manifest in manifests):
        say(f"  The layers {', '.join(FIXED_LAYERS)} are never cut: choose a larger --window.")
    if manifests and not store.url.startswith("memory://"):
        example = next((manifest for manifest in manifests if manifest.truncation_events), manifests[-1])
        commands = {store.command(text.format(example.number)): meaning for text, meaning in _COMMANDS.items()}
        for command, meaning in commands.items():  # no table, which cuts long cells
            say(f"  {command.ljust(max(map(len, commands)))}  {meaning}")
    return 0 if manifests and not faults else FAILED


def _show_calls(manifests: Sequence[Manifest]) -> None:
    """Prints a row for each pack, and below what the columns mean."""
    short = {"system": "sys", "evidence": "evid", "memory": "mem", "conversation": "conv"}
    layers = [layer for layer in LAYERS if layer != "slack"]
    rows = []
    for number, manifest in enumerate(manifests, start=1):
        shared, reason = manifest.prefix.shared_tokens, manifest.epoch_reason
        events = [reason.replace("_", " ")] if reason not in (None, "high_water") else []
        events += dict.fromkeys(event.stage for event in manifest.truncation_events)
        used = (manifest.allocation[layer].used for layer in layers)
        prefix = "-" if shared is None else shared
        rows.append((number, manifest.step_id, manifest.request_tokens, *used, prefix, ", ".join(events)))
    names = (f">{short.get(layer, layer)}" for layer in layers)
    print_table((">call", "step", ">sent", *names, ">prefix", "events"), rows)
    for line in _LEGEND:
        say(line)
    say()
