"""The usage that providers report: ledgers of sessions, compared with limits, and what the next estimate learns."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.events.event import Event
from google.adk.models.llm_response import LlmResponse
from google.adk.sessions.state import State
from google.genai import types
from pydantic import ConfigDict, TypeAdapter

from aether_context.adk.bounds import in_thread, within
from aether_context.adk.call import ModelCall, SessionKey, caller_of
from aether_context.adk.request.sessions import AgentSession, OpenCall, Session, Sessions
from aether_context.canonical import JSON, canonical_json, hash_text, plain, short
from aether_context.errors import BudgetExceededError
from aether_context.pack import METADATA, Calibration, Identity, Pack, PackInput, noted, valid
from aether_context.packing.inputs import request_bytes
from aether_context.policy import LimitSettings
from aether_context.store import PackStore
from aether_context.tokens import counter_for
from aether_context.tokens.counters import SharedLRU
from aether_context.tokens.model_limits import bare_model_name
from aether_context.usage import CallUsage, LedgerReport, NearLimit, TokenLedger
from aether_context.usage.calibration import RATIO, Reports, TokenRatio, calibration, learn_report

# The ledgers of the sessions that a plugin serves: read off ADK's responses and events, held against the limits.
#
# This process books each answer as it comes. Each model event carries the totals up to it in its ``custom_metadata``,
# and a session goes on from those. Neither limits nor counts are read from session state, where tools and models can
# write.
#
# An agent that runs as a tool has a session of its own. What it uses is booked there, and in the session and the
# invocation that called it.

logger = logging.getLogger("aether_context")


class Reported(NamedTuple):
    """A provider's report of one call; None is unknown.

    Attributes:
        input_tokens: the prompt, cached tokens included; a provider that says 0 or less did not say.
        tool_use_tokens: results of tools that the provider ran itself, on top of the prompt.
        output_tokens: the answer, thoughts included.
    """

    input_tokens: int | None = None
    tool_use_tokens: int = 0
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    output_tokens: int | None = None


def reported(usage: types.GenerateContentResponseUsageMetadata | None, model: str | None = None) -> Reported:
    """The usage in a response or an event of a model.

    Some providers count thoughts inside the answer and some beside it, so the output is what the total has over the
    input, where there is a total that fits. Gemini leaves the cached tokens out where there are none: they are 0 then;
    of other models nothing is known then.
    """
    if usage is None or not usage.prompt_token_count or usage.prompt_token_count < 0:
        return Reported()
    prompt, used = usage.prompt_token_count, max(0, usage.tool_use_prompt_token_count or 0)
    answer, thoughts = usage.candidates_token_count, usage.thoughts_token_count
    cached, written = usage.cached_content_token_count, getattr(usage, "cache_creation_input_tokens", None)
    has_output = answer is not None or thoughts is not None
    output = max(0, answer or 0) + max(0, thoughts or 0) if has_output else None
    if usage.total_token_count and usage.total_token_count - prompt - used >= (answer or 0):
        output = usage.total_token_count - prompt - used
    if cached is None and bare_model_name(model or "").startswith("gemini"):
        cached = 0
    return Reported(
        input_tokens=prompt,
        tool_use_tokens=used,
        cached_tokens=None if cached is None else max(0, cached),
        cache_write_tokens=None if written is None else max(0, written),
        output_tokens=output,
    )


class _Account(NamedTuple):
    """A ledger that a call is booked in, and where: under which invocation, agent and branch."""

    key: SessionKey
    ledger: TokenLedger
    limits: LimitSettings
    where: dict[str, str]


class Ledgers:
    """Books usage in the ledgers of sessions. Safe to share between threads. ``limits`` hold for every session that has
    none of its own."""

    def __init__(self, limits: LimitSettings, sessions: Sessions) -> None:
        self.limits = limits
        self._own: dict[SessionKey, LimitSettings] = {}
        self._sessions = sessions
        self._logged: set[object] = set()
        self._lock = threading.Lock()

    def set_limits(self, limits: LimitSettings | None, key: SessionKey) -> None:
        """Gives a session limits of its own; None takes them away again."""
        if limits is None:
            self._own.pop(key, None)
        else:
            self._own[key] = limits

    def enter(self, call: ModelCall, session: Session) -> NearLimit | None:
        """Takes in what the session's history tells, and says how near it is to a limit under ``degrade``."""
        if call.invocation.live_request_queue is not None:
            return None
        agent, events = call.context.agent_name, call.context.session.events
        with self._lock:
            session.caller = call.caller
            _resume(session, events)
            near_limits = [
                account.ledger.near_limit(account.limits, invocation=account.where["invocation"], agent=agent)
                for account in self._accounts(session, call.invocation.invocation_id, "", agent)
                if account.limits.on_budget == "degrade" and account.limits.measures
            ]
        return max(filter(None, near_limits), key=lambda near: near.level, default=None)

    def admit(self, call: ModelCall, pack: Pack, agent_session: AgentSession) -> LlmResponse | None:
        """Lets a call begin, or gives the answer in the model's place.

        Raises:
            BudgetExceededError: the call would pass a limit, and ``on_budget`` is ``raise``.
        """
        if call.invocation.live_request_queue is not None:
            return None
        (branch, agent), model, session = agent_session.key[3:], call.request.model or "", agent_session.owner
        with self._lock:
            begun = _begun(call, pack)
            accounts = list(self._accounts(session, begun.invocation, branch, agent))
            planned = None
            if limited := [account for account in accounts if account.limits.measures]:
                config = call.request.config
                output_limit = (config.max_output_tokens or None) if config is not None else None
                planned = session.ledger.estimate(pack.tokens.expected, output_limit=output_limit)
                planned = planned.priced(model, pack.identity.last_event_time)
                if planned.cost_usd is None and any("cost" in account.limits.measures for account in limited):
                    self._log_once(model, f"no price is known for {model!r}: limits on costs do not see its calls")
                for account in limited:
                    error = account.ledger.check(planned, account.limits, **account.where)
                    if error is None:
                        continue
                    if account.limits.on_budget == "raise":
                        raise error
                    if account.limits.on_budget == "stop":
                        return _stopped(call, error)
                    begun = begun._replace(passed=begun.passed or error)
                    limit = (account.key, error.scope, error.name, error.measure, error.limit)
                    self._log_once(limit, f"session {account.key[2]!r}: {error}")
            agent_session.begun = begun
            for account in accounts:
                account.ledger.begin(planned, **account.where)
            session.size = session.ledger.size
        return None

    def track(
        self, context: CallbackContext, response: LlmResponse, usage: Reported, agent_session: AgentSession
    ) -> dict[str, JSON]:
        """Books an answer and the usage that it reports; returns what its event should say: totals, and a limit that
        was passed. An answer without usage and without content is a failed call: it is not booked."""
        session, (branch, agent), invocation = agent_session.owner, agent_session.key[3:], context.invocation_id
        with self._lock:
            if not session.last_event:  # it was forgotten while the model answered
                session.caller = caller_of(session.key)
                _resume(session, context.session.events)
            begun = agent_session.begun
            if begun is None or begun.invocation != invocation:
                if context.get_invocation_context().live_request_queue is not None:
                    return {}
                events = context.session.events
                time, nothing = events[-1].timestamp if events else 0.0, CallUsage(input_tokens=0, output_tokens=0)
                begun = OpenCall(invocation, response.model_version or "", time, nothing)
            accounts = list(self._accounts(session, invocation, branch, agent))
            earlier_usage = session.ledger.counted(**accounts[0].where)
            call = _call_usage(response, usage, begun, earlier_usage)
            for account in accounts:
                if call is None:
                    account.ledger.fail(**account.where)
                elif call is not earlier_usage:
                    account.ledger.track(call, **account.where)
            if call is None:
                return {}
            session.standing = session.ledger.standing(invocation=invocation, agent=agent)
            metadata: dict[str, JSON] = {"usage": session.standing}
        return metadata if begun.passed is None else metadata | {"budget": _recorded(begun.passed)}

    def report(self, key: SessionKey) -> LedgerReport | None:
        """All accounts of a session, None where no call of it was seen, or its ledger is forgotten."""
        with self._lock:
            session = self._sessions.get(key)
            return session.ledger.report(self._own.get(key, self.limits)) if session and session.last_event else None

    def _accounts(self, session: Session | None, invocation: str, branch: str, agent: str) -> Iterator[_Account]:
        """The session's own ledger, then that of the session which called it, and so on."""
        seen_sessions = set[SessionKey]()
        while session is not None and (key := session.key) not in seen_sessions:
            seen_sessions.add(key)
            where = {"invocation": invocation, "agent": agent, "branch": branch}
            yield _Account(key, session.ledger, self._own.get(key, self.limits), where)
            if session.caller is None:
                return
            branch, invocation = "\0".join([*key, branch]), session.caller.invocation
            session = self._sessions.get(session.caller.session)

    def _log_once(self, about: object, text: str) -> None:
        if about not in self._logged and len(self._logged) < 1_000:
            self._logged.add(about)
            logger.warning("%s", text)


def _begun(call: ModelCall, pack: Pack) -> OpenCall:
    expected = CallUsage(
        input_tokens=pack.tokens.expected,
        output_tokens=0,
        # Where the request is left alone, the estimate can be of the current turn only.
        estimate=pack.tokens.expected if not pack.source.host.passthrough_reason else None,
        system_tokens=pack.allocation.layers["system"].used,
        tool_tokens=pack.allocation.layers["tools"].used,
        formatting_tokens=pack.framing_tokens,
    )
    return OpenCall(call.invocation.invocation_id, call.model, pack.identity.last_event_time, expected)


def _call_usage(response: LlmResponse, usage: Reported, begun: OpenCall, earlier: CallUsage | None) -> CallUsage | None:
    """The usage of an answer; what the provider did not report is estimated. None where the call failed.

    Args:
        earlier: what an earlier answer of the same call came to. One that reports nothing adds only its own text to
            what was estimated, and nothing to what was reported.
    """
    parts = (response.content.parts if response.content is not None else None) or []
    silent = usage.input_tokens is None
    if silent and not parts and (response.error_code is not None or earlier is not None):
        return earlier
    if silent and earlier is not None and not earlier.input_estimated:
        return earlier
    guessed = usage.output_tokens is None or (usage.output_tokens == 0 and bool(parts))
    output_tokens = usage.output_tokens or 0
    if guessed:
        texts = [part.text for part in parts if part.text]
        calls = [part.function_call for part in parts if part.function_call is not None]
        texts += [f"{called.name} {canonical_json(plain(called.args))}" for called in calls]
        output_tokens = counter_for(begun.model).count("\n".join(texts))
        output_tokens += earlier.output_tokens if earlier is not None and earlier.output_estimated else 0
    return replace(
        begun.expected,
        input_tokens=begun.expected.input_tokens if silent else (usage.input_tokens or 0) + usage.tool_use_tokens,
        output_tokens=output_tokens,
        cached_tokens=usage.cached_tokens,
        cache_write_tokens=usage.cache_write_tokens or 0,
        estimate=begun.expected.estimate if not usage.tool_use_tokens else None,
        input_estimated=silent,
        output_estimated=guessed,
    ).priced(begun.model, begun.time)


def _resume(session: Session, events: Sequence[Event]) -> None:
    """Takes in the events since those that were taken in: the totals that they carry, the latest of each agent.

    Where the last ones carry none, as those from before the plugin was there, the usage that they report is added.
    """
    agents, untold = set[str](), list[Event]()
    for event in reversed(events):
        if event.id == session.last_event:
            break
        recorded_totals = noted(event).get("usage")
        if not isinstance(recorded_totals, Mapping):
            untold += [] if agents or event.partial else [event]
        elif event.author not in agents:
            agents.add(event.author)
            if recorded_totals != session.standing:  # which the ledger knows, since it gave them
                session.ledger.resume(recorded_totals, invocation=event.invocation_id, agent=event.author)
    for event in reversed(untold):
        usage = reported(event.usage_metadata, event.model_version)
        where = {"invocation": event.invocation_id, "agent": event.author, "branch": event.branch or ""}
        call = CallUsage.of_outcome(usage._asdict(), 0) if usage.input_tokens is not None else None
        if call is not None and session.ledger.counted(**where) is None:
            call = replace(call, estimate=None)  # nobody estimated it
            session.ledger.track(call.priced(event.model_version or "", event.timestamp), **where)
    if events:
        session.last_event = events[-1].id


def _recorded(error: BudgetExceededError) -> dict[str, JSON]:
    values = {name: getattr(error, name) for name in ("scope", "name", "measure", "limit", "used", "planned")}
    return {name: float(value) if isinstance(value, Decimal) else value for name, value in values.items()}


def _stopped(call: ModelCall, error: BudgetExceededError) -> LlmResponse:
    """The answer in the model's place. A loop around the agent would ask again for ever, so it is left."""
    from google.adk.agents.loop_agent import LoopAgent

    agent = call.invocation.agent
    while isinstance(agent, BaseAgent) and not isinstance(agent, LoopAgent):
        agent = agent.parent_agent
    if isinstance(agent, LoopAgent):
        call.context.actions.escalate = True
    return LlmResponse(
        content=types.ModelContent(f"The budget is used up: {error}."),
        error_code="budget_exceeded",
        error_message=str(error),
        custom_metadata={METADATA: {"budget": _recorded(error)}},
    )


# What providers report, kept for the next estimate: a baseline for each conversation, a ratio for each user and model.
#
# A ratio stands in the session's state and, across sessions, in the store. The baseline stands in the metadata of each
# answer, so that it costs no state, and every process goes on from it alike.

_STATE_KEY = "aether:calibration"


_REPORTS = TypeAdapter(Reports, config=ConfigDict(defer_build=True))


class _Owner(NamedTuple):
    """Whose ratio: ``by`` names the model and the counter, since a ratio holds between these two."""

    app: str
    user: str
    by: str


class Calibrations:
    """Learns from usage, and says what the next estimate stands on. Safe to share between sessions and event loops."""

    def __init__(self, store: PackStore, later: Callable[[Callable[[], object]], None]) -> None:
        self._store = store
        self._later = later
        self._ratios: SharedLRU[_Owner, TokenRatio] = SharedLRU(4_096)

    async def calibration(
        self, source: PackInput, counter: str, call: ModelCall, session: AgentSession
    ) -> Calibration | None:
        """The calibration of a request, after what the session's events say of the last one."""
        identity, owner = source.identity, _owner(source, counter)
        ratio = self._ratios.get(owner)
        reports, invocation = _last_reports(call.context.session.events, identity)
        if ratio is None:
            is_own = reports.baseline is not None and reports.baseline.model == owner.by
            ratio = await self._earlier_ratio(owner, call.state, reports.ratio if is_own else None)
            self._ratios.put(owner, ratio)
        if invocation != identity.invocation:
            beyond = reports.baseline.report_minus_count if reports.baseline is not None else 0
            uncounted_tokens = max(0, min(beyond, source.window // 2))
            reports = reports._replace(here=False, uncounted_tokens=uncounted_tokens)
        session.reports = reports
        return calibration(
            reports.baseline,
            ratio,
            model=owner.by,
            epoch=source.epoch.number,
            here=reports.here,
            uncounted_tokens=reports.uncounted_tokens,
        )

    async def _earlier_ratio(self, owner: _Owner, state: Mapping[str, Any], latest: TokenRatio | None) -> TokenRatio:
        """The ratio that another process may have left in a session's last answer, its state or in the store, the one
        that most was learned for. Never raises."""
        ratios = [latest, valid(RATIO, _ratios(state).get(owner.by))]
        with contextlib.suppress(Exception):  # the store fails, or takes longer
            reading = in_thread(partial(self._store.calibration, *owner))
            ratios.append(valid(RATIO, await within(0.5, reading)))
        known_ratios = (ratio for ratio in ratios if ratio is not None)
        return max(known_ratios, key=lambda ratio: ratio.samples, default=TokenRatio())

    def reported(self, session: AgentSession, pack: Pack, counter: str, tokens: int, *, refused: bool = False) -> None:
        """Takes in what the provider reported for a pack: input tokens, cached ones included.

        Args:
            refused: whether it counted them to refuse the pack, which leaves no doubt of what it counted.
        """
        owner, reports = _owner(pack.source, counter), session.reports
        # To measure a request takes time, and one of less than twice its count is no surprise.
        is_many = tokens > 2 * pack.tokens.counted
        if reports is None or tokens > 2 * pack.source.window or (is_many and tokens > _most_tokens(pack)):
            return
        reports = reports._replace(baseline=None) if refused else reports
        ratio = self._ratios.get(owner) or TokenRatio()
        counted, epoch = pack.tokens.counted, pack.epoch.number
        baseline, learned = learn_report(
            reports.baseline, ratio, model=owner.by, epoch=epoch, counted=counted, reported=tokens
        )
        session.reports = reports._replace(baseline=baseline, ratio=learned, here=True)
        if learned is not ratio:
            self._ratios.put(owner, learned)

    def note(self, session: AgentSession, pack: Pack) -> dict[str, JSON]:
        """The metadata of an answer's event on its request: the estimate, and what the next one is based on."""
        metadata: dict[str, JSON] = {}
        if not pack.source.host.passthrough_reason:
            metadata["request_tokens"] = pack.tokens.expected
        if (reports := session.reports) is not None:
            baseline = reports.baseline._asdict() if reports.baseline is not None else None
            ratio = RATIO.dump_python(reports.ratio) if reports.ratio is not None else None
            metadata["reports"] = {**reports._asdict(), "baseline": baseline, "ratio": ratio}
        return metadata

    def save(self, source: PackInput, counter: str, state: State, *, store: bool) -> None:
        """Puts a ratio that moved into the session's state and, where ``store`` says so, into the store's queue."""
        owner, ratios = _owner(source, counter), _ratios(state)
        ratio = self._ratios.get(owner)
        if ratio is not None and ratio.samples and ratio.moved(valid(RATIO, ratios.get(owner.by))):
            recorded = RATIO.dump_python(ratio)
            state[_STATE_KEY] = {**ratios, owner.by: recorded}
            if store:
                self._later(partial(self._store.write_calibration, *owner, recorded))


_MOST_HIDDEN = 1_000
"""Tokens that a provider or a gateway may put before a request of its own accord."""


def _most_tokens(pack: Pack) -> float:
    """The most tokens that a request can have: as many as bytes, and hidden ones. No limit where it holds media, which
    a provider counts by other rules."""
    has_media = any(part.media_count for outgoing in pack.contents for part in outgoing.content.parts)
    return math.inf if has_media else _MOST_HIDDEN + request_bytes(pack)


def _owner(source: PackInput, counter: str) -> _Owner:
    by = f"{source.request.model}-{short(hash_text(counter), 6)}"
    return _Owner(source.identity.app, source.identity.user, by)


def _ratios(state: Mapping[str, Any] | State) -> Mapping[str, Any]:
    """The ratios in a session's state, by model and counter."""
    ratios = state.get(_STATE_KEY)
    pairs = ratios.items() if isinstance(ratios, Mapping) else ()
    return {by: ratio for by, ratio in pairs if valid(RATIO, ratio) is not None}


def _last_reports(events: Sequence[Event], identity: Identity) -> tuple[Reports, str]:
    """Reads the note of an agent's last answer, and its invocation; an empty one where none did."""
    for event in reversed(events):
        if event.author == identity.agent and (event.branch or "") == identity.branch:
            reports = valid(_REPORTS, noted(event).get("reports"))
            if reports is not None:
                return reports, event.invocation_id
    return Reports(), ""
