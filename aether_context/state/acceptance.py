"""Acceptance: whether an answer meets its step's checklist, by the URIs that it cites, by checks, and by a critic.

An item that needs evidence is met where the answer cites an ``artifact://`` URI that was in the request and proves it.
A URI that was not in the request is fabricated, and an answer that cites one is not accepted.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from aether_context.canonical import JSON
from aether_context.pack import NOTHING, AcceptanceItem, Candidate
from aether_context.text.entities import SCHEME, artifact_uris

By: TypeAlias = Literal["evidence", "check", "critic", "nothing"]


class Judgement(NamedTuple):
    """The judgement of one judge on one item; ``passed`` is None where nothing judged it."""

    passed: bool | None
    by: By
    reason: str = ""


def covers_of(evidence: Iterable[Candidate]) -> dict[str, frozenset[str]]:
    """The acceptance items that evidence which somebody recorded proves, by its address; none where it names none."""
    covers: dict[str, frozenset[str]] = {}
    for record in evidence:
        if record.uri and record.kind:  # a stored result proves what an answer or a record says of it
            covers[record.uri] = covers.get(record.uri, frozenset()).union(record.covers)
    return covers


def proven_items(addresses: Iterable[str], covers: Mapping[str, Collection[str]]) -> frozenset[str]:
    """The acceptance items that the evidence at these addresses proves."""
    return frozenset(item for uri in addresses for item in covers.get(uri, ()))


class AcceptanceVerdict(NamedTuple):
    """The result for an answer: a judgement for each item, and the URIs that it cites.

    ``problems`` say what went wrong on the way to it, and ``critic`` what the critic cost.
    """

    items: tuple[tuple[AcceptanceItem, Judgement], ...]
    cited: tuple[str, ...] = ()
    fabricated: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    critic: Mapping[str, int] = NOTHING

    @property
    def passed(self) -> bool:
        """Tells whether no item failed and no URI is fabricated. Items that nothing judged do not count."""
        return not self.fabricated and all(judgement.passed is not False for _, judgement in self.items)

    @property
    def missing(self) -> tuple[str, ...]:
        """The missing or wrong items, a line each; empty for an answer that passed."""
        unmet = [(item, judgement.reason) for item, judgement in self.items if judgement.passed is False]
        failed = (f"{item.id}: {item.text} ({reason})" for item, reason in unmet)
        invented = (f"{uri} was never in the request: cite only what was" for uri in self.fabricated)
        return (*failed, *invented)

    def to_json(self) -> dict[str, JSON]:
        more: dict[str, JSON] = {"problems": list(self.problems), "critic": dict(self.critic)}
        return {
            "passed": self.passed,
            "items": [{"id": item.id, **judgement._asdict()} for item, judgement in self.items],
            "cited": list(self.cited),
            "fabricated": list(self.fabricated),
            **{name: value for name, value in more.items() if value},
        }


def examine(
    answer: str,
    items: Sequence[AcceptanceItem],
    *,
    shown: Iterable[str],
    covers: Mapping[str, Collection[str]],
    judged: Mapping[str, Sequence[Judgement]],
    invented: Collection[str] = (),
) -> AcceptanceVerdict:
    """Judges an answer item by item.

    Args:
        shown: the texts of the request.
        covers: for each URI of recorded evidence the ids of the items that it proves, see `covers_of`. Of a result that
            nobody recorded the answer says what it proves.
        judged: the judgements of checks and the critic, by item.
        invented: URIs that count as fabricated although the request repeats them.
    """
    # One call for all texts: each call tests every known address for unusual characters.
    request_uris = set(artifact_uris("\n".join(shown), covers)).difference(invented) if SCHEME in answer else set()
    cited = tuple(dict.fromkeys(artifact_uris(answer, request_uris)))
    sources = [uri for uri in cited if uri in request_uris]
    sources += [uri for uri in covers if re.search(rf"{re.escape(uri)}(?![\w/-])", answer)]
    proven = proven_items(sources, {uri: covers.get(uri, [item.id for item in items]) for uri in sources})
    judged_items: list[tuple[AcceptanceItem, Judgement]] = []
    for item in items:
        judgements = list(judged.get(item.id, ()))
        if item.needs_evidence:
            reason = "" if item.id in proven else "cites no artifact:// URI from the request that proves it"
            judgements.insert(0, Judgement(item.id in proven, "evidence", reason))
        last = judgements[-1] if judgements else Judgement(None, "nothing")
        judged_items.append((item, next((judgement for judgement in judgements if not judgement.passed), last)))
    fabricated = tuple(uri for uri in cited if uri not in request_uris)
    return AcceptanceVerdict(tuple(judged_items), cited, fabricated)
