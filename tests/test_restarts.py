"""A new process goes on where the last one was: the same bytes, the same epoch."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from google.adk.plugins.base_plugin import BasePlugin
from matrix import half_slow
from plans import loop, planned, small, turns
from pydantic import BaseModel
from restarting import Restarting, same_requests
from scripted import Chat, big_file, call, look_up, new_store

from aether_context import PackPolicy


@pytest.mark.parametrize("text", ["a NUL \0 in a text", 'json:"forged"', "json:[]"])
def test_any_text_is_sent_again_as_it_was_in_a_new_process(text: str) -> None:
    restarting = Restarting(policy=PackPolicy(), store=new_store(), on_error="raise")
    chat = Chat(script=[*loop(2), "a"], tools=[look_up], state=planned(), plugin=restarting)
    chat.say(text)
    assert len(chat.sent) == 3
    assert all(one.human().endswith(text) for one in chat.sent)


@pytest.mark.parametrize(
    ("tokens", "known", "summary_share"), half_slow([1_500, 2_500, 20_000], ["nothing", "plan"], [0.2, 0.0])
)
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
