"""The demo's last page: what each request held, what was left out and why, and whether the packs replay."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from aether_context.errors import AetherContextError
from aether_context.manifest import Manifest, Row
from aether_context.manifest.schema import Event
from aether_context.pack import LAYERS, Reason
from aether_context.playback import Replayer
from aether_context.store import PackStore

_DEFAULT_STORE = "artifacts"
_MOST_LINES = 12

WHY: Mapping[Reason, str] = {
    "below_floor": "it has too little to do with the request and the step",
    "beyond_k": "as many better ones as may enter were there",
    "duplicate": "the same text is there already",
    "expired": "it had expired",
    "over_allocation": "its layer would have passed its tokens",
    "high_water": "the request had passed the high-water mark",
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


def _title(console: Console, text: str) -> None:
    console.print(Text(text, style="bold"))


def _line(console: Console, text: str) -> None:
    """A line as it is: no markup, no colours, and no line breaks that would tear an id."""
    console.print(Text(text), soft_wrap=True)


def opening(console: Console, *, model: str | None, window: int) -> None:
    """Says what is about to run."""
    who = model or "a script in the model's place, offline"
    _title(console, "A research agent reads this package's source")
    _line(console, f"model: {who} · window: {window:,} tokens · profile: research\n")


def answers(console: Console, said: Sequence[tuple[str, str]]) -> None:
    for question, answer in said:
        console.print(Text.assemble(("user: ", "bold"), question))
        console.print(Text.assemble(("agent: ", "bold"), answer, "\n"))


def table(console: Console, manifests: Sequence[Manifest]) -> None:
    """A row for each pack; ``prefix`` are the tokens in common with the request before, from the start."""
    short = {"system": "sys", "evidence": "evid", "memory": "mem", "conversation": "conv"}
    title = "Packs, one for each model call (tokens)"
    grid = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    used = [layer for layer in LAYERS if layer != "slack"]
    grid.add_column("call", justify="right", no_wrap=True)
    grid.add_column("step", no_wrap=True)
    for name in ("sent", *(short.get(layer, layer) for layer in used), "prefix"):
        grid.add_column(name, justify="right", no_wrap=True)
    grid.add_column("events")
    for number, one in enumerate(manifests, start=1):
        shared = one.prefix.shared_tokens
        grid.add_row(
            str(number),
            one.step_id,
            f"{one.request_tokens:,}",
            *(f"{one.allocation[layer].used:,}" for layer in used),
            "-" if shared is None else f"{shared:,}",
            _happened(one),
        )
    console.print(grid)


def _happened(manifest: Manifest) -> str:
    stages = [event.stage for event in manifest.truncation_events]
    began = manifest.epoch_reason
    return ", ".join([*([began.replace("_", " ")] if began and began != "high_water" else []), *stages])


def left_out(console: Console, manifests: Sequence[Manifest]) -> None:
    """What was cut, shortened or never chosen, and why, in words."""
    acts = [
        f"call {number} ({one.step_id}): {_event(event)}"
        for number, one in enumerate(manifests, start=1)
        for event in one.truncation_events
    ]
    acts += sorted({f"{note} ({one.step_id})" for one in manifests for note in one.degradations})
    tools = {name: reason for one in manifests for name, reason in one.tools.left_out.items()}
    unsent = [*map(_row, _never_sent(manifests)), *(f"tool {name}: {_why(reason)}" for name, reason in tools.items())]
    _title(console, "Left out, and why")
    if not acts and not unsent:
        _line(console, "  nothing: everything fitted")
    for lines in (acts, unsent):
        for line in lines[:_MOST_LINES]:
            _line(console, f"  - {line}")
        if len(lines) > _MOST_LINES:
            _line(console, f"  - and {len(lines) - _MOST_LINES} more")
    _line(console, "")


def _never_sent(manifests: Sequence[Manifest]) -> list[Row]:
    """The latest row of each memory and piece of evidence that no pack held."""
    rows = [row for one in manifests for row in one.rows if row.layer in ("memory", "evidence")]
    sent = {row.id for row in rows if row.state not in ("dropped", "in_tail")}
    return list({row.id: row for row in rows if row.id not in sent}.values())


def _event(event: Event) -> str:
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


def _row(row: Row) -> str:
    known = f" (similarity {row.scores['similarity']:.3f})" if "similarity" in row.scores else ""
    return f"{row.layer} {row.id}{known}: {_why(row.reason or '')}"


def _why(reason: str) -> str:
    words = {str(name): why for name, why in WHY.items()}
    return words.get(reason, reason.replace("_", " "))


def replays(console: Console, store: PackStore, manifests: Sequence[Manifest]) -> bool:
    """Verifies every manifest and builds every request again; False where there is none, or one differs."""
    replayer = Replayer(store)
    wrong = [(one, problem) for one in manifests if (problem := _problem(replayer, one))]
    total = len(manifests)
    _title(console, "Checked")
    _line(console, f"  {total - len(wrong)} of {total} packs verify and replay to their checksum")
    for one, problem in wrong:
        _line(console, f"  - {one.pack_id}: {problem}")
    _line(console, "")
    return bool(manifests) and not wrong


def _problem(replayer: Replayer, manifest: Manifest) -> str:
    """Why a pack does not verify or replay; empty where it does."""
    try:
        manifest.verify()
        return "" if replayer.replay(manifest).matches else "the request differs"
    except AetherContextError as error:
        return str(error)


def next_commands(console: Console, store: PackStore, manifests: Sequence[Manifest]) -> None:
    """Where the packs are, and what to type next."""
    if not manifests:
        return
    shown = next((one for one in manifests if one.truncation_events), manifests[-1])
    place = store.uri(shown).rsplit("/packs/", 1)[0]
    option = "" if store.url == _DEFAULT_STORE else f" --store {shlex.quote(store.url)}"
    _title(console, "Packs")
    _line(console, f"  {place}/packs")
    if store.url.startswith("memory://"):
        _line(console, "  in memory: they are gone when this process ends")
        return
    _title(console, "Next")
    for command in ("list", f"inspect {shown.pack_id}", f"replay {shown.pack_id}", "verify"):
        _line(console, f"  aether-context {command}{option}")
