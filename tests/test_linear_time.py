"""Every function that reads a text from outside takes time in proportion to its length, whatever the text is.

Each is run over hostile families of texts at 10,000 and 100,000 characters. What is quadratic takes a hundred times as
long for ten times the text, what is linear ten times; the line is drawn between the two, far from both, so that a busy
machine is not taken for a slow pattern. What takes next to nothing even for the longer text is not looked at further.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from google.adk.tools.preload_memory_tool import PreloadMemoryTool
from packs import answered, called, memory, pack_input, said, tool
from scripted import Chat, Memories, Scripted, call, look_up, remembered
from timing import of_unit

from aether_context import PackPolicy, build_pack, canonical
from aether_context.adk import ContextPackPlugin
from aether_context.conversation import normalize
from aether_context.conversation.summary import summarize
from aether_context.evidence import evidence_key, offload
from aether_context.pack import Content, Step
from aether_context.policy import OffloadSettings, RetrievalSettings
from aether_context.redaction import RULES, Masker
from aether_context.retrieval import HybridIndex, ranked, retrieve
from aether_context.retrieval.call_indexes import passages
from aether_context.retrieval.embedders import word_by_word
from aether_context.retrieval.terms import ASKS_FOR_RECENT, identifiers, named_times, query_terms, terms
from aether_context.state import read_state
from aether_context.store.files import segment
from aether_context.text.decoding import decoded, printable, read_json
from aether_context.text.entities import artifact_uris, entities_of, entity_table
from aether_context.text.shorten import lines_view, query_words, sampled, shorten, shorten_line
from aether_context.tokens import counter_for, framing_of
from aether_context.tokens.cache import PackCounter

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
        return said(text, role)
    return called("t", "c", a=text) if kind == "call" else answered("t", "c", text)


def counted(text: str, model: str) -> object:
    """A declaration, a call and its result as they are counted for a model."""
    counter = PackCounter(COUNTER, framing=framing_of(model))
    return counter.tools([tool("t", text)]), counter.contents([content(text, "call"), content(text, "response")])


def packed(*contents: Content, text: str = "", **policy: Any) -> object:
    """A small pack of contents; a text is in all that a step and its tools and candidates say, too."""
    more = {"step": Step(text=text, task=text), "tools": [tool("t", text)], "candidates": [memory("m", text)]}
    return build_pack(pack_input(contents, **more if text else {}), PackPolicy(on_invalid="warn", **policy))


def search(text: str) -> object:
    index = HybridIndex.from_texts(["a", "b"], [text, "something else"], embedder="none")
    return index.search(text[:2_000], asked=1.7e9)


def conversed(*messages: str, **settings: Any) -> object:
    """A conversation in a small window: what people, models, tools and services write comes through all of it."""
    chat = Chat(policy=PackPolicy(max_input_tokens=8_000, on_invalid="warn"), **settings)
    return chat.say(*messages)


def used(name: str, tools: list[Any], **arguments: Any) -> object:
    """A conversation in which a model calls a tool with arguments of its own."""
    return conversed(
        "Go on.", script=[call("look_up", key="a"), call(name, **arguments), "ok"], tools=[look_up, *tools]
    )


def told(text: str) -> object:
    def tell() -> dict[str, str]:
        return {"result": text}

    tell.__doc__ = text
    return used("tell", [tell])


def criticized(text: str) -> object:
    """A conversation whose answer a critic reviews, who says a text."""
    critic = Scripted(model="critic", script=[text], sent=[])
    state = {"plan": {"step": {"text": "Write it.", "acceptance": ["It is written."]}}}
    conversed("Go on.", script=["It is done."], state=state, plugin=ContextPackPlugin(critic=critic, on_error="raise"))
    assert critic.sent
    return critic


TEXT_FUNCTIONS: Mapping[str, Callable[[str], Any]] = {
    # what a model, a tool, a person or an application writes into a conversation
    "a message": lambda text: conversed(text, f"{text}x", "And now?"),
    "an answer": lambda text: conversed("Hello.", "And now?", script=[text, "ok"]),
    "a result and a declaration": told,
    "arguments": lambda text: used("look_up", [], key=text),
    "an address to read": lambda text: used("read_artifact", [], uri=f"artifact://{text}"),
    "an absolute address to read": lambda text: used(
        "read_artifact", [], uri=f"artifact://apps/a/users/u/artifacts/{text}/versions/1"
    ),
    "words to find in evidence": lambda text: used("search_artifact", [], uri="artifact://history", query=text),
    "an instruction": lambda text: conversed("Go on.", settings={"static_instruction": text}),
    "memories": lambda text: conversed("Go on.", memory=Memories(remembered(text)), tools=[PreloadMemoryTool()]),
    "memories with a mark": lambda text: conversed(
        "Go on.", memory=Memories(remembered(f"<PAST_CONVERSATIONS>\n{text}")), tools=[PreloadMemoryTool()]
    ),
    "a state": lambda text: conversed("Go on.", state={"plan": {"step": {"text": text, "acceptance": [text]}}}),
    "a review": criticized,
    # packs
    "a pack": lambda text: packed(content(text), content(text, role="model"), content(text), text=text),
    "a pack of a pack": lambda text: packed(content(f"CONTEXT PACK\nTASK:\n{text}"), content("Go on.")),
    "normalize": lambda text: normalize([content(text), content(text)]),
    "canonical_json": lambda text: canonical.canonical_json({"a": text}),
    "count": COUNTER.count,
    "count for OpenAI": lambda text: counted(text, "gpt-4o"),
    "count for Anthropic": lambda text: counted(text, "claude-sonnet-4"),
    "passages": passages,
    "word by word": lambda text: word_by_word(text, [text, text]),
    # shorter text
    "shorten": lambda text: shorten(text, 300, counter=COUNTER, query=text[:300], names=True),
    "shorten_line": lambda text: shorten_line(text, 100, counter=COUNTER, query=text[:300]),
    "summarize": lambda text: summarize(
        [content(text), content(text, role="model")], max_tokens=300, counter=COUNTER, earlier=text
    ),
    "entities_of": lambda text: list(entities_of(text)),
    "entity_table": lambda text: entity_table(
        [content(text), content(text, "call"), content(text, "response")],
        max_tokens=300,
        counter=COUNTER,
        earlier=text,
        known=text[:1_000],
    ),
    # evidence
    "decoded": decoded,
    "decoded, in an envelope": lambda text: decoded(f"content=[TextContent(type='text', text='{text}"),
    "decoded, from the protocol": lambda text: decoded(f'{{"content": [{{"type": "text", "text": "{text}'),
    "printable": printable,
    "read_json": read_json,
    "view_of": lines_view,
    "sampled": lambda text: sampled(lines_view(text).lines, query_words(text[:2_000])),
    "query_words": query_words,
    "offload": lambda text: offload(
        {"result": text}, "t", OffloadSettings(tools={"t": "always"}), counter=COUNTER, query=text[:300]
    ),
    "media in a result": lambda text: used(
        "look_up", [], key={"mimeType": "image/png", "data": text, "b": f"data:{text}"}
    ),
    "evidence_key": evidence_key,
    "artifact_uris": artifact_uris,
    # search
    "terms": terms,
    "query_terms": query_terms,
    "identifiers": identifiers,
    "named_times": lambda text: named_times(text, now=1.7e9),
    "asks_for_recent": ASKS_FOR_RECENT.search,
    "retrieve": lambda text: retrieve(
        [memory("m", text), memory("n", "other")], k=3, settings=RetrievalSettings(), tail=text
    ),
    "ranked": lambda text: ranked([memory("m", text), memory("n", "other")], text, asked=0.0, embedder=None),
    "index": search,
    "redact": lambda text: Masker(RULES)(text),
    # names that a model, a tool or an app gives
    "segment": segment,
    "read_state": lambda text: read_state(
        {"plan": {"step": {"text": text, "acceptance": [text]}, "tools": [text]}, "knowledge": {"notes": [text]}}
    ),
}


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
