"""A viewer in a test: its pages as a reader without script sees them, and sessions whose answers went wrong."""

from __future__ import annotations

import html.parser
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from plans import NARROW, planned, small, words
from scripted import Chat, Memories, call, delete_all, look_up, remembered, send_mail
from starlette.testclient import TestClient

from aether_context import PackPolicy, PackStore
from aether_context.lab.viewer import create_app


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
        if self.lasttag != "style":
            self.texts.append(data)
        if self.links:
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
        session = self.open(self.open("/").leads("^/session")[0])
        return self.open(session.leads("^/pack/")[-1])


# sessions whose answers went wrong, each for one cause


def memory_below_the_floor(**options: Any) -> Chat:
    entries = [remembered("The garage code is 4711")]
    entries += [remembered(f"Harbour fee {at}: the berth tariff of Kiel is {at} euros a metre") for at in range(9)]
    chat = Chat(memory=Memories(*entries), policy=PackPolicy(retrieval={"memory_k": 1}), **options)
    chat.say("What is the berth tariff of the harbour of Kiel?")
    return chat


def evidence_cut_for_room(**options: Any) -> Chat:
    knowledge = {
        "evidence": [
            {"uri": f"artifact://report-{at}.md", "summary": f"Supplier {at}: {words(250, f's{at}w')}"}
            for at in range(12)
        ]
    }
    chat = Chat(
        state=planned(knowledge=knowledge), policy=PackPolicy.load("research", max_input_tokens=1_500), **options
    )
    chat.say("Compare the suppliers.")
    return chat


def tool_left_out(**options: Any) -> Chat:
    chat = Chat(tools=[look_up, send_mail, delete_all], state=planned(NARROW), **options)
    chat.say("Send the rate to ann@example.org.")
    return chat


def message_cut(**options: Any) -> Chat:
    chat = Chat(policy=small(4_000), **options)
    chat.say("START " + "\n".join(f"row {at} of the table" for at in range(9_000)) + " END")
    return chat


CAUSES: Mapping[str, tuple[Callable[..., Chat], str]] = {
    "memory below the floor": (memory_below_the_floor, r"left out it has too little to do with the request"),
    "evidence cut for room": (evidence_cut_for_room, r"(left out|extract) its layer would have passed its"),
    "tool left out": (tool_left_out, r"delete_all left out the step does not name it"),
    "message cut": (message_cut, r"1 shortened.* extract it would not have fitted the window 83,\d+ \d,\d+"),
}
"""A session for each cause, and what the page of its last pack says."""


HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(1)>\x1b[31mred\x1b[0m \u202eevil\u202c \x00\x07\u200b\ufeff"
    " '\"></textarea><!-- {{ 7 * 7 }} {% raw %} javascript:alert(1)\u2028 end"
)


def hostile_chat(store: PackStore) -> Chat:
    """A session each of whose names and texts would like to be more than text."""
    chat = Chat(
        store=store,
        user=f"eve {HOSTILE[:60]}",
        session="s/../<b>1",
        script=[call("look_up", key=HOSTILE), HOSTILE],
        tools=[look_up],
        memory=Memories(remembered(f"The rate is {HOSTILE}")),
        state={"plan": {"task_id": HOSTILE, "task": HOSTILE, "step": {"id": HOSTILE, "text": HOSTILE}}},
    )
    chat.say(f"What is the rate? {HOSTILE}")
    return chat


def desk(store: PackStore) -> Chat:
    """A help desk with a plan, memories, evidence and look-ups, long enough for cuts."""

    def look_up_order(order: str) -> dict[str, Any]:
        """Looks an order up."""
        items = [{"sku": f"SKU-{order[-4:]}-{at}", "state": "packed", "carrier": "Hermes"} for at in range(14)]
        return {"order": order, "status": "late", "items": items}

    def ask_carrier(parcel: str) -> dict[str, Any]:
        """Asks the carrier where a parcel is."""
        return {"parcel": parcel, "events": [f"2026-01-{day:02} scanned in hub {day * 7 % 23}" for day in range(1, 25)]}

    plan = {
        "task_id": "late",
        "task": "Answer customers whose orders are late",
        "goal": "Each customer knows when the order comes",
        "step": {
            "id": "find",
            "text": "Find where the order is",
            "acceptance": [{"id": "a1", "text": "The carrier is named", "needs_evidence": True}],
            "tools": ["look_up_order", "ask_carrier"],
        },
    }
    memories = [
        remembered("Ann wants answers in two sentences", timestamp="2026-01-03T09:00:00"),
        remembered("Order 1042 was promised for 12 January", timestamp="2026-01-05T11:30:00"),
        remembered("Ann keeps bees", timestamp="2025-06-01T08:00:00"),
    ]
    knowledge = {"evidence": [{"uri": "artifact://terms.md", "summary": "A late order is refunded after 14 days"}]}
    questions = [f"Where is order 10{42 + at}, and when does it come?" for at in range(7)]
    script: list[Any] = []
    for at in range(len(questions)):
        script += [
            call("look_up_order", order=f"10{42 + at}"),
            call("ask_carrier", parcel=f"P-{at}"),
            f"Order 10{42 + at} is with Hermes and comes on {13 + at} January.",
        ]
    chat = Chat(
        store=store,
        app_name="desk",
        user="ann",
        session="order-1042",
        script=script,
        tools=[look_up_order, ask_carrier, send_mail, delete_all],
        memory=Memories(*memories),
        policy=PackPolicy(max_input_tokens=3_200),
        state={"plan": plan, "knowledge": knowledge},
        instruction="You answer questions about orders, in few words.",
    )
    chat.say(*questions)
    return chat
