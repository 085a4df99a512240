"""`aether-context demo`: an agent packed in a small window, and what its requests held and left out, and why.

With a script in the model's place the agent runs a second time without the plugin, to compare.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from aether_context.cli.terminal import cell, grid, heading, number, print_line
from aether_context.errors import AetherContextError
from aether_context.pack import LAYERS, CandidateOutcome, TruncationEvent
from aether_context.policy import PackPolicy
from aether_context.store import Manifest, PackStore
from aether_context.store.replay import Replayer
from aether_context.usage.prices import cost_of

if TYPE_CHECKING:
    from aether_context.demo.agent import Reached

_PACKAGE = Path(__file__).parent.parent
_MOST_LINES = 12

WHY: Mapping[str, str] = {
    "below_floor": "it has too little to do with the request and the step",
    "beyond_k": "as many better ones as may enter were there",
    "duplicate": "the same text is there already",
    "expired": "it had expired",
    "over_allocation": "its layer would have passed its tokens",
    "high_water": "the request had passed the high-water mark",
    "byte_net": "the request had too many bytes, and no usage was reported",
    "window": "it would not have fitted the window",
    "compression_off": "the policy allows no shorter form of it",
    "already_in_conversation": "it stands in the conversation anyway",
    "not_in_scope": "the step does not name it",
    "no_message": "there is no human message to put it into",
    "threshold": "the estimate had passed the share of the window that placeholders begin at",
    "turn_budget": "the latest turns alone fill the ceiling for whole turns",
    "middle": "it is neither the beginning nor the end of the conversation",
    "by_hand": "a cut was asked for",
    "strategy": "a registered strategy left it out",
}
"""Each reason for leaving something out, as the end of a sentence."""


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
    heading(console, "A research agent reads this package's source")
    who = model or "a script in the model's place, offline"
    print_line(console, f"model: {who} · window: {window:,} tokens · policy: the profile research")
    console.print()
    plugin = ContextPackPlugin(policy=policy, store=packs)
    run = asyncio.run(research(model=model, plugin=plugin, folder=_PACKAGE))
    manifests = list(packs.manifests(run.app, run.user, run.session))
    for question, answer in run.answers:
        console.print(Text.assemble(("user: ", "bold"), question))
        console.print(Text.assemble(("agent: ", "bold"), answer, "\n"))
    table(console, manifests)
    fit = too_large(console, manifests)
    left_out(console, manifests)
    if model is None:
        plain = asyncio.run(research(model=None, plugin=None, folder=_PACKAGE))
        comparison(console, run.requests, plain.requests, window=window, model=LIKE)
    same = replays(console, packs, manifests)
    next_commands(console, packs, manifests)
    return 0 if same and fit else 1


def table(console: Console, manifests: Sequence[Manifest]) -> None:
    """A row for each pack, and below what the columns mean."""
    short = {"system": "sys", "evidence": "evid", "memory": "mem", "conversation": "conv"}
    used = [layer for layer in LAYERS if layer != "slack"]
    layers = (f">{short.get(layer, layer)}" for layer in used)
    calls = grid(">call", "step", ">sent", *layers, ">prefix", "events")
    for at, manifest in enumerate(manifests, start=1):
        shared = manifest.prefix.shared_tokens
        calls.add_row(
            str(at),
            cell(manifest.step_id),
            number(manifest.request_tokens),
            *(number(manifest.allocation[layer].used) for layer in used),
            "-" if shared is None else number(shared),
            _happened(manifest),
        )
    meanings = grid("", "")
    for name, meaning in _COLUMNS.items():
        meanings.add_row(name, meaning, style="dim")
    heading(console, "What each model call was sent, in tokens")
    for shown in (calls, meanings):
        console.print(shown)
        console.print()


def _happened(manifest: Manifest) -> str:
    stages = [event.stage for event in manifest.truncation_events]
    began = manifest.epoch_reason
    return ", ".join([*([began.replace("_", " ")] if began and began != "high_water" else []), *stages])


def comparison(
    console: Console, packed: Sequence[Reached], plain: Sequence[Reached], *, window: int, model: str
) -> None:
    """What reached the model with the plugin beside what reaches it without."""
    heading(console, "The same run without the plugin")
    compared = grid("", ">with the plugin", ">without")
    runs = (packed, plain)
    rows: dict[str, list[str]] = {
        "model calls": [number(len(run)) for run in runs],
        "input tokens": [number(sum(one.tokens for one in run)) for run in runs],
        "largest request": [number(max((one.tokens for one in run), default=0)) for run in runs],
        "larger than the window": [f"{sum(one.tokens > window for one in run)} calls" for run in runs],
        "same beginning as the call before": [_share(run) for run in runs],
        "cost of the input": [_cost(run, model) for run in runs],
    }
    for name, cells in rows.items():
        compared.add_row(f"  {name}", *cells)
    console.print(compared)
    print_line(
        console, f"  The cost is by the list price of {model}, and as if its cache had served every shared beginning."
    )
    print_line(console, "  A model with this window would have refused the calls that are larger than it.")
    console.print()


def _share(run: Sequence[Reached]) -> str:
    whole = sum(one.tokens for one in run)
    return f"{sum(one.shared for one in run) / whole:.0%}" if whole else "-"


def _cost(run: Sequence[Reached], model: str) -> str:
    costs = [cost_of(model, input_tokens=one.tokens, cached_tokens=one.shared) for one in run]
    known = [cost for cost in costs if cost is not None]
    return f"${sum(known):.4f}" if len(known) == len(costs) else "unknown"


def too_large(console: Console, manifests: Sequence[Manifest]) -> bool:
    """Says which requests are larger than the window, and what they consist of; True where none is."""
    over = [(number, one) for number, one in enumerate(manifests, start=1) if one.request_tokens > one.window]
    if not over:
        return True
    _, largest = max(over, key=lambda pair: pair[1].request_tokens)
    must = " + ".join(
        f"{layer} {largest.allocation[layer].used:,}"
        for layer in ("system", "task", "tools")
        if layer in largest.allocation
    )
    calls = ", ".join(str(number) for number, _ in over)
    heading(console, "Larger than the window")
    print_line(
        console,
        f"  {len(over)} of {len(manifests)} requests were sent although they are larger than the window of "
        f"{largest.window:,} tokens: calls {calls}.",
    )
    print_line(
        console,
        f"  The largest takes {largest.request_tokens:,} tokens. {must} tokens of it are never cut, since without them "
        "the agent has no instruction, no task or no tools.",
    )
    print_line(console, "  A live model of that window would refuse them. Choose a larger --window.")
    console.print()
    return False


def left_out(console: Console, manifests: Sequence[Manifest]) -> None:
    """What was cut, shortened or never chosen, and why, in words."""
    acts = [
        f"call {number} ({one.step_id}): {_event(event)}"
        for number, one in enumerate(manifests, start=1)
        for event in one.truncation_events
    ]
    acts += sorted({f"{note} ({one.step_id})" for one in manifests for note in one.degradations})
    tools = {name: reason for one in manifests for name, reason in one.tools.left_out.items()}
    unsent = [
        *map(_row, _never_sent(manifests)),
        *(f"tool {name}: {_why(reason)}" for name, reason in tools.items()),
    ]
    heading(console, "Left out, and why (similarity is that to the request and the step, from 0 to 1)")
    if not acts and not unsent:
        print_line(console, "  nothing: everything fitted")
    for lines in (acts, unsent):
        for line in lines[:_MOST_LINES]:
            print_line(console, f"  - {line}")
        if len(lines) > _MOST_LINES:
            print_line(console, f"  - and {len(lines) - _MOST_LINES} more")
    console.print()


def _never_sent(manifests: Sequence[Manifest]) -> list[CandidateOutcome]:
    """The latest row of each memory and piece of evidence that no pack held."""
    rows = [row for one in manifests for row in one.rows if row.layer in ("memory", "evidence")]
    sent = {row.id for row in rows if row.state not in ("dropped", "in_tail")}
    return list({row.id: row for row in rows if row.id not in sent}.values())


def _event(event: TruncationEvent) -> str:
    count = len(event.item_ids)
    items = f"{count} item" if count == 1 else f"{count} items"
    acts = {
        "cut": f"a cut took {items} out of the {event.layer}",
        "emergency": f"{items} of the {event.layer} shortened to extracts",
        "drop": f"{items} of {event.layer} dropped",
        "compress": f"{items} of {event.layer} compressed",
    }
    act = acts.get(event.stage, f"{items} of {event.layer} left out")
    return f"{act}, {event.tokens_before:,} to {event.tokens_after:,} tokens: {_why(event.reason)}"


def _row(row: CandidateOutcome) -> str:
    known = f" (similarity {row.scores['similarity']:.3f})" if "similarity" in row.scores else ""
    return f"{row.layer} {row.id}{known}: {_why(row.reason or '')}"


def _why(reason: str) -> str:
    return WHY.get(reason, reason.replace("_", " "))


def replays(console: Console, store: PackStore, manifests: Sequence[Manifest]) -> bool:
    """Verifies every manifest and builds every request again; False where there is none, or one differs."""
    replayer = Replayer(store)
    wrong = [(one, problem) for one in manifests if (problem := _problem(replayer, one))]
    total = len(manifests)
    heading(console, "Checked")
    print_line(console, f"  {total - len(wrong)} of {total} packs verify and replay to their checksum")
    for one, problem in wrong:
        print_line(console, f"  - {one.pack_id}: {problem}")
    console.print()
    return bool(manifests) and not wrong


def _problem(replayer: Replayer, manifest: Manifest) -> str:
    """Why a pack does not verify or replay; empty where it does."""
    try:
        manifest.verify()
        replayer.replay(manifest)
        return ""
    except AetherContextError as error:
        return str(error)


def next_commands(console: Console, store: PackStore, manifests: Sequence[Manifest]) -> None:
    """Where the packs are, and what to type next."""
    if not manifests:
        return
    shown = next((one for one in manifests if one.truncation_events), manifests[-1])
    place = store.uri(shown).rsplit("/packs/", 1)[0]
    heading(console, "Packs")
    print_line(console, f"  {place}/packs")
    if store.url.startswith("memory://"):
        print_line(console, "  in memory: they are gone when this process ends")
        return
    heading(console, "Next")
    for command in ("list", f"inspect {shown.pack_id}", f"replay {shown.pack_id}", "verify"):
        print_line(console, f"  {store.command(command)}")
