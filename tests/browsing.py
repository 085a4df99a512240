"""A viewer in a test: its pages as a reader without script sees them, and sessions whose answers went wrong."""

from __future__ import annotations

import html.parser
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from plans import NARROW, PLAN, planned, small, words
from scripted import Chat, Memories, delete_all, look_up, remembered, send_mail
from starlette.testclient import TestClient

from aether_context import PackPolicy, PackStore
from aether_context.viewer import create_app


class _Reader(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[tuple[str, str]] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.texts: list[str] = []
        self._open: list[int] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append(tag)
        if given.get("id"):
            self.ids.append(given["id"] or "")
        if tag == "a":
            self.links.append((given.get("href") or "", ""))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if self.links and self.lasttag != "style":
            href, text = self.links[-1]
            self.links[-1] = (href, text + data)


@dataclass
class Page:
    """A page as it was answered."""

    path: str
    status: int
    headers: Mapping[str, str]
    html: str
    links: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    text: str = ""

    def leads(self, pattern: str) -> list[str]:
        """The links that hold a pattern, in their order."""
        return [link for link in self.links if re.search(pattern, link)]


class Browser:
    """Opens pages of a store."""

    def __init__(self, store: PackStore, **options: Any) -> None:
        self.app = create_app(store, **options)
        self.client = TestClient(self.app)

    def open(self, path: str, **options: Any) -> Page:
        answer = self.client.get(path, **options)
        reader = _Reader()
        reader.feed(answer.text)
        links = [href for href, _ in reader.links]
        text = " ".join(" ".join(reader.texts).split())
        return Page(path, answer.status_code, answer.headers, answer.text, links, reader.ids, reader.tags, text)

    def last_pack(self) -> Page:
        """From the list to the newest session, and on to its newest pack: two clicks."""
        session = self.open(self.open("/").leads(r"^/s/[^/]+/[^/]+/[^/?#]+$")[0])
        return self.open(session.leads(r"/pack_[^#?]+$")[-1])


# sessions whose answers went wrong, each for one cause


def memory_below_the_floor() -> Chat:
    entries = [remembered("The garage code is 4711")]
    entries += [remembered(f"Harbour fee {at}: the berth tariff of Kiel is {at} euros a metre") for at in range(9)]
    chat = Chat(memory=Memories(*entries), policy=PackPolicy(retrieval={"memory_k": 1, "memory_fill_k": 1}))
    chat.say("What is the berth tariff of the harbour of Kiel?")
    return chat


def evidence_cut_for_room() -> Chat:
    knowledge = {
        "evidence": [
            {"uri": f"artifact://report-{at}.md", "summary": f"Supplier {at}: {words(250, f's{at}w')}"}
            for at in range(12)
        ]
    }
    chat = Chat(state=planned(knowledge=knowledge), policy=PackPolicy.load("research", max_input_tokens=1_500))
    chat.say("Compare the suppliers.")
    return chat


def tool_left_out() -> Chat:
    chat = Chat(tools=[look_up, send_mail, delete_all], state=planned(NARROW))
    chat.say("Send the rate to ann@example.org.")
    return chat


def message_cut() -> Chat:
    chat = Chat(policy=small(4_000))
    chat.say("START " + "\n".join(f"row {at} of the table" for at in range(9_000)) + " END")
    return chat


def stale_plan() -> Chat:
    chat = Chat(state=planned(PLAN))
    chat.say("Find the rate.", "Now write the letter.", "And who signs it?", "Send it, please.")
    return chat


CAUSES: Mapping[str, tuple[Callable[[], Chat], str]] = {
    "memory below the floor": (memory_below_the_floor, r"left out\s*: scored below the floor"),
    "evidence cut for room": (evidence_cut_for_room, r"evidence (left out|shortened)\s*: no room in its layer"),
    "tool left out": (tool_left_out, r"2 tools left out\s*: not among the tools in scope: delete_all, send_mail"),
    "message cut": (message_cut, r"1 message cut to an extract\s*: too large for the window"),
    "stale plan": (stale_plan, r"The plan stands where it stood 3 messages of the user ago"),
}
"""A session for each cause, and what the page of its last pack says."""
