"""Cures: settings under which a recorded session, played again from its first call, keeps a text for one of its
agents. None is named that was not tried."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, TypeAlias

from aether_context.canonical import canonical_json, hash_text
from aether_context.conversation.content_json import content_from_wire
from aether_context.errors import ContextOptimizationError, PolicyError
from aether_context.lab.exam.recordings import RecordedSession, folders, recorded_sessions, stored_texts
from aether_context.lab.reading.packs import request_pieces
from aether_context.lab.tuning.simulation import Simulation, cost_of
from aether_context.pack import FLEXIBLE_LAYERS, Candidate, Content, values_of
from aether_context.store import Manifest
from aether_context.store.replay import Replayer
from aether_context.text.entities import artifact_uris
from aether_context.tokens.model_limits import model_window

WHOLE_RESULTS = ("whole", "keep")
"""The values of ``offload.tools`` that are tried: those under which a tool's results are sent whole."""
Holds: TypeAlias = Callable[[str], bool]
"""Tells of a piece of a request whether it holds a text."""
_WINDOW, _OFFLOAD, _NOTES = "max_input_tokens", "offload.tools.", "knowledge.notes"
_WINDOWS, _NARROWER = (1.25, 1.5, 2.0, 3.0, 4.0), 0.75
"""Multiples of the window that are tried, and of each of these: a wider window has longer extracts and tools that read
them back, which are not in the recording, so that a text has to stay with less room as well."""


class Cures:
    """The settings that are tried for a text which requests of a session do not hold.

    Args:
        session: any call's manifest of it.

    Raises:
        AetherContextError: the session cannot be played.
    """

    def __init__(self, replayer: Replayer, session: Manifest) -> None:
        self._replayer = replayer
        (folder,) = folders([replayer.store], **values_of(session, "app", "user", "session"))
        self._stored, self._recorded = stored_texts(folder), tuple(recorded_sessions(folder, replayer))

    def cheapest(
        self, manifest: Manifest, tools: Sequence[str], most_packs: int, text: str, holds: Holds | None = None
    ) -> str:
        """The cheapest setting that keeps the text in a call's request, with what it costs, or that none does.

        Args:
            tools: those whose results hold it.
            most_packs: most packs that are built; a setting of which the session takes more than are left is not tried.
            holds: tells of a piece of a request whether it holds the text; None where it has to stand there as it is,
                by a setting and not by a note.
        """
        self._text, self._holds = text if holds else "", holds or (lambda sent_text: text in sent_text)
        self._manifest, self._policy, self._packs_left = manifest, self._replayer.policy(manifest), most_packs
        whose = manifest.agent, manifest.branch
        # The agent's own calls come first: where they lose the text, the others need not be played.
        self._sessions = sorted(self._recorded, key=lambda each: (each.agent, each.calls[0].manifest.branch) != whose)
        is_of_all = len({each.calls[-1].policy.digest for each in self._sessions}) == 1
        self._prefix = "" if is_of_all else f"agents.{manifest.agent}."
        calls = [call.manifest for session in self._sessions for call in session.calls]
        costs, trials, untried = dict[str, float](), self._values(tools), 0
        for path, values in trials.items():
            for number, value in enumerate(values):
                if self._packs_left < len(calls) * (2 if path == _WINDOW else 1):
                    untried += len(values) - number
                    break
                cost = self._cost(path, value)
                if cost and (path != _WINDOW or self._cost(path, int(_NARROWER * value))):
                    prefix = "" if path.startswith(_OFFLOAD) else self._prefix
                    name = (
                        f"{prefix}{path} = {json.dumps(value)}"
                        if path != _NOTES
                        else f"these words in {_NOTES}, without expires"
                    )
                    costs[name] = cost
                    break
        rest = f"; {untried} more were not tried: they would take more packs" if untried else ""
        if self._packs_left == most_packs:
            return f"no setting was tried: each takes {len(calls):,} packs{rest}"
        if not costs:
            return f"none of {sum(map(len, trials.values())) - untried} settings that were tried keeps it{rest}"
        cheapest = min(costs, key=lambda name: costs[name])
        more = costs[cheapest] / (sum(map(cost_of, calls)) or 1.0) - 1
        return f"kept with {cheapest}: {more:+.1%} of the session's cost{rest}"

    def _values(self, tools: Sequence[str]) -> Mapping[str, Sequence[Any]]:
        """The values of each setting in the order in which they are tried, up to the first that keeps the text."""
        window, largest, shares = self._manifest.window, model_window(self._manifest.model), self._policy.budget.shares
        return {
            _NOTES: (self._text,) if self._text else (),
            "conversation.last_turns": (5, 8, 12, 20),
            "conversation.compact_to": (0.6, 0.8),
            "conversation.compact_at": (1.0,),
            _WINDOW: sorted({min(largest, round(factor * window)) for factor in _WINDOWS} - {window}),
            **{f"budget.shares.{name}": ({"low": getattr(shares, name).high, "high": 1},) for name in FLEXIBLE_LAYERS},
            **{_OFFLOAD + tool: WHOLE_RESULTS for tool in tools},
        }

    def _cost(self, path: str, value: Any) -> float | None:
        """The session's cost with a setting; None where it does not keep the text, or cannot be set."""
        cost, settings = 0.0, reduce(lambda inner, name: {name: inner}, reversed(path.split(".")), value)
        settings = {} if path == _NOTES else settings
        for number, session in enumerate(self._sessions):
            changes = {} if number and self._prefix and not path.startswith(_OFFLOAD) else settings
            simulation = Simulation(self._altered(session, path, value))
            try:
                for call, pack in simulation.packs(lambda call: call.policy.changed(**changes)):  # noqa: B023
                    is_subject = call.manifest.pack_id == self._manifest.pack_id
                    self._packs_left -= 1
                    if is_subject and not any(self._holds(item.text) for item in request_pieces(pack)):
                        return None
                    cost += cost_of(call.manifest, pack)
            except (PolicyError, ContextOptimizationError):
                return None
        return cost

    def _altered(self, session: RecordedSession, path: str, value: Any) -> RecordedSession:
        """The recording as it would be with a setting that changes more than the policy of its packs."""
        calls = session.calls
        if path == _NOTES:
            fields: dict[str, Any] = {"source": "note", "kind": "app_note", "scores": {"similarity": 0.0}}
            new = (Candidate(id="note", layer="memory", text=value, digest=hash_text(value), **fields),)
            calls = tuple(replace(it, source=it.source._replace(candidates=it.source.candidates + new)) for it in calls)
        elif path.startswith(_OFFLOAD):
            tool, histories = path.removeprefix(_OFFLOAD), {id(call.history): call.history for call in calls}
            whole = {key: [self._whole(content, tool) for content in history] for key, history in histories.items()}
            calls = tuple(replace(call, history=whole[id(call.history)]) for call in calls)
        return replace(session, calls=calls)

    def _whole(self, content: Content, tool: str) -> Content:
        """A content with the whole results of a tool; itself where it shows no extract of one."""
        wire, is_changed = json.loads(content.wire), False
        for at, part in enumerate(content.parts):
            if (part.kind, part.name) == ("response", tool):
                uris = [uri for uri in artifact_uris(part.text) if uri in self._stored]
                if uris:
                    wire["parts"][at]["function_response"]["response"] = {"result": self._stored[uris[0]]}
                    is_changed = True
        return content_from_wire(canonical_json(wire)) if is_changed else content
