"""`aether-context regrets`: what cuts had taken and calls or people brought back, what that cost, and what keeps it."""

from __future__ import annotations

from decimal import Decimal

from aether_context.canonical import JSON
from aether_context.lab.cli import packs
from aether_context.lab.cli.terminal import NOT_THERE, head, one_line, print_json, say, say_error
from aether_context.lab.reading.regrets import Regret, regrets
from aether_context.store import PackStore
from aether_context.usage import dollars

_MOST_PACKS = 500


def show_regrets(url: str, *, as_json: bool, **selection: str | None) -> int:
    store, listed, problems = PackStore(url), list[Regret](), list[str]()
    packs.selected_packs(store, newest=1, **selection)
    for regret in regrets(store, most_packs=_MOST_PACKS, **selection):
        if isinstance(regret, str):
            problems.append(regret)
            continue
        listed.append(regret)
        if not as_json:
            name = regret.tool and f" of {regret.tool}"
            head(f"call {regret.call.number} of session {regret.call.session}: {regret.kind}{name}")
            say(f"  “{one_line(regret.text, 140) or 'anything of the past'}”")
            say(f"  cut before call {regret.cut}; {regret.tokens:,} tokens anew{_price(regret.cost_usd)}")
            for sentence in filter(None, [regret.cure]):
                say(f"  {sentence}")
    if as_json:
        print_json({"regrets": [_value(regret) for regret in listed], "unusable": list(problems)})
    else:
        tokens, costs = sum(it.tokens for it in listed), [it.cost_usd for it in listed if it.cost_usd is not None]
        price = _price(sum(costs, Decimal()) if costs else None)
        say(f"{len(listed):,} text{'s' * (len(listed) != 1)} came back after a cut: {tokens:,} tokens{price}")
    for problem in problems if not as_json else ():
        say_error(f"left out: {problem}", "red")
    return NOT_THERE if problems else 0


def _price(cost: Decimal | None) -> str:
    return "" if cost is None else f", {dollars(cost)}"


def _value(regret: Regret) -> JSON:
    call = {name: getattr(regret.call, name) for name in ("pack_id", "number", "app", "user", "session", "agent")}
    facts = {name: getattr(regret, name) for name in ("kind", "tool", "text", "cut", "tokens", "cure")}
    return {**call, **facts, "cost_usd": None if regret.cost_usd is None else float(regret.cost_usd)}
