"""Every function that reads a text from outside takes time in proportion to its length, whatever the text is.

Each is run over hostile families of texts at 10,000 and 100,000 characters. What is quadratic takes a hundred times as
long for ten times the text, what is linear ten times; the line is drawn between the two, far from both, so that a busy
machine is not taken for a slow pattern. What takes next to nothing even for the longer text is not looked at further.
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from google.adk.events.event import Event
from google.adk.models.llm_response import LlmResponse
from google.genai import types
from packs import pack_input, said
from scripted import Scripted
from timing import of_unit

from aether_context import PackPolicy, canonical
from aether_context.adk.acceptance import Reviewer
from aether_context.adk.call import Contents, PreviousCall
from aether_context.adk.request import host_request, memories, reader
from aether_context.adk.request.history import AgentHistory
from aether_context.adk.session import storable
from aether_context.conversation import summary
from aether_context.conversation.content_json import content_from_wire, content_of_parts, part_of
from aether_context.conversation.normalization import normalize
from aether_context.conversation.summary import fenced
from aether_context.evidence import media, record
from aether_context.evidence.offload import offload
from aether_context.evidence.passages import Searcher
from aether_context.evidence.show import is_data, is_text, kind_of, show
from aether_context.pack import AcceptanceItem, Candidate, Content, Step, Tool
from aether_context.packing import build_pack, payload, tools
from aether_context.policy import OffloadSettings, RetrievalSettings
from aether_context.redaction import RULES, Masker, masker
from aether_context.retrieval import HybridIndex, ranked, ranking, terms
from aether_context.retrieval.call_indexes import passages
from aether_context.retrieval.embedders import word_by_word
from aether_context.state import PlannedCall, read_state
from aether_context.store import artifacts
from aether_context.store.files import segment
from aether_context.text import decoding, entities, shorten, unlike
from aether_context.tokens import counter_for
from aether_context.tokens.framing import framing_of, written_call, written_declaration, written_response

SHORT, LONG = 10_000, 100_000
MOST_TIMES = 30
UNNOTICED_SECONDS = 0.5
TRIES = 8

UNITS = [
    " ", "\t", "\n", "\r", "\r\n", " \n", "\u00a0\u2003", "\u2028\x85\x1c", ".", "!", "? ", "…", ". ", "。！？", ";",
    ":", ",", "-", "_", "#", "*", "=", '"', "'", '\\"', "`", "\\", "/", "|", "@", "a@", "a.", "a-", "a/", "+", "%41",
    "a", "A", "aA", "7", "7 ", "12-", "12.", "deadbeef", "0", "word ", "line of text\n", "1. item\n", "- item\n",
    "    x\n",
    "漢字", "かなカナ", "한국", "ภาษา", "العربية ", "e\u0301", "👩\u200d👩\u200d👧", "\ud800", "a\udfff", "\0",
    "\ufffd", "<PAST_CONVERSATIONS>\n", "<PAST_CONVERSATIONS>\nTime: 1\nx\n</PAST_CONVERSATIONS>\n",
    "\n</PAST_CONVERSATIONS", "<checkpoint_id>", "<checkpoint_id>7</checkpoint_id>", "</checkpoint_id>", "<", ">",
    "<b></b>", "<!--", "example", "examples ", "\nexample\n", "e.g", "for example", "\n  example", "[", "]", "{",
    "[]", "{}", "(", "[{", "[ ", '{"a":', '[{"a":', '{"id": 1, "name": "x"},', '[{"id": 1},', '"a",', "\\u00",
    "\x1b[31mx", "\x1b[", "\x1b[0;", "\x1b]", "\x1b", "10%\r", "```\n", "```python\nx\n```\n",
    "https://example.org/a?b=c ", "https://", "artifact://", "artifact://evidence/",
    "artifact://evidence/0123456789abcdef.txt", "C:\\a\\", "| a | b |\n", "1,2,3\n", "a\tb\n", "key: 12\n", "key:",
    "a=1&", "ann@example.com ", "+49 30 123456 ", "(030) ", "4111 1111 1111 1111 ", "DE89 3704 0044 0532 0130 00 ",
    "AB12 CD34 ", "sk-", "eyJaaaaaaaa.", "-----BEGIN ", "1.1.1.", "2024-01-01 ", "May ", "in  ", "7 of ", "2 weeks ",
    "2024", "last  ", "2025-01-31T10:00:00 ERROR x failed\n", "x - - ", "1.1.1.1 - - [", "Error", "AException",
    "Traceback (most recent call last):\n  File x\n", "def f():\n", "export ", "TextContent(type='text', text=",
    "content=[TextContent(type='text', text='x'", "meta=", "structuredContent=", "data:", "data:a/b;a=b", "QUJD",
    "data:image/svg+xml,", "data:a/b;base64,", "\\/", "ab\\/", "\\x89", "ab ", "[1, 2, ", "0000: ab cd ef 01 \n",
    '"token": QUJDREVG',
    "CONTEXT PACK\n", "\nUSER REQUEST:\n", "\nHANDED OVER:\n", "- messages left out: 1\n", "- used: a1b2\n", "a1/b, ",
    "Time: 1\nx\n", "For context:\n", "`x` tool returned result:\n",
]  # fmt: skip
"""What a text repeats: blanks, marks, scripts, and the beginnings of all that a pattern looks for."""


def distinct(form: str) -> Callable[[int], str]:
    """Texts of ever new words."""
    return lambda size: "".join(form.format(n) for n in range(size // len(form.format(10_000)) + 1))[:size]


FAMILIES: Mapping[str, Callable[[int], str]] = {
    **{repr(unit): of_unit(unit) for unit in UNITS},
    "new words": distinct("w{0} "),
    "new paths": distinct("/a/{0}/b "),
    "new lines": distinct("key{0}: {0}\n"),
    "new errors": distinct("Error x{0}\n"),
    "new sentences": distinct("Item {0} is done. "),
    "one new word a dot": distinct("x{0}."),
    "new addresses": distinct("artifact://evidence/{0:016x}.txt "),
    "new rows": lambda size: "[" + distinct('{{"id": {0}, "name": "n{0}"}},')(size),
    "nested arrays": lambda size: "[" * (size // 2) + "]" * (size // 2),
    "nested objects": lambda size: '{"a":' * (size // 6) + "1" + "}" * (size // 6),
    "nested to a depth": lambda size: "[" * 50 + of_unit('{"a":[1,2]},')(size) + "1" + "]" * 50,
    "text then blanks": lambda size: "x" + " " * size,
    "blanks then text": lambda size: " " * size + "x",
    "dots then text": lambda size: "." * size + "x",
    "text then line ends": lambda size: "Find it." + "\n" * size + "x",
    "blanks between": lambda size: ("a" + " " * 999) * (size // 1000),
    "dots between": lambda size: ("a" + "." * 999) * (size // 1000),
    "an opener, then anything": lambda size: "<PAST_CONVERSATIONS>\n" + "\n" * size,
    "quoted": lambda size: '"' + "\\" * size,
    "JSON text": lambda size: json.dumps({"text": "line\n" * (size // 6)}),
    "JSON strings that are escaped": lambda size: json.dumps(json.dumps(json.dumps(["\\" * (size // 9)]))),
    "protocol": lambda size: json.dumps({"content": [{"type": "text", "text": "x" * (size // 2)}] * 2}),
    "cut JSON": lambda size: '{"a": [' + '"b", ' * (size // 5),
    "cut nested JSON": lambda size: '{"a": [[' * (size // 8),
    "half a string": lambda size: '{"a": "' + "\\u00e" * (size // 6),
    "envelope": lambda size: "content=[TextContent(type='text', text='" + "\\'" * (size // 2),
    "lines of one width": lambda size: f"{'QUJD' * 15}\n" * (size // 61),
    "lines of new widths": lambda size: "\n".join("QUJD" * (15 + at % 200) for at in range(size // 460)),
    "a long word, then a mark": lambda size: "a" * size + "!",
    "a long key": lambda size: '{"' + "k" * size + '": 1}',
}

COUNTER = counter_for("")


def content(text: str, kind: str = "text", role: str = "user") -> Content:
    if kind == "text":
        return content_of_parts(role, [part_of({"text": text})])
    if kind == "call":
        return content_of_parts("model", [part_of({"function_call": {"name": "t", "args": {"a": text}}})])
    return content_of_parts("user", [part_of({"function_response": {"name": "t", "response": {"result": text}}})])


def words_of(text: str) -> types.Content:
    return types.Content(role="user", parts=[types.Part(text=text)])


def declaration(text: str) -> types.FunctionDeclaration:
    return types.FunctionDeclaration(
        name="t",
        description=text,
        parameters_json_schema={"type": "object", "properties": {"a": {"type": "string", "description": text}}},
    )


def memory(text: str, id: str = "m") -> Candidate:
    return Candidate(id=id, layer="memory", source="memory", text=text, digest=canonical.hash_text(text))


def preload(text: str) -> object:
    return memories.preloaded(
        [words_of(f"The following content is from your previous conversations with the user.\n{text}")], None
    )


def search(text: str) -> object:
    index = HybridIndex.from_texts(["a", "b"], [text, "something else"], embedder="none")
    return index.search(text[:2_000], asked=1.7e9)


def criticized(text: str) -> object:
    """An answer's review by a Critic that says a text."""
    step = Step(text="Write it.", acceptance=(AcceptanceItem(id="a", text="It is written."),))
    policy = PackPolicy(acceptance={"critic": "critic"})
    call = PreviousCall("", build_pack(pack_input([said("Go on.")], step=step), policy), policy, PlannedCall(), "")
    answer = LlmResponse(content=words_of("It is done."))
    critic = Scripted(model="critic", script=[text], sent=[])
    review = asyncio.run(Reviewer(critic=critic).review(call, answer, []))
    assert review is not None
    assert review.problems
    return review


def spoken_turns(text: str) -> object:
    """The turns of a history of one content and its event."""
    known = AgentHistory(reader.Reader())
    known.take(Contents([words_of(text)]), [Event(author="user", content=words_of(text))], 1)
    return known.turns(1, masker(()))


def read_tool(text: str) -> Tool:
    return reader._tool(declaration(text), frozenset())


TEXT_FUNCTIONS: Mapping[str, Callable[[str], Any]] = {
    # what a model, a tool or a person writes into a conversation
    "canonical_json": lambda text: canonical.canonical_json({"a": text}),
    "content": content,
    "content_from_wire": lambda text: content_from_wire(content(text).wire),
    "storable": storable,
    "count": COUNTER.count,
    "framing of a call": lambda text: written_call("t", content(text, "call").parts[0].text, framing_of("gpt-4o")),
    "framing of a response": lambda text: written_response(
        "t", content(text, "response").parts[0].text, framing_of("claude-sonnet-4")
    ),
    "framing of a declaration": lambda text: written_declaration(read_tool(text).wire, framing_of("gpt-4o")),
    "Reader.content": lambda text: reader.Reader().content(words_of(text), "gemini-2.5-flash"),
    "request_index": lambda text: host_request.request_index_of(
        [words_of(text), words_of(text + "x")], words_of("another")
    ),
    "preloaded": preload,
    "preloaded, opened": lambda text: preload(f"<PAST_CONVERSATIONS>\n{text}"),
    "passages": passages,
    "word by word": lambda text: word_by_word(text, [text, text]),
    "turns of a history": spoken_turns,
    "normalize": lambda text: normalize([content(text), content(text)]),
    # declarations
    "_tool": read_tool,
    "trimmed": lambda text: tools.trimmed(read_tool(text)),
    # shorter text
    "shorten": lambda text: shorten.shorten(text, 300, counter=COUNTER, query=text[:300], names=True),
    "shorten_line": lambda text: shorten.shorten_line(text, 100, counter=COUNTER, query=text[:300]),
    "summarize": lambda text: summary.summarize(
        [content(text), content(text, role="model")], max_tokens=300, counter=COUNTER, earlier=text
    ),
    "split_bullets": summary.split_bullets,
    "entities_of": lambda text: list(entities.entities_of(text)),
    "entity_table": lambda text: entities.entity_table(
        [content(text), content(text, "call"), content(text, "response")],
        max_tokens=300,
        counter=COUNTER,
        earlier=text,
        known=text[:1_000],
    ),
    # payloads
    "bullet": payload.bullet,
    "fenced": fenced,
    "answered": lambda text: payload.answered(f"CONTEXT PACK\nTASK:\n{text}"),
    "criticized": criticized,
    # evidence
    "decoded": decoding.decoded,
    "decoded, in an envelope": lambda text: decoding.decoded(f"content=[TextContent(type='text', text='{text}"),
    "decoded, from the protocol": lambda text: decoding.decoded(f'{{"content": [{{"type": "text", "text": "{text}'),
    "printable": decoding.printable,
    "read_json": decoding.read_json,
    "kind_of": kind_of,
    "is_data": is_data,
    "view_of": shorten.lines_view,
    "show": lambda text: show(
        text, extract_tokens=300, whole_tokens=0, data_tokens=0, counter=COUNTER, query=text[:300]
    ),
    "sampled": lambda text: shorten.sampled(shorten.lines_view(text).lines, shorten.query_words(text[:2_000])),
    "query_words": shorten.query_words,
    "odd lines": lambda text: unlike.odd_lines(text.split("\n")),
    "headings": lambda text: unlike.headings(text.split("\n")),
    "column names": lambda text: unlike.column_names(text.split("\n")),
    "offload": lambda text: offload(
        {"result": text}, "t", OffloadSettings(tools={"t": "always"}), counter=COUNTER, query="x"
    ),
    "search an artifact": lambda text: Searcher(shorten.lines_view(text), embedder="none").search(
        text[:200], max_tokens=300, counter=COUNTER
    ),
    "media_in": lambda text: list(media.media_in({"mimeType": "image/png", "data": text, "b": f"data:{text}"})),
    "typed": lambda text: media.typed(text, b""),
    "is_text": is_text,
    "evidence_key": record.evidence_key,
    "artifact_uris": entities.artifact_uris,
    # search
    "terms": terms.terms,
    "query_terms": terms.query_terms,
    "identifiers": terms.identifiers,
    "named_times": lambda text: terms.named_times(text, now=1.7e9),
    "asks_for_recent": terms.ASKS_FOR_RECENT.search,
    "retrieve": lambda text: ranking.retrieve(
        [memory(text), memory("other", "n")], k=3, settings=RetrievalSettings(), tail=text
    ),
    "ranked": lambda text: ranked([memory(text), memory("other", "n")], text, asked=0.0, embedder=None),
    "index": search,
    "redact": lambda text: Masker(RULES)(text),
    # names that a model, a tool or an app gives
    "segment": segment,
    "located": lambda text: quiet(lambda uri: artifacts.located(uri, ("a", "u", "s")), f"artifact://{text}"),
    "located, absolute": lambda text: quiet(
        lambda uri: artifacts.located(uri, ("a", "u", "s")), f"artifact://apps/{text}"
    ),
    "located, with a name": lambda text: quiet(
        lambda uri: artifacts.located(uri, ("a", "u", "s")), f"artifact://apps/a/users/u/artifacts/{text}/versions/1"
    ),
    "read_state": lambda text: read_state(
        {"plan": {"step": {"text": text, "acceptance": [text]}, "tools": [text]}, "knowledge": {"notes": [text]}}
    ),
}


def quiet(act: Callable[[str], Any], text: str) -> Any:
    """What an act gives; what it raises for a text that is none of its kind is as good."""
    try:
        return act(text)
    except Exception as error:
        return error


def seconds(act: Callable[[str], Any], text: str) -> float:
    """Processor time of this thread, without the collector: what else runs or lives in the process does not count."""
    gc.disable()
    try:
        began = time.thread_time()
        act(text)
        return time.thread_time() - began
    finally:
        gc.enable()


QUICK = ("terms", "segment")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in TEXT_FUNCTIONS]
)
def test_ten_times_the_text_takes_about_ten_times_as_long(name: str) -> None:
    act = TEXT_FUNCTIONS[name]
    act("warm up")
    slow: dict[str, str] = {}
    for family, made in FAMILIES.items():
        least_short = least_long = float("inf")
        for attempt in range(TRIES):
            # Texts of other lengths are found in no cache.
            least_long = min(least_long, seconds(act, made(LONG + attempt)))
            if least_long < UNNOTICED_SECONDS:
                break
            least_short = min(least_short, seconds(act, made(SHORT + attempt)))
            if least_long < MOST_TIMES * least_short:
                break
        else:
            slow[family] = f"{least_short:.4f} s, {least_long:.4f} s"
    assert not slow
