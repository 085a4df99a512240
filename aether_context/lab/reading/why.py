"""The reason why a model saw a text, or did not: every place where a session's packs know it, and its form at each
call.

A text is looked for as it is, but for case and white space; where no place holds it so, for places that hold all of its
words. What a call sent is built again from its pack, so that what is said here is what the model read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Literal

from aether_context.canonical import canonical_json, hash_text
from aether_context.conversation.content_json import content_from_wire, content_of_parts, text_part
from aether_context.errors import AetherContextError, PackNotFound
from aether_context.evidence.record import READ, SEARCH
from aether_context.lab.reading.packs import WHY, PackView, Piece, joined_text, tool_names, view_of
from aether_context.lab.reading.sessions import read_back, session_packs
from aether_context.pack import RECALLED, Content, Form, Pack, Row, content_name, content_place, values_of
from aether_context.packing.compaction import mark_tokens
from aether_context.packing.draft import spare_tokens
from aether_context.policy import PackPolicy
from aether_context.store import Manifest, PackStore
from aether_context.store.masking import OTHERWISE
from aether_context.store.replay import Replayer
from aether_context.store.turns import TurnFiles
from aether_context.text.entities import HISTORY

if TYPE_CHECKING:
    from aether_context.lab.reading.cures import Cures

_AROUND = 60
_MOST_PLACES = 40
_SEARCHED = "; a search of "
_NO_SEARCH = "turns was not made"
_TAKEN_BACK = "the host did not hand it over (rewound, compacted, changed or not loaded), and the store did not give it"
_SPACE = re.compile(r"\\[nrt]|\s+")
_CANDIDATE_KINDS = ("memory", "note", "evidence", "recalled turn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A place from one call to another, with what was sent of it.

    Attributes:
        first: the first of these calls, by its number in the session; ``last`` is the last of them.
        form: in which form it stood in their requests; ``absent`` where in none.
        holds: whether the words stood there; None where the request cannot be built again.
        act: what brought it into this form, as a sentence; empty where it is whole.
        elsewhere: what else held the words in the first of these requests, as ``the message c3_…`` or ``the payload``.
    """

    first: int
    last: int
    form: Form | Literal["absent"]
    holds: bool | None
    act: str = ""
    elsewhere: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class Place:
    """Something that holds the words.

    Attributes:
        id: its id in the packs' rows; for what has none ``system``, ``summary``, ``payload``, or a tool's name.
        kind: ``message``, ``tool call``, ``tool result``, ``memory``, ``note``, ``evidence``, ``recalled turn``,
            ``system instruction``, ``tool declaration``, ``summary`` or ``payload``.
        who: who said it, or the tool that gave it with the first words of its arguments.
        agent: the agent to whose model the calls of ``spans`` were made, in ``session``.
        time: when it was said, seconds since 1970 UTC; None where that is not known.
        text: all of it.
        uri: the address under which the store has all of it; empty where it was never taken out.
        read_back: the calls before which the model had read that address, or the words in the session's past.
        spans: what became of it, call by call.
    """

    id: str
    kind: str
    who: str
    session: str
    agent: str
    time: float | None
    text: str
    uri: str = ""
    read_back: tuple[int, ...] = ()
    spans: list[Span] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentVerdict:
    """The answer for one agent whose conversation the text touches.

    Attributes:
        agent: the agent, in ``session``.
        call: the number of the call that it is about: the one that was asked for, else the agent's last.
        is_read: whether its model read the words at that call; None where nobody can tell.
        sentence: the same in words, and as what it read them, else the reason why not.
        cure: the setting that would have kept the words, with its cost, or that none would; empty where none was tried.
    """

    session: str
    agent: str
    call: int
    is_read: bool | None
    sentence: str
    cure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The reason why models saw a text, or did not.

    Attributes:
        text: what was looked for: the text, as it is masked where the policy masks it.
        session: the session that was asked about.
        verdicts: one for each agent whose conversation the text touches, that of the latest call first.
        calls: how many calls were looked at.
        places: the places that hold it, those that the verdicts' calls read first.
        exact: whether they hold the text as it was asked for, else only its words.
        notes: what is masked, what could not be read, and where nothing was found.
    """

    text: str
    session: str
    verdicts: tuple[AgentVerdict, ...]
    calls: int
    places: tuple[Place, ...]
    exact: bool
    notes: tuple[str, ...] = ()

    @property
    def sentences(self) -> tuple[str, ...]:
        """The verdicts as sentences, each with its cure behind it; one sentence where no call knew the words."""
        sentences = tuple(text for each in self.verdicts for text in (each.sentence, each.cure) if text)
        return sentences or (f"No call of session {self.session} knew these words.",)

    def excerpt(self, spot: Place) -> str:
        """The words in a place, and what stands around them."""
        from aether_context.retrieval.terms import terms

        line, query = _line(spot.text), frozenset(terms(self.text))
        at = line.casefold().find(_line(self.text).casefold())
        if at < 0:
            words = re.finditer(r"\w+", line)
            at = next((word.start() for word in words if query.intersection(terms(word.group()))), 0)
        start, stop = max(0, at - _AROUND), at + max(len(self.text), _AROUND) + _AROUND
        return f"{'…' if start else ''}{line[start:stop]}{'…' if stop < len(line) else ''}"


def why(
    store: PackStore | str,
    text: str,
    *,
    app: str | None = None,
    user: str | None = None,
    session: str | None = None,
    call: int | None = None,
    agent: str | None = None,
    most_packs: int = 0,
) -> Answer:
    """Explains why models saw a text, or did not.

    Args:
        store: a store of packs, or its URL.
        text: some words, as somebody remembers them.
        session: a session; None takes that of the newest pack. Sessions of agents that ran as its tools belong to it.
        call: the number of one call of the session, to look at no other; None looks at all.
        agent: an agent, to look at no other's calls; None looks at all.
        most_packs: most packs that are built, in some 20 ms each, to try settings that would have kept the words; 0
            tries none.

    Raises:
        ValueError: the text holds no word.
        PackNotFound: there is no such session, no such call, or none of such an agent.
    """
    from aether_context.retrieval.terms import terms  # it loads numpy

    if not terms(text):
        raise ValueError(f"text is {text!r}: give some words to look for")
    store = PackStore(store) if isinstance(store, str) else store
    all_manifests = session_packs(store, app=app, user=user, session=session)
    manifests = [item for item in all_manifests if agent in (None, item.agent)]
    if not manifests:
        raise PackNotFound(f"no call of {agent!r}, but of {', '.join(dict.fromkeys(it.agent for it in all_manifests))}")
    mains = [item for item in manifests if item.caller is None] or manifests
    target = next((item for item in reversed(mains) if item.number == call), None)
    if call is not None and target is None:
        raise PackNotFound(f"session {mains[0].session!r} has no call {call}: its calls are 1 to {mains[-1].number}")
    for exact in (True, False):
        search = _Search(store, text, exact=exact)
        for manifest in manifests[: manifests.index(target) + 1] if target is not None else manifests:
            search.examine(manifest)
        search.look_at_turns()
        if target is not None:
            search.keep(target)
        if search.places:
            break
    return search.answer(manifests, [target] if target is not None else manifests, mains[-1].session, most_packs)


def _key(manifest: Manifest) -> tuple[str, ...]:
    """Names whose calls a manifest is of."""
    return (*manifest.session_key, manifest.branch, manifest.agent)


class _Search:
    """Looks for a text in one pack after another."""

    def __init__(self, store: PackStore, text: str, *, exact: bool) -> None:
        self.replayer = Replayer(store)
        self._text, self._exact = text, exact
        self.places: dict[tuple[str, ...], Place] = {}
        self._cures: dict[tuple[str, ...], Cures] = {}
        self._results: dict[tuple[str, ...], Mapping[str, str]] = {}
        self._notes: dict[str, None] = {}
        self._looked: list[tuple[tuple[str, ...], Manifest, Sequence[Piece], bool]] = []
        """Whose calls, the pieces of their requests that hold the text, and whether they could be built again."""

    def examine(self, manifest: Manifest) -> None:
        """Looks at one call."""
        key = _key(manifest)
        self._looked.append((key, manifest, (), False))
        try:
            policy = self.replayer.policy(manifest)
            self._mask(policy)
            pack = self.replayer.replay(manifest).pack if manifest.texts else None
        except AetherContextError as error:
            self._notes[f"call {manifest.number} could not be built again: {error}"] = None
            return
        if OTHERWISE in manifest.degradations:
            self._notes[f"call {manifest.number}: {OTHERWISE}"] = None
        view = view_of(pack, manifest) if pack is not None else None
        holding = [part for part in (view.request if view else None) or () if self._holds(part.text)]
        self._looked[-1] = key, manifest, holding, pack is not None
        by_hash = self._by_hash(manifest, policy)
        ranges = dict(self._in_pack(manifest, pack, view, holding, policy) if pack and view else by_hash)
        for name, spot in self.places.items():
            if name[:-1] == key and name[-1] not in ranges:
                ranges[name[-1]] = self._since(spot, manifest, holding, built=pack is not None)
        if holding and not ranges:
            self._place_of(manifest, "payload", "payload", "the plugin", holding[0].text)
            ranges["payload"] = Span(first=manifest.number, last=manifest.number, form="whole", holds=True)
        for id, span in ranges.items():
            self._add(self.places[(*key, id)], span, manifest)

    def look_at_turns(self) -> None:
        """Looks at what agents were shown, as the store keeps it, for what no pack holds that is there."""
        earlier, self.places = self.places, {}
        for key, looked in groupby(sorted(self._looked, key=itemgetter(0)), itemgetter(0)):
            calls = list(looked)
            scopes = dict.fromkeys((*key, manifest.epoch.rewound) for _, manifest, *_ in calls)
            turns = [sorted(TurnFiles(self.replayer.store.files, *scope).read().items()) for scope in scopes]
            stored = {content_name(at, turn["digest"]): turn for of_scope in turns for at, turn in of_scope}
            contents = {name: content_from_wire(canonical_json(turn["content"])) for name, turn in stored.items()}
            tools = tool_names(contents)
            for name, content in contents.items():
                if (*key, name) in earlier or not self._holds(text := joined_text(content)):
                    continue
                at, (who, time, *_) = content_place(name), stored[name].get("origin", (content.role, None))
                spot = self._place_of(calls[0][1], name, _kind(None, content), tools.get(name, who), text, time)
                for _, manifest, holding, built in calls:
                    was_said = manifest.positions and at < manifest.positions[-1][1]
                    if was_said and (built or at < manifest.epoch.cut_count):
                        self._add(spot, self._since(spot, manifest, holding, built=built), manifest)
        self.places |= earlier

    def keep(self, manifest: Manifest) -> None:
        """Keeps what is said of one call."""
        key, at = _key(manifest), manifest.number
        for name, spot in self.places.items():
            spans = [span for span in spot.spans if name[:-1] == key and span.first <= at <= span.last]
            spot.spans = [replace(span, first=at, last=at) for span in spans]
        self.places = {name: spot for name, spot in self.places.items() if spot.spans}

    def _mask(self, policy: PackPolicy) -> None:
        """From here on the text is looked for as the packs hold it."""
        masked = policy.mask(self._text) if policy.mask else self._text
        if masked != self._text:
            note = "what the model read is masked, too" if policy.redact_prompt else "the model read it as it was"
            self._notes[f"`redact` masks it in what is recorded, as {masked!r}; {note}"] = None
            self._text = masked

    def _in_pack(
        self, manifest: Manifest, pack: Pack, view: PackView, holding: Sequence[Piece], policy: PackPolicy
    ) -> Iterator[tuple[str, Span]]:
        request = pack.source.request
        names = map(content_name, request.positions, (content.digest for content in request.contents))
        contents = dict(zip(names, request.contents, strict=True))
        candidates = {candidate.id: candidate for candidate in pack.source.candidates}
        results = self._whole_results(manifest)
        for row in view.rows.values():
            texts = [text for text in (view.texts.get(row.id), results.get(row.uri)) if text and self._holds(text)]
            if not texts:
                continue
            content, candidate = contents.get(row.id), candidates.get(row.id)
            who = view.tools.get(row.id) or (candidate.speaker if candidate is not None else "") or row.source
            self._place_of(manifest, row.id, _kind(row, content), who, texts[0], row.time, row.uri)
            form = "summary" if row.form == "summarized" else "payload" if candidate is not None else None
            parts = [part for part in holding if (part.form == form if form else row.id in part.rows)]
            parts = list(holding) if row.layer == "system" else parts
            yield row.id, self._span(manifest, row, policy, holding, holds=row.form != "left_out" and bool(parts))
        for part in holding:
            if part.part != "content" or part.form == "summary":
                name = part.name if part.part == "tool" else "summary" if part.form == "summary" else part.part
                kind = {"system": "system instruction", "tool": "tool declaration"}.get(part.part, "summary")
                self._place_of(manifest, name, kind, "the plugin" if kind == "summary" else "the app", part.text)
                yield name, Span(first=manifest.number, last=manifest.number, form="whole", holds=True)

    def _by_hash(self, manifest: Manifest, policy: PackPolicy) -> Iterator[tuple[str, Span]]:
        """Looks for the text as one whole message or memory, where no texts are recorded."""
        note = "calls without recorded texts were looked at by hash, which finds whole messages and memories"
        self._notes[note] = None
        hashes = {content_of_parts(role, [text_part(self._text)]).digest for role in ("user", "model")}
        for row in self.replayer.resolve(manifest).rows.values():
            if row.hash in {*hashes, hash_text(self._text)}:
                self._place_of(manifest, row.id, _kind(row, None), row.source, self._text, row.time, row.uri)
                # Of what is sent in another form, nobody knows whether the words are in it.
                is_sent = None if row.form not in ("whole", "left_out") else row.form == "whole"
                yield row.id, self._span(manifest, row, policy, (), holds=is_sent)

    def _whole_results(self, manifest: Manifest) -> Mapping[str, str]:
        """The whole texts of results that were taken out of the session's requests, by their addresses."""
        key = manifest.session_key
        if key not in self._results:
            store, texts = self.replayer.store, dict[str, str]()
            try:
                for whose in dict.fromkeys((key, manifest.caller or key)):
                    for record in store.evidence(*whose):
                        texts[record.uri] = store.evidence_data(*whose[:2], record.digest).decode("utf-8", "replace")
            except AetherContextError as error:
                self._notes[f"results that were taken out could not be read: {error}"] = None
            self._results[key] = texts
        return self._results[key]

    def _place_of(
        self, manifest: Manifest, name: str, kind: str, who: str, text: str, time: float | None = None, uri: str = ""
    ) -> Place:
        whose = values_of(manifest, "session", "agent")
        spot = Place(id=name, kind=kind, who=who, time=time, text=text, uri=uri, **whose)
        return self.places.setdefault((*_key(manifest), name), spot)

    def _span(
        self, manifest: Manifest, row: Row, policy: PackPolicy, holding: Sequence[Piece], *, holds: bool | None
    ) -> Span:
        span = Span(first=manifest.number, last=manifest.number, form=row.form, holds=holds)
        if row.form == "whole":
            return replace(span, act=WHY.get(row.reason or "", ""))
        return replace(span, act=_act(manifest, row, policy), elsewhere=() if holds else _names(holding))

    def _since(self, spot: Place, manifest: Manifest, holding: Sequence[Piece], *, built: bool) -> Span:
        """The form of a place that this call's rows do not have: it was cut earlier, or not chosen again."""
        here = Span(first=manifest.number, last=manifest.number, form="absent", holds=False, elsewhere=_names(holding))
        last = spot.spans[-1] if spot.spans else here
        if spot.kind in _CANDIDATE_KINDS and not manifest.chose:
            return replace(last, first=here.first, last=here.last)
        if spot.kind in _CANDIDATE_KINDS:
            return replace(here, act="no search brought it for this call")
        if spot.kind == "summary":
            return replace(here, act="the summary was written anew without it")
        if spot.kind not in ("message", "tool call", "tool result"):
            return replace(here, act="it was not sent with this call")
        holds = any(part.form == "summary" for part in holding) if built else None
        if last.act == _TAKEN_BACK or content_place(spot.id) >= manifest.epoch.cut_count:  # not cut here, nor since
            return replace(here, act=_TAKEN_BACK)
        if last.form not in ("summarized", "left_out"):  # it was sent until then, if only as an extract
            act = "a call before had cut it, whose pack is not there"
            act = _cut(manifest, self.replayer.policy(manifest)) if last.form != "absent" else act
            last = replace(last, form="summarized", act=act)
        act = last.act.partition(_SEARCHED)[0]
        elsewhere = () if holds else here.elsewhere
        return replace(last, first=here.first, last=here.last, holds=holds, elsewhere=elsewhere, act=act)

    def _add(self, spot: Place, span: Span, manifest: Manifest) -> None:
        """Adds a call: to the span before where nothing changed."""
        last, act = spot.spans[-1] if spot.spans else None, span.act
        if (spot.kind, span.form, span.holds, span.elsewhere) == ("message", "summarized", False, ()):
            note = f"{manifest.searched:,} turns did not bring it back" if manifest.searched else _NO_SEARCH
            act = f"{span.act}{_SEARCHED}{note}"
        goes_on = last and (last.form, last.holds, not last.elsewhere) == (span.form, span.holds, not span.elsewhere)
        is_search = act != span.act and bool(manifest.searched)  # the first one begins a span, the last one is named
        if last and goes_on and not (is_search and last.act.endswith(_NO_SEARCH)):
            spot.spans[-1] = replace(last, last=span.last, act=act if is_search else last.act)
        else:
            spot.spans.append(replace(span, act=act))

    def _holds(self, text: str) -> bool:
        from aether_context.retrieval.terms import terms

        if self._exact:
            return _line(self._text).casefold() in _line(text).casefold()
        return set(terms(self._text)) <= set(terms(text))

    def answer(
        self, manifests: Sequence[Manifest], subjects: Sequence[Manifest], session: str, most_packs: int
    ) -> Answer:
        """The answer; ``subjects`` are the calls of which the last of each agent has a verdict."""
        notes, calls = list(self._notes), 1 if len(subjects) == 1 else len(manifests)
        if not self.places:
            notes.append(
                f"none of {calls} calls knew these words: they never reached the plugin. It sees what ADK sends, what a"
                " memory search finds, and what the session's state holds"
            )
            keys = dict.fromkeys(item.session_key for item in manifests)
            aged_sessions = [key[2] for key in keys if self.replayer.store.forgotten(*key).packs]
            notes += [f"calls of session {session} were deleted for their age" for session in aged_sessions]
        if len(self.places) > _MOST_PLACES:
            notes.append(f"{len(self.places) - _MOST_PLACES} further places are not shown: give more of the text")
        reads = read_back(self.replayer.store, manifests)
        readers = [it for it in self.places.values() if it.kind == "tool result" and it.who.startswith((READ, SEARCH))]
        reader_calls = {span.first for spot in readers for span in spot.spans}
        for spot in self.places.values():
            is_cut = any(span.form != "whole" for span in spot.spans)
            history_reads = [call for call in reads.get(HISTORY, ()) if is_cut and call in reader_calls]
            spot.read_back = reads.get(spot.uri, ()) if spot.uri else tuple(history_reads)
        last_calls = {_key(manifest): manifest for manifest in subjects}
        places = sorted(self.places.items(), key=lambda it: _last_read(it[1], at := last_calls[it[0][:-1]].number) < at)
        agents = sorted({name[:-1] for name in self.places}, key=lambda key: (-last_calls[key].last_event_time, key))
        return Answer(
            text=self._text,
            session=session,
            verdicts=tuple(self._verdict(last_calls[key], most_packs) for key in agents),
            calls=calls,
            places=tuple(spot for _, spot in places[:_MOST_PLACES]),
            exact=self._exact,
            notes=tuple(notes),
        )

    def _verdict(self, manifest: Manifest, most_packs: int) -> AgentVerdict:
        """The answer for the agent that made a call, about this call, of which no later one is looked at."""
        number, agent, session = manifest.number, manifest.agent, manifest.session
        places = [spot for name, spot in self.places.items() if name[:-1] == _key(manifest)]
        current = [(spot, span) for spot in places for span in spot.spans if span.first <= number <= span.last]
        call = f"call {number}" if manifest.caller is None else f"call {number} of session {session}"
        verb = "read it" if self._exact else "read all of these words"
        present = [(spot, span) for spot, span in current if span.holds]
        # What was cut and stands in the summary is read there.
        apart = [pair for pair in present if pair[0].kind == "summary" or pair[1].form != "summarized"] or present
        elsewhere = [f"in {name}" for name in next((span.elsewhere[:3] for _, span in current if span.elsewhere), ())]
        names, cure = [*_listed([spot for spot, _ in apart])] or elsewhere, ""
        is_read = True if names else None if any(span.holds is None for _, span in current) else False
        if is_read:
            sentence = f"At {call} {agent} {verb}: {_and(names)}."
        elif is_read is None:
            sentence = f"Whether {agent} {verb} at {call} is not known: the texts of its request are not recorded."
        else:
            # Of several texts the reason is that of the one which was read last, or else came last.
            current.sort(key=lambda it: (_last_read(it[0], number), bool(it[1].act), it[1].act == _TAKEN_BACK))
            spot, act = (current[-1][0], current[-1][1].act) if current else (places[0], "")
            reason = f": {act.partition(_SEARCHED)[0]}" if act else ""
            earlier = [it.last for at in places for it in at.spans if (it.holds or it.elsewhere) and it.last < number]
            last = f" The last call that did is {max(earlier)}." if earlier else ""
            address = f" All of it is at {spot.uri}." if spot.uri and spot.uri not in reason else ""
            sentence = f"At {call} {agent} did not {verb}{reason}.{last}{address}"
            cure = self._cure(manifest, places, most_packs) if most_packs else ""
        return AgentVerdict(session=session, agent=agent, call=number, is_read=is_read, sentence=sentence, cure=cure)

    def _cure(self, manifest: Manifest, places: Sequence[Place], most_packs: int) -> str:
        from aether_context.lab.reading.cures import Cures  # what plays sessions takes long to load

        tools = {spot.who.partition("(")[0] for spot in places if spot.kind == "tool result"}
        try:
            if (key := manifest.session_key) not in self._cures:
                self._cures[key] = Cures(self.replayer, manifest)
            return self._cures[key].cheapest(manifest, sorted(tools), most_packs, self._text, self._holds)
        except AetherContextError as error:
            return f"no setting could be tried: {error}"


def _last_read(spot: Place, number: int) -> int:
    """The last call up to one whose request held the words at a place; 0 where none did."""
    return max((min(span.last, number) for span in spot.spans if span.holds and span.first <= number), default=0)


def _listed(places: Sequence[Place]) -> Iterator[str]:
    """Places as a sentence names them: one of a kind with its date and speaker, several by their number."""
    by_kind: dict[str, list[Place]] = {}
    for spot in places:
        by_kind.setdefault(spot.kind, []).append(spot)
    for kind, same in by_kind.items():
        if len(same) > 1:
            yield f"in {len(same)} {'memories' if kind == 'memory' else f'{kind}s'}"
            continue
        spot = same[0]
        article = "a piece of" if kind == "evidence" else "an" if kind[0] in "aeiou" else "a"
        date = "" if spot.time is None else datetime.fromtimestamp(spot.time, UTC).strftime("%-d %B %Y")
        details = ", ".join(filter(None, (date, spot.who if spot.who != kind else "")))
        yield f"as {article} {kind}{f' ({details})' if details else ''}"


def _and(items: Iterable[str]) -> str:
    *first, last = items
    return f"{', '.join(first)} and {last}" if first else last


def _names(pieces: Iterable[Piece]) -> tuple[str, ...]:
    """The names of pieces of a request: messages by the ids of their rows, or words for what the plugin wrote."""
    return tuple(
        f"{'the payload in ' * (part.form == 'payload')}the message {part.rows[0]}"
        if part.rows
        else f"the {part.form or part.part}"
        for part in pieces
    )


def _kind(row: Row | None, content: Content | None) -> str:
    if row and row.layer == "system":
        return "instruction"
    if row and row.layer == "memory":
        return {RECALLED: "recalled turn", "memory": "memory"}.get(row.source, "note")
    if row and row.layer == "evidence":
        return "evidence"
    if content is not None and content.responses:
        return "tool result"
    return "tool call" if content is not None and content.calls else "message"


def _act(manifest: Manifest, row: Row, policy: PackPolicy) -> str:
    """The act that brought a row into its form."""
    if row.form == "offloaded":
        tokens = f"{manifest.expected(row.tokens):,}"
        return f"too long to be sent whole: an extract of {tokens} tokens is sent, all of it is at {row.uri}"
    if any(event.stage == "cut" and row.id in event.item_ids for event in manifest.truncation_events):
        return _cut(manifest, policy)
    if row.reason == "below_floor":
        scores = [item.scores.get("similarity", 0.0) for item in manifest.rows if item.layer == row.layer]
        floor = policy.retrieval.floor * max(scores, default=0.0)
        return f"found, but below the floor: {row.scores.get('similarity', 0.0):.2f} of {floor:.2f}"
    return WHY.get(row.reason or "", "an earlier call had shortened it")


def _cut(manifest: Manifest, policy: PackPolicy) -> str:
    """The cut of a call, with the numbers that decided it where these are tokens: all are by the counter."""
    events = [event for event in manifest.truncation_events if event.stage == "cut"]
    counted = manifest.counted_tokens + sum(max(0, event.tokens_before - event.tokens_after) for event in events)
    input_budget, share = manifest.window - manifest.allocation["slack"].final, policy.conversation.compact_at or 1
    spare = spare_tokens(manifest.calibration, input_budget)
    mark, name, note = input_budget + spare, "its budget", " (the provider counts fewer)" if spare > 0 else ""
    if share < 1 and all(event.reason == "high_water" for event in events):
        mark = mark_tokens(manifest.calibration, share, mark, input_budget)
        name, note = "its mark", f" (compact_at = {share:g})"
    if counted <= mark or not events:
        return f"cut before call {manifest.number}: {WHY[events[0].reason] if events else 'it was not sent any more'}"
    return f"cut before call {manifest.number}: the request counted {counted:,} tokens, above {name} of {mark:,}{note}"


def _line(text: str) -> str:
    """A text on one line, without the escapes of JSON."""
    return _SPACE.sub(" ", text.replace('\\"', '"')).strip()
