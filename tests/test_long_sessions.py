"""A session of which the host loads the last events alone is packed as if all of them were loaded."""

from __future__ import annotations

from typing import Any

import pytest
from plans import small
from scripted import Chat

from aether_context import PackPolicy

CODE = "The code of the north gate is Falcon-7731, please keep it in mind."
QUESTION = "What was the code of the north gate?"


def messages(count: int) -> list[str]:
    """Messages of a long chat; the fifth tells a code."""
    told = [f"Number {at}: the weather stays grey, and the garden needs rain, leaf {at} of many." for at in range(count)]
    return [*told[:4], CODE, *told[5:]]


def script(count: int) -> list[str]:
    return [f"I see, number {at}: the beds on the {'north' if at % 3 else 'south'} side as well." for at in range(count)]


def long_chat(policy: PackPolicy, **given: Any) -> Chat:
    return Chat(policy=policy, script=script(200), **given)


def test_each_request_is_that_of_the_same_session_with_all_events_loaded() -> None:
    whole, partly = long_chat(small(3_000)), long_chat(small(3_000))
    for message in [*messages(119), QUESTION]:
        whole.say(message)
        partly.say(message, recent_events=30)
        assert partly.sent[-1].wires == whole.sent[-1].wires
        assert partly.manifests()[-1].degradations == ()
    assert len(partly.raw[-1].contents) < 40 < len(whole.raw[-1].contents)
    assert "Falcon-7731" in partly.sent[-1].human()
    assert partly.manifests()[-1].epoch.cut_count > 60
    partly.replays()
