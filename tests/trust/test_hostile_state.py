"""Whatever a tool or a model wrote into the package's own keys of session state: the call is packed, and nothing that
no session store takes is written there again."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.adk.sessions import InMemorySessionService
from scripted import Chat, big_file, call

from aether_context import PackPolicy

PLAN = {"task": "Read", "steps": [{"id": "s1", "text": "Read all files", "acceptance": ["All are read"]}]}
ODD: dict[str, Any] = {
    "infinity": math.inf, "not a number": math.nan, "a set": {1, "a"}, "bytes": b"x", "a huge number": 10**400,
    "a surrogate": "\ud800", "keys": {1: 2, None: {3}}, "an object": object(), "minus one": -1, "a list": [[]],
}  # fmt: skip


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Returns where in a value something can be put: in its place, and in that of its first members."""
    yield path
    members = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, member in members:
        yield from paths(member, (*path, key))


@pytest.fixture(scope="module")
def begun() -> tuple[Chat, Any]:
    """A chat with a plan, results out of the prompt, cuts and payloads, and its sessions as they are then."""
    chat = Chat(tools=[big_file], policy=PackPolicy(max_input_tokens=4_000), state={"plan": PLAN})
    chat.llm.script += [call("big_file", name="a", lines=2_000), "ok", *["fine " * 200] * 8]
    chat.say("Read a.", *(f"tell me more {at} " * 50 for at in range(6)))
    assert isinstance(chat.sessions, InMemorySessionService)
    return chat, copy.deepcopy(chat.sessions.sessions)


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.rows(1, slow=4)
def test_odd_values_in_state_stop_nothing(
    begun: tuple[Chat, Any], odd: str, figure: Callable[[str, float], None]
) -> None:
    chat, sessions = begun
    state = sessions["shop"]["ann"]["s1"].state
    keys = [key for key in state if key.startswith("aether:") and not key.endswith(tuple("23456"))]
    places = [(key, path) for key in keys for path in paths(state[key])]
    # Inside evidence all are tried; of the others every fourth, another one for each odd value.
    offset = list(ODD).index(odd)
    tried = [place for at, place in enumerate(places) if place[0] == "aether:evidence" or at % 4 == offset % 4]
    failed = []
    for key, path in tried:
        chat.sessions.sessions = copy.deepcopy(sessions)
        held = chat.sessions.sessions["shop"]["ann"]["s1"].state
        value = holder = {"": copy.deepcopy(held[key])}
        for name in ("", *path)[:-1]:
            holder = holder[name]
        holder[("", *path)[-1]] = ODD[odd]
        held[key] = value[""]
        chat.restart()
        chat.llm.script[:] = [call("big_file", name="b", lines=600), "ok"]
        for witness in (chat.raw, chat.sent, chat.before.events):
            witness.clear()
        chat.checked = 0
        try:
            events = chat.say("Next?")
            for event in events:
                json.dumps({name: item for name, item in event.actions.state_delta.items() if name != "temp"}).encode()
                assert "Infinity" not in event.model_dump_json()
        except Exception as error:
            failed.append((key, path, error))
    figure("state_failures", len(failed))
    assert tried
    assert failed == []
