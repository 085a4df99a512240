"""`aether-context demo`: runs an agent in a small window, and shows what its requests held, what they left out and
why."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from aether_context.cli.packs import pack_name
from aether_context.cli.rendering import print_comparison
from aether_context.cli.terminal import FAILED, WRONG_USAGE, Screen, cell, grid
from aether_context.pack import FIXED_LAYERS, LAYERS
from aether_context.policy import PackPolicy
from aether_context.store import Manifest, PackStore
from aether_context.store.verification import Verifier
from aether_context.views import WHY, Comparison

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

    It fails where a pack does not verify, its replay differs, or its request is larger than the window.

    Args:
        model: a Gemini model to call with ``GOOGLE_API_KEY``; None for the script.
        window: tokens that cap the model's window.
    """
    out = Screen()
    if model is not None and not os.environ.get("GOOGLE_API_KEY"):
        out.print(f"{model} needs GOOGLE_API_KEY: set it, or leave the model out to run the demo offline.")
        return WRONG_USAGE
    from aether_context.adk import ContextPackPlugin
    from aether_context.demo import LIKE, research

    store = PackStore(url)
    store.files.try_writing()
    # With offload, extracts would replace its long files and leave nothing to cut.
    policy = PackPolicy.load("research", max_input_tokens=window, offload={"mode": "off"})
    out.print_heading("A research agent reads this package's source")
    model_name = model or "a script in the model's place, offline"
    out.print_line(f"model: {model_name} · window: {window:,} tokens · policy: the profile research, without offload")
    out.print()
    plugin = ContextPackPlugin(policy=policy, store=store)
    run = asyncio.run(research(model=model, plugin=plugin, root=_PACKAGE))
    manifests = list(store.manifests(run.app, run.user, run.session))
    for question, answer in run.answers:
        out.print(Text.assemble(("user: ", "bold"), question))
        out.print(Text.assemble(("agent: ", "bold"), answer, "\n"))
    _show_calls(out, manifests)
    fits = _show_too_large(out, manifests)
    _show_left_out(out, manifests)
    out.print_heading("The same run without the plugin")
    print_comparison(Comparison(manifests, priced_as=model or LIKE))
    out.print()
    verifier, places = Verifier(store, replays=True), store.places(run.app, run.user, run.session)
    faults = {place: fault for place in places if (fault := verifier.fault(place))}
    out.print_heading("Checked")
    out.print_line(f"  {len(places) - len(faults)} of {len(places)} packs verify and replay to their checksum")
    for place, fault in faults.items():
        out.print_line(f"  - {pack_name(place)}: {fault}")
    out.print()
    if manifests:
        shown = next((manifest for manifest in manifests if manifest.truncation_events), manifests[-1])
        out.print_heading("Packs")
        out.print_line(f"  {store.uri(shown).rsplit('/packs/', 1)[0]}/packs")
        if store.url.startswith("memory://"):
            out.print_line("  in memory: they are gone when this process ends")
        else:
            out.print_heading("Next")
            for command in ("list", f"inspect {shown.pack_id}", f"replay {shown.pack_id}", "verify"):
                out.print_line(f"  {store.command(command)}")
    return 0 if manifests and fits and not faults else FAILED


def _show_calls(out: Screen, manifests: Sequence[Manifest]) -> None:
    """Prints a row for each pack, and below what the columns mean."""
    short = {"system": "sys", "evidence": "evid", "memory": "mem", "conversation": "conv"}
    layers = [layer for layer in LAYERS if layer != "slack"]
    calls = grid(">call", "step", ">sent", *(f">{short.get(layer, layer)}" for layer in layers), ">prefix", "events")
    for number, manifest in enumerate(manifests, start=1):
        shared = manifest.prefix.shared_tokens
        epoch_reason = manifest.epoch_reason if manifest.epoch_reason != "high_water" else None
        events = [epoch_reason.replace("_", " ")] if epoch_reason else []
        calls.add_row(
            str(number),
            cell(manifest.step_id),
            f"{manifest.request_tokens:,}",
            *(f"{manifest.allocation[layer].used:,}" for layer in layers),
            "-" if shared is None else f"{shared:,}",
            ", ".join([*events, *(event.stage for event in manifest.truncation_events)]),
        )
    meanings = grid("", "")
    for name, meaning in _COLUMNS.items():
        meanings.add_row(name, meaning, style="dim")
    out.print_heading("What each model call was sent, in tokens")
    for table in (calls, meanings):
        out.print(table)
        out.print()


def _show_too_large(out: Screen, manifests: Sequence[Manifest]) -> bool:
    """Says which requests are larger than the window, and what they consist of; True where none is."""
    over = {
        number: manifest for number, manifest in enumerate(manifests, 1) if manifest.request_tokens > manifest.window
    }
    if not over:
        return True
    largest = max(over.values(), key=lambda manifest: manifest.request_tokens)
    must = " + ".join(f"{layer} {largest.allocation[layer].used:,}" for layer in FIXED_LAYERS)
    out.print_heading("Larger than the window")
    for line in (
        f"{len(over)} of {len(manifests)} requests were sent although they are larger than the window of "
        f"{largest.window:,} tokens: calls {', '.join(map(str, over))}.",
        f"The largest takes {largest.request_tokens:,} tokens. {must} tokens of it are never cut, since without them "
        "the agent has no instruction, no task or no tools.",
        "A live model of that window would refuse them. Choose a larger --window.",
    ):
        out.print_line(f"  {line}")
    out.print()
    return False


def _show_left_out(out: Screen, manifests: Sequence[Manifest]) -> None:
    """Prints what was cut, shortened or never chosen, and why."""
    acts = []
    for number, manifest in enumerate(manifests, start=1):
        for event in manifest.truncation_events:
            items = f"{len(event.item_ids)} item" + ("s" if len(event.item_ids) != 1 else "")
            action = {
                "cut": f"a cut took {items} out of the {event.layer}",
                "emergency": f"{items} of the {event.layer} shortened to extracts",
                "drop": f"{items} of {event.layer} dropped",
                "compress": f"{items} of {event.layer} compressed",
            }.get(event.stage, f"{items} of {event.layer} left out")
            tokens = f"{event.tokens_before:,} to {event.tokens_after:,} tokens"
            acts.append(f"call {number} ({manifest.step_id}): {action}, {tokens}: {WHY[event.reason]}")
    acts += sorted({f"{note} ({manifest.step_id})" for manifest in manifests for note in manifest.degradations})
    # The latest row of each memory and piece of evidence that no pack held.
    rows = [row for manifest in manifests for row in manifest.rows if row.layer in ("memory", "evidence")]
    sent = {row.id for row in rows if row.state not in ("dropped", "in_tail")}
    unsent = []
    for row in {row.id: row for row in rows if row.id not in sent}.values():
        similarity = f" (similarity {row.scores['similarity']:.3f})" if "similarity" in row.scores else ""
        unsent.append(f"{row.layer} {row.id}{similarity}: {WHY.get(row.reason or '', '')}")
    tools = {name: reason for manifest in manifests for name, reason in manifest.tools.left_out.items()}
    unsent += [f"tool {name}: {WHY[reason]}" for name, reason in tools.items()]
    out.print_heading("Left out, and why (similarity is that to the request and the step, from 0 to 1)")
    if not acts and not unsent:
        out.print_line("  nothing: everything fitted")
    for lines in (acts, unsent):
        for line in lines[:12]:
            out.print_line(f"  - {line}")
        if len(lines) > 12:
            out.print_line(f"  - and {len(lines) - 12} more")
    out.print()
