"""What the plugin keeps in a session's state is little, and a new process goes on from it with the same bytes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from google.adk.events.event import Event
from google.adk.plugins.base_plugin import BasePlugin
from plans import aether, loop, planned, small, turns
from pydantic import BaseModel
from restarting import Restarting, same_requests
from scripted import Chat, big_file, call, look_up, new_store, set_state, state_of, was_cut
from wording import SUMMARY_TITLE

from aether_context import PackPolicy, replay, verify
from aether_context.canonical import strings


@pytest.mark.parametrize("text", ["a NUL \0 in a text", 'json:"forged"', "json:[]"])
def test_any_text_is_sent_again_as_it_was_in_a_new_process(text: str) -> None:
    restarting = Restarting(policy=PackPolicy(), store=new_store(), on_error="raise")
    chat = Chat(script=[*loop(2), "a"], tools=[look_up], state=planned(), plugin=restarting)
    chat.say(text)
    assert len(chat.sent) == 3
    assert all(one.human().endswith(text) for one in chat.sent)


@pytest.mark.parametrize(
    ("tokens", "known", "summary_share"), list(product([1_500, 2_500, 20_000], ["nothing", "plan"], [0.2, 0.0]))
)
@pytest.mark.rows(1, slow=5)
def test_a_new_process_at_every_call_sends_the_same_bytes(tokens: int, known: str, summary_share: float) -> None:
    state = planned() if known == "plan" else {}
    policy = small(tokens, conversation={"summary_share": summary_share})

    def make(plugin: BasePlugin | None) -> Chat:
        script = [*loop(2), "a", call("big_file", name="b"), "c", *loop(3), "d"]
        chat = Chat(script=script, tools=[look_up, big_file], state=state, policy=policy, plugin=plugin)
        chat.say(*turns(10))
        return chat

    steady = make(None)
    restarted = make(Restarting(policy=policy, store=new_store(), on_error="raise"))
    assert len(steady.sent) > 10
    same_requests(steady, restarted)


@pytest.mark.parametrize("masks", [((), ("email",)), (("email",), ()), (("email",), ("secrets", "@"))])
def test_a_session_that_is_masked_otherwise_from_one_process_on_replays_whole(
    masks: tuple[tuple[str, ...], ...],
) -> None:
    chat = Chat(policy=PackPolicy(redact=masks[0]), state=planned())
    chat.say("I am ann@example.com.", "And you?")
    chat.policy = PackPolicy(redact=masks[1])
    chat.restart()
    chat.say("Is bob@example.com there?")
    chat.replays()
    assert verify(chat.store, replays=True).faults == {}


def test_texts_that_differ_in_what_is_masked_alone_replay_with_the_counts_of_each() -> None:
    chat = Chat(policy=PackPolicy(redact=("email",)))
    for address in ("a@b.co", "a.very.long.name.of.somebody@post.of.a.large.company.example.com"):
        chat.say("Hello.")
        asyncio.run(set_state(chat, knowledge={"notes": [f"write to {address}"]}))
        chat.say("Whom do I write to?")
    last = chat.latest()
    assert last.extends is not None
    recorded, again = (
        [row for row in rows if row.layer == "memory"] for rows in (last.rows, replay(last, chat.store).pack.rows)
    )
    assert recorded == again


def test_it_works_on_adks_own_sql_service(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy")
    pytest.importorskip("greenlet")
    from google.adk.sessions.database_session_service import DatabaseSessionService

    async def go() -> None:
        service = DatabaseSessionService(db_url=f"sqlite+aiosqlite:///{tmp_path / 'sql.db'}")
        chat = Chat(policy=small(1_500), sessions=service, state=planned(), script=[*loop(2), "a"], tools=[look_up])
        for message in turns(8):
            await chat.tell(message)
        assert any(manifest.truncation_events for manifest in chat.manifests())
        await chat.runner.close()
        await service.close()

    asyncio.run(go())


def test_a_state_schema_does_not_end_the_run() -> None:
    class Known(BaseModel):
        plan: dict[str, Any] = {}

    chat = Chat(state=planned(), settings={"state_schema": Known})
    chat.say("go")
    assert "CONTEXT PACK" in chat.sent[0].text


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


@pytest.mark.parametrize("odd", ["\0", "json:[]", "\u00e9\n"])
@pytest.mark.rows(1)
def test_any_text_comes_back_from_a_state_that_any_store_takes(odd: str) -> None:
    """Halves of surrogate pairs are those of test_surrogates.py."""
    plan = {"step": {"text": f"{odd} step {odd}", "acceptance": [f"{odd} is done"]}}
    whole, new = (Chat(state={"plan": plan}, policy=small(2_000)) for _ in range(2))
    whole.llm.usage = new.llm.usage = False  # what it reports is learned from in a process
    for at in range(14):
        for chat in (whole, new):
            chat.say(f"my own words {at} {odd} " + "and more of them " * 20)
        new.restart()
    same_requests(new, whole)
    assert any(map(was_cut, whole.manifests()))
    state = state_of(whole)
    assert json.dumps(state, ensure_ascii=False).encode()
    assert all("\0" not in text for _, text in strings({key: value for key, value in state.items() if key != "plan"}))
