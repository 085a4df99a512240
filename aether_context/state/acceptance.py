"""Whether an answer meets its step's checklist: what it cites, what checks say of it, and what a critic says.

An item that needs evidence is met where the answer cites an ``artifact://`` URI that stood in the request and proves
it. A URI that never stood in the request is fabricated, and an answer with one is not accepted.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from aether_context.canonical import JSON
from aether_context.pack import AcceptanceItem

By: TypeAlias = Literal["evidence", "check", "critic", "nothing"]

_URI = re.compile(r"artifact://[^\s<>\"'`()\[\]{}|\\#]*[^\s<>\"'`()\[\]{}|\\#.,;:!?*_~]")
_UNPROVEN = "cites no artifact:// URI from the request that proves it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What one judge says of one item."""

    passed: bool
    by: By
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What came of one item; ``passed`` is None where nothing looked at it."""

    item: AcceptanceItem
    passed: bool | None
    by: By
    reason: str = ""

    def to_json(self) -> dict[str, JSON]:
        return {"id": self.item.id, "passed": self.passed, "by": self.by, "reason": self.reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What came of an answer: a finding for each item, and the URIs that it cites."""

    findings: tuple[Finding, ...]
    cited: tuple[str, ...] = ()
    fabricated: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether no item failed and no URI is fabricated. Items that nothing looked at hold no answer back."""
        return not self.fabricated and all(one.passed is not False for one in self.findings)

    @property
    def missing(self) -> tuple[str, ...]:
        """What a repair has to bring, a line each; empty for an answer that passed."""
        failed = (f"{one.item.id}: {one.item.text} ({one.reason})" for one in self.findings if one.passed is False)
        invented = (f"{uri} was never in the request: cite only what was" for uri in self.fabricated)
        return (*failed, *invented)

    def to_json(self) -> dict[str, JSON]:
        return {
            "passed": self.passed,
            "items": [one.to_json() for one in self.findings],
            "cited": list(self.cited),
            "fabricated": list(self.fabricated),
        }


def cited_uris(text: str) -> tuple[str, ...]:
    """The ``artifact://`` URIs in a text, each once, in order, without fragments and the punctuation after them."""
    return tuple(dict.fromkeys(_URI.findall(text)))


def examine(
    answer: str,
    items: Sequence[AcceptanceItem],
    *,
    shown: Iterable[str],
    covers: Mapping[str, Collection[str]],
    judged: Mapping[str, Sequence[Judgement]],
) -> Verdict:
    """Looks at an answer item by item.

    Args:
        shown: the texts of the request.
        covers: for each URI the ids of the items that its evidence proves; evidence that names none proves any.
        judged: what checks and the critic say, by item.
    """
    cited = cited_uris(answer)
    held = {uri for text in shown for uri in cited_uris(text)} if cited else set()
    real = [uri for uri in cited if uri in held]
    return Verdict(
        findings=tuple(_found(item, real, covers, judged.get(item.id, ())) for item in items),
        cited=cited,
        fabricated=tuple(uri for uri in cited if uri not in held),
    )


def _found(
    item: AcceptanceItem, cited: Sequence[str], covers: Mapping[str, Collection[str]], judged: Sequence[Judgement]
) -> Finding:
    said = list(judged)
    if item.needs_evidence:
        proven = any(not covers.get(uri) or item.id in covers[uri] for uri in cited)
        said.insert(0, Judgement(passed=proven, by="evidence", reason="" if proven else _UNPROVEN))
    if not said:
        return Finding(item=item, passed=None, by="nothing")
    worst = next((one for one in said if not one.passed), said[-1])
    return Finding(item=item, passed=worst.passed, by=worst.by, reason=worst.reason)
