"""The share of each tool in what calls were sent: its declarations and its results."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from decimal import Decimal

from aether_context.canonical import short
from aether_context.lab.reading.difference import UNSENT
from aether_context.pack import OBSERVE
from aether_context.store import Manifest
from aether_context.store.recording import is_content
from aether_context.store.replay import Replayer
from aether_context.usage import CallUsage, dollars


@dataclass(slots=True)
class ToolUse:
    """The input tokens that a tool came to over all calls, by where they stand, as providers counted them.

    ``cost_usd`` is their share of the calls' input price, cached input at its own; ``calls`` declared the tool or had a
    result of it.
    """

    calls: int = 0
    declared: int = 0
    results: int = 0
    cost_usd: Decimal = Decimal(0)


@dataclass(slots=True)
class ToolUses:
    """The tools of calls by name; ``unread`` counts calls whose texts are not recorded, or that sent no pack."""

    by_name: defaultdict[str, ToolUse] = field(default_factory=lambda: defaultdict(ToolUse))
    unread: int = 0

    def add(self, replayer: Replayer, manifest: Manifest, call: CallUsage | None) -> None:
        """Adds an answered call; errors as for `Replayer.resolve`."""
        if call is None:
            return
        if not manifest.texts or manifest.arm == OBSERVE:
            self.unread += 1
            return
        per_token = call.input_tokens / max(1, manifest.counted_tokens)
        input_cost = replace(call, output_tokens=0).priced(manifest.model, manifest.last_event_time).cost_usd
        declared, results = _declared(replayer, manifest), _results(replayer, manifest)
        for name in declared.keys() | results.keys():
            use = self.by_name[name]
            use.calls += 1
            use.declared += (in_declaration := round(declared[name] * per_token))
            use.results += (in_results := round(results[name] * per_token))
            if input_cost is not None:
                use.cost_usd += input_cost * (in_declaration + in_results) / max(1, call.input_tokens)

    @property
    def rows(self) -> list[tuple[str, int, int, int, str]]:
        """The tools, those of the most tokens first: calls, tokens of declarations and of results, and price."""
        uses = sorted(self.by_name.items(), key=lambda item: (-item[1].declared - item[1].results, item[0]))
        return [(name, use.calls, use.declared, use.results, dollars(use.cost_usd)) for name, use in uses]


def _declared(replayer: Replayer, manifest: Manifest) -> Counter[str]:
    """The counted tokens of the declarations of a call, by tool."""
    counts, names = replayer.resolve(manifest).counts, {*manifest.tools.sent}
    tools = [tool for tool in replayer.setting(manifest).tools if tool.name in names]
    return Counter({tool.name: counts.get(short(tool.digest, 16), 0) for tool in tools})


def _results(replayer: Replayer, manifest: Manifest) -> Counter[str]:
    """The counted tokens of the results that a call was sent, by tool; a content of several is shared by length."""
    tokens = Counter[str]()
    for row in replayer.resolve(manifest).rows.values():
        if is_content(row) and row.form not in UNSENT and (content := replayer.content(manifest, row.hash)).responses:
            sent_tokens = row.tokens if row.sent_tokens is None else row.sent_tokens
            for part in content.responses:
                whole = sum(len(each.text) for each in content.parts)
                tokens[part.name] += round(sent_tokens * len(part.text) / max(1, whole))
    return tokens
