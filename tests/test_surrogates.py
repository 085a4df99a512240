"""Halves of surrogate pairs: UTF-8 cannot hold them, so a client would raise at every call that has one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models.llm_request import LlmRequest
from google.adk.runners import InMemoryRunner
from google.genai import types
from plans import small, words
from scripted import Scripted, call, new_store, sound

from aether_context.adk import ContextPackPlugin

HALF, ESCAPE = "\ud83d", "\\ud83d"


def cut_off() -> dict[str, Any]:
    """Answers with a text that was cut in the middle of an emoji."""
    return {"text": f"so{HALF}", "rows": [{f"key{HALF}": 1}], "path": "C:\\udemy"}


def echo(key: str) -> str:
    return key


echo.__doc__ = f"Repeats a key{HALF}. It is short."


class Utf8(Scripted):
    """Writes each request in UTF-8, as clients do."""

    def see(self, llm_request: LlmRequest) -> None:
        super().see(llm_request)
        tools = [tool.model_dump_json(exclude_none=True) for tool in llm_request.config.tools or ()]
        contents = [content.model_dump_json(exclude_none=True) for content in llm_request.contents]
        self.sent[-1] = (str(llm_request.config.system_instruction), "\n".join(contents), "\n".join(tools))
        "".join(self.sent[-1]).encode()


@pytest.mark.parametrize("window", [100_000, 3_000])
def test_no_half_of_a_pair_is_sent_whoever_wrote_it(window: int) -> None:
    script = [
        [types.Part(text=f"hm{HALF}", thought=True, thought_signature=b"signed"), call("cut_off")],
        f"I say{HALF} 🙂.",
        call("echo", key=f"k{HALF}", more={f"n{HALF}": [HALF]}),
        "Done.",
    ]
    llm, store = Utf8(script=script, sent=[]), new_store()
    agent = LlmAgent(name="clerk", model=llm, instruction=f"You help{HALF}.", tools=[cut_off, echo])
    plugin = ContextPackPlugin(policy=small(window), store=store, on_error="raise")
    runner = InMemoryRunner(app=App(name="shop", root_agent=agent, plugins=[plugin]))

    async def talk() -> None:
        await runner.session_service.create_session(app_name="shop", user_id="ann", session_id="s1")
        for text in (f"What{HALF}?", "And 🙂 now?", *(f"{words(300)}{HALF}" for _ in range(5))):
            async for _ in runner.run_async(user_id="ann", session_id="s1", new_message=types.UserContent(text)):
                pass
        await runner.close()

    asyncio.run(talk())
    assert len(llm.sent) == 9
    system, contents, tools = llm.sent[3]
    for text, part in ((system, "You help"), (contents, "What"), (contents, "I say"), (contents, '"key')):
        assert part + ESCAPE in text.replace("\\\\", "\\")
    assert f"Repeats a key{ESCAPE}" in tools.replace("\\\\", "\\")
    assert '"k\\\\ud83d"' in contents
    assert "🙂" in contents
    assert '"C:\\\\udemy"' in contents
    assert len(sound(store)) == 9
