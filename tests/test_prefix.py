"""The prefix report: what ended the prefix that two requests have in common, and what a cache could serve of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import packs
import pytest
from packs import MEMORIES, STEP, Session, lines, pack_input, said, tool
from scripted import was_cut

from aether_context.pack import Content, Pack
from aether_context.packing import build_pack
from aether_context.policy import PackPolicy
from aether_context.store import PackStore

POLICY = PackPolicy()
TALK = (said("Who approves refunds?"), said("The manager.", "model"), said("Above which sum?"))


def pack(
    contents: Sequence[Content] = TALK, before: Pack | None = None, policy: PackPolicy = POLICY, **given: Any
) -> Pack:
    carried = {} if before is None else {"epoch": before.epoch, "sent": before.sent, "first_call": False}
    return build_pack(pack_input(contents, **{**carried, **given}), policy)


def test_a_request_before_that_is_not_known_is_unknown_not_nothing() -> None:
    second = pack(TALK, pack(TALK[:1]), sent=None)
    assert second.prefix.broken_by == "unknown"
    assert second.prefix.shared_tokens is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"system": "You help with something else."}, "system_changed"),
        ({"tools": [tool("search"), tool("read_file")]}, "tools_changed"),
        ({"rewritten": True, "contents": [said("Other"), *TALK[1:]]}, "history_rewritten"),
        ({"step": replace(STEP, text="Describe another thing"), "validity": "valid"}, "payload_changed"),
    ],
)
def test_what_ended_the_prefix_is_named(changes: dict[str, Any], reason: str) -> None:
    given = {"tools": [tool("search")], "step": STEP, "validity": "valid"}
    first = pack(**given)
    contents = changes.pop("contents", TALK)
    second = pack(contents, first, **{**given, **changes})
    assert second.prefix.broken_by == reason
    assert second.prefix.shared_tokens is not None
    assert second.prefix.shared_tokens < first.tokens.expected


def test_an_earlier_message_that_returns_to_its_own_text_is_a_new_invocation() -> None:
    first = pack(TALK[:1], candidates=MEMORIES, cached_price=1.0)
    assert first.contents[0].form == "payload"
    identity = packs.IDENTITY._replace(invocation="i2")
    second = pack(TALK, first, candidates=MEMORIES, first_call=True, identity=identity, cached_price=1.0)
    assert second.prefix.broken_by == "new_invocation"


def test_a_cut_is_named_and_a_summary_that_grew_counts_as_shared() -> None:
    session = Session(PackStore("memory://prefix-cut"), window=2_000)
    for turn in range(40):
        session.ask(f"Question {turn} about report_{turn}: {lines('refunds', 3)}")
        session.answer(f"Answer {turn}: {lines('approval', 6)}")
    made = list(filter(was_cut, session.manifests))
    assert len(made) > 3
    assert {one.prefix.broken_by for one in made} == {"cut"}
    assert all(one.epoch_reason == "high_water" for one in made)
    fixed = made[0].prefix.shared_tokens
    assert fixed is not None
    grown = [one.prefix.shared_tokens for one in made[1:] if (one.prefix.shared_tokens or 0) > fixed]
    assert grown
