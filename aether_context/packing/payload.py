"""The payload: fixed headers in a fixed order, text from elsewhere fenced, what is answered word for word at the end.
It is written into the human message.

A header is a line that starts at the margin and ends with a colon. Text that is not the project's own is written as
bullets whose further lines are indented, so no such line can start at the margin: it can neither forge a header nor
close its section. What is answered comes last, so nothing follows that it could imitate: the user's request, or,
where the host shows nothing of the user, the turn of another agent that was handed over.
"""

from __future__ import annotations

import datetime
import json
import math
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from aether_context.conversation.content_json import content_of_parts, text_part
from aether_context.evidence.offload import ARTIFACT_KEY
from aether_context.evidence.record import READERS, STORED
from aether_context.pack import (
    UNTIL,
    AcceptanceItem,
    Candidate,
    Content,
    Layer,
    Outgoing,
    PackedMessage,
    PackInput,
    Step,
    Tool,
    Validity,
    turn_place,
    with_content,
)
from aether_context.packing.draft import Draft, item_place
from aether_context.policy import PayloadSettings
from aether_context.state.acceptance import covers_of, proven_items
from aether_context.text.entities import SCHEME, artifact_uris
from aether_context.text.json_lines import PIECE, pieces
from aether_context.text.shorten import shorten
from aether_context.tokens.cache import PackCounter
from aether_context.tokens.counters import SharedLRU

_TOP_EVIDENCE = 2
"""The most pieces of evidence that move near the end, behind the acceptance list; one at least stays under EVIDENCE."""
FIRST_LINE = "CONTEXT PACK"
REQUEST = "USER REQUEST:\n"
HANDED_OVER = "HANDED OVER:\n"
STANDING_PREFERENCE = "[standing preference]"
"""What the line of a wish begins with that holds for every request; no other line of `MEMORY` can."""
_MARK = re.compile(r"\[\s{0,8}standing[\s_-]{0,8}preferences?\s{0,8}\]", re.IGNORECASE)
_UNSEEN = ("Mn", "Cf", "Cc")
_ACTIVE = "ACTIVE INSTRUCTIONS"
HEADERS = (
    "INTERPRETATION RULES",
    "TASK",
    "ROLE",
    "GOAL",
    "STEP",
    "CONSTRAINTS",
    "OPEN QUESTIONS",
    "NEXT",
    "STOP WHEN",
    "TOOLS",
    "EVIDENCE",
    "MEMORY",
    _ACTIVE,
    "ACCEPTANCE",
    "TOP EVIDENCE",
    "RECITATION",
    "USER REQUEST",
    "HANDED OVER",
)
"""Every header a payload can have, in their order; it ends with one of the last two. The summary is a message of its
own, which the contract names beside them."""
_END = re.compile(rf"^(?:{REQUEST}|{HANDED_OVER})", re.MULTILINE)

WORDING: Mapping[str, str] = json.loads(Path(__file__).with_name("wording.json").read_text(encoding="utf-8"))
"""The lines that explain a pack to the model. Each recorded pack holds its own (`Setting.wording`), so that a line that
is added or changed in wording.json breaks the replay of none: a replay leaves out the lines that its recording lacks.
Each payload with `HANDED OVER` has the line for it, since no system instruction explains that section."""


def wording_of(source: PackInput) -> Mapping[str, str]:
    """The lines that a pack is built with: the recorded ones, or those of this version."""
    return source.wording or WORDING


def rules(
    names: Set[str], wording: Mapping[str, str] = WORDING, *, has_preference: bool = False, from_agent: bool = False
) -> tuple[str, ...]:
    """The lines that explain a payload to the model, for the sections that it has; ``STEP`` stands for all of a plan.

    Args:
        from_agent: whether it ends with another agent's turn in place of the user's request.
    """
    *earlier_names, last = [name for name in ("EVIDENCE", "MEMORY", "CONVERSATION SUMMARY") if name in names] or [""]
    material = f"{', '.join(earlier_names)} and {last} are" if earlier_names else f"{last} is"
    lines = {key: line.replace("{material}", material) for key, line in wording.items()}
    preference = "preference_in_team" if from_agent else "preference"
    # A chat without a plan pays a line or two, in the payload that holds evidence, recalled turns or memories.
    if last and names <= {"EVIDENCE", "MEMORY"}:
        request = "handed_over" if from_agent else "request_of_chat"
        lines[request] = " ".join(lines[key] for key in ("material_of_chat", request) if key in lines)
        used = {preference: has_preference, "cite": "EVIDENCE" in names, request: True}
    else:
        request = "handed_over" if from_agent else "request_of_step" if "STEP" in names else "request"
        used = {
            "authority": "STEP" in names,
            "step_holds" if from_agent else "beyond_step": "STEP" in names,
            "next": "NEXT" in names,
            "cite": "EVIDENCE" in names,
            "material": bool(last),
            preference: has_preference,
            "active": _ACTIVE in names,
            "unknown": True,
            "declared": "TOOLS" in names,
            request: True,
        }
    return tuple(lines[key] for key, is_used in used.items() if is_used and key in lines)


def bullets(texts: Iterable[str]) -> str:
    return "\n".join(bullet(text) for text in texts if text and text.strip())


def bullet(text: str) -> str:
    """One bullet; further lines of the text are indented."""
    return "- " + "\n  ".join(text.strip().splitlines())


def contract_of(source: PackInput) -> str:
    """The contract in the system instruction (option A), for every section that a step's payload can have."""
    return _contract(tuple(wording_of(source).items()))


@lru_cache(maxsize=64)
def _contract(wording: tuple[tuple[str, str], ...]) -> str:
    lines = dict(wording)
    return f"{lines['opening']}\n{bullets(rules({*HEADERS, 'CONVERSATION SUMMARY'}, lines, has_preference=True))}"


class Payload(NamedTuple):
    """The payload's text, split between what is material and what is asked."""

    head: str
    tail: str


def payload_text(
    *,
    step: Step,
    request: str,
    tools: Sequence[Tool],
    evidence: Sequence[Candidate],
    memory: Sequence[Candidate],
    settings: PayloadSettings,
    explains: bool = False,
    from_agent: bool = False,
    instructions: str = "",
    wording: Mapping[str, str] = WORDING,
) -> Payload | None:
    """The payload of one request, None where nothing but the request would be in it.

    Args:
        request: what is answered, word for word.
        evidence: best first; the first few move near the end, where others remain.
        explains: whether the payload has to explain itself though the settings leave that to the system instruction.
        from_agent: whether ``request`` is another agent's turn.
        instructions: the section that will stand between its two halves.
        wording: the lines that explain it.
    """
    lines_by_address: dict[str, str] = {}
    for candidate in evidence:  # the first one's line names the address, further ones continue it
        address = _listed(candidate) or candidate.id
        earlier = lines_by_address.get(address)
        further = candidate.line.removeprefix(f"- {address}")
        lines_by_address[address] = candidate.line if earlier is None else f"{earlier}\n {further}".rstrip()
    evidence_lines = list(lines_by_address.values())
    moved = max(0, min(_TOP_EVIDENCE, len(evidence_lines) - 1))
    head = _plan(step) + _sections(
        ("TOOLS", bullets(tool.signature for tool in tools)),
        ("EVIDENCE", "\n".join(evidence_lines[moved:])),
        ("MEMORY", "\n".join(candidate.line for candidate in sorted(memory, key=_moment))),
    )
    tail = _sections(("ACCEPTANCE", checklist(step)), ("TOP EVIDENCE", "\n".join(evidence_lines[:moved])))
    if not (head or tail or instructions):
        return None
    if settings.recitation and step.text:
        tail += _sections(("RECITATION", bullets([wording.get("recitation", "")])))
    sections = {"STEP": step_text(step), "NEXT": step.next, "TOOLS": tools, "EVIDENCE": evidence, "MEMORY": memory}
    sections[_ACTIVE] = instructions
    lines = rules(
        {name for name, content in sections.items() if content},
        wording,
        has_preference=any(candidate.kind == "preference" for candidate in memory),
        from_agent=from_agent,
    )
    if not (explains or settings.contract == "payload"):
        # The system instruction explains all but what another agent hands over.
        lines = tuple(line for line in lines if settings.contract == "system" and "HANDED OVER" in line)
    return Payload(
        head=f"{FIRST_LINE}\n{_sections(('INTERPRETATION RULES', bullets(lines)))}{head}",
        tail=f"{tail}{HANDED_OVER if from_agent else REQUEST}{request}",
    )


def answered(text: str) -> str:
    """The text behind a payload's last header: the user's request, or what was handed over; nothing without one."""
    return "".join(_END.split(text, maxsplit=1)[1:])


def step_text(step: Step) -> str:
    """All that a step adds to a payload, to be counted before anything else is chosen."""
    return _plan(step) + _sections(("ACCEPTANCE", checklist(step)))


def _plan(step: Step) -> str:
    """The sections of a step at the head of a payload."""
    return _sections(
        ("TASK", bullets([_named(step.task_id, step.task)])),
        ("ROLE", bullets(role_lines(step))),
        ("GOAL", bullets([step.goal])),
        ("STEP", bullets([_named(step.step_id, step.text)])),
        ("CONSTRAINTS", bullets(step.constraints)),
        ("OPEN QUESTIONS", bullets(step.open_questions or ())),
        ("NEXT", bullets(step.next)),
        ("STOP WHEN", bullets(step.stop_when)),
    )


def _moment(memory: Candidate) -> tuple[float, tuple[int, int]]:
    """A sort key by which search results stand in the order of time, behind whatever an app put there or has no
    date."""
    if memory.kind or memory.time is None:
        return -math.inf, (0, 0)
    return memory.time, turn_place(memory)


def memory_line(candidate: Candidate) -> str:
    """A memory as a bullet that begins with its date and its speaker, or what it is; a standing wish with its mark."""
    date = day(candidate.time) if candidate.time is not None else ""
    if UNTIL in candidate.scores:
        date = f"{date} until {day(candidate.scores[UNTIL])}".strip()
    if candidate.kind == "preference":
        return bullet(f"{STANDING_PREFERENCE} {candidate.text}{date and f' ({date})'}")
    label = candidate.source if candidate.source in ("note", "decision", "entity") else ""
    head = ", ".join(filter(None, (date, _unmarked(candidate.speaker) or label)))
    return bullet(f"{head}: {_unmarked(candidate.text)}" if head else _unmarked(candidate.text))


def _unmarked(text: str) -> str:
    """A text that nowhere holds the mark of a standing wish, and none of whose lines begins with what looks like it."""
    text = _MARK.sub("(standing preference)", text)
    if text.isascii() and "standing" not in text.casefold():
        return text
    return "\n".join(f"quoted: {line}" if _looks_marked(line) else line for line in text.splitlines())


def _looks_marked(line: str) -> bool:
    """Tells whether a line begins with the mark's two words, or, in a bracket, with two as long in other letters."""
    head = "".join(
        letter for letter in unicodedata.normalize("NFKD", line[:200]) if unicodedata.category(letter) not in _UNSEEN
    )
    words = re.findall(r"[^\W\d_]+", head)[:2]
    if "".join(words).casefold().startswith("standingpreference"):
        return True
    opened = any(unicodedata.category(letter) == "Ps" for letter in head[:20])
    return opened and [len(word) for word in words] == [8, 10] and not "".join(words).isascii()


def evidence_line(candidate: Candidate) -> str:
    """A piece of evidence as a bullet: its URI, the one that supersedes it, then its summary."""
    if not candidate.uri:
        return bullet(candidate.text)
    later = f" [superseded by {candidate.superseded_by}]" if candidate.superseded_by else ""
    covers = f" [covers {', '.join(candidate.covers)}]" if candidate.covers else ""
    summary = f" (summary: {candidate.text})" if candidate.text else ""
    return bullet(f"{' '.join(candidate.uri.split())}{covers}{later}{summary}")


def role_lines(step: Step) -> tuple[str, ...]:
    """The lines for a role: those of a common role, or the plan's own words."""
    return step.role_lines or (step.role,)


def checklist(step: Step) -> str:
    """The acceptance list, an item a line, with its id and a mark where it needs evidence."""
    return "\n".join(checklist_line(item) for item in step.acceptance)


def checklist_line(item: AcceptanceItem) -> str:
    return bullet(f"[ ] {_named(item.id, item.text)}{' (needs evidence)' if item.needs_evidence else ''}")


_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip


@lru_cache(maxsize=4_096)
def day(time: float) -> str:
    """The UTC date in English words, ``8 May 2023``, which models tell a line's date by more often than by digits."""
    date, _, _ = minute(time).partition(" ")
    year, month, number = map(int, date.split("-")) if date else (0, 0, 0)
    return f"{number} {_MONTHS[month - 1]} {year}" if date else ""


def minute(time: float) -> str:
    """The UTC date and time of day, ``YYYY-MM-DD HH:MM``; empty for a time outside the calendar's years 1 to 9999."""
    try:
        at = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(seconds=time)
    except (OverflowError, ValueError):
        return ""
    return at.strftime("%Y-%m-%d %H:%M")


def _sections(*sections: tuple[str, str]) -> str:
    return "".join(f"{header}:\n{body}\n" for header, body in sections if body)


def _named(name: str, text: str) -> str:
    return f"{name}: {text}" if name and text else text


# What a request really holds of its step: the checklist, the evidence, and every address.

_OFFLOADED = f'"{ARTIFACT_KEY}":"{SCHEME}evidence/'
TOOL = "tool:"
"""What the name of a tool whose proof is missing begins with."""


@with_content
def addresses_of(content: Content) -> frozenset[str]:
    """The addresses of artifacts in a message: in texts, calls and responses."""
    return frozenset(uri for part in content.parts for uri in artifact_uris(part.text))


@with_content
def proofs_of(content: Content) -> frozenset[str]:
    """The addresses in calls and responses: what was only talked about proves nothing."""
    return frozenset(uri for part in (*content.calls, *content.responses) for uri in artifact_uris(part.text))


def results_in(content: Content) -> list[tuple[str, str]]:
    """Tool and text of each response in a message, of those that it quotes from another agent's turn, too."""
    results = [(part.name, part.text) for part in content.responses]
    return results + [(quote.name, quote.text) for quote in content.quotes if quote.kind == "response"]


def answers_in(content: Content, *, is_told: bool = False) -> list[str]:
    """The texts of the responses in a message, but for those of the tools that read evidence.

    Args:
        is_told: whether the message tells calls and responses in one text.
    """
    texts = [text for name, text in results_in(content) if name not in READERS]
    return [*texts, content.text] if is_told else texts


def sent_results(results: Iterable[Candidate], items: Iterable[Outgoing]) -> set[str]:
    """Ids of the stored results of which a response that is sent holds the address, or every word of the summary."""
    result_texts = [answer for item in items for answer in answers_in(item.content, is_told=item.form == "told")]
    addresses = {uri for answer in result_texts for uri in artifact_uris(answer)}
    return {
        result.id
        for result in results
        if result.uri in addresses
        or (
            len(words := _words(result.text.partition("\n")[2])) >= _LEAST_WORDS
            and any(words <= _words(text) for text in result_texts)
        )
    }


_LEAST_WORDS = 5
"""Words of a summary that another result does not have by chance."""
_JSON_SPACE = re.compile(r"\\[nrt]")


_words_of: SharedLRU[str, tuple[frozenset[str], int]] = SharedLRU(100_000, lambda entry: 2 + len(entry[0]) + entry[1])
"""The words of a text, and hundreds of its characters. Each counts as about 100 bytes: results may be long."""


def _words(text: str) -> frozenset[str]:
    if (entry := _words_of.get(text)) is None:
        entry = frozenset(re.findall(r"\w+", _JSON_SPACE.sub(" ", text))), len(text) // 100
        _words_of.put(text, entry)
    return entry[0]


def offloaded_to(content: Content) -> str:
    """The address of all of a tool's result, where an extract came in its place; empty where none did."""
    responses = (part.text.partition(_OFFLOADED) for part in content.responses if part.name not in READERS)
    return next((uri for _, key, rest in responses if key for uri in artifact_uris(key + rest)), "")


def _addresses_of(items: Iterable[Outgoing]) -> list[tuple[frozenset[str], frozenset[str]]]:
    """The addresses in contents, and those among them that packs wrote, or that stand in calls and results."""
    pairs = []
    for content, form in ((item.content, item.form) for item in items):
        addresses = addresses_of(content)
        written = addresses if form in ("payload", "summary", "merged") else proofs_of(content)
        pairs.append((addresses, written if content.role == "user" else frozenset[str]()))
    return pairs


def addresses_in(draft: Draft, contents: tuple[Outgoing, ...]) -> frozenset[str]:
    """The addresses in a request that the session knows: of stored results, saved files and recorded evidence, and of
    what packs took out of messages. What only a text names, such as an example in a tool's description, is none."""
    source, columns, packed_form = draft.input, draft.columns, draft.message.packed_form
    texts = (draft.epoch.system, *(tool.wire for tool in draft.tools.sent), *source.request.other_tools)
    # It lists evidence at other addresses, too.
    text = packed_form.text if packed_form is not None and packed_form.before else ""
    listed = {uri for candidate in source.candidates if (uri := _listed(candidate)) and _is_listed(uri, text)}
    known_uris = {*source.host.readings, *map(_listed, source.candidates)}
    addresses = {uri for candidate in texts for uri in artifact_uris(candidate)}
    in_contents = columns.extend("addresses", _addresses_of, contents)
    addresses = addresses.union(*(every for every, _ in in_contents if every))
    ours = filter(STORED.fullmatch, frozenset().union(*(written for _, written in in_contents if written)))
    return frozenset(addresses & known_uris).union(listed, ours)


def validity_of(source: PackInput, packed_form: PackedMessage | None) -> tuple[Validity, str]:
    """Decides whether a pack is valid, and why not: a step counts as sent where its words and its whole checklist
    are."""
    step = source.step
    if source.validity != "valid" or source.host.passthrough_reason or not step.text:
        return source.validity, source.invalid_reason
    if source.request.request_index is None:
        return "invalid", "the request has no message of the user that the step could stand in"
    text = packed_form.text if packed_form is not None else ""
    items_sent = [f"\n{checklist_line(item)}\n" in text for item in step.acceptance]  # word for word
    if not all(items_sent):
        return "invalid", f"the window has room for {sum(items_sent)} of {len(items_sent)} acceptance items"
    if "\nSTEP:\n" not in text:
        return "invalid", "the window has no room for the step"
    return "valid", ""


def missing_evidence(source: PackInput, covers: Collection[str], contents: Iterable[Outgoing]) -> tuple[str, ...]:
    """Lists missing evidence: acceptance items that need it and whose proof is not sent, and tools without a record.

    The latter as ``tool:NAME``, where a plan is at work: tools that were called while nothing was recorded on purpose,
    and none of whose results the session keeps.

    Args:
        covers: items whose proof is known to be sent.
        contents: where else to look for proof, as they are sent.
    """
    evidence = [entry for entry in source.candidates if entry.layer == "evidence"]
    items = tuple(item.id for item in source.step.acceptance if item.needs_evidence and item.id not in covers)
    if items:
        addresses: set[str] = set()
        for entry in contents:
            addresses |= addresses_of(entry.content) if entry.form == "payload" else proofs_of(entry.content)
        proven = proven_items(addresses, covers_of(evidence))
        items = tuple(name for name in items if name not in proven)
    if source.validity == "unplanned" or any(entry.kind for entry in evidence):
        return items
    names = {part.name for content in source.request.contents for part in content.calls}
    names -= {tool.name for tool in source.request.tools if tool.essential} | {entry.source for entry in evidence}
    return items + tuple(f"{TOOL}{name}" for name in sorted(names))


def _listed(candidate: Candidate) -> str:
    """The address of a candidate as a payload shows it."""
    return " ".join(candidate.uri.split())


def _is_listed(uri: str, text: str) -> bool:
    return bool(uri) and (f"\n- {uri} " in text or f"\n- {uri}\n" in text)


_LEAST_HEAD = 32


def write_payload(draft: Draft) -> None:
    """Writes the payload of what is chosen into the human message, and measures the layers that are given with it.

    What is counted is the message as it is sent, so nothing of a payload has to be foreseen: the task layer is all of
    it but its memories and its evidence. Where all that it is made of is as it was, the message stands.
    """
    message = draft.message
    cache_key = (draft.selected, draft.step, draft.tools, draft.instructs, *message[2:])
    if message.cache_key == cache_key:
        return
    source, scope, counter = draft.input, draft.tools, draft.counter
    request_index, payload_tokens, tokens = source.request.request_index, draft.payload_tokens, 0
    packed_form = _message(draft, payload_tokens)
    draft.message = message._replace(packed_form=packed_form, cache_key=cache_key)
    if request_index is not None:
        raw = source.request.contents[request_index]
        if packed_form is not None and packed_form.before:
            content, members = packed_message(raw, request_index, packed_form, draft)
            written = Outgoing(content, raw, request_index, "payload", counter.content(content), members)
        else:
            written = Outgoing(raw, raw, request_index, "whole", draft.raw_tokens[request_index])
        items, request_at = draft.history.items, item_place(draft.history.items, request_index)
        if request_at is not None:
            items = (*items[:request_at], written, *items[request_at + 1 :])
        draft.history, tokens = draft.history._replace(items=items), written.tokens
    system, declarations = counter.head(draft.epoch.system, scope.sent, source.request.other_tools)
    draft.measured = {
        "system": system + source.usage.uncounted_tokens,
        "task": max(0, tokens - sum(payload_tokens.values())),
        "tools": declarations,
    }


def _message(draft: Draft, payload_tokens: Mapping[Layer, int]) -> PackedMessage | None:
    """Packs this invocation's human message; None where it is sent as it is."""
    source, policy, raw, previous = draft.input, draft.policy, draft.request_content, draft.epoch.packed_form
    if raw is None or source.host.passthrough_reason:
        return None
    shortened, largest, instructs = draft.message.request, draft.message.largest, draft.instructs
    if previous is not None and previous.before and not previous.after and instructs and shortened is None:
        shortened = previous.text  # an earlier call cut the request down, and there was nothing beside it
    elif draft.epoch.has_chosen and previous is not None and previous.before:
        # What an earlier call of this invocation chose and tightened stays, also where the request is shorter now.
        if shortened is not None and previous.after:
            previous = replace(previous, text=previous.text.removesuffix(answered(previous.after)) + shortened)
        elif shortened is not None:
            previous = replace(previous, text=shortened, split=len(shortened))
        return replace(previous, largest=largest, instructs=instructs)
    if draft.epoch.has_chosen and shortened is None and not (instructs or draft.message.is_anew):
        return previous
    request = raw.text if shortened is None else shortened
    rendered = payload_text(
        step=draft.step,
        request=request,
        tools=draft.tools.listed,
        evidence=draft.selected.evidence,
        memory=draft.selected.memory,
        settings=policy.payload,
        explains=policy.payload.contract == "system" and not draft.epoch.contract,
        from_agent=source.request.from_agent,
        instructions=instruction_section(draft, instructs),
        wording=wording_of(source),
    )
    message = PackedMessage(
        of=raw.digest,
        invocation=source.identity.invocation,
        text="",
        split=0,
        used=payload_tokens,
        place=source.request.positions[source.request.request_index or 0],
        plan=draft.epoch.plan,
        largest=largest,
        instructs=instructs,
    )
    if rendered is not None:
        head, tail = _within(rendered, request, draft.message.max_preamble_tokens, draft.counter)
        text = head + tail
        # An emergency may have cut lines of evidence out again, and what the conversation holds anyway is sent as well.
        proofs = [entry for entry in draft.selected.evidence if _is_listed(_listed(entry), text) or entry.line in text]
        proofs += [drop.candidate for drop in draft.rankings.evidence.left if drop.reason == "already_in_conversation"]
        covers = tuple(sorted({item for proof in proofs for item in proof.covers}))
        return replace(message, text=text, split=len(head), covers=covers)
    if shortened is not None:
        return replace(message, text=request, split=len(request), used={})
    # What was handed over may change within an invocation: this says that the choice for it is made.
    return replace(message, used={}) if raw.agent else None


def _within(rendered: Payload, request: str, ceiling: int | None, counter: PackCounter) -> tuple[str, str]:
    """The payload's two halves; all before the request as an extract of at most ``ceiling`` tokens.

    The second half, with the acceptance list, stays whole while anything of the first finds room beside it; the header
    before the request stays anyway, since all above it would be read as the user's words without it.
    """
    if ceiling is None:
        return rendered.head, rendered.tail

    def cut(text: str, tokens: int, query: str = "") -> str:
        # Pieces of a long line are indented, too: none of them can stand for a header.
        fenced = "\n".join(map(indented, text.rstrip().split("\n")))
        # What is counted in pieces takes a token or two more as one text.
        return f"{shorten(fenced, tokens - 2, counter=counter, query=query).text}\n"

    checklist = rendered.tail.removesuffix(request)
    room = ceiling - counter.count(checklist)
    if room >= _LEAST_HEAD:
        return cut(rendered.head, room), rendered.tail
    header = HANDED_OVER if checklist.endswith(HANDED_OVER) else REQUEST
    material = rendered.head + checklist.removesuffix(header)
    return cut(material, ceiling - counter.count(header), query=checklist), f"{header}{request}"


def packed_message(
    raw: Content, origin: int, packed_form: PackedMessage, draft: Draft
) -> tuple[Content, tuple[tuple[int, int], ...]]:
    """A message in its packed form: whatever is not text stays behind the new text, as far as ``largest`` lets it.

    The instructions in it are those that are active still. With the members of `Outgoing`.
    """
    sizes, instructions = sizes_beside_text(raw, draft.counter), instruction_section(draft, packed_form.instructs)
    places = [at for at, size in sizes.items() if packed_form.largest is None or size <= packed_form.largest]
    text = f"{packed_form.before}{instructions}{packed_form.after}"
    content = content_of_parts(raw.role, [text_part(text), *(raw.parts[at] for at in places)])
    return content, ((origin, -1), *((origin, at) for at in places))


def instruction_section(draft: Draft, names: Collection[str]) -> str:
    """The section of the instructions with these ids that are active: whole, or named with the call that loads them."""
    texts = dict[str, str]()
    for instruction in (instruction for instruction in draft.input.instructions if instruction.id in names):
        hint = f"{instruction.speaker} is active and finds no room here: {instruction.source} loads it again"
        texts[instruction.id] = f"{instruction.speaker}:\n{instruction.text}" if instruction.id in draft.whole else hint
    return _sections((_ACTIVE, bullets(texts.values())))


def sizes_beside_text(raw: Content, counter: PackCounter) -> dict[int, int]:
    """Tokens of each part of a message that is not text, such as media and code, by index."""
    parts = ((at, part) for at, part in enumerate(raw.parts) if part.kind != "text")
    return {at: max(counter.media(part), counter.count(part.text)) for at, part in parts}


def indented(text: str) -> str:
    """A text whose lines behind the first are indented, and so short that `shorten` cuts none of them in two: none of
    what it leaves can stand for a header."""
    return "\n  ".join(line_piece for line in text.split("\n") for line_piece in pieces(line, PIECE))
