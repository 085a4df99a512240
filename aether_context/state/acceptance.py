"""Whether an answer meets its step's checklist, by the URIs that it cites, by checks, and by a critic.

An item that needs evidence is met where the answer cites an ``artifact://`` URI that was in the request and proves it.
A URI that was not in the request is fabricated, and an answer that cites one is not accepted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from aether_context.canonical import JSON
from aether_context.pack import AcceptanceItem
from aether_context.text.entities import SCHEME, artifact_uris

By: TypeAlias = Literal["evidence", "check", "critic", "nothing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The judgement of one judge on one item."""

    passed: bool
    by: By
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result for one item; ``passed`` is None where nothing judged it."""

    item: AcceptanceItem
    passed: bool | None
    by: By
    reason: str = ""

    def to_json(self) -> dict[str, JSON]:
        return {"id": self.item.id, "passed": self.passed, "by": self.by, "reason": self.reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result for an answer: a finding for each item, and the URIs that it cites."""

    findings: tuple[Finding, ...]
    cited: tuple[str, ...] = ()
    fabricated: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether no item failed and no URI is fabricated. Items that nothing judged do not count."""
        return not self.fabricated and all(finding.passed is not False for finding in self.findings)

    @property
    def missing(self) -> tuple[str, ...]:
        """What is missing or wrong, a line each; empty for an answer that passed."""
        failed = (
            f"{finding.item.id}: {finding.item.text} ({finding.reason})"
            for finding in self.findings
            if finding.passed is False
        )
        invented = (f"{uri} was never in the request: cite only what was" for uri in self.fabricated)
        return (*failed, *invented)

    def to_json(self) -> dict[str, JSON]:
        return {
            "passed": self.passed,
            "items": [finding.to_json() for finding in self.findings],
            "cited": list(self.cited),
            "fabricated": list(self.fabricated),
        }


def examine(
    answer: str,
    items: Sequence[AcceptanceItem],
    *,
    shown: Iterable[str],
    covers: Mapping[str, Collection[str]],
    judged: Mapping[str, Sequence[Judgement]],
    invented: Collection[str] = (),
) -> Verdict:
    """Judges an answer item by item.

    Args:
        shown: the texts of the request.
        covers: for each URI the ids of the items that its evidence proves; evidence that names none proves any.
        judged: the judgements of checks and the critic, by item.
        invented: URIs that count as fabricated although the request repeats them.
    """
    # One call for all texts: each call tests every known address for unusual characters.
    request_uris = set(artifact_uris("\n".join(shown), covers)).difference(invented) if SCHEME in answer else set()
    cited = tuple(dict.fromkeys(artifact_uris(answer, request_uris)))
    findings = []
    for item in items:
        judgements = list(judged.get(item.id, ()))
        if item.needs_evidence:
            proven = any(not covers.get(uri) or item.id in covers[uri] for uri in cited if uri in request_uris)
            reason = "" if proven else "cites no artifact:// URI from the request that proves it"
            judgements.insert(0, Judgement(passed=proven, by="evidence", reason=reason))
        if not judgements:
            findings.append(Finding(item=item, passed=None, by="nothing"))
            continue
        worst = next((judgement for judgement in judgements if not judgement.passed), judgements[-1])
        findings.append(Finding(item=item, passed=worst.passed, by=worst.by, reason=worst.reason))
    fabricated = tuple(uri for uri in cited if uri not in request_uris)
    return Verdict(findings=tuple(findings), cited=cited, fabricated=fabricated)
