"""Two packs side by side, what one would have been, and a session in one file: over packs that ADK's Runner wrote."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from urllib.parse import quote

import pytest
from browsing import Browser, Page, memory_below_the_floor, tool_left_out
from click.testing import CliRunner
from plans import loop, small, turns
from scripted import Chat, Memories, call, look_up, new_store, remembered

from aether_context import PackPolicy
from aether_context.cli import main
from aether_context.viewer import report


@pytest.fixture(scope="module")
def chat() -> Chat:
    script = [step for _ in range(5) for step in (*loop(2), "done")]
    found = Chat(
        script=script, tools=[look_up], policy=small(2_500), memory=Memories(remembered("The rate is 19 percent"))
    )
    found.say(*turns(5))
    return found


def what_if(browser: Browser, pack_id: str, **settings: str) -> Page:
    path = browser.open(f"/p/{pack_id}").leads("/what-if$")[0]
    return browser.open(f"{path}?" + "&".join(f"{name}={quote(value)}" for name, value in settings.items()))


def test_two_packs_of_a_session_show_what_entered_left_and_why(chat: Chat) -> None:
    browser = Browser(chat.store)
    manifests = chat.manifests()
    at = next(at for at, manifest in enumerate(manifests) if manifest.prefix.broken_by == "cut")
    before, after = manifests[at - 1], manifests[at]
    page = browser.open(f"/diff?a={before.pack_id}&b={after.pack_id}")
    assert page.status == 200
    dropped = [name for event in after.truncation_events if event.stage == "cut" for name in event.item_ids]
    assert dropped
    assert all(name in page.text for name in dropped)
    assert "only the first" in page.text
    assert "On record: cut" in page.text
    assert f"{after.request_tokens - before.request_tokens:+,}" in page.text
    linked = browser.open(f"/p/{after.pack_id}").leads("^/diff")
    assert browser.open(linked[0]).text == page.text


def test_a_pack_beside_itself_is_the_same(chat: Chat) -> None:
    name = chat.manifests()[0].pack_id
    page = Browser(chat.store).open(f"/diff?a={name}&b={name}")
    assert "both send the same request" in page.text
    assert "Every candidate has the same fate" in page.text
    assert "<del>" not in page.html


@pytest.mark.parametrize("query", ["", "?a=x&b=y", "?a=../../x&b=", "?a=a/b/c/pack_x&b=a/b/c/pack_y"])
def test_packs_that_are_not_there_are_not_compared(chat: Chat, query: str) -> None:
    assert Browser(chat.store).open(f"/diff{query}").status == 404


def test_a_lower_floor_brings_the_memory_that_was_missing() -> None:
    planted = memory_below_the_floor()
    browser = Browser(planted.store)
    pack_id = planted.manifests()[-1].pack_id
    assert "4711" not in planted.sent[-1].human()
    page = what_if(browser, pack_id, toml="[retrieval]\nfloor = 0.0\nmemory_k = 20\nmemory_fill_k = 20")
    assert "only instead" in page.text
    assert re.search(r"<ins>\+ - user: The garage code is 4711", page.html)
    assert len(planted.manifests()) == 1, "nothing is kept"


def test_another_scope_brings_the_tools_that_were_left_out() -> None:
    planted = tool_left_out()
    page = what_if(Browser(planted.store), planted.manifests()[-1].pack_id, toml='[tools]\nscope = "off"')
    assert page.text.count("only instead") == 2
    assert "send_mail" in page.text


def test_a_smaller_window_is_kept(chat: Chat) -> None:
    manifest = chat.manifests()[-1]
    page = what_if(Browser(chat.store), manifest.pack_id, window="1800")
    (row,) = re.findall(r"window, request</th>(.*?)</tr>", page.html, re.DOTALL)
    figures = [int(figure.replace(",", "")) for figure in re.findall(r">([\d,]+)<", row)]
    assert figures[:3] == [2_500, manifest.request_tokens, 1_800]
    assert figures[3] <= 1_800


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"toml": "not toml ["}, "not TOML"),
        ({"toml": "[retrieval]\nflor = 1"}, "did you mean"),
        ({"toml": "[retrieval]\nfloor = 7"}, "retrieval.floor"),
        ({"policy": "/etc/passwd"}, "is no policy"),
        ({"policy": "../policy.toml"}, "is no policy"),
        ({"window": "1"}, "max_input_tokens"),
        ({"window": "many"}, "a number of tokens"),
        ({"toml": "x = 1 #" + "y" * 9_000}, "longer than"),
        ({"toml": "x = " + "[" * 3_000}, "not TOML"),
    ],
)
def test_settings_that_are_wrong_are_told(chat: Chat, settings: dict[str, str], problem: str) -> None:
    page = what_if(Browser(chat.store), chat.manifests()[-1].pack_id, **settings)
    assert page.status == 200
    (told,) = re.findall(r'role="alert">(.*?)</p>', page.html, re.DOTALL)
    assert problem in told
    assert "root:" not in page.html


def test_hashes_alone_cannot_be_built_from() -> None:
    hashed = Chat(policy=PackPolicy(record="hashes"))
    hashed.say("hello")
    page = what_if(Browser(hashed.store), hashed.manifests()[0].pack_id, window="2000")
    assert 'role="alert"' in page.html


# a session in one file


def test_a_report_needs_nothing_else(chat: Chat, tmp_path: Path) -> None:
    text = report(chat.store, "shop/ann/s1", most=100)
    assert "<script" not in text
    assert not re.search(r'(?:src|href)="(?!#)', text)
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in text
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', text)) <= set(ids)
    for manifest in chat.manifests():
        assert f'<section class="pack" id="{manifest.pack_id}">' in text
    assert "The rate is 19 percent" in text


def test_a_report_holds_the_newest_packs_in_full(chat: Chat) -> None:
    manifests = chat.manifests()
    text = report(chat.store, "shop/ann/s1", most=2)
    shown = re.findall(r'<section class="pack" id="([^"]+)">', text)
    assert shown == [manifest.pack_id for manifest in manifests[-2:]]
    assert all(manifest.pack_id.rsplit("_", 1)[-1] in text for manifest in manifests)


def test_the_command_writes_the_file(tmp_path: Path) -> None:
    store = new_store()
    for user in ("ann", "bob"):
        Chat(store=store, user=user, script=[call("look_up", key="k"), "done"], tools=[look_up]).say(f"<b>I am {user}")
    path = tmp_path / "bug.html"

    def run(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(main, ["report", "s1", "--store", store.url, "-o", str(path), *arguments])
        return done.exit_code, done.output

    assert run("--user", "eve")[0] == 3
    code, output = run()
    assert code == 3
    assert "2 sessions" in output
    assert not path.exists()
    assert run("--user", "bob")[0] == 0
    text = path.read_text(encoding="utf-8")
    assert "&lt;b&gt;I am bob" in text
    assert "I am ann" not in text
