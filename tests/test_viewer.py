"""Pages over packs that ADK's own Runner wrote: what they show, whom they let in, and that they only show."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import unicodedata
from typing import Any
from urllib.parse import urlencode

import httpx
import packs
import pytest
from browsing import CAUSES, Browser, hostile_chat
from click.testing import CliRunner
from plans import loop, small, turns
from scripted import Chat, Memories, call, look_up, new_store, remembered
from starlette.applications import Starlette
from starlette.testclient import TestClient

from aether_context import PackStore
from aether_context.canonical import canonical_json, hash_json
from aether_context.cli import main
from aether_context.errors import MissingExtra
from aether_context.pack import LAYERS
from aether_context.store.packs import ENDING
from aether_context.viewer import create_app, report
from aether_context.viewer.pages import STATIC, environment, static, visible
from aether_context.viewer.rows import FLAGS, PackRows
from aether_context.views import Comparison, Unpacked


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


def test_the_list_names_each_session_with_what_it_used(long_chat: Chat, browser: Browser) -> None:
    page = browser.open("/")
    whole = len(long_chat.manifests())
    assert page.status == 200
    assert f"1 with {whole} packs" in page.text
    (row,) = re.findall(r'<tr>\s*<td><a class="go.*?</tr>', page.html, re.DOTALL)
    assert "s1" in row
    assert "shop · ann" in row
    outcomes = [long_chat.store.outcome(manifest) for manifest in long_chat.manifests()]
    assert f"{sum(outcome['input_tokens'] for outcome in outcomes if outcome):,}" in row
    assert "Usage by day and agent" in page.text


def test_the_list_is_narrowed_by_names_words_and_flags() -> None:
    store = new_store()
    for user, app in (("ann", "shop"), ("bob", "bank")):
        Chat(store=store, user=user, app_name=app, session=f"of-{user}").say("hello")
    Chat(store=store, user="eve", session="planned", state={"plan": {"task": "t", "step": {"text": "x"}}}).say("hello")
    browser = Browser(store)
    all_of = {"of-ann", "of-bob", "planned"}

    def found(query: str) -> set[str]:
        page = browser.open(f"/?{query}")
        return {name for name in all_of if page.leads(f"/{name}$")}

    assert found("") == all_of
    assert found("app=bank") == {"of-bob"}
    assert found("user=ann") == {"of-ann"}
    assert found("q=SHOP+of-ann") == {"of-ann"}
    assert found("flag=invalid") == {"planned"}
    assert found("agent=clerk&day=1999-01-01") == set()
    assert "that match" in browser.open("/?q=nothing-like-it").text


def test_a_session_has_a_line_and_a_bar_for_each_call(long_chat: Chat, browser: Browser) -> None:
    page = browser.open("/s/shop/ann/s1")
    manifests = long_chat.manifests()
    assert len(set(page.leads(r"/pack_[^#]+$"))) == len(manifests)
    bars = re.search(r'class="bar l-conversation" d="([^"]+)"', page.html)
    assert bars is not None
    assert bars[1].count("z") == sum(manifest.allocation["conversation"].used > 0 for manifest in manifests)
    cuts = [manifest for manifest in manifests if any(event.stage == "cut" for event in manifest.truncation_events)]
    assert cuts
    assert page.text.count("prefix ends: cut") == sum(manifest.prefix.broken_by == "cut" for manifest in manifests)
    assert all(f"{manifest.request_tokens:,}" in page.text for manifest in manifests)
    assert all(
        name in page.html for name in ("n-window", "n-budget", "n-compact_to", "l-cached", "l-fresh", "l-output")
    )


def test_a_session_is_set_beside_itself_without_packs(long_chat: Chat, browser: Browser) -> None:
    unpacked, sides = Unpacked(long_chat.store), Comparison()
    for manifest in long_chat.manifests():
        sides = sides.plus(unpacked.compare(manifest))
    page = browser.open("/s/shop/ann/s1")
    assert sides.unpacked.tokens > sides.packed.tokens
    for side in (sides.packed, sides.unpacked):
        assert f'<td class="r">{side.tokens:,}</td>' in page.html
        assert f'<td class="r">{side.largest:,}</td>' in page.html


def test_a_pack_shows_the_request_as_it_was_sent(long_chat: Chat, browser: Browser) -> None:
    for manifest, sent in zip(long_chat.manifests(), long_chat.sent, strict=True):
        page = browser.open(f"/p/{manifest.pack_id}?all=1")
        page = browser.open(f"{page.path}")
        assert "digest verified request rebuilt, checksum equal" in page.text
        for content in sent.contents:
            for part in content.parts or ():
                if part.text and len(part.text) < 3_000:
                    for line in part.text.splitlines():
                        assert " ".join(line.split()) in page.text


def test_stretches_and_candidates_lead_to_each_other(long_chat: Chat, browser: Browser) -> None:
    page = browser.last_pack()
    fragments = [link[1:] for link in page.links if link.startswith("#")]
    assert len(page.ids) == len(set(page.ids))
    assert set(fragments) <= set(page.ids)
    sent = [name for name in fragments if name.endswith("-sent")]
    assert sent
    assert {name.removesuffix("-sent") for name in sent} <= set(page.ids)


def test_of_many_messages_those_that_are_not_sent_as_they_are_have_a_line() -> None:
    store = new_store()
    session = packs.Session(store, window=200_000)
    for at in range(40):
        session.ask(f"question {at}")
        session.answer(f"answer {at}")
    page = Browser(store).last_pack()
    rows = re.findall(r'<tr id="c-', page.html)
    assert len(rows) == 1, "the message that waits for its answer"
    assert "78 of them" in page.text
    assert all(f"question {at}" in page.text for at in range(40))
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)


def test_memories_in_the_request_are_linked_to_their_candidates() -> None:
    chat = Chat(memory=Memories(remembered("The berth tariff of Kiel is 12 euros")))
    chat.say("What is the berth tariff of Kiel?")
    page = Browser(chat.store).last_pack()
    stretch = re.search(r'<span class="span l-memory" id="(c-\w+)-sent">.*?12 euros', page.html, re.DOTALL)
    assert stretch is not None
    assert f'<tr id="{stretch[1]}" class="s-kept">' in page.html


def test_where_the_prefix_broke_is_shown_to_the_character() -> None:
    hours = iter(["nine", "ten"])
    chat = Chat(instruction=lambda _: f"You help. It is {next(hours)} o'clock.")  # type: ignore[arg-type]
    chat.say("hello", "and now?")
    page = Browser(chat.store).last_pack()
    assert "It ended by system changed" in page.text
    assert re.search(r"The two part in system, after \d+ characters of it", page.text)
    assert re.search(r"It is </span><del>nine o", page.html)
    assert re.search(r"It is </span><ins>ten o", page.html)


@pytest.mark.parametrize("cause", CAUSES)
def test_a_cause_is_three_clicks_from_the_list(cause: str) -> None:
    plant, words = CAUSES[cause]
    page = Browser(plant().store).last_pack()
    assert re.search(words, page.text), page.text[:3_000]
    findings = re.findall(r"<li>((?:(?!</li>).)*)</li>", page.html, re.DOTALL)
    (found, *_) = [finding for finding in findings if re.search(words, _text(finding))]
    (target, *_) = re.findall(r'href="#([^"]+)"', found)
    assert target in page.ids


def _text(markup: str) -> str:
    return re.sub(r"<[^>]+>", "", markup)


# what is hostile, damaged or not there


def test_hostile_texts_are_text(tmp_path: Any) -> None:
    chat = hostile_chat(PackStore(tmp_path / "packs"))
    browser = Browser(chat.store)
    seen = {"/"}
    waiting = ["/", "/?q=%3Cscript%3E%22%27", "/?app=%22%3E%3Cscript%3E&flag=%22onfocus%3D"]
    while waiting:
        page = browser.open(waiting.pop())
        assert page.status in (200, 404)
        assert page.tags.count("script") == 1, "the page's own"
        assert "<img" not in page.html
        assert not re.search(r" on\w+=|style=|href=\"(?!/|#|data:,|\?)", re.sub(r">[^<]*<", "><", page.html))
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]", page.html)
        waiting += [link for link in page.links if link.startswith("/s/") and "#" not in link and link not in seen]
        seen.update(page.links)
    page = browser.last_pack()
    for shown in (
        "<script>alert(1)</script>",
        r"\x1b[31mred\x1b[0m",
        r"\u202eevil\u202c",
        r"\x00\x07\u200b\ufeff",
        "{{ 7 * 7 }}",
    ):
        assert shown in page.text


def test_every_character_that_is_not_seen_is_made_visible() -> None:
    text = "".join(map(chr, range(0x3000))) + "\ud800\U000e0041"
    shown = visible(text)
    assert {unicodedata.category(character) for character in shown if character not in "\n\t"}.isdisjoint(
        {"Cc", "Cf", "Cs", "Zl", "Zp"}
    )
    assert visible("plain\n\ttext – ä 中") == "plain\n\ttext – ä 中"


@pytest.mark.parametrize(
    "path",
    [
        "/s/shop/ann/nobody",
        "/s/shop/ann/s1/pack_20250101T000000.000000Z_00000000",
        "/s/shop/ann/s1/evidence",
        "/s/shop/ann/blobs",
        "/s/../../etc",
        "/s/..%2f..%2f../etc/passwd",
        "/s/shop/%2e%2e/s1",
        "/s/shop/ann/s1/pack_..%2f..%2fx",
        "/s/shop/ann/s1/..",
        "/static/../server.py",
        "/static/..%2fserver.py",
        "/p/nothing",
        "/openapi.json",
        "/docs",
    ],
)
def test_what_is_no_pack_is_not_found(browser: Browser, path: str) -> None:
    page = browser.open(path)
    assert page.status == 404
    assert "root:" not in page.html


def test_only_evidence_of_the_pack_itself_is_served(tmp_path: Any) -> None:
    store = PackStore(tmp_path / "packs")
    for user in ("ann", "bob"):

        def report(user: str = user) -> dict[str, str]:
            """Writes the report."""
            return {"result": "\n".join(f"line {at} of {user}: {at * 37 % 1009} <b>" for at in range(4_000))}

        policy = small(8_000, offload={"mode": "session"})
        chat = Chat(store=store, user=user, script=[call("report"), "done"], tools=[report], policy=policy)
        chat.say("Write the report.")
    browser = Browser(store)
    ours = [list(store.manifests(user=user))[-1] for user in ("ann", "bob")]
    mine, theirs = (browser.open(f"/p/{manifest.pack_id}") for manifest in ours)
    page = browser.open(mine.leads("/raw")[0])
    assert "line 3 of ann: 111 <b>" in page.text
    assert "<b>" not in page.html
    assert page.headers["content-type"].startswith("text/html")
    secret = theirs.leads("/raw")[0].partition("?uri=")[2]
    assert browser.open(theirs.leads("/raw")[0]).status == 200
    for uri in (secret, "artifact%3A%2F%2F..%2Fx", "file%3A%2F%2F%2Fetc%2Fpasswd", ""):
        assert browser.open(mine.leads("/raw")[0].partition("?")[0] + f"?uri={uri}").status == 404


def test_a_changed_manifest_is_flagged_and_a_damaged_one_holds_nothing_back() -> None:
    chat = Chat()
    chat.say("one", "two", "three")
    first, second, third = chat.manifests()
    packs.rewrite(chat.store, third, lambda line: line.replace(b'"profile":"chat"', b'"profile":"chaT"') + b" ")
    fs = chat.store.files
    fs.replace(f"{chat.store.place(second)}{ENDING}", b"not a pack")
    browser = Browser(chat.store)
    page = browser.open("/")
    assert "3 packs" in page.text
    assert f"{FLAGS['unverified']} ×2" in page.text or FLAGS["unverified"] in page.text
    assert browser.open("/?flag=unverified").leads("/s1$")
    assert browser.open(f"/p/{first.pack_id}").status == 200
    assert browser.open(f"/p/{second.pack_id}").status == 502
    assert browser.open("/s/shop/ann/s1").status == 200


def forge(chat: Chat, change: dict[str, Any]) -> None:
    """Changes fields of a session's first manifest, by their paths, and seals it again."""
    first = chat.manifests()[0]

    def way(line: bytes) -> bytes:
        fields = json.loads(line)
        for path, value in change.items():
            *above, name = path.split(".")
            within = fields
            for step in above:
                within = within[int(step) if step.isdecimal() else step]
            within[name] = first.pack_id if value == "itself" else value
        return canonical_json(
            {**fields, "digest": hash_json({k: v for k, v in fields.items() if k != "digest"})}
        ).encode()

    packs.rewrite(chat.store, first, way)


@pytest.mark.parametrize(
    "change",
    [
        {"window": "wide"},
        {"window": None},
        {"window": 0},
        {"window": 10**400},
        {"last_event_time": 10**400},
        {"request_tokens": [1]},
        {"agent": {}},
        {"pack_id": 7},
        {"epoch": [1]},
        {"epoch.number": "x"},
        {"allocation.system.used": "x"},
        {"allocation": {}},
        {"prefix.shared_tokens": "x"},
        {"tools.scores": {"look_up": "x"}},
        {"weights": "x"},
        {"rows": 5},
        {"rows.0.tokens": 10**400},
        {"parent": "itself"},
        {"positions": [[0, 10**13]]},
        {"others": [[0, 10**13]]},
        {"positions": [[5, 2]]},
    ],
    ids=lambda change: repr(change)[:40],
)
def test_a_forged_manifest_has_a_page_and_holds_nothing_back(change: dict[str, Any]) -> None:
    chat = Chat(script=[*loop(1), "done"] * 2, tools=[look_up])
    chat.say("one", "two")
    names = [manifest.pack_id for manifest in chat.manifests()]
    forge(chat, change)
    browser = Browser(chat.store)
    assert browser.open("/").status == 200
    assert browser.open("/s/shop/ann/s1").status == 200
    first, last = (f"/s/shop/ann/s1/{name}" for name in (names[0], names[-1]))
    paths = [first, last, f"{first}/raw?uri=x", f"{first}/what-if?policy=chat", f"/diff?a={first[3:]}&b={last[3:]}"]
    for page in map(browser.open, paths):
        assert page.status in (200, 404, 422, 502)
        assert page.status != 422 or ("aether-context verify" in page.text and any(name in page.text for name in names))
        assert "content-security-policy" in page.headers
    assert report(chat.store, "shop/ann/s1").count('<section class="pack"') <= len(names)


@pytest.mark.parametrize("outcome", [b"[]", b"7", b"[" * 100_000, b'{"input_tokens": 1' + b"0" * 400 + b"}"])
def test_an_outcome_that_is_none_holds_nothing_back(outcome: bytes) -> None:
    chat = Chat()
    chat.say("one")
    packs.rewrite(chat.store, chat.manifests()[0], lambda _: outcome, line=2)
    browser = Browser(chat.store)
    for path in ("/", "/s/shop/ann/s1"):
        assert browser.open(path).status == 200
    assert "The request as it was sent" in browser.last_pack().text


def test_settings_that_nobody_can_read_are_told() -> None:
    chat = Chat()
    chat.say("one")
    place = f"/s/shop/ann/s1/{chat.manifests()[0].pack_id}/what-if"
    for toml in ("self = 1", "a = 1979-05-27", "max_input_tokens = 1" + "0" * 400, "[conversation]\nstrategy = 7"):
        assert Browser(chat.store).open(f"{place}?{urlencode({'toml': toml})}").status == 200


def test_packs_of_which_only_hashes_are_recorded_show_their_account() -> None:
    chat = Chat(policy=small(4_000, record="hashes"))
    chat.say("my secret word")
    page = Browser(chat.store).last_pack()
    assert "Only hashes are recorded" in page.text
    assert "secret word" not in page.html
    assert all(layer in page.text for layer in LAYERS)


# who may read


def test_every_answer_carries_a_strict_policy(browser: Browser) -> None:
    for path in ("/", "/s/shop/ann/s1", "/nothing", "/static/viewer.css"):
        headers = browser.open(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("method", ["post", "put", "patch", "delete"])
def test_nothing_can_be_written(browser: Browser, method: str) -> None:
    for path in ("/", "/s/shop/ann/s1", "/static/viewer.css"):
        assert getattr(browser.client, method)(path).status_code == 405


def test_with_a_token_nobody_reads_without_it(long_chat: Chat) -> None:
    token = "a-long-random-token"
    browser = Browser(long_chat.store, token=token)
    for path in ("/", "/s/shop/ann/s1", "/static/viewer.css", "/nothing", "/p/x"):
        assert browser.open(path).status == 401
        assert browser.open(f"{path}?token=wrong").status == 401
        assert browser.open(path, headers={"authorization": "Bearer wrong"}).status == 401
        assert browser.open(path, headers={"cookie": f"aether_context_viewer={token}"}).status == 401
    assert browser.open("/", headers={"authorization": f"Bearer {token}"}).status == 200
    answer = browser.client.get(f"/?q=s1&token={token}", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/?q=s1")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert token not in cookie
    assert browser.open("/").status == 200, "the cookie is kept"
    elsewhere = browser.client.get(f"//evil.example/?token={token}", follow_redirects=False)
    assert not elsewhere.headers.get("location", "").startswith("//")


def test_without_jinja_the_cure_is_named(long_chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    environment.cache_clear()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtra, match=r'pip install "aether-context-adk\[viewer\]"'):
        create_app(long_chat.store)


def test_pages_hold_no_credentials_of_the_store() -> None:
    browser = Browser(PackStore("memory://key:secret@credentials"))
    for path in ("/", "/p/pack_nothing", "/diff?a=x&b=y", "/s/a/b/c"):
        page = browser.open(path)
        assert "secret" not in page.html
        assert "credentials" in page.html, "the store's name is shown without them"


def test_an_empty_token_is_refused(long_chat: Chat) -> None:
    with pytest.raises(ValueError, match="empty"):
        create_app(long_chat.store, token="")


def test_a_name_that_is_not_this_machines_is_refused(long_chat: Chat) -> None:
    app = create_app(long_chat.store, hosts=("localhost", "127.0.0.1", "[::1]"))
    for host in ("localhost:8321", "127.0.0.1", "[::1]:8321"):
        assert TestClient(app).get("/", headers={"host": host}).status_code == 200
    for host in ("evil.example", "evil.example:8321", "localhost.evil.example", ""):
        assert TestClient(app).get("/", headers={"host": host}).status_code == 421


# where it stands


def test_mounted_in_another_app_its_links_stay_below_the_mount(long_chat: Chat) -> None:
    outer = Starlette()
    outer.mount("/deep/context", create_app(long_chat.store, token="a-long-random-token"))
    client = TestClient(outer)
    assert client.get("/deep/context/").status_code == 401
    answer = client.get("/deep/context/?token=a-long-random-token", follow_redirects=False)
    assert answer.headers["location"] == "/deep/context/"
    assert "path=/deep/context" in answer.headers["set-cookie"].lower()
    waiting, seen = ["/deep/context/"], set()
    while waiting:
        page = client.get(waiting.pop())
        assert page.status_code == 200
        links = {link.replace("&amp;", "&") for link in re.findall(r'(?:href|src|action)="(/[^"]*)"', page.text)}
        assert all(link.startswith("/deep/context/") for link in links)
        links = {link.partition("#")[0] for link in links}
        waiting += sorted(links - seen)
        seen |= links
    assert any("/pack_" in link for link in seen)


def test_it_mounts_on_the_app_that_adk_makes(long_chat: Chat, tmp_path: Any) -> None:
    from google.adk.cli.fast_api import get_fast_api_app

    app = get_fast_api_app(agents_dir=str(tmp_path), web=False)
    app.mount("/context", create_app(long_chat.store))
    client = TestClient(app)
    assert "Sessions" in client.get("/context/").text
    assert client.get("/list-apps").status_code == 200


def test_the_scripts_are_small_and_refer_to_nothing_elsewhere() -> None:
    assert sum(len(static(name)) for name in STATIC) < 150_000
    for name in STATIC:
        assert b"http" not in static(name).replace(b"http-equiv", b"")


# how little is read


def test_a_file_is_read_once_and_again_when_it_changes(tmp_path: Any) -> None:
    chat = Chat(store=PackStore(tmp_path / "packs"))
    chat.say("one", "two")
    rows = PackRows(chat.store)
    before = {row.pack_id: row for row in rows.all()}
    chat.say("three")
    rows._list_after = 0.0
    after = {row.pack_id: row for row in rows.all()}
    assert len(after) == 3
    assert all(after[name] is row for name, row in before.items())
    manifest = chat.manifests()[0]
    chat.store.files.delete(f"{chat.store.place(manifest)}{ENDING}")
    rows._list_after = 0.0
    assert manifest.pack_id not in {row.pack_id for row in rows.all()}


def test_rows_are_bounded_and_the_newest_are_kept() -> None:
    store = new_store()
    manifests = packs.talk(store, turns=12)
    rows = PackRows(store, most=5)
    assert [row.pack_id for row in rows.all()] == [manifest.pack_id for manifest in manifests[::-1][:5]]
    assert rows.older == 7


def test_what_there_was_no_time_for_is_read_next_time() -> None:
    store = new_store()
    packs.talk(store, turns=3)
    rows = PackRows(store)
    assert len(rows.all(most_seconds=-1.0)) == 0
    assert rows.unread == 3
    assert len(rows.all()) == 3
    assert rows.unread == 0


def test_a_row_says_what_the_manifest_says(long_chat: Chat) -> None:
    rows = {row.pack_id: row for row in PackRows(long_chat.store).all()}
    for manifest in long_chat.manifests():
        row = rows[manifest.pack_id]
        outcome = long_chat.store.outcome(manifest) or {}
        assert row.answered is not None
        assert row.used == tuple(manifest.allocation[layer].used for layer in LAYERS)
        assert (row.app, row.user, row.session, row.agent) == (*manifest.session_key, manifest.agent)
        assert (row.estimate, row.window, row.epoch) == (
            manifest.request_tokens,
            manifest.window,
            manifest.epoch.number,
        )
        assert row.budget == manifest.window - manifest.allocation["slack"].final
        assert row.answered.input_tokens == outcome["input_tokens"]
        assert row.fault == ""


def test_a_page_that_did_not_change_is_not_sent_again(browser: Browser) -> None:
    tag = browser.open("/s/shop/ann/s1").headers["etag"]
    assert browser.open("/s/shop/ann/s1", headers={"if-none-match": tag}).status == 304


# the command


def test_the_command_refuses_to_be_reached_without_a_token(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AETHER_CONTEXT_TOKEN", raising=False)
    for host in ("0.0.0.0", "::", "192.168.0.7", "example.org"):
        done = CliRunner().invoke(main, ["serve", str(tmp_path), "--host", host])
        assert done.exit_code == 2
        assert "AETHER_CONTEXT_TOKEN" in done.output
    done = CliRunner().invoke(main, ["serve", str(tmp_path), "--host", "0.0.0.0", "--token", "short"])
    assert done.exit_code == 2
    done = CliRunner().invoke(main, ["serve", str(tmp_path / "nowhere")])
    assert done.exit_code == 3


@pytest.mark.integration
def test_the_command_serves_a_store_until_it_is_stopped(tmp_path: Any) -> None:
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
