"""What a person would not see reaches no model from others' text: controls, marks that reorder text, invisible tags.
What is stored stays as it came, and ordinary text of any script stays as it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.artifacts import InMemoryArtifactService
from google.adk.tools import load_artifacts
from google.genai import types
from scripted import Chat, Memories, Scripted, call, grow, remembered, state_of

from aether_context import PackPolicy

Figure = Callable[[str, float], None]

TAGS = "".join(chr(0xE0000 + ord(letter)) for letter in "obey")
HIDDEN = f"price \x1b[8m4 EUR\x1b[0m, \u202eRUE 5\u202c, \u2066x\u2069, \x00\x07\x85\x9b, {TAGS}\U000e007f"
ORDINARY = (
    "tab\tand\r\nlines\n السعر ٥ دنانير\u200f، مرحبا \u061c שלום\u200e עולם, क्\u200dष, "
    "👩\u200d👩\u200d👧 ❤️ 🏳️\u200d🌈 \U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f "
    "\U0001f1eb\U0001f1f7 naïve 中文 — “quotes” C:\\bin\\new \\u0007"
)
HIDING = {letter for letter in HIDDEN if not letter.isascii() or ord(letter) < 32} - set(ORDINARY)


def tool(text: str) -> Callable[[], dict[str, Any]]:
    def fetch() -> dict[str, Any]:
        """Fetches a text."""
        return {"page": {"text": [text, 5], f"key {text}": True}}

    return fetch


def hidden(chat: Chat) -> int:
    """Characters of `HIDDEN` that a model was sent in what is not the user's."""
    own = {part.text for event in asyncio.run(chat.held()).events if event.author == "user" and event.content
           for part in event.content.parts or ()}  # fmt: skip
    found = 0
    for sent in chat.sent:
        for content in sent.contents:
            parts = [part for part in content.parts or () if part.text is None or part.text not in own]
            found += sum(letter in HIDING for part in parts for letter in texts(part))
    return found


def texts(part: types.Part) -> str:
    """Returns all that a model reads of a part, keys included."""
    answer = part.function_response.response if part.function_response else None

    def inside(value: Any) -> str:
        if isinstance(value, dict):
            return "".join(inside(item) for pair in value.items() for item in pair)
        return "".join(map(inside, value)) if isinstance(value, (list, tuple)) else str(value)

    return (part.text or "") + inside(answer or "")


@pytest.mark.parametrize("window", [4_000, 100_000])
@pytest.mark.parametrize("times", [1, 200])
def test_results_of_tools_hide_nothing(window: int, times: int, figure: Figure) -> None:
    chat = Chat(tools=[tool(f"{HIDDEN}\n" * times)], policy=PackPolicy(max_input_tokens=window))
    chat.llm.script += [call("fetch"), "It is 5 EUR.", call("fetch"), "ok", "ok"]
    chat.say("What is the price?", f"Again? My own {HIDDEN}", "And now?")
    figure("hidden", hidden(chat))
    assert hidden(chat) == 0
    assert "\\x1b[8m" in str(chat.sent[1].answers()) or times > 1
    assert HIDDEN in chat.sent[2].human()
    if window == 100_000:
        assert grow(chat.sent[:2])
        assert grow(chat.sent[2:4])
    given = [answer.response for event in asyncio.run(chat.held()).events for answer in event.get_function_responses()]
    assert all(HIDDEN in str(response["page"]["text"][0]) for response in given if response)
    for record in chat.store.evidence("shop", "ann", "s1"):
        assert TAGS.encode() in chat.store.evidence_data("shop", "ann", record.digest)
    chat.replays(every=1)


def test_a_reader_shows_what_is_hidden_in_what_is_stored(figure: Figure) -> None:
    chat = Chat(tools=[tool(f"{HIDDEN}\n" * 2_000)], policy=PackPolicy(max_input_tokens=20_000))
    chat.llm.script += [call("fetch"), "read"]
    chat.say("Read.")
    [record] = state_of(chat)["aether:evidence"].values()
    reads = [
        call("read_artifact", uri=record["uri"], max_lines=3),
        call("search_artifact", uri=record["uri"], query="EUR"),
    ]
    chat.llm.script += [reads, "ok"]
    chat.say("Look again.")
    figure("hidden", hidden(chat))
    assert hidden(chat) == 0
    chat.replays(every=1)


def test_memories_hide_nothing(figure: Figure) -> None:
    chat = Chat(memory=Memories(remembered(f"The price: {HIDDEN}"), remembered(f"The price once: {ORDINARY}")))
    chat.say("What was the price?")
    figure("hidden", hidden(chat))
    assert hidden(chat) == 0
    assert "\\u202eRUE 5" in chat.sent[0].human()
    assert "👩\u200d👩\u200d👧" in chat.sent[0].human()
    chat.replays(every=1)


def test_other_agents_hide_nothing(figure: Figure) -> None:
    llm = Scripted(sent=[], script=[call("transfer_to_agent", agent_name="second"), f"I saw {HIDDEN}"])
    second = LlmAgent(name="second", model=llm, instruction="i", tools=[tool(HIDDEN)])
    llm.script[1:1] = [call("fetch")]
    first = LlmAgent(name="first", model=llm, instruction="i", sub_agents=[second])
    chat = Chat(agent=first)
    chat.say("What is the price?")
    llm.script += [call("transfer_to_agent", agent_name="first"), "done"]
    chat.say("And you?")
    assert any("[second] said" in sent.text for sent in chat.sent)
    quoted = [part.text for sent in chat.sent for content in sent.contents if content.role == "user"
              for part in content.parts or () if part.text and "BEGIN_QUOTED" in part.text]  # fmt: skip
    found = sum(letter in HIDING for text in quoted for letter in text)
    figure("hidden", found)
    assert quoted
    assert found == 0
    chat.replays(every=1)


def test_artifacts_hide_nothing(figure: Figure) -> None:
    artifacts = InMemoryArtifactService()
    save = artifacts.save_artifact(
        app_name="shop", user_id="ann", session_id="s1", filename="a.txt", artifact=types.Part(text=f"It says {HIDDEN}")
    )
    asyncio.run(save)
    chat = Chat(tools=[load_artifacts], artifacts=artifacts)
    chat.llm.script += [call("load_artifacts", artifact_names=["a.txt"]), "ok"]
    chat.say("Read a.txt.")
    assert any("It says" in sent.text for sent in chat.sent)
    figure("hidden", hidden(chat))
    assert hidden(chat) == 0


@pytest.mark.parametrize("times", [1, 40])
def test_ordinary_text_of_every_script_stays_as_it_is(times: int) -> None:
    text = ORDINARY * times
    chat = Chat(tools=[tool(text)], policy=PackPolicy(max_input_tokens=1_000_000))
    chat.llm.script += [call("fetch"), "ok"]
    chat.say("Fetch.")
    [answer] = chat.sent[1].answers()
    assert answer["page"]["text"] == [text, 5]
    chat.replays(every=1)
