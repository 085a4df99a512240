"""What differs between two packs, and a session in one file: over packs that ADK's Runner wrote."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

import pytest
from browsing import Browser
from click.testing import CliRunner
from plans import loop, small, turns
from scripted import Chat, Memories, call, look_up, new_store, remembered

from aether_context.lab.cli import main
from aether_context.lab.viewer import report


@pytest.fixture(scope="module")
def chat() -> Chat:
    script = [step for _ in range(8) for step in (*loop(2), "done")]
    found = Chat(
        script=script, tools=[look_up], policy=small(2_500), memory=Memories(remembered("The rate is 19 percent"))
    )
    found.say(*turns(8))
    return found


def test_two_packs_of_a_session_show_what_entered_left_and_why(chat: Chat) -> None:
    browser = Browser(chat.store)
    manifests = chat.manifests()
    at = next(at for at, manifest in enumerate(manifests) if manifest.prefix.broken_by == "cut")
    before, after = manifests[at - 1], manifests[at]
    page = browser.open(browser.open(f"/pack/{after.pack_id}").leads("beside=")[0])
    assert page.status == 200
    dropped = [name for event in after.truncation_events if event.stage == "cut" for name in event.item_ids]
    assert dropped
    assert all(name in page.text for name in dropped)
    assert "The two requests part in" in page.text
    assert f"{after.request_tokens - before.request_tokens:+,}" in page.text
    assert "<del>" in page.html
    assert page.text == browser.open(f"/pack/{after.pack_id}?beside={before.pack_id}").text


def test_a_report_needs_nothing_else(chat: Chat) -> None:
    text = report(chat.store, "shop", "ann", "s1")
    assert "<script" not in text
    assert not re.search(r'(?:src|href|action)="(?!#)', text)
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert re.search(rf"default-src 'none'; style-src (?:'|&#39;)sha256-{re.escape(digest)}", text)
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', text)) <= set(ids)
    assert "The rate is 19 percent" in text


def test_the_command_writes_the_file(tmp_path: Path) -> None:
    store = new_store()
    for user in ("ann", "bob"):
        Chat(store=store, user=user, script=[call("look_up", key="k"), "done"], tools=[look_up]).say(f"<b>I am {user}")
    path = tmp_path / "bug.html"

    def run(*arguments: str, file: Path = path) -> tuple[int, str]:
        done = CliRunner().invoke(main, ["serve", store.url, "--report", str(file), *arguments])
        return done.exit_code, done.output

    assert run("--user", "eve")[0] == 3
    for arguments in ((), ("--session", "s1")):
        code, output = run(*arguments)
        assert code == 3
        assert "2 sessions" in output
        assert "--user" in output
    code, output = run("--user", "bob", file=tmp_path / "nowhere" / "bug.html")
    assert code == 2
    assert f"there is no folder {tmp_path / 'nowhere'}" in " ".join(output.split())
    code, output = run("--user", "bob", file=tmp_path)
    assert code == 2
    assert "cannot be written" in output
    assert CliRunner().invoke(main, ["serve", store.url, "--user", "bob"]).exit_code == 2
    assert not path.exists()
    assert run("--user", "bob", "--session", "s1")[0] == 0
    text = path.read_text(encoding="utf-8")
    assert "&lt;b&gt;I am bob" in text
    assert "I am ann" not in text
