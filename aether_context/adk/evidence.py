"""Tool results on their way out of a prompt; `artifact_tools` are the way back into it.

The whole of a result goes to the store, an extract of it to the model, and its address to both. Media go to the store
by their content, and a mark with their address stays. A result that differs from the last one of an equal call names
the address of that. One whose whole could not be stored stays as it is: no address is shown that leads nowhere.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, TypeAlias

from cachetools import LRUCache
from google.adk.agents.callback_context import CallbackContext
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.base_tool import BaseTool
from google.genai import types

from aether_context.adk.acceptance import OWN_TOOLS
from aether_context.adk.artifact_tools import declare, names_evidence
from aether_context.adk.bounds import aside, failure, off_loop
from aether_context.adk.call import ModelCall, SessionKey, session_key, time_of, words_of
from aether_context.adk.failures import Failures
from aether_context.adk.request.instructions import instructing_tools
from aether_context.adk.request.reader import additions, essential_names, structure, system_text
from aether_context.adk.request.sessions import PreparedCall, Sessions
from aether_context.adk.results import (
    ToolResult,
    as_json,
    joined,
    medium_of,
    medium_tokens,
    model_of,
    split,
    unread_results,
    with_parts,
)
from aether_context.adk.services.recorder import Recorder
from aether_context.adk.session import has_cut, put_records
from aether_context.canonical import canonical_json, hash_bytes, hash_json, plain, short
from aether_context.conversation.turns import is_human
from aether_context.errors import StoreError
from aether_context.evidence import EvidenceRecord, StoredResult, evidence_key, extractor_of, offload
from aether_context.evidence.media import Medium, clear_media, is_clear, mark, masked, media_in, record_of, with_marks
from aether_context.evidence.offload import CITE_KEY, free_key, is_error, naming_past, stored_bytes, superseding
from aether_context.evidence.record import READERS, size_words, with_summary
from aether_context.evidence.show import MEDIA_TYPES, UNSHORTENED, is_text, summary_of
from aether_context.pack import LEAST_WINDOW_READ, Candidate, Pack, Unseen, is_unseen, medium_place
from aether_context.policy import OffloadSettings, PackPolicy
from aether_context.retrieval import query_for, telling_words
from aether_context.text.decoding import said_once
from aether_context.text.shorten import tokens_of
from aether_context.tokens import counter_for
from aether_context.tokens.counters import SharedLRU

STORE_SECONDS = 5.0
ASKED_CHARACTERS = 400
"""Of each text that says what an agent is after, for the choice of lines."""
_QUOTED_RESULT = "` tool returned result:\n"
"""How ADK shows an agent the result of another agent's tool."""
_HEAD_CHARACTERS = 1.0
"""Characters of instruction and first message for each token of the window: they take about a quarter of it."""
_OWN_TOOLS = ["find_tools", "keep_evidence", "record_decision", "record_entity", "remember", "remember_note"]
_OWN_TOOLS += ["correct_memory", "cut_now"]
"""The other tools of this package. Their answers are no evidence, and the agent that comes to one may lack the tool."""
ALL_OWN_TOOLS = READERS.union(OWN_TOOLS, _OWN_TOOLS)
_MOST_FOCUSED = 24
"""Stored results, the latest ones, that are read again for lines that answer a request: each takes 1 to 15 ms."""
_MOST_COUNTED = 50_000
_MOST_AT_ONCE = 500
"""Results that one call looks at, the latest ones: a session can have had thousands before it met the plugin."""

_MOST_SHOWN_TOKENS, _LEAST_SHOWN_TOKENS = 1_500_000, 100
"""Of the extracts of all sessions that are remembered, about 6 MB, and what each counts at least: to make one takes
5 ms, and each call shows all of its session's."""

_OFF_NOTE = "record = {!r} turns offload off: long tool results are sent whole, and none is read again after a cut"

_Evidence: TypeAlias = list[tuple[EvidenceRecord, bytes]]
"""The pieces that one result is made of."""
_Media: TypeAlias = tuple[list[str], Mapping[str, Any], list[tuple[Medium, str]]]
"""The media in a response, by the hashes of what the store keeps of them: those of its parts, and of what is written in
its JSON, which says it once, with the places there."""
_LEAST_WRITTEN, _LEAST_WRITTEN_TOKENS = 600, 200
"""Characters and tokens of written data for which an address stands, which takes 30 tokens: no model reads it."""


class Offloader:
    """The offload of one plugin. Nothing of a session's is edited: what is returned is new.

    Raises:
        PolicyError: a rule of the policy names an extractor that is not registered.
    """

    def __init__(self, policy: PackPolicy, recorder: Recorder, sessions: Sessions, failures: Failures) -> None:
        for rule in policy.offload.tools.values():
            extractor_of(rule)
        self._mask = policy.mask
        # A store that is to keep no texts gets none.
        self._is_on = policy.offload.mode == "auto" and policy.record == "full"
        self._off_note = _OFF_NOTE.format(policy.record) if policy.offload.mode == "auto" and not self._is_on else ""
        self._recorder = recorder
        self._sessions = sessions
        self._failures = failures
        self._counter = counter_for("")
        self._limits = lru_cache(maxsize=64)(policy.offload.for_window)
        self._settings = policy.offload
        self._always = policy.offload.tools_under("always")
        self._unshortened = policy.offload.tools_under(*UNSHORTENED)
        self._shown: LRUCache[object, StoredResult] = LRUCache(_MOST_SHOWN_TOKENS, _shown_tokens)
        self._showing = threading.Lock()
        self._told: SharedLRU[object, tuple[str, int]] = SharedLRU(4_096)
        """Of results the hash of what the store keeps, and the size as JSON."""
        self._media: SharedLRU[object, _Media] = SharedLRU(512)
        self._summaries: SharedLRU[object, str] = SharedLRU(4_096)
        """Of a session's results the lines that answer a query."""

    async def _store_new_results(self, call: ModelCall) -> tuple[str, ...]:
        """Keeps what tools gave since the agent's last answer, as other callbacks have left it in the session; gives
        what went wrong."""
        if not (unread := unread_results(call)):
            put_records(call.context, (), self._sessions.records)
            return ()
        settings = self._limits(call.window.tokens)
        tools = call.request.tools_dict
        # A tool of such a name that is not marked as this package's is the app's.
        stays = {*READERS, *(ALL_OWN_TOOLS - tools.keys()), *essential_names(call.request)}
        stays |= instructing_tools(call.request, call.policy).keys()
        # A step that needs evidence can be met by any result, so a short one has an address as well.
        needs_proof = _needs_proof(call)

        def is_wanted(result: ToolResult) -> bool:
            limit = min(settings.threshold_tokens, _LEAST_WRITTEN)
            is_short = _characters(result.response, limit) <= limit
            if result.tool in stays or (is_short and not needs_proof and result.tool not in self._always):
                return False
            return not _uses_computer(tools.get(result.tool))

        results: list[_Evidence] = []
        for number, result in enumerate([*filter(is_wanted, unread)][-_MOST_AT_ONCE:]):
            if number:
                await asyncio.sleep(0)  # other sessions are served between two of them
            try:
                if evidence := await self._describe(call, result, settings):
                    results.append(evidence)
            except Exception as error:
                self._failures.caught(error, f"a result of {result.tool} was not offloaded: ")
        # The latest first: where the time runs out, it is they that stand nearest to the end of a request.
        writing = [self._write(call.key[:3], evidence) for evidence in reversed(results)]
        written = await asyncio.gather(*writing) if writing else []
        # A result of which a piece could not be stored has no records, and stays as it is.
        stored = [evidence for evidence, problem in zip(results, reversed(written), strict=True) if not problem]
        records = [record for evidence in stored for record, _ in evidence]
        put_records(call.context, records, self._sessions.records)
        return tuple(dict.fromkeys(filter(None, written)))

    async def _describe(self, call: ModelCall, result: ToolResult, settings: OffloadSettings) -> _Evidence:
        """The evidence that is to stand in the store for a result, or for parts of it; none where it stays as it is.

        Where the step needs evidence, a result that stays is evidence, too, but for an error.
        """
        context, needs_proof = call.context, _needs_proof(call)
        response = said_once(result.response)
        size = _characters(response)
        inside = await aside(size, partial(clear_media, response, self._mask))
        is_settled = bool(self._mask or inside or result.parts or needs_proof or result.tool in self._always)
        if not is_settled and size <= settings.threshold_tokens:
            # No text takes more tokens than bytes: it is not counted to see that it stays.
            written = await aside(size, lambda: canonical_json(plain(response)).encode("utf-8", "surrogatepass"))
            if len(written) <= settings.threshold_tokens:
                return []
        arguments = plain(dict(result.arguments))
        words = words_of(context.user_content)
        words = await aside(len(words), partial(self._mask, words))
        query_texts = (words, canonical_json(self._mask.json(arguments)))
        query = "\n".join(text[:ASKED_CHARACTERS] for text in query_texts)
        origin = {
            "source": result.tool,
            "arguments": short(hash_json(arguments)),
            "agent": result.agent,
            "invocation": result.invocation,
            "time": result.time,
            "limit": settings.extract_tokens,
        }
        evidence: _Evidence = []
        marks: list[tuple[Medium, str]] = []
        for number, found_medium in enumerate([*map(medium_of, result.parts), *inside], start=1):
            if found_medium is not None:
                medium = masked(found_medium, self._mask)
                record = self._record(medium, settings, context, {**origin, "piece": number})
                if record is not None:
                    evidence.append((record, medium.data))
                    if medium.path:
                        marks.append((medium, mark(record, is_inside=medium.span is not None)))
        content = await aside(size, lambda: as_json(with_marks(response, marks)))
        if content is not None:
            stored = await aside(
                size,
                lambda: offload(self._mask.json(content), result.tool, settings, counter=self._counter, query=query),
            )
            if stored.record.form != "verbatim" or (needs_proof and not is_error(content)):
                summary = f"{stored.record.media_type}, {size_words(len(stored.data))}"
                if stored.record.form != "described":
                    summary = await aside(len(stored.data), partial(summary_of, stored.data, self._counter, query))
                record = stored.record.model_copy(update={**origin, "query": query, "summary": summary})
                evidence.append((record, stored.data))
                self._remember((result.tool, structure(content), query, settings.extract_tokens), stored)
        return evidence

    def _record(
        self, medium: Medium, settings: OffloadSettings, context: CallbackContext, origin: Mapping[str, Any]
    ) -> EvidenceRecord | None:
        """The record of a medium; None where that stays where it is."""
        # What stands in JSON is sent as it is written there.
        is_written = bool(medium.path)
        tokens = tokens_of(medium.written, self._counter) if is_written else medium_tokens(medium, model_of(context))
        rule = settings.tools.get(origin["source"], "threshold")
        # An image that a tool shows is there to be seen, unless the app wants it otherwise.
        if rule in UNSHORTENED or (rule != "always" and (not is_written or tokens <= _LEAST_WRITTEN_TOKENS)):
            return None
        ending = MEDIA_TYPES["text" if is_text(medium.media_type) else "data"][1]
        summary = f"{medium.media_type}, {size_words(len(medium.data))}"
        return record_of(medium, ending, **origin, summary=summary, tokens=tokens)

    async def _write(self, scope: SessionKey, evidence: _Evidence) -> str:
        """Writes what a result is made of; says what went wrong where the store does not take it in time."""
        write = self._recorder.store.write_evidence
        writing = (asyncio.to_thread(write, *scope, record, data) for record, data in evidence)
        try:
            # `wait_for` leaves the exception of what it cancels to nobody, which asyncio logs.
            async with asyncio.timeout(STORE_SECONDS):
                await asyncio.gather(*writing)
        except BaseException as raised:  # one result that is not stored leaves the others, and the pack, as they are
            error, about = failure(raised), f"a result of {evidence[0][0].source} was not offloaded: "
            if not isinstance(error, (StoreError, TimeoutError)):
                self._failures.caught(error, about)
            reason = f"{about}{type(error).__name__}"
            self._failures.warn_once(reason, error)
            return reason
        return ""

    def keep_media(self, call: ModelCall, pack: Pack, unseen: Unseen, contents: Sequence[types.Content]) -> None:
        """Keeps media that are not sent any more under the address that the note or mark in their place names; not
        texts of which something is masked, since the address is the hash of the whole.

        Args:
            unseen: those that were not sent before, either.
            contents: the host's, as the input has them.
        """
        source, unsent = pack.source, list[types.Part]()
        if source.host.unseen != unseen:
            unsent += [
                part
                for position, content in zip(source.request.positions, contents, strict=True)
                for at, part in enumerate(content.parts or ())
                if is_unseen(number := medium_place(position, at), source.host.unseen) and not is_unseen(number, unseen)
            ]
        if source.host.media:
            rows = zip(source.request.contents, contents, pack.rows, strict=False)
            cut = (raw for content, raw, row in rows if row.form != "whole" and is_human(content))
            unsent += [part for raw in cut for part in raw.parts or ()]
        if not unsent:
            return
        context = call.context
        session_records = self._sessions.records(context)
        records = []
        for part in unsent:
            inside = part.function_response.parts if part.function_response is not None else None
            for medium in filter(None, map(medium_of, (part, *(inside or ())))):
                record = record_of(medium, time=time_of(context))
                if evidence_key(record.uri) in session_records.by_digits or not is_clear(medium, self._mask):
                    continue
                records.append(record)
                write = partial(self._recorder.store.write_evidence, *session_key(context), record, medium.data)
                self._recorder.later(write)
        put_records(context, records, self._sessions.records)

    async def enter(self, call: ModelCall, readers: Sequence[BaseTool]) -> tuple[tuple[str, ...], int]:
        """Makes a request one that is read by addresses, where its session has any; gives what went wrong, and the
        tokens that extracts leave out of the history.

        An agent has the readers once an address is to be shown. To declare tools then makes the provider read again
        what its cache had, so one whose results can be offloaded has them from its first call on, and one at a step
        from the step's first call on (`_can_come`). Where they cannot be declared, results stay as they are.
        """
        context, request, window = call.context, call.request, call.window.tokens
        problems = await self._store_new_results(call) if self._is_on else ()
        session_records = self._sessions.records(context)
        records = session_records.by_digits.values()
        if call.passthrough_reason:  # it stays as it is, but for the tools that read the addresses in it
            if any(map(names_evidence, request.contents)):
                declare(request, readers)
            return (), 0
        if not self._is_on:
            reads = _needs_proof(call) and additions(request).is_free
            if records or reads or (has_cut(call.state, call.key) and self.reads_past(call)):
                declare(request, readers)
            if not self._off_note or not request.tools_dict:
                return (), 0
            self._failures.warn_once(self._off_note)
            return (self._off_note,), 0
        threshold = self._limits(window).threshold_tokens
        has_recorded = any(not record.limit for record in records)
        long = [
            record
            for record in records
            if record.limit
            # What was decided for the agent itself stays so, whatever its window is now.
            and (
                record.agent == context.agent_name
                or record.tokens > threshold
                or record.form in ("verbatim", "described")
                or record.source in self._always
            )
        ]
        host_contents, wants, saved_tokens = request.contents, False, 0
        if not any(reader.name in request.tools_dict for reader in readers):
            if long:
                # Off the event loop where it would be felt: texts are masked, media looked for, or much is encoded.
                show = partial(self._show, call, long)
                is_heavy = bool(self._mask) or any(record.piece for record in long)
                size = sum(record.size_bytes for record in long)
                wants, saved_tokens = await (off_loop(show) if is_heavy else aside(size, show))
            wants = (
                wants
                # The summary of a cut, which is in no content that ADK hands over, names addresses as well.
                or (
                    has_cut(call.state, call.key)
                    and (self.reads_past(call) or any(record.form in ("extract", "described") for record in records))
                )
                or (bool(records) and any(map(names_evidence, request.contents)))
                # A result that this agent is not shown is listed by its address.
                or bool(session_records.results(call))
                or (self._can_come(call) and additions(request).is_free)
            )
        if not ((wants or has_recorded) and declare(request, readers)):
            request.contents = host_contents
        return problems, saved_tokens if request.contents is not host_contents else 0

    def reads_past(self, call: ModelCall, has_media: bool = False) -> bool:
        """Tells whether an agent that is cut gets the tools that read what a cut took."""
        return (call.window.tokens >= LEAST_WINDOW_READ or has_media) and additions(call.request).is_free

    def _can_come(self, call: ModelCall) -> bool:
        """Tells whether an agent has tools whose results may be offloaded or cut, and a window that has room for the
        readers, or one of which instruction and first message leave so little that results are likely to be long.
        What they take of a window that is only assumed nobody knows. At a step, whose tools do not change, any window
        will do, and so will a need for evidence."""
        request, window = call.request, call.window
        names = request.tools_dict.keys() - essential_names(request) - self._unshortened
        names -= {name for name in names if _uses_computer(request.tools_dict[name])}
        if call.planned.step.text:
            return bool(names) or _needs_proof(call) or "keep_evidence" in request.tools_dict
        first = request.contents[0].parts or () if request.contents else ()
        head = len(system_text(request.config)[0]) + sum(len(part.text or "") for part in first)
        is_large = window.tokens >= LEAST_WINDOW_READ and window.mark != "assumed"
        return bool(names & self._always or (names and (is_large or head >= _HEAD_CHARACTERS * window.tokens)))

    def _show(self, call: ModelCall, records: Collection[EvidenceRecord]) -> tuple[bool, int]:
        """Puts extracts into a request where the session's history holds the results themselves; whether one of them
        names an address, and the tokens that they leave out.

        Which results, and what is shown of them, follows from the history and the records in the session's state.
        """
        instructs, has_quotes = instructing_tools(call.request, call.policy), False
        known_results = _Results(records, instructs, call.context.agent_name if self.reads_past(call) else "")

        def with_extract(part: types.Part) -> types.Part:
            nonlocal has_quotes
            if part.function_response is None:
                has_quotes = has_quotes or (part.text is not None and _QUOTED_RESULT in part.text)
                return part
            answer = self._shown_of(part.function_response, known_results)
            return part if answer is None else part.model_copy(update={"function_response": answer})

        host_contents = call.request.contents
        call.request.contents = [with_parts(content, with_extract) for content in host_contents]
        shortened = (new for new, old in zip(call.request.contents, host_contents, strict=True) if new is not old)
        names_address = any(map(names_evidence, shortened))
        if has_quotes:
            self._requote(call.context, call.request, records)
        return names_address, known_results.saved_tokens

    def _requote(self, context: CallbackContext, request: LlmRequest, records: Collection[EvidenceRecord]) -> None:
        """Puts extracts into a request where it quotes what another agent's tools gave."""
        known_results = _Results(records)
        quotes: list[tuple[str, str]] = []
        for event in context.session.events:
            for response in event.get_function_responses():
                answer = self._shown_of(response, known_results)
                if answer is not None and answer.response != response.response:
                    quotes.append((str(response.response), str(answer.response)))

        def requoted(part: types.Part) -> types.Part:
            if part.text is None or _QUOTED_RESULT not in part.text:
                return part
            text = part.text
            for quoted_text, new_text in quotes:
                text = text.replace(quoted_text, new_text)
            return part if text == part.text else part.model_copy(update={"text": text})

        request.contents = [with_parts(content, requoted) for content in request.contents]

    def _shown_of(self, answer: types.FunctionResponse, results: _Results) -> types.FunctionResponse | None:
        """A response with marks and extracts in the place of what is in the store; None where it stays as it is."""
        name = answer.name or ""
        if name in READERS or name in results.instructs:
            return None
        host_response: dict[str, Any] = answer.response or {}
        response, marks, unmarked = host_response, [], list(answer.parts or ())
        if results.has_media and name not in self._unshortened:
            parts, once, written = self._media_of(host_response)
            texts = [(medium, results.mark_of(digest, is_inside=medium.span is not None)) for medium, digest in written]
            if texts := [(medium, text) for medium, text in texts if text]:
                response = with_marks(once, texts)
            of_inside = [results.mark_of(digest, supersedes=True) for digest in parts]
            if of_inside and all(of_inside):
                response, marks = split(response)[0], of_inside
            of_parts = [results.mark_of(self._digest_of(part), supersedes=True) for part in unmarked]
            marks = [*marks, *filter(None, of_parts)]
            unmarked = [part for part, text in zip(unmarked, of_parts, strict=True) if not text]
        extract = self._extract(name, response, results) if response else None
        if extract is None and response is host_response and not marks:
            return None
        return answer.model_copy(update={"response": joined(extract or response, marks), "parts": unmarked or None})

    def _media_of(self, response: Mapping[str, Any]) -> _Media:
        """The media in a response; their bytes are decoded and hashed once."""
        key = structure(response)
        result = self._media.get(key)
        if result is None:
            once = said_once(response)
            media = ((medium, hash_bytes(masked(medium, self._mask).data)) for medium in media_in(once))
            written = [(medium._replace(data=b"", written=""), digest) for medium, digest in media]
            result = [self._digest_of(part) for part in split(response)[1]], once, written
            self._media.put(key, result)
        return result

    def _digest_of(self, part: types.Part | types.FunctionResponsePart) -> str:
        """The hash of a part's bytes as the store keeps them; empty where it has none."""
        medium = medium_of(part)
        return hash_bytes(masked(medium, self._mask).data) if medium is not None else ""

    def _hashed(self, content: Mapping[str, Any]) -> tuple[object, str, int]:
        """A stand-in for a response, the hash of what the store keeps of it, and its size as JSON."""
        # The texts of a result know their hash, so that it is not encoded again at each call.
        same = structure(content)
        hashed = self._told.get(same)
        if hashed is None:
            size = len(canonical_json(content).encode("utf-8", "surrogatepass"))
            hashed = hash_bytes(stored_bytes(self._mask.json(content))), size
            self._told.put(same, hashed)
        return same, *hashed

    async def focus(self, prepared: PreparedCall) -> PreparedCall:
        """The input with the latest stored results summarized by lines that answer the request, from the session's
        events. What these do not hold keeps the summary of when it came."""
        source, scope = prepared.source, prepared.call.key[:3]
        results = [candidate for candidate in source.candidates if candidate.layer == "evidence" and not candidate.kind]
        results = sorted(results, key=lambda result: (-(result.time or 0.0), result.id))[:_MOST_FOCUSED]
        # What another agent hands over says less of what is looked for than the user does.
        redact, users_words = prepared.call.policy.redact, words_of(prepared.call.context.user_content)
        query = f"{query_for(source, redact)}\n{telling_words(users_words, redact)}" if results else ""
        keys = {result.id: (scope, result.content_hash, query) for result in results}
        missing = {key[1]: key for key in keys.values() if self._summaries.get(key) is None}
        events = tuple(prepared.call.context.session.events)

        def summarize() -> None:
            for answer in (answer for event in reversed(events) for answer in event.get_function_responses()):
                content = as_json(answer.response or {}) if missing else None
                if content is not None and (key := missing.pop(self._hashed(content)[1], None)) is not None:
                    data = stored_bytes(self._mask.json(content))
                    self._summaries.put(key, summary_of(data, self._counter, query))
            for key in missing.values():
                self._summaries.put(key, "")

        if missing:
            await asyncio.to_thread(summarize)

        def focused(candidate: Candidate) -> Candidate:
            summary = self._summaries.get(keys[candidate.id]) if candidate.id in keys else ""
            return with_summary(candidate, summary) if summary else candidate

        return prepared.with_source(candidates=tuple(map(focused, source.candidates)))

    def _remember(self, key: object, stored: StoredResult) -> None:
        """Remembers what is shown of a result, without the result itself."""
        response = {} if stored.record.form == "verbatim" else stored.response
        with self._showing:
            self._shown[key] = stored._replace(response=response, data=b"")

    def _extract(self, tool: str, response: Mapping[str, Any], known_results: _Results) -> Mapping[str, Any] | None:
        """Finds the extract that is shown of a response; None where the response itself is sent."""
        content = as_json(response)
        if content is None:
            return None
        same, digest, size = self._hashed(content)
        record = known_results.by_digest.get(digest)
        # Of what two tools gave alike, the record names the first.
        if record is None or (record.source != tool and (record.form == "verbatim" or tool in self._unshortened)):
            return None
        key = (tool, same, record.query, record.limit)
        with self._showing:
            stored = self._shown.get(key)
        if stored is None:
            limits = self._settings.model_copy(update={"extract_tokens": record.limit})
            stored = offload(self._mask.json(content), tool, limits, counter=self._counter, query=record.query)
            self._remember(key, stored)
        if stored.record.form == "verbatim":
            if record.form != "verbatim":
                return None
            return superseding({**response, free_key(response, CITE_KEY): record.uri}, known_results.earlier(record))
        # The tokens are those of the text; as JSON, which is what a model reads, it is longer.
        tokens = stored.record.tokens * size // stored.record.size_bytes
        known_results.saved_tokens += max(0, tokens - stored.shown_tokens)
        extract = superseding(stored.response, known_results.earlier(record))
        return naming_past(extract) if digest == known_results.first else extract


class _Results:
    """The session's evidence while its history is gone through from the beginning.

    Which earlier answer a later one supersedes follows from their order there, so that it stays as it was when the
    history grows.
    """

    def __init__(
        self, records: Collection[EvidenceRecord], instructs: Collection[str] = (), reads_past: str = ""
    ) -> None:
        self.instructs = instructs
        own = (record.digest for record in records if record.form == "extract" and record.agent == reads_past)
        self.first = next(own, "")
        """The hash of the first extract of the agent that reads the session's past; it names that to the agent."""
        self.by_digest = {record.digest: record for record in records}
        self.has_media = any(record.piece for record in records)
        self.saved_tokens = 0
        self._last: dict[str, EvidenceRecord] = {}

    def earlier(self, record: EvidenceRecord) -> str:
        """The address of the last answer to the same call, where this one differs; empty where there is none."""
        last = self._last.get(record.call)
        self._last[record.call] = record
        return last.uri if last is not None and last.digest != record.digest else ""

    def mark_of(self, digest: str, *, supersedes: bool = False, is_inside: bool = False) -> str:
        """The mark in the place of a medium, with the address that it supersedes; empty where the medium stays."""
        record = self.by_digest.get(digest)
        if record is None or record.form != "described":
            return ""
        self.saved_tokens += record.tokens
        return mark(record, self.earlier(record) if supersedes else "", is_inside=is_inside)


def _shown_tokens(stored: StoredResult) -> int:
    return _LEAST_SHOWN_TOKENS + (stored.shown_tokens if stored.response else 0)


def _needs_proof(call: ModelCall) -> bool:
    return any(item.needs_evidence for item in call.planned.step.acceptance)


def _uses_computer(tool: BaseTool | None) -> bool:
    """Tells whether a tool shows the screen that a model works on, which it has to see."""
    return any(kind.__name__ == "ComputerUseTool" for kind in type(tool).__mro__)


def _characters(value: object, limit: int = _MOST_COUNTED) -> int:
    """Characters of a value, about eight for a number; of a larger one more than ``limit``."""
    size, waiting = 0, [value]
    while waiting and size <= limit:
        item = waiting.pop()
        if isinstance(item, (str, bytes)):
            size += len(item)
        elif isinstance(item, (dict, list, tuple)):
            size += 8
            waiting.extend(item.values() if isinstance(item, dict) else item)
        else:
            size += 8 if item is None or isinstance(item, (bool, int, float, types.Part)) else len(repr(item))
    return size
