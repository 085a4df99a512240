"""Which declarations are sent where a step names no tools and all of them are more than fit their share."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from aether_context import payload, retrieval
from aether_context.canonical import canonical_json, hash_text, short
from aether_context.pack import Content, Ingredients, Keep, Tool
from aether_context.policy import PackPolicy
from aether_context.tokens.cache import Tally


def _finder() -> Tool:
    wire = canonical_json(
        {
            "name": "find_tools",
            "description": "Finds more tools: only those that seem to fit the task are declared. "
            "The tools found can be called from your next answer on.",
            "parameters": {
                "type": "OBJECT",
                "properties": {"query": {"type": "STRING", "description": "What the tool should do, in a few words."}},
                "required": ["query"],
            },
        }
    )
    return Tool(name="find_tools", signature="find_tools(query: string)", wire=wire, digest=hash_text(wire))


FIND_TOOLS = _finder()
"""The tool by which a model asks for tools that are not declared; sent wherever there are any."""

_SETTLED: frozenset[Keep | None] = frozenset({"essential", "pinned", "used"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Relevant:
    """The tools that are declared, each with why, by name.

    ``scores`` holds every tool's where the relevant ones were chosen for this pack, and is empty where an earlier
    choice stands; ``encoder`` names what compared their meanings. ``key`` stands for what the choice was made for.
    """

    kept: Mapping[str, Keep]
    key: str
    scores: Mapping[str, float] = field(default_factory=dict)
    encoder: str = ""


def relevant(source: Ingredients, policy: PackPolicy, tally: Tally, *, afresh: bool) -> Relevant | None:
    """The tools of one pack, None where all are declared.

    They are chosen at the first call, and again where the declarations or the step change, where history is rewritten,
    and at a cut. In between only what the model calls or finds is added.

    Args:
        afresh: chooses again, whatever an earlier call chose.
    """
    tools, least = source.request.tools, policy.tools.least
    if not source.can_find or len(tools) <= least:
        return None
    costs = dict(zip((tool.name for tool in tools), tally.tools(tools), strict=True))
    share = int(source.window * policy.budget.floors.tools)
    if sum(costs.values()) <= share:
        return None
    key = _key(source)
    earlier = source.epoch.tools
    renewed = afresh or source.rewritten or source.epoch.marks.get("scope") != key
    standing = {name: why for name, why in earlier.items() if why == "used" or not renewed}
    kept = _kept(tools, policy.tools.always, standing, source.request.contents)
    if not renewed:
        return Relevant(kept=kept, key=key)
    scores, encoder = source.tool_scores, source.tool_encoder
    if not scores:
        scores = retrieval.tool_scores(tools, retrieval.query_for(source), policy.retrieval.redact_before_retrieval)
        encoder = retrieval.tool_encoder()
    room = share - tally.tool(FIND_TOOLS) - sum(costs[name] for name in kept)
    best = _best([tool.name for tool in tools if tool.name not in kept], scores, costs, room, least - len(kept))
    return Relevant(kept=kept | dict.fromkeys(best, "relevant"), key=key, scores=scores, encoder=encoder)


def asks(before: Mapping[str, Keep], contents: Iterable[Content]) -> bool:
    """Whether contents ask for tools: they hold what `FIND_TOOLS` found, or first calls of tools.

    Args:
        before: the tools that were declared, with why.
    """
    return any(
        any(part.name == FIND_TOOLS.name for part in content.responses)
        or any(part.name != FIND_TOOLS.name and before.get(part.name) not in _SETTLED for part in content.calls)
        for content in contents
    )


def _key(source: Ingredients) -> str:
    step = source.step
    named = [tool.digest for tool in source.request.tools]
    return short(hash_text("\n".join([*named, step.task_id, step.step_id, step.text, payload.checklist(step)])))


def _kept(
    tools: Sequence[Tool], pinned: Collection[str], standing: Mapping[str, Keep], contents: Sequence[Content]
) -> dict[str, Keep]:
    """The tools that stay whatever is chosen, in the order of ``tools``."""
    whys: dict[str, Keep] = {**standing}
    whys |= dict.fromkeys((name for content in contents for name in _found(content) if name not in standing), "found")
    whys |= dict.fromkeys((part.name for content in contents for part in content.calls), "used")
    whys |= dict.fromkeys(pinned, "pinned")
    whys |= dict.fromkeys((tool.name for tool in tools if tool.essential), "essential")
    return {tool.name: whys[tool.name] for tool in tools if tool.name in whys}


def _found(content: Content) -> Iterator[str]:
    """The names that a model was told when it asked for tools."""
    for part in content.responses:
        answer = json.loads(part.text) if part.name == FIND_TOOLS.name else None
        found = answer.get("found") if isinstance(answer, dict) else None
        for one in found if isinstance(found, list) else ():
            if isinstance(one, dict) and isinstance(one.get("name"), str):
                yield one["name"]


def _best(
    names: Sequence[str], scores: Mapping[str, float], costs: Mapping[str, int], room: int, least: int
) -> Iterator[str]:
    """The best of the names: at least so many, then those that say anything to the query and find room."""
    places = {name: at for at, name in enumerate(names)}
    for rank, name in enumerate(sorted(places, key=lambda one: (-scores.get(one, 0.0), places[one]))):
        if rank < least or (scores.get(name, 0.0) > 0 and costs[name] <= room):
            room -= costs[name]
            yield name
