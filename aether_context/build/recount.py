"""What the layers of a pack cost by another counter; nothing of the pack is decided anew."""

from __future__ import annotations

from aether_context import payload
from aether_context.pack import Layer, Outgoing, Pack
from aether_context.tokens.cache import Tally

_SECTIONS: tuple[tuple[Layer, tuple[str, ...]], ...] = (
    ("evidence", ("EVIDENCE", "TOP EVIDENCE")),
    ("memory", ("MEMORY",)),
    ("conversation", ("CONVERSATION SUMMARY",)),
)
"""The sections of a payload that belong to another layer than the task."""


def recount(pack: Pack, tally: Tally) -> dict[Layer, int]:
    """Tokens of each layer as it is sent; they sum to those of the whole request."""
    other = pack.source.request.other_tools
    layers: dict[Layer, int] = {
        "system": tally.system(pack.system, declares=bool(pack.tools or other)),
        "task": 0,
        "tools": sum(tally.tools(pack.tools)) + sum(tally.count_all(other)),
        "evidence": 0,
        "memory": 0,
        "conversation": 0,
    }
    counts = tally.contents([one.content for one in pack.contents])
    for one, tokens in zip(pack.contents, counts, strict=True):
        if one.origin != pack.source.request.human:
            layers["conversation"] += tokens
            continue
        for layer, inside in _inside(one, tally).items():
            layers[layer] += inside
            tokens -= inside
        layers["task"] += tokens
    return layers


def _inside(message: Outgoing, tally: Tally) -> dict[Layer, int]:
    """What a packed message holds of other layers."""
    found = payload.sections(message.content.text) if message.outcome == "payload" else {}
    layers = [(layer, "".join(found.get(name, "") for name in names)) for layer, names in _SECTIONS]
    counts = tally.count_all([text for _, text in layers])
    return {layer: tokens for (layer, _), tokens in zip(layers, counts, strict=True)}
