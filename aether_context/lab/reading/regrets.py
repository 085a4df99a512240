"""Regrets: what a cut had taken, and a later call fetched, asked again, or a person said again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import pairwise
from typing import Literal, TypeAlias

from aether_context.conversation.epoch import is_live
from aether_context.conversation.turns import TRANSFER
from aether_context.errors import AetherContextError
from aether_context.evidence.record import READERS
from aether_context.lab.exam.recordings import RecordedCall, RecordedSession, folders, recorded_sessions
from aether_context.lab.reading.cures import Cures
from aether_context.pack import OBSERVE
from aether_context.retrieval.terms import query_terms
from aether_context.store import Manifest, PackStore
from aether_context.store.replay import Replayer
from aether_context.text.entities import HISTORY, artifact_uris
from aether_context.text.pairing import pair_results
from aether_context.tokens import counter_for
from aether_context.usage.prices import prices_of

Return: TypeAlias = Literal["fetched", "asked again", "said again"]
"""The way in which it came back: read at its address, by the same tool call, or in a person's message."""
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_LEAST_TERMS, _LEAST_SHARE = 4, 0.8
"""A message says a sentence again where it has so many of its terms, and this share of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """One text that came back after a cut.

    Attributes:
        call: the manifest of the call that the message began, or whose answer fetched or asked.
        text: the text that was cut; empty of a search in all that was.
        tool: the tool whose result it is, empty for a message.
        cut: the number of the call that had cut it.
        lacking: the call whose request should have had it: the same, or that before the message.
        tokens: counted tokens of the message, or of the call with its result.
        cost_usd: their list price as input that is not cached; None where it is unknown.
        cure: the cheapest setting that was tried and keeps it; empty where none was looked for.
    """

    call: Manifest
    kind: Return
    text: str
    tool: str = ""
    cut: int
    lacking: Manifest
    tokens: int
    cost_usd: Decimal | None = None
    cure: str = ""


def regrets(store: PackStore, *, most_packs: int = 0, **selection: str | None) -> Iterator[Regret | str]:
    """The regrets of a store's sessions in the order of their calls; a text says why a session cannot be read.

    Args:
        most_packs: most packs that are built to find the cure of each.
    """
    for folder in folders([store], **selection):
        replayer, cures = Replayer(store), list[Cures]()
        try:
            in_folder = [each for session in recorded_sessions(folder, replayer) for each in _of_session(session)]
            for regret in sorted(in_folder, key=lambda each: each.call.number):
                cures += [Cures(replayer, regret.call)] if most_packs and not cures else []
                tools = [regret.tool] if regret.tool else []
                cured = [cure.cheapest(regret.lacking, tools, most_packs, regret.text) for cure in cures if regret.text]
                yield replace(regret, cure="".join(cured))
        except AetherContextError as error:
            yield f"{folder.name}: {type(error).__name__}: {error}"


def _of_session(session: RecordedSession) -> Iterator[Regret]:
    cut_at = dict[int, int]()
    for previous, call in pairwise((None, *session.calls)):
        assert call is not None
        if call.manifest.arm == OBSERVE:  # it was sent as it came
            continue
        cut = [at for at in range(call.length) if not is_live(call.manifest.epoch, at)]
        # What a rewind or a later cut brought back stands again.
        cut_at = {at: cut_at[at] for at in cut if at in cut_at}
        if previous is not None and call.manifest.first_call and call.request_index is not None:
            yield from _said_again(call, previous.manifest, call.request_index, cut_at)
        cut_at |= {at: call.manifest.number for at in cut if at not in cut_at}
        if cut_at and any(content.calls for content in call.answer):
            yield from _asked_again(call, cut_at)


def _regret(
    call: RecordedCall, lacking: Manifest, kind: Return, text: str, anew: str, *, cut: int, tool: str = ""
) -> Regret:
    """A regret for what came ``anew``, with its tokens and price."""
    manifest = call.manifest
    tokens, prices = counter_for(manifest.model).count(anew), prices_of(manifest.model, manifest.last_event_time)
    usd = prices and prices.cost(input_tokens=tokens)
    return Regret(call=manifest, lacking=lacking, kind=kind, tool=tool, cut=cut, text=text, tokens=tokens, cost_usd=usd)


def _said_again(call: RecordedCall, lacking: Manifest, index: int, cut_at: Mapping[int, int]) -> Iterator[Regret]:
    """The message at a place, where it says one again that was cut, and none that still stands."""
    words = set(query_terms(call.history[index].words))

    def is_said(sentence: str) -> bool:
        wanted_words = set(query_terms(sentence))
        return len(wanted_words & words) >= max(_LEAST_TERMS, _LEAST_SHARE * len(wanted_words))

    people = ((at, item.words) for at, item in enumerate(call.history[:index]) if item.role == "user")
    earlier = [(at, sentence) for at, text in people for sentence in _SENTENCE.split(text) if is_said(sentence)]
    if earlier and all(at in cut_at for at, _ in earlier):
        at, sentence = earlier[-1]
        yield _regret(call, lacking, "said again", sentence, sentence, cut=cut_at[at])


def _asked_again(call: RecordedCall, cut_at: Mapping[int, int]) -> Iterator[Regret]:
    """The tool calls in an answer whose result, or what they read, only contents hold that were cut."""
    pairs = [
        (at, result.part.text, result.call.at, result.call.part)
        for at, results in enumerate(pair_results(call.history[: call.length + 2]))
        for result in results
        if result.call is not None
    ]
    for part in (part for content in call.answer for part in content.calls if part.name != TRANSFER):
        same = [pair for pair in pairs if (pair[3].name, pair[3].text) == (part.name, part.text)]
        anew = "".join([part.name, part.text, *(text for _, text, at, _ in same if at == call.length)])
        kind: Return = "asked again"
        earlier = [(at, text) for at, text, asked_at, _ in same if asked_at < call.length]
        if part.name in READERS and (uris := artifact_uris(part.text)):
            kind, of_history = "fetched", [(max(cut_at), "")] if HISTORY in uris else []
            named = [(at, text) for at, text, _, _ in pairs if at < call.length and any(uri in text for uri in uris)]
            earlier = of_history or named
        if earlier and all(at in cut_at for at, _ in earlier):
            at, text = earlier[-1]
            tool = "" if part.name in READERS else part.name
            yield _regret(call, call.manifest, kind, text, anew, cut=cut_at[at], tool=tool)
