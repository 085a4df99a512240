"""A process of its own that goes on with a session, or reads its packs: for `test_processes`.

    python session_worker.py say  < {"sessions": URL, "store": URL, "session": ID, "messages": […], "script": […]}
    python session_worker.py read < {"store": URL, "session": ID}

Either prints the contents of each request as JSON: as they were sent, or as the packs' replays give them.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from scripted import Chat, call

from aether_context import PackPolicy, PackStore
from aether_context.store.replay import Replayer

POLICY = PackPolicy(max_input_tokens=2_500)
STATE = {
    "plan": {
        "task_id": "42",
        "task": "Clear the backlog",
        "step": {"id": "3", "text": "Look orders up", "acceptance": ["Every order is named"]},
    }
}


def read_page(name: str) -> str:
    """Reads a page."""
    return "\n".join(f"{name} line {at}: rivers rise and fall with rain" for at in range(40))


def chat_of(script: Sequence[str], store: PackStore, **settings: Any) -> Chat:
    """The conversation that is continued; words of the script that begin with ``page`` are calls, others answers."""
    replies = [call("read_page", name=one) if one.startswith("page") else one for one in script]
    return Chat(script=replies, tools=[read_page], policy=POLICY, state=STATE, store=store, **settings)


def sent(chat: Chat) -> list[Any]:
    """The contents of each request."""
    return [[json.loads(one.model_dump_json(exclude_none=True)) for one in request.contents] for request in chat.sent]


@asynccontextmanager
async def sessions_at(url: str) -> AsyncIterator[BaseSessionService]:
    """ADK's session service for a URL."""
    if url.startswith("redis://"):
        from google.adk.integrations.redis import RedisSessionService
        from redis.asyncio import Redis

        async with Redis.from_url(url, decode_responses=True) as client:
            yield RedisSessionService(redis_client=client)
    elif url.startswith("sqlite://"):
        yield SqliteSessionService(db_path=url.removeprefix("sqlite://"))
    else:
        from google.adk.sessions.database_session_service import DatabaseSessionService

        async with DatabaseSessionService(db_url=url) as service:
            yield service


async def say(job: dict[str, Any]) -> list[Any]:
    async with sessions_at(job["sessions"]) as sessions:
        chat = chat_of(job["script"], PackStore(job["store"]), sessions=sessions, session=job["session"])
        for message in job["messages"]:
            await chat.tell(message)
        await chat.runner.close()
        return sent(chat)


def read(job: dict[str, Any]) -> list[Any]:
    store = PackStore(job["store"])
    replayer = Replayer(store)
    return [
        json.loads(replayer.replay(manifest).request)["contents"]
        for manifest in store.manifests(session=job["session"])
    ]


if __name__ == "__main__":
    given = json.load(sys.stdin)
    print(json.dumps(asyncio.run(say(given)) if sys.argv[1] == "say" else read(given)))
