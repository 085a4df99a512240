"""What a model is told of a stored text is so: its own words are not denied, wherever its lines are cut."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from scripted import Chat, call, results, state_of

from aether_context import PackPolicy

Figure = Callable[[str, float], None]


def minified() -> str:
    """Returns one long line of code."""
    return "".join(f"var v{at}=f({at * 7919 % 10_007});" for at in range(1_200))


def chinese() -> str:
    """Returns one long line of Chinese."""
    return "".join(chr(0x4E00 + at * 37 % 5_003) for at in range(12_000))


@pytest.mark.parametrize("tool", [minified, chinese])
def test_a_search_denies_no_words_of_a_long_line(tool: Callable[[], str], figure: Figure) -> None:
    chat, text = Chat(tools=[tool], policy=PackPolicy(max_input_tokens=8_000)), tool()
    chat.llm.script += [call(tool.__name__), "read"]
    chat.say("Read it.")
    [record] = state_of(chat)["aether:evidence"].values()
    queries = [text[at : at + 20] for at in range(700, len(text) - 700, len(text) // 40)]
    chat.llm.script += [[call("search_artifact", uri=record["uri"], query=query) for query in queries], "ok"]
    answers = results(chat.say("Look for them."))
    denied = [answer["note"] for answer in answers if "hold the query" not in answer["note"]]
    figure("denied", len(denied))
    assert len(answers) == len(queries)
    assert denied == []
