"""Pages over packs that ADK's own Runner wrote: what they show, whom they let in, and that they only show."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import packs
import pytest
from browsing import CAUSES, Browser, hostile_chat
from harbour import harbour
from plans import loop, small, turns
from scripted import Chat, Memories, call, look_up, new_store, remembered
from starlette.testclient import TestClient
from terminal import run
from wording import MANIFEST

from aether_context import PackStore
from aether_context.canonical import canonical_json, hash_json, hash_text, readable_json
from aether_context.lab.reading import WHY
from aether_context.lab.viewer import create_app, report
from aether_context.pack import LAYERS
from aether_context.store import Manifest
from aether_context.store.pack_file import segment_of
from aether_context.usage import Totals


@pytest.fixture(scope="module")
def long_chat() -> Chat:
    """A session with tool calls, memories and cuts."""
    script: list[Any] = []
    for _ in range(6):
        script += [*loop(2), "done"]
    memory = Memories(remembered("The rate is 19 percent"), remembered("The office opens at nine"))
    chat = Chat(script=script, tools=[look_up], policy=small(2_500), memory=memory)
    chat.say(*turns(6))
    return chat


@pytest.fixture(scope="module")
def browser(long_chat: Chat) -> Browser:
    return Browser(long_chat.store)


def at(manifest: Manifest, **query: str) -> str:
    """The address of a pack."""
    names = {"app": manifest.app, "user": manifest.user, "session": manifest.session}
    return f"/pack/{manifest.pack_id}?{urlencode(names | query)}"


SESSION = "/session?app=shop&user=ann&session=s1"


def test_the_list_names_each_session_with_what_it_used(long_chat: Chat, browser: Browser) -> None:
    page = browser.open("/")
    assert page.status == 200
    (row,) = re.findall(r"<tr>\s*<td><a class=\"go.*?</tr>", page.html, re.DOTALL)
    outcomes = [long_chat.store.outcome(manifest) for manifest in long_chat.manifests()]
    used = [sum(one[name] for one in outcomes if one) for name in ("input_tokens", "output_tokens")]
    assert all(name in row for name in (">s1<", ">shop<", ">ann<", "$"))
    assert all(f'<td class="r">{figure:,}</td>' in row for figure in (len(outcomes), *used))


def test_many_sessions_come_in_pages() -> None:
    store = new_store()
    for number in range(27):
        packs.Session(store, identity=packs.IDENTITY._replace(session=f"s{number:02}")).ask("hello")
    browser = Browser(store)
    first, second = browser.open("/"), browser.open("/?page=2")
    assert [len(page.leads("^/session")) for page in (first, second)] == [25, 2]
    assert second.path in first.links
    assert browser.open("/?page=99").text == second.text
    assert browser.open("/?page=-1").text == browser.open("/?page=x").text == first.text


@pytest.mark.slow
def test_many_calls_come_in_pages() -> None:
    store = new_store()
    browser, session = Browser(store), packs.Session(store, identity=packs.IDENTITY._replace(session="long"))
    for number in range(201):
        session.ask(f"question {number}")
    newest = browser.open(browser.open("/?words=long").leads("^/session")[0])
    earlier = browser.open(newest.leads("page=1")[0])
    assert [len(page.leads("^/pack/")) for page in (earlier, newest)] == [200, 1]
    assert newest.leads("^/pack/")[0].startswith(f"/pack/{session.manifests[-1].pack_id}?")


def test_a_call_names_the_settings_that_differ_from_its_profile(long_chat: Chat, browser: Browser) -> None:
    assert "chat · max_input_tokens 2500" in " ".join(browser.open(at(long_chat.latest())).text.split())


def test_a_session_has_a_line_and_a_bar_for_each_call(long_chat: Chat, browser: Browser) -> None:
    page = browser.open(SESSION)
    manifests = long_chat.manifests()
    assert page.leads("^/pack/") == [at(manifest) for manifest in manifests]
    drawn = [
        layer
        for manifest in manifests
        for layer, tokens in manifest.allocation.items()
        if 1_000 * manifest.expected(tokens.used) // 2_500
    ]
    assert len(re.findall(r'<rect class="l-\w+"', page.html)) == len(drawn)
    assert page.html.count('<rect class="cached"') == len(manifests)
    for manifest in manifests:
        assert f'<td class="r">{manifest.request_tokens:,}</td>' in page.html
        for event in manifest.truncation_events:
            freed = manifest.expected(event.tokens_before - event.tokens_after)
            assert f"{event.stage} {event.layer} −{freed:,}: {WHY[event.reason]}" in page.text
    cuts = [event for manifest in manifests for event in manifest.truncation_events if event.stage == "cut"]
    assert page.html.count('class="cut"') == len(cuts) > 0


def test_a_pack_shows_the_request_as_it_was_sent(long_chat: Chat, browser: Browser) -> None:
    assert long_chat.sent
    for number, (manifest, sent) in list(enumerate(zip(long_chat.manifests(), long_chat.sent, strict=True)))[::4]:
        page = browser.open(at(manifest))
        assert "replayed: the request is the recorded one" in page.text
        assert f"{manifest.request_tokens:,} of 2,500 tokens" in page.text
        assert all(layer in page.text for layer in LAYERS)
        assert bool(page.leads("beside=")) is bool(number)
        for content in sent.contents:
            for part in content.parts or ():
                for line in (part.text or "").splitlines():
                    assert " ".join(line.split()) in page.text


@pytest.mark.parametrize("cause", CAUSES)
def test_a_cause_is_two_clicks_from_the_list(cause: str) -> None:
    plant, words = CAUSES[cause]
    page = Browser(plant().store).last_pack()
    assert re.search(words, page.text), page.text[:3_000]


def test_a_session_tells_what_became_of_words_that_are_looked_for(long_chat: Chat, browser: Browser) -> None:
    page = browser.open(f"{SESSION}&words=rate+is+19+percent")
    assert "place holds these words" in page.text
    assert "memory of user" in page.text
    assert "line 3 of k0" in browser.open(f"{SESSION}&words=line+3+of+k0").text
    assert "never reached the plugin" in browser.open(f"{SESSION}&words=zebras").text
    assert "give some words to look for" in browser.open(f"{SESSION}&words=%E2%80%A6").text
    assert browser.open(SESSION).text.count("question 0: q0w0") == 1, "the user's words stand above the turn"


def test_a_call_begins_with_what_was_cut_and_why_and_ends_with_folded_declarations(
    long_chat: Chat, browser: Browser
) -> None:
    cut = next(one for one in long_chat.manifests() if "cut" in {event.stage for event in one.truncation_events})
    page = browser.open(at(cut))
    told = page.text.index("What was cut, and why")
    for event in cut.truncation_events:
        assert WHY[event.reason] in page.text[told : page.text.index("The call")]
    messages = page.html.partition("<details>")[0]
    assert messages.count("<article>") > len(long_chat.sent[cut.number - 1].contents), "and the instruction"
    assert "<h3>tool " not in messages
    declared = re.search(
        r"<details><summary>(\d+) declarations of tools</summary>(.*?)</details>", page.html, re.DOTALL
    )
    assert declared is not None
    assert declared[1] == str(len(cut.tools.sent)) == str(declared[2].count("<article>"))
    used = cut.usage(long_chat.store.outcome(cut))
    assert f"cost {Totals.of(used).cost_text}" in page.text


def test_previous_and_next_lead_through_all_calls_of_a_team_and_back() -> None:
    chat = harbour(store=new_store(), piers=2)
    browser = Browser(chat.store)
    paths = list(dict.fromkeys(browser.open(SESSION).leads("^/pack/")))
    assert len({one.agent for one in chat.store.manifests()}) > 2
    assert len(paths) == len(list(chat.store.manifests()))
    pages = [browser.open(path) for path in paths]
    for rel, expected in (("prev", [None, *paths[:-1]]), ("next", [*paths[1:], None])):
        links = [re.search(rf'rel="{rel}" href="([^"]*)"', page.html) for page in pages]
        assert [html.unescape(link[1]) if link else None for link in links] == expected


def test_a_column_without_a_word_is_not_there(long_chat: Chat, browser: Browser) -> None:
    chat = Chat(script=["one", "two"])
    chat.llm.usage = False
    chat.say("question one", "question two")
    silent, told = Browser(chat.store).open(SESSION), browser.open(SESSION)
    for column in ("reported", "of it cached", "answer"):
        assert f'<th class="r">{column}</th>' in told.html
        assert f'<th class="r">{column}</th>' not in silent.html
    assert not any("–</td>" in page.html for page in (silent, Browser(chat.store).open("/"), browser.last_pack()))


def test_only_what_was_missed_counts_as_left_out() -> None:
    summaries = [
        re.search(r'<p class="summary">(.*?)</p>', Browser(CAUSES[cause][0]().store).last_pack().html)[1]  # type: ignore[index]
        for cause in ("memory below the floor", "evidence cut for room")
    ]
    assert ["left out" in one or "shortened" in one for one in summaries] == [False, True]


# two packs, and a session in one file


def test_two_packs_of_a_session_show_what_entered_left_and_why(long_chat: Chat, browser: Browser) -> None:
    manifests = long_chat.manifests()
    place = next(place for place, manifest in enumerate(manifests) if manifest.prefix.broken_by == "cut")
    before, after = manifests[place - 1], manifests[place]
    page = browser.open(browser.open(at(after)).leads("beside=")[0])
    assert page.status == 200
    dropped = [name for event in after.truncation_events if event.stage == "cut" for name in event.item_ids]
    assert dropped
    assert all(name in page.text for name in dropped)
    assert "The two requests part in" in page.text
    assert f"{after.request_tokens - before.request_tokens:+,}" in page.text
    assert "<del>" in page.html
    assert page.text == browser.open(at(after, beside=before.pack_id)).text


def test_a_report_needs_nothing_else(long_chat: Chat) -> None:
    text = report(long_chat.store, "shop", "ann", "s1")
    assert "<script" not in text
    assert not re.search(r'(?:src|href|action)="(?!#)', text)
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert re.search(rf"default-src 'none'; style-src (?:'|&#39;)sha256-{re.escape(digest)}", text)
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', text)) <= set(ids)
    assert "The rate is 19 percent" in text


def test_the_command_writes_a_report(tmp_path: Path) -> None:
    store = new_store()
    for user in ("ann", "bob"):
        Chat(store=store, user=user, script=[call("look_up", key="k"), "done"], tools=[look_up]).say(f"<b>I am {user}")
    path = tmp_path / "bug.html"

    def report(*arguments: str, file: Path = path, code: int = 0) -> str:
        return run("serve", store.url, "--report", file, *arguments, code=code).output

    report("--user", "eve", code=3)
    for arguments in ((), ("--session", "s1")):
        output = report(*arguments, code=3)
        assert "2 sessions" in output
        assert "--user" in output
    output = report("--user", "bob", file=tmp_path / "nowhere" / "bug.html", code=2)
    assert f"there is no folder {tmp_path / 'nowhere'}" in " ".join(output.split())
    assert "cannot be written" in report("--user", "bob", file=tmp_path, code=2)
    run("serve", store.url, "--user", "bob", code=2)
    assert not path.exists()
    report("--user", "bob", "--session", "s1")
    text = path.read_text(encoding="utf-8")
    assert "&lt;b&gt;I am bob" in text
    assert "I am ann" not in text


# what is hostile, damaged or not there


def test_hostile_texts_are_text(tmp_path: Path) -> None:
    chat = hostile_chat(PackStore(tmp_path / "packs"))
    browser = Browser(chat.store)
    seen: set[str] = set()
    waiting = ["/", "/?words=%3Cscript%3E%22%27", "/?app=%22%3E%3Cscript%3E&user=%22onfocus%3D"]
    while waiting:
        page = browser.open(waiting.pop())
        assert page.status == 200 or "/raw/" in page.path
        assert not {"script", "img", "b1"} & set(page.tags)
        assert not re.search(r'href="(?!/|#|data:,)', page.html)
        assert not re.search(r" on\w+=| style=", re.sub(r'>[^<]*<|"[^"]*"', "", page.html))
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]", page.html)
        waiting += [link for link in set(page.links) - seen if link.startswith("/")]
        seen.update(page.links)
    assert any("beside" in link for link in seen)
    page = browser.last_pack()
    for shown in (
        "<script>alert(1)</script>",
        r"\x1b[31mred\x1b[0m",
        r"\u202eevil\u202c",
        r"\x00\x07\u200b\ufeff",
        "{{ 7 * 7 }}",
    ):
        assert shown in page.text
    text = report(chat.store, *chat.manifests()[0].session_key)
    assert "<script" not in text
    assert "<img" not in text


@pytest.mark.parametrize(
    "path",
    [
        "/session", "/session?app=shop&user=ann", "/session?app=shop&user=ann&session=nobody",
        "/session?app=shop&user=..&session=../../etc", "/pack/nothing",
        "/pack/pack_20250101T000000.000000Z_00000000?app=shop&user=ann&session=s1", "/pack/..%2f..%2fetc%2fpasswd",
        "/pack/%2e%2e?app=..&user=..&session=..", "/raw/nothing?uri=x", "/static/viewer.css", "/openapi.json",
    ],
)  # fmt: skip
def test_what_is_no_pack_is_not_found(browser: Browser, path: str) -> None:
    page = browser.open(path)
    assert page.status == 404
    assert "root:" not in page.html


def test_only_evidence_of_the_pack_itself_is_served(tmp_path: Path) -> None:
    store = PackStore(tmp_path / "packs")
    for user in ("ann", "bob"):

        def write_up(user: str = user) -> dict[str, str]:
            """Writes the report."""
            return {"result": "\n".join(f"line {at} of {user}: {at * 37 % 1009} <b>" for at in range(4_000))}

        policy = small(8_000)
        chat = Chat(store=store, user=user, script=[call("write_up"), "done"], tools=[write_up], policy=policy)
        chat.say("Write the report.")
    browser = Browser(store)
    newest = [list(store.manifests(user=user))[-1] for user in ("ann", "bob")]
    mine, theirs = (browser.open(at(manifest)).leads("^/raw/")[0] for manifest in newest)
    page = browser.open(mine)
    assert "line 3 of ann: 111 <b>" in page.text
    assert "<b>" not in page.html
    assert page.headers["content-type"].startswith("text/html")
    assert browser.open(theirs).status == 200
    for uri in (theirs.partition("uri=")[2], "artifact%3A%2F%2F..%2Fx", "file%3A%2F%2F%2Fetc%2Fpasswd", ""):
        assert browser.open(f"{mine.partition('uri=')[0]}uri={uri}").status == 404


def test_a_changed_manifest_is_flagged_and_a_damaged_one_holds_nothing_back() -> None:
    chat = Chat()
    chat.say("one", "two", "three")
    first, second, third = chat.manifests()
    packs.rewrite(chat.store, third, lambda line: line.replace(b'"request_tokens": ', b'"request_tokens": 1'))
    fs = chat.store.files
    fs.replace(f"{chat.store.place(second)}/{MANIFEST}", b"not a pack")
    browser = Browser(chat.store)
    assert "not what was written" in browser.open("/").text
    session = browser.open(SESSION)
    assert all(flag in session.text for flag in ("not what was written", "cannot be read"))
    assert browser.open(at(first)).status == 200
    assert browser.open(at(second)).status == 502
    assert "hash is" in browser.open(at(third)).text
    assert "hash is" in browser.open(at(third, beside=first.pack_id)).text
    assert browser.open(at(third, beside=second.pack_id)).status == 502


def forge(chat: Chat, change: dict[str, Any]) -> None:
    """Changes fields of a session's first manifest or of its record, by their paths, and seals it again."""
    first, files = chat.manifests()[0], chat.store.files
    path, segment_path = packs.paths_of(chat.store, first)
    line, *texts = gzip.decompress(files.read(segment_path)).decode().split("\n")
    fields, record = json.loads(files.read(path)), json.loads(line)
    for name, value in change.items():
        *above, last = name.split(".")
        within = record if name.split(".")[0] in record else fields
        for step in above:
            within = within[int(step) if step.isdecimal() else step]
        within[last] = first.record if value == "itself" else value
    line = canonical_json(record)
    segment, data = segment_of([first.number], [line, *texts])
    files.create(f"{segment_path.rpartition('/')[0]}/{segment}", data)
    fields["record"] = hash_text(line)
    digest = hash_json({name: value for name, value in fields.items() if name != "digest"})
    files.replace(path, readable_json({**fields, "digest": digest}).encode())


@pytest.mark.parametrize(
    "change",
    [
        {"window": "wide"}, {"window": None}, {"window": 0}, {"window": 10**400}, {"last_event_time": 10**400},
        {"request_tokens": [1]}, {"agent": {}}, {"pack_id": 7}, {"epoch": [1]}, {"epoch.number": "x"},
        {"allocation.system.used": "x"}, {"allocation": {}}, {"prefix.shared_tokens": "x"},
        {"tools.kept": {"look_up": "x"}}, {"weights": "x"}, {"rows": 5}, {"rows.0.tokens": 10**400},
        {"extends": "itself"}, {"segments": [[0, 10**13]]},
        {"contents": {"ranges": [[0, 9]]}}, {"positions": [[0, 10**13]]},
        {"others": [[0, 10**13]]}, {"positions": [[5, 2]]},
    ],
    ids=lambda change: repr(change)[:40],
)  # fmt: skip
@pytest.mark.rows(4, slow=7)
def test_a_forged_manifest_has_a_page_and_holds_nothing_back(change: dict[str, Any]) -> None:
    chat = Chat(script=[*loop(1), "done"] * 2, tools=[look_up])
    chat.say("one", "two")
    ids = [manifest.pack_id for manifest in chat.manifests()]
    forge(chat, change)
    browser = Browser(chat.store)
    assert browser.open("/").status == 200
    assert browser.open(SESSION).status == 200
    names = "app=shop&user=ann&session=s1"
    first, last = (f"/pack/{name}?{names}" for name in (ids[0], ids[-1]))
    for path in (first, last, f"/raw/{ids[0]}?{names}&uri=x", f"{first}&beside={ids[-1]}", f"{last}&beside={ids[0]}"):
        page = browser.open(path)
        assert page.status in (200, 404, 422, 502)
        assert page.status != 422 or "aether-context verify" in page.text
        assert "content-security-policy" in page.headers
    assert report(chat.store, "shop", "ann", "s1").count("<section") == len(ids)


# who may read


def test_every_answer_carries_a_strict_policy(browser: Browser) -> None:
    for path in ("/", SESSION, "/nothing"):
        headers = browser.open(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("method", ["post", "put", "patch", "delete"])
def test_nothing_can_be_written(browser: Browser, method: str) -> None:
    for path in ("/", SESSION, "/pack/x"):
        assert getattr(browser.client, method)(path).status_code == 405


def test_with_a_token_nobody_reads_without_it(long_chat: Chat) -> None:
    token = "a-long-random-token"
    browser = Browser(long_chat.store, token=token)
    for path in ("/", SESSION, "/nothing", "/pack/x"):
        assert browser.open(path).status == 401
        assert browser.open(f"{path}?token=wrong").status == 401
        assert browser.open(path, headers={"authorization": "Bearer wrong"}).status == 401
        assert browser.open(path, headers={"cookie": f"aether_context_viewer={token}"}).status == 401
    assert browser.open("/", headers={"authorization": f"Bearer {token}"}).status == 200
    answer = browser.client.get(f"/?words=s1&token={token}", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/?words=s1")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert token not in cookie
    assert browser.open("/").status == 200, "the cookie is kept"
    elsewhere = browser.client.get(f"//evil.example/?token={token}", follow_redirects=False)
    assert not elsewhere.headers.get("location", "").startswith("//")


def test_a_name_that_is_not_this_machines_is_refused(long_chat: Chat) -> None:
    app = create_app(long_chat.store, hosts=("localhost", "127.0.0.1", "[::1]"))
    for host in ("localhost:8321", "127.0.0.1", "[::1]:8321"):
        assert TestClient(app).get("/", headers={"host": host}).status_code == 200
    for host in ("evil.example", "evil.example:8321", "localhost.evil.example", ""):
        assert TestClient(app).get("/", headers={"host": host}).status_code == 421


# the command


def test_the_command_refuses_to_be_reached_without_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AETHER_CONTEXT_TOKEN", raising=False)
    for host in ("0.0.0.0", "::", "192.168.0.7", "example.org"):
        assert "AETHER_CONTEXT_TOKEN" in run("serve", tmp_path, "--host", host, code=2).output
    run("serve", tmp_path, "--host", "0.0.0.0", "--token", "short", code=2)
    run("serve", tmp_path / "nowhere", code=3)


@pytest.mark.integration
def test_the_command_serves_a_store_until_it_is_stopped(tmp_path: Path) -> None:
    Chat(store=PackStore(tmp_path)).say("hello")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "aether_context", "serve", str(tmp_path), "--host", "0.0.0.0", "--port", str(port)]
    token = "a-long-random-token"
    server = subprocess.Popen(words, env={**os.environ, "AETHER_CONTEXT_TOKEN": token}, stderr=subprocess.PIPE)
    try:
        assert server.stderr is not None
        while b"until Ctrl-C" not in (line := server.stderr.readline()):
            assert line, "it ended"
        client = httpx.Client(base_url=f"http://127.0.0.1:{port}", transport=httpx.HTTPTransport(retries=9))
        with client:
            assert client.get("/").status_code == 401
            assert "s1" in client.get("/", headers={"authorization": f"Bearer {token}"}).text
    finally:
        server.send_signal(signal.SIGINT)
        assert server.wait(20) in (0, 1, -signal.SIGINT)
        server.stderr.close()  # type: ignore[union-attr]
