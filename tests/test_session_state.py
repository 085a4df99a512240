"""What the plugin keeps in a session's state: little, and enough to go on from without any store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.adk.events.event import Event
from google.adk.sessions.state import State
from plans import aether, planned
from scripted import Chat, call, was_cut

from aether_context import PackPolicy
from aether_context.adk.session import load_epoch, save_epoch
from aether_context.canonical import strings
from aether_context.conversation.summary import SUMMARY_TITLE
from aether_context.pack import Epoch, Identity, PackedMessage

PROSE = (Path(__file__).parent / "scenario_data" / "prose.txt").read_text(encoding="utf-8").strip().split("\n\n")


def read_page(number: int) -> dict[str, Any]:
    """Reads a page."""
    return {"page": number, "text": "\n".join(PROSE[(5 * number + at) % len(PROSE)] for at in range(5))}


def reading(**settings: Any) -> Chat:
    """Questions in prose; for each the model reads a page and answers in prose."""
    script = [
        reply for at, text in enumerate(PROSE) for reply in (call("read_page", number=at), f"It says that {text}")
    ]
    return Chat(script=script, tools=[read_page], **settings)


def asked(at: int) -> str:
    return f"What of this?\n{PROSE[-at % len(PROSE)]}"


def written(event: Event) -> dict[str, Any]:
    return aether(event.actions.state_delta)


def packed_as(event: Event) -> str:
    return str((event.custom_metadata or {}).get("aether_context", {}).get("pack_id", ""))


def size(values: Mapping[str, Any]) -> int:
    return len(json.dumps(values))


def test_a_cut_writes_little_however_long_its_summary_is() -> None:
    policy = PackPolicy(max_input_tokens=10_000, retrieval={"recall": False}, offload={"mode": "off"})
    chat = reading(policy=policy)
    events = chat.say(*map(asked, range(24)))
    cuts = [one.pack_id for one in chat.manifests() if was_cut(one)]
    assert len(cuts) > 3
    heads = [one.contents[0].parts[0].text for one in chat.sent]
    assert max(len(head) for head in heads if head.startswith(SUMMARY_TITLE)) > 4_096
    at_cuts = [written(event) for event in events if packed_as(event) in cuts]
    assert all(any(key.startswith("aether:summary:") for key in values) for values in at_cuts)
    assert max(map(size, at_cuts)) <= 6_000


@pytest.mark.parametrize("length", [1, 40], ids=["short", "long"])
def test_a_packed_message_does_not_repeat_what_the_user_wrote(length: int) -> None:
    message = "\n".join(PROSE[:length])
    chat = Chat(state=planned(), policy=PackPolicy(max_input_tokens=100_000))
    (event,) = chat.say(message)
    assert chat.sent[0].human().startswith("CONTEXT PACK")
    assert chat.sent[0].human().endswith(message)
    assert size(written(event)) < 1_200


@pytest.mark.parametrize("odd", ["\ud83d", "\0", "json:[]", "\u00e9\n"])
def test_any_text_comes_back_from_a_state_that_any_store_takes(odd: str) -> None:
    identity, state = Identity(app="shop", user="ann", session="s1", invocation="i1", agent="clerk"), State({}, {})
    whole = PackedMessage(of="h", invocation="i1", text=f"{odd} pack of {odd}", split=3, covers=(odd,))
    own = f"my own words {odd}"
    after = Epoch(number=1, cut_count=3, summary=f"{odd} said {odd}", payloads=(whole, replace(whole, text=odd + own)))
    save_epoch(state, identity, Epoch(number=0), after, lambda message: own)
    stored = json.dumps(state.to_dict(), ensure_ascii=False)
    assert stored.encode()
    assert all("\0" not in text for _, text in strings(state.to_dict()))
    assert stored.count("my own words") == 0
    assert load_epoch(json.loads(stored), identity, lambda message: own) == after
    assert load_epoch(json.loads(stored), identity, lambda message: "").payloads == (whole,)
