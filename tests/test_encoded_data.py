"""Data that stands inside longer texts of tool results: base64, hexadecimal, lists of bytes and vectors in Markdown,
HTML, CSS, JSON, mails, notebooks and logs. It goes to the store, and the words around it stay."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import random
import re
import textwrap
import uuid
from email.mime.image import MIMEImage
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from typing import Any
from urllib.parse import quote

import pytest
from failing import FailingFileSystem
from google.adk.agents import LlmAgent
from scripted import Chat, Scripted, call, faults, grow

from aether_context import PackPolicy, PackStore, verify

RANDOM = random.Random(7)
IMAGE = b"\x89PNG\r\n\x1a\n" + RANDOM.randbytes(30_000)
PHOTO = b"\xff\xd8\xff\xe0\x00\x10JFIF" + RANDOM.randbytes(9_000)
DATA = RANDOM.randbytes(6_000)
"""It has no signature."""
VECTOR = [RANDOM.gauss(0, 0.04) for _ in range(768)]
POSITIVE = [round(abs(value), 3) for value in VECTOR]
POSITIVE_JSON = json.dumps(POSITIVE, separators=(",", ":")).encode()
QUANTIZED = [int(value * 500) for value in VECTOR]
CODE, PHOTO_CODE, DATA_CODE = (base64.b64encode(data).decode() for data in (IMAGE, PHOTO, DATA))
READING = "Pressure is 4.2 bar."
PATHS = "".join(f"<path d='M{at} 2L3 4' transform='translate({at})'/>" for at in range(60))
DRAWING = f"<svg xmlns='http://www.w3.org/2000/svg'>{PATHS}</svg>"
MAIL = MIMEMultipart()
for attachment in (MIMEText(READING), MIMEImage(IMAGE), MIMEImage(PHOTO)):
    MAIL.attach(attachment)
NOTEBOOK = {"cells": [{"source": [READING], "outputs": [{"data": {"image/png": base64.encodebytes(IMAGE).decode()}}]}]}
PEM = "-----BEGIN {0}-----\n" + "\n".join(textwrap.wrap(DATA_CODE, 64)) + "\n-----END {0}-----\n" + READING


def dumped(data: bytes) -> str:
    """Bytes as ``xxd`` shows them."""
    rows = (data[at : at + 16] for at in range(0, len(data), 16))
    lines = (
        f"{at * 16:08x}: {row.hex(' ', 2):<40} {''.join(chr(byte) if 32 <= byte < 127 else '.' for byte in row)}"
        for at, row in enumerate(rows)
    )
    return "\n".join(lines)


def nested(value: object, layers: int = 2, **options: Any) -> str:
    """A value in JSON, as a string of JSON, and so on."""
    for _ in range(layers):
        value = json.dumps({"value": value, "reading": READING}, **options)
    return str(value)


FORMS: dict[str, tuple[Any, list[bytes]]] = {
    "Markdown": (f"![panel](data:image/png;base64,{CODE})\n\n{READING}", [IMAGE]),
    "Markdown, in lines": (
        f"![panel](data:image/png;base64,{chr(10).join(textwrap.wrap(CODE, 76))}) {READING}",
        [IMAGE],
    ),
    "HTML, two pictures": (
        f'<p>{READING}</p><img src="data:image/png;base64,{CODE}"/><img src="data:image/jpeg;base64,{PHOTO_CODE}"/>',
        [IMAGE, PHOTO],
    ),
    "CSS, a font": (f"/* {READING} */ src: url(data:font/woff2;charset=utf-8;base64,{DATA_CODE})", [DATA]),
    "CSS, a drawing": (f'a {{b: url("data:image/svg+xml,{quote(DRAWING)}")}} {READING}', [DRAWING.encode()]),
    "a drawing with a charset": (
        f'a {{b: url("data:image/svg+xml;charset=utf-8,{quote(DRAWING)}")}} {READING}',
        [DRAWING.encode()],
    ),
    "a drawing as it is": (f'a {{b: url("data:image/svg+xml;utf8,{DRAWING}")}} {READING}', [DRAWING.encode()]),
    "JSON in JSON": (nested({"data": CODE, "mimeType": "image/png"}, 3), [IMAGE]),
    "JSON with slashes escaped": (nested(f"data:image/jpeg;base64,{PHOTO_CODE}").replace("/", "\\/"), [PHOTO]),
    "JSON with slashes escaped, no type": (nested(PHOTO_CODE, 1).replace("/", "\\/"), [PHOTO]),
    "a mail": (MAIL.as_string(), [IMAGE, PHOTO]),
    "a mail with line feeds, in JSON": (nested(MAIL.as_string().replace("\n", "\r\n")), [IMAGE, PHOTO]),
    "a quoted mail": ("\n".join(f"> {line}" for line in MAIL.as_string().split("\n")), [IMAGE, PHOTO]),
    "a notebook": (json.dumps(NOTEBOOK, indent=1), [IMAGE]),
    "a notebook, lines in a list": (json.dumps(NOTEBOOK, indent=1).replace("\\n", '\\n",\n     "'), [IMAGE]),
    "HAR": (nested({"mimeType": "application/wasm", "text": DATA_CODE, "encoding": "base64"}), [DATA]),
    "a log, of the alphabet for addresses": (
        f"12:00 body={base64.urlsafe_b64encode(DATA).decode().rstrip('=')} sent\n12:01 {READING}",
        [DATA],
    ),
    "a form": (f"a=data:image/png;base64,{quote(CODE, safe='')}&b={READING}", [IMAGE]),
    "certificates": (PEM.format("CERTIFICATE"), [DATA]),
    "hexadecimal": (f"body 0x{DATA.hex()} sent\n{READING}", [DATA]),
    "hexadecimal in lines": (f"body\n{chr(10).join(textwrap.wrap(DATA.hex(), 60))}\n\n{READING}", [DATA]),
    "hexadecimal in pairs": (f"body {DATA.hex(' ')} sent\n{READING}", [DATA]),
    "a dump": (f"body\n{dumped(IMAGE)}\n{READING}", [IMAGE]),
    "a dump of words": (f"body\n{dumped(b'deadbeef ab cd e' * 200)}\n{READING}", [b"deadbeef ab cd e" * 200]),
    "bytes in JSON": (nested({"raw": list(IMAGE)}, 2, indent=2), [IMAGE]),
    "bytes in C without brackets": (f"body {', '.join(f'0x{byte:02x}' for byte in DATA)} sent\n{READING}", [DATA]),
    "escaped bytes": (f"body {''.join(f'{chr(92)}x{byte:02x}' for byte in DATA)} sent\n{READING}", [DATA]),
    "bytes as Python writes them": (f"body {IMAGE!r} sent, {DATA!r}\n{READING}", [IMAGE, DATA]),
    "bytes in a dictionary": (str({"panel": PHOTO, "reading": READING}), [PHOTO]),
    "bytes in C": (f"x[] = {{{', '.join(map(hex, IMAGE))}}}; // {READING}", [IMAGE]),
    "a vector in JSON": (nested({"embedding": VECTOR}), [json.dumps(VECTOR).encode()]),
    "a vector in words": (f"It is {VECTOR}. {READING}", [str(VECTOR).encode()]),
    "a list of bytes": ({"panel": {"raw": list(IMAGE)}, "reading": READING}, [IMAGE]),
    "bytes without a signature": ({"panel": [{"raw": list(DATA)}], "reading": READING}, [DATA]),
    "signed bytes": ({"raw": [byte - 256 if byte > 127 else byte for byte in IMAGE], "reading": READING}, [IMAGE]),
    "words as bytes": (
        {"type": "Buffer", "data": list(b"it is so, \n" * 99), "reading": READING},
        [b"it is so, \n" * 99],
    ),
    "a vector": ({"embedding": VECTOR, "reading": READING}, [json.dumps(VECTOR, separators=(",", ":")).encode()]),
    "a positive vector": ({"query_vector": POSITIVE, "reading": READING}, [POSITIVE_JSON]),
    "a positive vector of an API": ({"embeddings": [{"values": POSITIVE}], "reading": READING}, [POSITIVE_JSON]),
    "a positive vector in JSON": (nested({"vector": POSITIVE}), [json.dumps(POSITIVE).encode()]),
    "a quantized vector": (
        {"embedding": QUANTIZED, "reading": READING},
        [json.dumps(QUANTIZED, separators=(",", ":")).encode()],
    ),
    "base64 under a name": ({"panel": CODE, "reading": READING}, [IMAGE]),
    "an MCP text that is said twice": (
        {
            "content": [{"type": "text", "text": nested({"panel": CODE, "raw": list(PHOTO)}, 1)}],
            "structuredContent": json.loads(nested({"panel": CODE, "raw": list(PHOTO)}, 1)),
        },
        [IMAGE, PHOTO],
    ),
}


def talk_of(result: Any, script: list[Any] | None = None, **settings: Any) -> Chat:
    def show_panel(name: str) -> Any:
        """Shows a panel."""
        return result

    policy = settings.pop("policy", None) or PackPolicy(max_input_tokens=128_000)
    script = [call("show_panel", name="a"), "done", *(script or [])]
    talk = Chat(script=script, tools=[show_panel], policy=policy, model="gemini-3-pro-preview", **settings)
    talk.say("What is the pressure?")
    return talk


def shown(talk: Chat) -> str:
    return json.dumps(talk.sent[-1].answers("show_panel"))


def stored(talk: Chat) -> list[bytes]:
    """The data in the store, in the order in which it stands in the result."""
    records = sorted(
        (record for record in talk.store.evidence("shop", "ann", "s1") if record.piece), key=lambda it: it.piece
    )
    return [talk.store.evidence_data("shop", "ann", record.digest) for record in records]


@pytest.mark.parametrize(("result", "data"), FORMS.values(), ids=FORMS)
@pytest.mark.rows(11)
def test_data_inside_a_text_goes_to_the_store_and_the_words_around_it_stay(result, data):
    talk = talk_of(result)
    assert stored(talk) == data
    assert READING in shown(talk)
    assert shown(talk).count("artifact://evidence/") == len(data)
    assert len(shown(talk)) < 1_500
    talk.restart()
    talk.say("And the temperature?")
    assert grow(talk.sent[1:])
    assert verify(talk.store, replays=True).faults == {}


LINES = "".join(f"{at}: the pump runs.\n" for at in range(10_000))
"""A long text without data."""
STEP = 50_000
WIDE = PackPolicy(max_input_tokens=900_000, offload={"extract_tokens": 800_000})
LONG = {
    "base64": (f" {CODE} ", IMAGE),
    "escaped base64": (" " + CODE.replace("/", "\\/") + " ", IMAGE),
    "base64 in lines": ("\n" + "\n".join(textwrap.wrap(CODE, 76)) + "\n", IMAGE),
    "a URI": (f"(data:image/png;base64,{CODE})", IMAGE),
    "a list of bytes": (f" {[*IMAGE]} ", IMAGE),
    "hexadecimal": (f" {IMAGE.hex(' ')} ", IMAGE),
    "escaped bytes": (" " + "".join(f"\\x{byte:02x}" for byte in IMAGE) + " ", IMAGE),
    "a dump": (f"\n{dumped(IMAGE)}\n", IMAGE),
    "bytes as Python writes them": (f" {IMAGE!r} ", IMAGE),
}


@pytest.mark.parametrize(("written", "data"), LONG.values(), ids=LONG)
@pytest.mark.rows(2)
def test_data_across_the_border_of_a_step_is_found_as_it_is_alone(written, data):
    places = (STEP - 8_193, STEP - 8_192, STEP - 300, STEP - 1, STEP + 8_190)
    texts = [LINES[: place - 1] + "\n" + written + LINES[:STEP] + written for place in places]
    talk = talk_of({"alone": written, "texts": texts}, policy=WIDE)
    assert stored(talk) == [data] * (1 + 2 * len(places))


def test_what_ends_with_the_text_and_not_with_its_mark_hides_no_data_behind_its_beginning():
    texts = [f"{LINES[: STEP - 3]} {opening}{LINES[:300]} {CODE} and more" for opening in ("b'", 'b"', "[1, ")]
    talk = talk_of([*texts, LINES + "[" + "1, 2, " * 200], policy=WIDE)
    assert stored(talk) == [IMAGE] * len(texts)


JWT = ".".join(
    base64.urlsafe_b64encode(part).decode().rstrip("=")
    for part in (b'{"alg":"RS256","typ":"JWT"}', json.dumps({"roles": ["reader"] * 90}).encode(), DATA[:256])
)
HASHES = [hashlib.sha256(str(at).encode()).hexdigest() for at in range(100)]
TEXTS = {
    "hashes": "\n".join(HASHES),
    "hashes in JSON": json.dumps(HASHES, indent=1),
    "long hashes": "\n".join(hashlib.sha512(digest.encode()).hexdigest() for digest in HASHES[:40]),
    "hashes of a lock file": json.dumps(dict.fromkeys(HASHES[:40], f"sha512-{DATA_CODE[:86]}=="), indent=1),
    "tokens": "\n".join(base64.b64encode(RANDOM.randbytes(48)).decode() for _ in range(60)),
    "UUIDs": " ".join(str(uuid.UUID(int=RANDOM.getrandbits(128))) for _ in range(100)),
    "a JSON Web Token": f"Authorization: Bearer {JWT}",
    "a certificate": "\n".join(
        ["-----BEGIN CERTIFICATE-----", *textwrap.wrap(DATA_CODE[:1_800], 64), "-----END CERTIFICATE"]
    ),
    "a private key": PEM.format("RSA PRIVATE KEY"),
    "a public key": f"ssh-rsa {DATA_CODE[:716]} ann@example.org",
    "where a list goes on": json.dumps({"next_page_token": DATA_CODE[:3_000]}),
    "long words": "Donaudampfschifffahrtsgesellschaft" * 90,
    "Chinese": "压力是四点二巴" * 150,
    "digits": str(3**6_000),
    "DNA": "".join(RANDOM.choice("ACGT") for _ in range(3_000)),
    "a protein in lines": "\n".join(
        textwrap.wrap("".join(RANDOM.choice("ACDEFGHIKLMNPQRSTVWY") for _ in range(3_000)), 60)
    ),
    "minified code": "!function(e,t){var n=e.a;for(var i=0;i<n.length;i++)t.push(n[i].c*2)}(window,document);" * 40,
    "a path": "/".join(["Some", "long-dir", "part_1"] * 150),
    "a table": "\n".join(",".join(f"{RANDOM.uniform(0, 900):.2f}" for _ in range(8)) for _ in range(60)),
    "a list of counts": str([RANDOM.randint(0, 255) for _ in range(300)]),
    "ages": json.dumps([RANDOM.randint(18, 99) for _ in range(1_200)]),
    "heart rates": str([RANDOM.randint(60, 120) for _ in range(1_200)]),
    "prices of what was embedded": json.dumps({"embedding_prices": POSITIVE}),
    "ids in a store of vectors": json.dumps({"vector_ids": list(range(300))}),
    "counts beside a vector": json.dumps({"vector": "v1", "counts": [at % 90 for at in range(300)]}),
    "a year of returns": json.dumps([RANDOM.gauss(0, 0.01) for _ in range(252)]),
    "a matrix": json.dumps([[RANDOM.gauss(0, 1) for _ in range(12)] for _ in range(12)]),
    "an array in source code": f"int x[] = {{{', '.join(str(RANDOM.randint(0, 255)) for _ in range(64))}}};",
    "words as Python writes bytes": str(("It is so: " * 200 + "ä\n").encode()),
    "a small icon": "![ok](data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7)",
    "a log with hexadecimal": "\n".join(f"{at:08x} {RANDOM.getrandbits(32):08x} ok" for at in range(200)),
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.rows(11)
def test_what_people_and_models_read_or_copy_stays(text):
    for result in (text, {"reading": READING, "text": text}, nested(text, 1)):
        talk = talk_of(result)
        assert stored(talk) == []
        assert talk.sent[-1].answers("show_panel") == [result if isinstance(result, dict) else {"result": result}]


@pytest.mark.parametrize("indent", [None, 1])
def test_json_with_numbers_stays_json(indent):
    talk = talk_of(nested({"raw": list(IMAGE), "vectors": {"a": VECTOR}}, 2, indent=indent))
    inner = json.loads(json.loads(talk.sent[-1].answers("show_panel")[0]["result"])["value"])
    assert inner["reading"] == READING
    assert inner["value"]["raw"].startswith("[image/png, 30 KB: artifact://evidence/")
    assert inner["value"]["vectors"]["a"].startswith("[application/json, ")


def test_the_model_sees_the_picture_again_and_reads_the_words():
    talk = talk_of(FORMS["HTML, two pictures"][0])
    first, second = (record.uri for record in sorted(talk.store.evidence("shop", "ann", "s1"), key=lambda it: it.piece))
    assert f'<img src="[image/png, 30 KB: {first}]"/><img src="[image/jpeg, 9 KB: {second}]"/>' in str(
        talk.sent[-1].answers("show_panel")
    )
    talk.llm.script += [call("read_artifact", uri=first), "It shows 4.2."]
    talk.say("Look at it again.")
    answers = [part.function_response for content in talk.sent[-1].contents for part in content.parts or ()]
    (answer,) = [answer for answer in answers if answer is not None and answer.name == "read_artifact"]
    assert [part.inline_data.data for part in answer.parts] == [IMAGE]
    assert faults(talk.sent[-1].contents) == []
    talk.replays()


@pytest.mark.parametrize(
    ("form", "words"), [("a vector in JSON", str(VECTOR[400])), ("a drawing as it is", "M41 2L3 4")]
)
def test_what_is_text_can_be_read_and_searched(form, words):
    talk = talk_of(FORMS[form][0])
    (record,) = talk.store.evidence("shop", "ann", "s1")
    talk.llm.script += [
        call("search_artifact", uri=record.uri, query=words),
        call("read_artifact", uri=record.uri),
        "done",
    ]
    talk.say("Look into it.")
    assert words in str(talk.sent[-1].answers("search_artifact"))
    assert "text" in talk.sent[-1].answers("read_artifact")[0]


def test_a_long_text_around_data_is_offloaded_and_found():
    log = "\n".join(f"12:{at // 60:02d}:{at % 60:02d} request {at} took {at * 37 % 1009} ms" for at in range(2_000))
    talk = talk_of(
        f"{log}\n![panel](data:image/png;base64,{CODE})\nvalve V-17 is stuck\n{log}",
        policy=PackPolicy(max_input_tokens=16_000),
    )
    (answer,) = talk.sent[-1].answers("show_panel")
    picture, text = sorted(talk.store.evidence("shop", "ann", "s1"), key=lambda record: record.media_type)
    assert (picture.media_type, text.form) == ("image/png", "extract")
    talk.llm.script += [call("search_artifact", uri=text.uri, query="V-17"), "done"]
    talk.say("Which valve?")
    assert "valve V-17 is stuck" in str(talk.sent[-1].answers("search_artifact"))
    talk.llm.script += [call("search_artifact", uri=text.uri, query="panel"), "done"]
    talk.say("Which picture?")
    assert picture.uri in str(talk.sent[-1].answers("search_artifact"))
    assert "artifact" in answer
    talk.replays()


def test_secrets_are_not_decoded():
    secret = base64.b64encode(b"\x00" + DATA).decode()
    policy = PackPolicy(max_input_tokens=128_000, redact=("secrets",))
    result = {"client_secret": secret, "log": f"{READING} password: '{secret[:399]}' {PEM.format('EC PRIVATE KEY')}"}
    talk = talk_of({**result, "text": f"![panel](data:image/png;base64,{CODE})"}, policy=policy)
    assert stored(talk) == [IMAGE]
    words = "".join(f"Valve {at * 37 % 1009} of {at} is open.\n" for at in range(100)) + " password: 'kx81-qq-secret'"
    talk = talk_of(f"{READING} {base64.b64encode(words.encode()).decode()}", policy=policy)
    assert stored(talk) == [words.replace("kx81-qq-secret", "[password]").encode()]


def test_of_very_many_pictures_the_largest_get_addresses():
    icons = [b"GIF89a" + RANDOM.randbytes(400 + 3 * at) for at in range(64 + 20)]
    text = "\n".join(f"<img src='data:image/gif;base64,{base64.b64encode(icon).decode()}'>" for icon in icons)
    assert stored(talk_of(f"{text}\n{READING}", policy=PackPolicy(max_input_tokens=1_000_000))) == icons[20:]


def test_without_a_store_the_text_stays(monkeypatch):
    monkeypatch.setenv("AETHER_CONTEXT_SPOOL", "off")
    try:
        FailingFileSystem.begin("refuses")
        talk = talk_of(FORMS["Markdown"][0], store=PackStore("failing://encoded"))
    finally:
        FailingFileSystem.end()
    assert talk.sent[-1].answers("show_panel") == [{"result": FORMS["Markdown"][0]}]


@pytest.mark.parametrize("record", ["hashes", "off"])
def test_a_store_without_texts_turns_offload_off_and_says_so_once(record, caplog):
    caplog.set_level(logging.WARNING, "aether_context")
    policy = PackPolicy(max_input_tokens=128_000, record=record)
    talk = talk_of(FORMS["Markdown"][0], policy=policy)
    talk.say("And the temperature?")
    assert CODE in shown(talk)
    note = f"record = {record!r} turns offload off: "
    assert [line.message.startswith(note) for line in caplog.records] == [True]
    assert all(any(problem.startswith(note) for problem in one.degradations) for one in talk.manifests())


def test_offload_that_is_off_by_its_own_setting_is_not_told():
    policy = PackPolicy(max_input_tokens=128_000, record="hashes", offload={"mode": "off"})
    talk = talk_of(READING, policy=policy)
    assert [one.degradations for one in talk.manifests()] == [(), ()]


def test_marks_stand_in_the_place_of_data_alone():
    talk = talk_of(f"a {DATA_CODE} b [0] {CODE} c")
    (answer,) = talk.sent[-1].answers("show_panel")
    mark = r"\[[\w/-]+, \d+ KB: artifact://evidence/\w+\.bin\]"
    assert re.fullmatch(rf"a {mark} b \[0\] {mark} c", answer["result"])


def test_another_agent_is_quoted_the_words_without_the_data():
    def show_panel() -> str:
        """Shows a panel."""
        return str(FORMS["Markdown"][0])

    teller = LlmAgent(name="teller", model=Scripted(script=["4.2"], sent=[]), description="Tells.", instruction="Tell.")
    script = [call("show_panel"), call("transfer_to_agent", agent_name="teller")]
    lead = LlmAgent(
        name="lead",
        model=Scripted(script=script, sent=[]),
        instruction="You lead.",
        tools=[show_panel],
        sub_agents=[teller],
    )
    talk = Chat(agent=lead, policy=PackPolicy(max_input_tokens=128_000))
    talk.say("What is the pressure?")
    (text,) = [request.text for request in talk.sent if request.agent == "teller"]
    assert READING in text
    assert "[image/png, 30 KB: artifact://evidence/" in text
    assert CODE[:60] not in text
    assert verify(talk.store, replays=True).faults == {}
