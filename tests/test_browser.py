"""The pages in Debian's Chromium: light and dark, wide and narrow, by keyboard alone, and what axe says of them.

``python tests/test_browser.py`` makes the pictures in docs/ anew.
"""

from __future__ import annotations

import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from browsing import CAUSES, Browser, desk, hostile_chat
from harbour import harbour

from aether_context import PackStore
from aether_context.lab.viewer import create_app, report

pytestmark = pytest.mark.integration

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DOCS = Path(__file__).parent.parent / "docs"
MOST_PICTURE_BYTES = 300_000
LOOKS = [(scheme, width) for scheme in ("light", "dark") for width in (1280, 400)]


@contextmanager
def served(store: PackStore) -> Iterator[str]:
    """The address of a viewer on a store, in a thread."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(create_app(store), port=port, log_level="error", access_log=False))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)


def apart(act: Callable[[], Any]) -> Any:
    """What an agent's run gives, in a thread of its own: Playwright has the event loop of this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(act).result()


@contextmanager
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as runs:
        browser = runs.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> PackStore:
    """A desk, each planted cause, and hostile texts."""
    found = PackStore(tmp_path_factory.mktemp("packs"))

    def fill() -> None:
        desk(found)
        hostile_chat(found)
        for cause, (plant, _) in CAUSES.items():
            plant(store=found, session=cause.replace(" ", "-"))

    apart(fill)
    return found


@pytest.fixture(scope="module")
def paths(store: PackStore) -> list[str]:
    """The list, and of each session its page, its last pack, what differs from the one before, and raw evidence."""
    browser = Browser(store)
    found = ["/", "/?words=nothing", "/nothing"]
    for session in browser.open("/").leads("^/session"):
        last = browser.open(session).leads("^/pack/")[-1]
        page = browser.open(last)
        found += [session, last, *page.leads("beside=")[:1], *page.leads("^/raw/")[:1]]
        found.append(f"{session}&words=the")
    return found


@pytest.fixture(scope="module")
def base(store: PackStore) -> Iterator[str]:
    with served(store) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@contextmanager
def opened(
    browser: Any, *, scheme: str = "light", width: int = 1280, **options: Any
) -> Iterator[tuple[Any, list[str]]]:
    """A page, and what it complained of."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **options)
    page, faults = context.new_page(), []
    page.on("console", lambda said: faults.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("dialog", lambda dialog: (faults.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    try:
        yield page, faults
    finally:
        context.close()


@pytest.mark.parametrize(("scheme", "width"), LOOKS)
def test_every_page_reads_without_a_fault(browser: Any, base: str, paths: list[str], scheme: str, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed").Axe()
    with opened(browser, scheme=scheme, width=width) as (page, faults):
        for path in paths:
            page.goto(f"{base}{path}")
            assert page.locator("h1").count() == 1
            wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wide <= 0, f"{path} is {wide} pixels wider than the window"
            found = axe.run(page).response["violations"]
            grave = [
                (fault["id"], fault["nodes"][0]["html"][:200], fault["nodes"][0].get("failureSummary", "")[:300])
                for fault in found
                if fault["impact"] in ("serious", "critical")
            ]
            assert grave == [], path
        assert [fault for fault in faults if "404" not in fault] == []


@pytest.mark.parametrize("width", [400, 1280])
def test_sessions_lead_by_keyboard_to_a_call_and_to_what_became_of_words(
    browser: Any, tmp_path: Path, width: int
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed").Axe()
    store = PackStore(tmp_path / "packs")
    apart(lambda: harbour(store=store))
    cut = next(
        one for one in store.manifests(session="s1") if "cut" in {event.stage for event in one.truncation_events}
    )
    with served(store) as base, opened(browser, width=width) as (page, faults):

        def reach(chosen: str) -> None:
            """Moves the focus on with the tab key until a script says that it is there."""
            for _ in range(300):
                page.keyboard.press("Tab")
                if page.evaluate(f"(focused => {chosen})(document.activeElement)"):
                    break
            assert page.evaluate(f"(focused => {chosen})(document.activeElement)"), chosen
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"

        def read(address: str) -> str:
            """The text of the page, which axe finds nothing wrong with and which is not wider than the window."""
            page.wait_for_url(address)
            found = [(fault["id"], fault["nodes"][0]["html"][:200]) for fault in axe.run(page).response["violations"]]
            assert found == [], address
            assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), (
                address
            )
            return " ".join(page.locator("main").inner_text().split())

        page.goto(base)
        assert "Sessions" in read(f"{base}/")
        reach("focused.textContent === 's1'")
        page.keyboard.press("Enter")
        tree = read("**/session?**")
        assert "Please reserve the blue kayak for Thora. 1 clerk" in tree
        assert "↳ 1 ornithologist as a tool" in tree
        assert "cut conversation −" in tree
        reach(f"focused.title === '{cut.pack_id}'")
        page.keyboard.press("Enter")
        call = read("**/pack/**")
        assert f"Call {cut.number} of session s1" in call
        gone = cut.epoch.cut_count - sum(stop - start for start, stop in cut.epoch.kept)
        assert f"summary of {gone} messages, written before call {cut.number}" in call
        reach("focused.tagName === 'SUMMARY' && focused.textContent.includes('declarations')")
        assert not page.locator("details article").first.is_visible(), "declarations are folded"
        page.keyboard.press("Enter")
        assert page.locator("details article").first.is_visible()
        reach("focused.tagName === 'SUMMARY'")
        page.keyboard.press("Enter")
        assert page.locator("details .quote").is_visible()
        read("**/pack/**")
        page.keyboard.press("Home")
        reach("focused.type === 'search'")
        page.keyboard.type("reserve the blue kayak")
        page.keyboard.press("Enter")
        told = read("**/session?**words=**")
        assert f"call {cut.number}: summarized, the words stand there: cut before call {cut.number}" in told
        assert faults == []


def test_a_pack_is_reached_by_keyboard_alone(browser: Any, base: str) -> None:
    with opened(browser) as (page, faults):
        page.goto(base)
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        page.keyboard.press("Enter")

        def follow(kind: str) -> None:
            for _ in range(40):
                page.keyboard.press("Tab")
                if page.evaluate(f"(document.activeElement.getAttribute('href') || '').startsWith('/{kind}')"):
                    break
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
            page.keyboard.press("Enter")
            page.wait_for_url(f"**/{kind}**")

        follow("session")
        follow("pack")
        # On from here to everything there is, in the order in which it stands.
        seen: list[str] = []
        for _ in range(400):
            page.keyboard.press("Tab")
            mark = page.evaluate(
                "(e => e === document.body ? '' : (e.outerHTML || '').slice(0, 200))(document.activeElement)"
            )
            if not mark or mark in seen[:1]:
                break
            seen.append(mark)
        hrefs = page.evaluate("[...document.querySelectorAll('a[href]')].filter(a => a.checkVisibility()).length")
        assert sum(mark.startswith("<a") for mark in seen) >= min(hrefs, 300) - 1
        assert faults == []


@pytest.mark.parametrize("app", ["desk", "shop"])
def test_a_report_reads_from_the_file(browser: Any, store: PackStore, tmp_path: Path, app: str) -> None:
    path, requests = tmp_path / "report.html", []
    path.write_text(report(store, *list(store.manifests(app=app))[-1].session_key), encoding="utf-8")
    with opened(browser, width=400, java_script_enabled=False) as (page, faults):
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        page.locator("a.go").last.click()
        assert page.locator(":target").count() == 1
        assert requests == [path.as_uri()]
        assert faults == []


def test_a_page_prints_without_what_is_for_the_screen(browser: Any, base: str, paths: list[str]) -> None:
    with opened(browser) as (page, _):
        page.goto(f"{base}{paths[-2]}")
        page.emulate_media(media="print")
        assert not page.locator(".top").is_visible()
        assert len(page.pdf()) > 1_000


def pictures(browser: Any, base: str, folder: Path) -> list[Path]:
    """Pictures of a session and of a pack."""
    made = []
    with opened(browser, width=1200) as (page, _):
        page.goto(base)
        for name, height in (("session", 1_020), ("pack", 860)):
            page.locator(f"a[href^='/{name}']").last.click()
            made.append(folder / f"viewer_{name}.png")
            page.screenshot(path=made[-1], full_page=True, clip={"x": 0, "y": 0, "width": 1200, "height": height})
    return made


def test_pictures_are_small(browser: Any, tmp_path: Path) -> None:
    found = PackStore(tmp_path / "packs")
    apart(lambda: desk(found))
    with served(found) as base:
        assert sum(path.stat().st_size for path in pictures(browser, base, tmp_path)) <= MOST_PICTURE_BYTES


if __name__ == "__main__":
    desk(PackStore("memory://pictures"))
    with served(PackStore("memory://pictures")) as address, chromium() as browser_found:
        for path in pictures(browser_found, address, DOCS):
            sys.stdout.write(f"{path.name}: {path.stat().st_size:,} bytes\n")
