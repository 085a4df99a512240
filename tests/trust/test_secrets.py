"""Secrets in all that a conversation holds, looked for in all that is written of it, whatever it is packed in."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import random
import sqlite3
import string
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from failing import FailingFileSystem
from google.adk.artifacts import FileArtifactService
from google.adk.memory.memory_entry import MemoryEntry
from google.genai import types
from matrix import but_slow
from scripted import Chat, Failure, Memories, call
from traces import Traces
from writers import writer

from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin, HybridMemoryService
from aether_context.lab.viewer import create_app, report
from aether_context.redaction import MaskedLogs

Figure = Callable[[str, float], None]

_random = random.Random(4)


def letters(count: int, of: str = string.ascii_letters + string.digits) -> str:
    return "".join(_random.choice(of) for _ in range(count))


HEX = "0123456789abcdef"
PEM = "\n".join(letters(64) for _ in range(6))
BLOCK = f"-----BEGIN RSA PRIVATE KEY-----\n{PEM}\n-----END RSA PRIVATE KEY-----"
ESCAPED = "\n".join(letters(64) for _ in range(6))
AZURE, WORD, CODE, QUOTED = letters(86), letters(14), letters(12), f"open {letters(8)} now"

PLANTED: dict[str, tuple[str, str]] = {
    name: (text, secret or text.split(" ")[-1])
    for name, text, secret in [
        ("private key", BLOCK, PEM[70:110]),
        (
            "private key in JSON",
            json.dumps({"key": f"-----BEGIN PRIVATE KEY-----\n{ESCAPED}\n-----END PRIVATE KEY-----"}),
            ESCAPED[70:110],
        ),
        ("AWS", f"AKIA{letters(16, string.ascii_uppercase + '234567')}", ""),
        ("AWS secret", f"aws_secret_access_key = {letters(38)}1a", ""),
        ("GCP", f"AIza{letters(35)}", ""),
        ("Azure", f"AccountKey={AZURE}==", AZURE),
        ("Azure client", f"client_secret: {letters(3)}8Q~{letters(34)}", ""),
        ("GitHub", f"ghp_{letters(36)}", ""),
        ("GitHub, fine", f"github_pat_{letters(82)}", ""),
        ("GitLab", f"glpat-{letters(20)}", ""),
        ("Bitbucket", f"ATBB{letters(32)}", ""),
        ("npm", f"npm_{letters(36)}", ""),
        ("PyPI", f"pypi-AgEIcHlwaS5vcmc{letters(70)}", ""),
        ("Slack", f"xoxb-{letters(12, string.digits)}-{letters(12, string.digits)}-{letters(24)}", ""),
        ("Stripe", f"sk_live_{letters(24)}", ""),
        ("OpenAI", f"sk-proj-{letters(74)}T3BlbkFJ{letters(74)}", ""),
        ("Anthropic", f"sk-ant-api03-{letters(93)}AA", ""),
        ("Hugging Face", f"hf_{letters(34, string.ascii_letters)}", ""),
        ("DigitalOcean", f"dop_v1_{letters(64, HEX)}", ""),
        ("bearer", f"Authorization: Bearer {letters(30)}7", ""),
        ("basic", f"Authorization: Basic {base64.b64encode(b'ann:' + letters(12).encode()).decode()}", ""),
        ("password in a URL", f"postgres://ann:{WORD}@db.internal/shop", WORD),
        ("password", f"password={CODE}", CODE),
        ("password in JSON", json.dumps({"db_password": QUOTED}), QUOTED),
        ("password in words", f"my password is {letters(10)}4!", ""),
        ("JWT", f"eyJhbGciOiJIUzI1NiJ9.eyJ{letters(30)}.{letters(43)}", ""),
        ("card", "4242 4242 4242 4242", "4242 4242 4242 4242"),
        ("card in one", "5555555555554444", ""),
        ("IBAN", "DE89 3704 0044 0532 0130 00", "3704 0044 0532"),
        ("IBAN in one", "GB82WEST12345698765432", ""),
        ("IPv4", "203.0.113.77", ""),
        ("IPv6", "2001:db8:85a3::8a2e:370:7334", ""),
        ("mail", "maria.lopez@customer.example", ""),
        ("phone", "+49 170 1234567", "170 1234567"),
        ("phone, as in America", "415-555-0123", ""),
    ]
}
TEXTS = [f"The {name} of ours: {text}" for name, (text, _) in PLANTED.items()]
SECRETS = {name: secret for name, (_, secret) in PLANTED.items()}
ALL = "\n".join(TEXTS)


def fetch(source: str, note: str) -> dict[str, Any]:
    """Fetches the settings of a source, which are few."""
    return {
        "source": source,
        "settings": TEXTS[len(source) % 9 :: 9],
        "password": "swordfish-88",
        "api_key": 5512345678,
    }


def dump(name: str) -> dict[str, Any]:
    """Dumps a whole log, with all that was written into it."""
    lines = [f"{at}: request {at * 37 % 1009} of {name} was served" for at in range(500)]
    for at, text in enumerate(TEXTS):
        lines.insert(13 * at + 5, text)
    return {"result": "\n".join(lines)}


def table(name: str) -> dict[str, Any]:
    """Gives customers, by their mail."""
    return {"rows": {f"{at}.{SECRETS['mail']}": {"about": text} for at, text in enumerate(TEXTS * 6)}}


def fails(name: str) -> str:
    """Cannot do it."""
    raise Failure(f"{name}: {TEXTS[12]}, {TEXTS[21]}")


STATE = {
    "plan": {
        "task_id": "t1",
        "task": f"Rotate them. {ALL}",
        "goal": TEXTS[2],
        "step": {"id": "s1", "text": f"Begin with {TEXTS[7]}", "acceptance": [f"Gone: {TEXTS[9]}", "Said so"]},
        "constraints": [TEXTS[5]],
    },
    "knowledge": {"notes": [{"id": f"n{at}", "text": text} for at, text in enumerate(TEXTS)]},
}


def converse(folder: Path, settings: dict[str, Any], *, url: str = "") -> Chat:
    """A conversation with plan, notes, tools, offload, cuts, a model's summaries, memory and mirrored manifests."""
    policy = PackPolicy(
        max_input_tokens=9_000,
        conversation={"compact_at": 0.5, "compact_to": 0.25},
        offload={"extract_tokens": 200},
        **settings,
    )
    plugin = ContextPackPlugin(
        policy=policy,
        store=url or str(folder / "store"),
        on_error="passthrough",
        summarizer=writer(write=lambda item: f"BRIEF {item['text'][:4_000]}"),
        mirror_artifacts=True,
    )
    (folder / "memory").mkdir(parents=True, exist_ok=True)
    service = HybridMemoryService(folder / "memory", embedder="none")
    chat = Chat(
        plugin=plugin,
        script=[
            [call("fetch", source="settings", note=ALL), call("dump", name="log")],
            call("table", name="customers"),
            f"I have read them. {ALL}",
            "Done.",
            [call("fetch", source=TEXTS[3], note=TEXTS[23])],
            "Again.",
        ],
        tools=[fetch, dump, table, fails],
        state=STATE,
        memory=service,
        artifacts=FileArtifactService(folder / "artifacts"),
        instruction=f"You help. Never say {TEXTS[10]}.",
        on_error="passthrough",
        policy=policy,
    )
    chat.say("Please begin.")
    asyncio.run(service.add_session_to_memory(asyncio.run(chat.held())))
    noted = [types.Part(text=text) for text in TEXTS]
    entry = MemoryEntry(content=types.Content(role="user", parts=noted), custom_metadata={"from": TEXTS[20]})
    asyncio.run(service.add_memory(app_name="shop", user_id="ann", memories=[entry]))
    chat.say(f"What of {ALL}?", *(f"And {text}? " + "word " * 150 for text in TEXTS[::7]))
    chat.say(f"{ALL}\n" + "\n".join(f"line {at} of what I have read of it" for at in range(1_500)), "Go on.")
    chat.llm.script = [call("fails", name="it")]
    with pytest.raises(Failure):
        chat.say("Now do what fails.")
    logging.getLogger("aether_context").warning("a collaborator failed: %s", TEXTS[1], exc_info=Failure(TEXTS[15]))
    return chat


def unpacked(data: bytes) -> Iterator[bytes]:
    """Bytes, what is compressed in them, and what is Base64 in them."""
    yield data
    at = data.find(b"\x1f\x8b\x08")
    while at >= 0:
        stream = zlib.decompressobj(zlib.MAX_WBITS + 16)
        try:
            yield stream.decompress(data[at:])
        except zlib.error:
            at = data.find(b"\x1f\x8b\x08", at + 1)
        else:
            at = data.find(b"\x1f\x8b\x08", len(data) - len(stream.unused_data) if stream.eof else at + 1)


def cells(path: Path) -> Iterator[bytes]:
    """All values of an SQLite file."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
        for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            for row in database.execute(f'SELECT * FROM "{name}"'):
                for value in row:
                    yield value if isinstance(value, bytes) else str(value).encode()


def written(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            pieces = [data, *cells(path)] if data.startswith(b"SQLite format 3") else [data]
            yield from ((str(path.relative_to(folder)), one) for piece in pieces for one in unpacked(piece))


def forms(secret: str) -> list[bytes]:
    """A secret as it may stand in a file: as it is, in JSON, and in Base64 at each of its three beginnings."""
    found = [secret.encode(), json.dumps(secret)[1:-1].encode(), secret.replace(" ", "").encode()]
    for before in range(3):
        coded = base64.b64encode(b"x" * before + secret.encode())
        found.append(coded[(0, 2, 3)[before] : len(coded) - 4])
    return found


FORMS = {name: forms(secret) for name, secret in SECRETS.items()}


def leaks(pieces: Iterator[tuple[str, bytes]]) -> set[tuple[str, str]]:
    """The secrets that stand in pieces of what was written: where, and which."""
    return {
        (place, name)
        for place, data in pieces
        for name, shapes in FORMS.items()
        if any(shape in data for shape in shapes)
    }


def shown(chat: Chat) -> Iterator[tuple[str, bytes]]:
    """What people see of a store: the pages of the viewer, the report, and what the commands print."""
    from starlette.testclient import TestClient

    store = chat.store
    yield "report", report(store, "shop", "ann", "s1").encode()
    client = TestClient(create_app(store))
    waiting, seen = ["/"], {"/"}
    while waiting and len(seen) < 24:
        page = client.get(waiting.pop(0)).text
        yield "page", page.encode()
        for link in page.split('href="')[1:]:
            link = link.partition('"')[0].replace("&amp;", "&").partition("#")[0]
            if link.startswith("/") and link not in seen:
                seen.add(link)
                waiting.append(link)


def everything(chat: Chat, folder: Path, traces: Traces, logs: pytest.LogCaptureFixture) -> set[tuple[str, str]]:
    found = leaks(written(folder)) | leaks(shown(chat))
    assert traces.own
    found |= leaks(("spans", span.to_json().encode()) for span in traces.own)
    records = [record for record in logs.records if record.name.startswith("aether_context")]
    handled = [f"{record.getMessage()} {record.exc_text} {record.exc_info}" for record in records]
    assert handled
    return found | leaks(("logs", text.encode()) for text in handled)


def sent_secrets(chat: Chat) -> set[str]:
    texts = "\n".join(f"{one.system}\n{one.wires}" for one in chat.sent).replace("\\\\n", "\n").replace("\\n", "\n")
    return {name for name, secret in SECRETS.items() if secret in texts}


ON = {"redact": ("secrets", "personal")}
MODES: dict[str, dict[str, Any]] = {
    "on": ON,
    "on, hashes alone": {**ON, "record": "hashes"},
    "on, the prompt too": {**ON, "redact_prompt": True},
}


@pytest.mark.parametrize("mode", but_slow(MODES, "on", "on, hashes alone"))
def test_no_secret_is_written(
    mode: str, tmp_path: Path, traces: Traces, caplog: pytest.LogCaptureFixture, figure: Figure
) -> None:
    with caplog.at_level(logging.INFO, logger="aether_context"):
        chat = converse(tmp_path, dict(MODES[mode]))
    found = everything(chat, tmp_path, traces, caplog)
    figure("secrets", len(found))
    assert found == set()
    assert len(chat.manifests()) > 10
    if MODES[mode].get("redact_prompt"):
        assert sent_secrets(chat) == set()
    else:
        assert len(sent_secrets(chat)) == len(SECRETS)
    if MODES[mode].get("record") != "hashes":
        chat.replays(every=1)
        masked = [bool(manifest.masked_checksum) for manifest in chat.manifests()]
        assert all(masked) is not bool(MODES[mode].get("redact_prompt"))


@pytest.mark.slow
def test_without_it_the_same_search_finds_them(
    tmp_path: Path, traces: Traces, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("aether_context").filters.clear()  # those of other tests' plugins mask for the whole process
    with caplog.at_level(logging.INFO, logger="aether_context"):
        chat = converse(tmp_path, {})
    found = everything(chat, tmp_path, traces, caplog)
    assert {name for _, name in found} == set(SECRETS)
    places = {place.partition("/")[0] for place, _ in found}
    assert places >= {"store", "memory", "artifacts", "report", "page", "logs"}


@pytest.mark.parametrize("settings", [pytest.param({}, marks=pytest.mark.slow), ON], ids=["off", "on"])
def test_no_secret_waits_in_the_spool(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figure: Figure
) -> None:
    monkeypatch.setenv("AETHER_CONTEXT_SPOOL", str(tmp_path / "spool"))
    FailingFileSystem.down = True
    try:
        converse(tmp_path, dict(settings), url=f"failing://secrets-{len(settings)}")
    finally:
        FailingFileSystem.down = False
    waiting = [(place, data) for place, data in written(tmp_path) if place.startswith("spool")]
    assert waiting
    found = leaks(waiting)
    if settings:
        figure("secrets", len(found))
        assert found == set()
    else:
        assert {name for _, name in found} == set(SECRETS)


def test_tracebacks_are_masked_for_each_of_several_policies() -> None:
    record = logging.LogRecord("aether_context", logging.ERROR, __file__, 1, "it failed", (), None)
    try:
        raise ValueError(f"for {SECRETS['OpenAI']}")
    except ValueError:
        record.exc_info = sys.exc_info()
    for rules in (("a word that nobody says",), ("secrets",)):
        assert MaskedLogs(PackPolicy(redact=rules).mask).filter(record)
    assert SECRETS["OpenAI"] not in logging.Formatter().format(record)
    assert "ValueError: for" in logging.Formatter().format(record)


def test_what_is_asked_of_an_app_s_memory_is_masked() -> None:
    memory = Memories()
    chat = Chat(policy=PackPolicy(**ON), memory=memory)
    chat.say(f"Who wrote {SECRETS['mail']} with {SECRETS['GitHub']}?")
    assert [query for _, _, query in memory.queries] == ["Who wrote [email] with [key]?"]
    assert SECRETS["mail"] in chat.sent[0].text


def test_a_pack_says_what_its_hashes_are_of() -> None:
    chat = Chat(policy=PackPolicy(**ON), script=[call("fetch", source="a", note="b"), "done"], tools=[fetch])
    chat.say("Hello.", f"I am {SECRETS['mail']}.", "Who am I?")
    assert [bool(one.masked_checksum) for one in chat.manifests()] == [False, True, True, True]
    assert all(one.masked_checksum != one.checksum for one in chat.manifests())
    plain = Chat(policy=PackPolicy(), script=[call("fetch", source="a", note="b"), "done"], tools=[fetch])
    plain.say("Hello.", f"I am {SECRETS['mail']}.", "Who am I?")
    assert [one.checksum for one in plain.manifests()] == [one.checksum for one in chat.manifests()]
    assert not any("otherwise" in told for one in chat.manifests() for told in one.degradations)


def test_keys_are_masked_and_stay_apart() -> None:
    mask = PackPolicy(redact=["email"]).mask
    owed = {"ann@example.org": 3, "bob@example.org": [{"to": {"eve@example.org": 4}}], "sum": 7}
    assert mask.json(owed) == {"[email]": 3, "[email]_": [{"to": {"[email]": 4}}], "sum": 7}
