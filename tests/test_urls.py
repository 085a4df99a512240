"""What agents may read by URL: what an app allows, and nothing else, however the URL is written."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pytest
from scripted import Chat, call

from aether_context.adk import evidence_tools
from aether_context.errors import KnowledgeError, PolicyError
from aether_context.store.urls import Allowed

PAGE = "<html><body>\n<p>The retention period is 41 days.</p>\n</body></html>"


class Pages(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        name = self.path.partition("?")[0]
        if name in ("/docs/on", "/docs/away", "/docs/round"):
            self.send_response(302)
            target = {"/docs/on": "page.html", "/docs/away": "/secret", "/docs/round": "/docs/round"}[name]
            self.send_header("Location", target)
            self.end_headers()
            return
        bodies: dict[str, tuple[str, bytes]] = {
            "/docs/page.html": ("text/html; charset=utf-8", PAGE.encode()),
            "/docs/old.txt": ("text/plain; charset=latin-1", "café".encode("latin-1")),
            "/docs/lying.txt": ("text/plain; charset=utf-8", b"\xff\xfe\x00"),
            "/docs/scan": ("application/pdf", b"%PDF-1.7\xff"),
            "/docs/long": ("text/plain", b"x" * 5_000),
            "/secret": ("text/plain", b"a secret"),
        }
        if name == "/docs/slow":
            self.send_response(200)
            self.end_headers()
            for _ in range(20):
                self.wfile.write(b"x")
                self.wfile.flush()
                time.sleep(0.05)
            return
        if name not in bodies:
            self.send_error(404)
            return
        kind, body = bodies[name]
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def web() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_pages_below_a_prefix_are_read(web):
    allowed = Allowed([f"{web}/docs/"])
    page = allowed.read(f"{web}/docs/page.html?lang=en")
    assert (page.content, page.media_type) == (PAGE, "text/html")
    assert allowed.read(f"{web}/docs/on").content == PAGE
    assert allowed.read(f"{web}/docs/old.txt").content == "café"
    assert allowed.read(f"{web}/docs/lying.txt").content == b"\xff\xfe\x00"
    assert allowed.read(f"{web}/docs/scan").media_type == "application/pdf"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/secret", "is not among what may be read"),
        ("/docs/../secret", "is not among"),
        ("/docs/%2e%2e/secret", "is not among"),
        ("/docs/%252e%252e/secret", "is not among"),
        ("/docs%2f..%2fsecret", "is not among"),
        ("/docs/a\\b", "is not among"),
        ("/docs/a b", "is not among"),
        ("/docs/x\r\nHost: y", "is not among"),
        ("/docs2/page.html", "is not among"),
        ("/docs/away", "/secret is not among"),
        ("/docs/round", "more than 5 times"),
        ("/docs/nowhere", "status 404"),
        ("/docs/long", "longer than 1000 bytes"),
        ("/docs/slow", "took longer than 0.3 s"),
        ("/docs/" + "x" * 3_000, "is not among"),
    ],
)
def test_what_is_elsewhere_or_too_much_is_refused(web, path, said):
    allowed = Allowed([f"{web}/docs/"], most_bytes=1_000, timeout_seconds=0.3 if "slow" in path else 5.0)
    with pytest.raises(KnowledgeError) as raised:
        allowed.read(web + path)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://docs.example.org.evil.com/a",
        "http://docs.example.org:81/a",
        "https://docs.example.org/a",
        "http://docs.example.org@evil.com/a",
        "http://me@docs.example.org/a",
        "simplecache::http://docs.example.org/a",
        "file:///etc/passwd",
        "//docs.example.org/a",
        "docs.example.org/a",
        "http://[docs.example.org/a",
        "",
    ],
)
def test_other_hosts_and_protocols_are_refused(url):
    with pytest.raises(KnowledgeError, match=r"may be read: http://docs\.example\.org"):
        Allowed(["http://docs.example.org"]).read(url)


def test_folders_and_object_stores_are_read_within_their_prefix(tmp_path: Path):
    folder = tmp_path / "open"
    folder.mkdir()
    (folder / "a+b.txt").write_text("open")
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    allowed = Allowed([f"file://{folder}/", "memory://shelf/books"])
    assert allowed.read(f"file://{folder}/a%2Bb.txt").content == b"open"
    fsspec.filesystem("memory").pipe_file("/shelf/books/one.txt", b"once")
    assert allowed.read("memory://shelf/books/one.txt").content == b"once"
    with pytest.raises(KnowledgeError, match="is not there"):
        allowed.read("memory://shelf/books/two.txt")
    with pytest.raises(KnowledgeError, match="symbolic link"):
        allowed.read(f"file://{folder}/link.txt")
    for url in (f"file://{folder}/../secret.txt", f"file://{tmp_path}/secret.txt", "memory://shelf/bookshop"):
        with pytest.raises(KnowledgeError, match="is not among"):
            allowed.read(url)


@pytest.mark.parametrize("prefix", ["docs.example.org/", "https://", "file:///", "/srv", "", "https://x/../y"])
def test_a_prefix_that_is_none_is_refused(prefix):
    with pytest.raises(PolicyError, match="begins no URL"):
        evidence_tools(urls=[prefix])


def answers(talk: Chat) -> list[dict[str, Any]]:
    parts = [part for content in talk.sent[-1].contents for part in content.parts or ()]
    return [one.function_response.response for one in parts if one.function_response]


def test_a_model_keeps_pages_that_the_app_allows(web):
    url = f"{web}/docs/page.html"
    talk = Chat(
        script=[
            [call("keep_url", url=url, covers=[]), call("keep_url", url=f"{web}/secret", covers=[])],
            "kept",
        ],
        tools=evidence_tools(urls=[f"{web}/docs/"]),
    )
    talk.say("keep the page")
    kept, refused = answers(talk)
    assert "41 days" in kept["summary"]
    assert "is not among what may be read" in refused["error"]
    (record,) = [one for one in talk.store.evidence("shop", "ann", "s1") if not one.arguments]
    assert (record.source, record.media_type) == (url, "text/html")
    talk.llm.script += [call("search_artifact", uri=kept["uri"], query="retention period"), "done"]
    talk.say("search it")
    assert "41 days" in str(answers(talk)[-1])


def test_no_tool_fetches_unless_the_app_says_from_where():
    assert "keep_url" not in [tool.name for tool in evidence_tools()]
