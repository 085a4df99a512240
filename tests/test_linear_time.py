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
from dataclasses import replace
from typing import Any

import pytest
from packs import STEP, answered, called, evidence, memory, pack_input, said, summary_of, tool
from scripted import Chat, Memories, Scripted, call, remembered
from timing import of_unit

from aether_context import PackPolicy, build_pack, canonical
from aether_context.adk import ContextPackPlugin
from aether_context.evidence import evidence_key
from aether_context.pack import Content
from aether_context.redaction import RULES, Masker
from aether_context.retrieval import HybridIndex
from aether_context.retrieval.terms import identifiers, named_times, query_terms, terms
from aether_context.state import read_state
from aether_context.store.files import segment
from aether_context.text.decoding import decoded, printable, read_json
from aether_context.text.entities import artifact_uris, entities_of
from aether_context.text.shorten import lines_view, query_words, sampled, shorten, shorten_line
from aether_context.tokens import counter_for

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


def pack(*contents: Content, window: int = 1_000, **fields: Any) -> object:
    """A pack that has a text somewhere in it, in a window that the shorter texts pass, too."""
    source = pack_input([said("Go on."), *contents, said("And now?")], window=window, **fields)
    return build_pack(source, PackPolicy())


def index(text: str) -> object:
    texts = HybridIndex.from_texts(["a", "b"], [text, "something else"], embedder="none")
    return texts.search(text[:2_000], asked=1.7e9)


def played(text: str, **settings: Any) -> object:
    """A session in which a person, a tool and a model say a text, which is UTF-8 since the session is."""
    text = text.encode(errors="replace").decode()

    def read(name: str) -> dict[str, Any]:
        """Reads."""
        return {"result": text}

    policy = PackPolicy(max_input_tokens=16_000, offload={"tools": {"read": "always"}})
    chat = Chat(script=[call("read", name="x"), text, "ok"], tools=[read], policy=policy, **settings)
    chat.say(text, "And now?")
    return chat


def criticized(text: str) -> object:
    """An answer's review by a Critic that says a text."""
    plugin = ContextPackPlugin(critic=Scripted(model="critic", script=[text], sent=[]), on_error="raise")
    plan = {"step": {"id": "s", "text": "Write it.", "acceptance": ["It is written."]}}
    return Chat(script=["It is done."], plugin=plugin, state={"plan": plan}).say("Go on.")


TEXT_FUNCTIONS: Mapping[str, Callable[[str], Any]] = {
    # what a model, a tool or a person writes into a conversation
    "canonical_json": lambda text: canonical.canonical_json({"a": text}),
    "count": COUNTER.count,
    "a pack, a person's words": lambda text: pack(said(text)),
    "a pack, a model's words": lambda text: pack(said(text, "model")),
    "a pack, a call": lambda text: pack(called("t", "c", a=text), answered("t", "c", "ok")),
    "a pack, a result": lambda text: pack(called("t", "c"), answered("t", "c", text)),
    "a pack, a step": lambda text: pack(step=replace(STEP, text=text), window=LONG),
    "a pack, a memory": lambda text: pack(candidates=[memory("m", text), memory("n", "other")]),
    "a pack, evidence": lambda text: pack(candidates=[evidence("e", text), evidence("f", "other")]),
    "a pack, a declaration": lambda text: pack(tools=[tool("t", text)], window=LONG),
    "a session": played,
    "a session with memories": lambda text: played("ok", memory=Memories(remembered(text))),
    "a critic": criticized,
    # shorter text
    "shorten": lambda text: shorten(text, 300, counter=COUNTER, query=text[:300], names=True),
    "shorten_line": lambda text: shorten_line(text, 100, counter=COUNTER, query=text[:300]),
    "a summary": lambda text: summary_of(
        said(text), said(text, "model"), called("t", "c", a=text), answered("t", "c", text), earlier=text
    ),
    "entities_of": lambda text: list(entities_of(text)),
    "decoded": decoded,
    "decoded, in an envelope": lambda text: decoded(f"content=[TextContent(type='text', text='{text}"),
    "decoded, from the protocol": lambda text: decoded(f'{{"content": [{{"type": "text", "text": "{text}'),
    "printable": printable,
    "read_json": read_json,
    "view_of": lines_view,
    "sampled": lambda text: sampled(lines_view(text).lines, query_words(text[:2_000])),
    "query_words": query_words,
    "evidence_key": evidence_key,
    "artifact_uris": artifact_uris,
    # search
    "terms": terms,
    "query_terms": query_terms,
    "identifiers": identifiers,
    "named_times": lambda text: named_times(text, now=1.7e9),
    "index": index,
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


QUICK = ("segment",)


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
