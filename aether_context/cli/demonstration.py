"""`aether-context demo`: runs an agent in a small window, and shows what its requests held, what they left out and
why."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from aether_context.cli.rendering import print_comparison
from aether_context.cli.terminal import FAILED, WRONG_USAGE, head, print_table, say
from aether_context.pack import FIXED_LAYERS, LAYERS
from aether_context.policy import PackPolicy
from aether_context.reading import WHY, Comparison
from aether_context.store import Manifest, PackStore
from aether_context.store.packs import name_of
from aether_context.store.verification import Verifier

_PACKAGE = Path(__file__).parent.parent

_COLUMNS = {
    "sent": "the whole request",
    "sys": "the agent's instruction",
    "task": "the step of the plan, its acceptance list, and the user's request",
    "tools": "the declarations of the tools",
    "evid": "records of proof that the agent made",
    "mem": "notes, and memories of earlier sessions",
    "conv": "messages, tool calls and their results",
    "prefix": "the beginning that it shares with the call before, which a provider's cache serves for less",
    "events": "cut: old parts of the conversation left together. emergency: what was too large by itself became an "
    "extract. first call, step changed: the request was arranged anew",
}
"""What a column of the table holds."""


def run_demo(*, model: str | None, url: str, window: int) -> int:
    """Runs the agent, and prints what its model was sent and what was left out.

    It fails where a pack does not verify, its replay differs, or its request is larger than the window. ``model`` is
    called with ``GOOGLE_API_KEY``; None for the script.
    """
    if model is not None and not os.environ.get("GOOGLE_API_KEY"):
        say(f"{model} needs GOOGLE_API_KEY: set it, or leave the model out to run the demo offline.")
        return WRONG_USAGE
    from aether_context.adk import ContextPackPlugin
    from aether_context.demo import LIKE, research

    store = PackStore(url)
    store.files.try_writing()
    # With offload, extracts would replace its long files and leave nothing to cut.
    policy = PackPolicy.load("research", max_input_tokens=window, offload={"mode": "off"})
    head("A research agent reads this package's source")
    model_name = model or "a script in the model's place, offline"
    say(f"model: {model_name} · window: {window:,} tokens · policy: the profile research, without offload")
    say()
    plugin = ContextPackPlugin(policy=policy, store=store)
    session, answers = asyncio.run(research(model=model, plugin=plugin, root=_PACKAGE))
    manifests = list(store.manifests("demo", "reader", session))
    for question, answer in answers:
        say(f"user: {question}")
        for line in (*f"agent: {answer}".splitlines(), ""):
            say(line)
    _show_calls(manifests)
    _show_left_out(manifests)
    head("The same run without the plugin")
    print_comparison(Comparison(manifests, priced_as=model or LIKE))
    say()
    verifier, places = Verifier(store, replays=True), store.places("demo", "reader", session)
    faults = {place: fault for place in places if (fault := verifier.fault(place))}
    head("Checked")
    say(f"  {len(places) - len(faults)} of {len(places)} packs verify and replay to their checksum")
    for place, fault in faults.items():
        say(f"  - {name_of(place)}: {fault}")
    if any(manifest.over_window for manifest in manifests):
        say(f"  The layers {', '.join(FIXED_LAYERS)} are never cut: choose a larger --window.")
    say()
    if manifests and not store.url.startswith("memory://"):
        shown = next((manifest for manifest in manifests if manifest.truncation_events), manifests[-1])
        head("Next")
        for command in ("list", f"inspect {shown.number}", f"replay {shown.number}", "why settings", "verify"):
            say(f"  {store.command(command)}")
    return 0 if manifests and not faults else FAILED


def _show_calls(manifests: Sequence[Manifest]) -> None:
    """Prints a row for each pack, and below what the columns mean."""
    short = {"system": "sys", "evidence": "evid", "memory": "mem", "conversation": "conv"}
    layers = [layer for layer in LAYERS if layer != "slack"]
    rows = []
    for number, manifest in enumerate(manifests, start=1):
        shared, begun = manifest.prefix.shared_tokens, manifest.epoch_reason
        events = [begun.replace("_", " ")] if begun not in (None, "high_water") else []
        events += [event.stage for event in manifest.truncation_events]
        used = (manifest.allocation[layer].used for layer in layers)
        prefix = "-" if shared is None else shared
        rows.append((number, manifest.step_id, manifest.request_tokens, *used, prefix, ", ".join(events)))
    head("What each model call was sent, in tokens")
    print_table((">call", "step", ">sent", *(f">{short.get(one, one)}" for one in layers), ">prefix", "events"), rows)
    say()
    print_table(("", ""), _COLUMNS.items())
    say()


def _show_left_out(manifests: Sequence[Manifest]) -> None:
    """Prints what was cut, shortened or never chosen, and why."""
    acts = []
    for number, manifest in enumerate(manifests, start=1):
        for event in manifest.truncation_events:
            what = f"{event.stage} of {len(event.item_ids)} in the {event.layer}"
            tokens = f"{event.tokens_before:,} to {event.tokens_after:,} tokens"
            acts.append(f"call {number}: {what}, {tokens}: {WHY[event.reason]}")
    # The latest row of each memory and piece of evidence that no pack held.
    rows = [row for manifest in manifests for row in manifest.rows if row.layer in ("memory", "evidence")]
    sent = {row.id for row in rows if row.form != "left_out"}
    unsent = []
    for row in {row.id: row for row in rows if row.id not in sent}.values():
        similarity = f" (similarity {row.scores['similarity']:.3f})" if "similarity" in row.scores else ""
        unsent.append(f"{row.layer} {row.id}{similarity}: {WHY.get(row.reason or '', '')}")
    tools = {name: reason for manifest in manifests for name, reason in manifest.tools.left_out.items()}
    unsent += [f"tool {name}: {WHY[reason]}" for name, reason in tools.items()]
    head("Left out, and why (similarity is that to the request and the step, from 0 to 1)")
    if not acts and not unsent:
        say("  nothing: everything fitted")
    for lines in (acts, unsent):
        for line in lines[:12]:
            say(f"  - {line}")
        if len(lines) > 12:
            say(f"  - and {len(lines) - 12} more")
    say()
