"""The window that nobody set: small enough to be cheap, soft for what somebody asks, and marked."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.models import FallbackModel
from scripted import Chat, Scripted, call, look_up
from strict import strict

from aether_context import PackPolicy, replay
from aether_context.errors import PolicyError


def document(lines: int) -> str:
    return "\n".join(
        f"clause {at}: the tenant of house {at * 7} sweeps the stairs on day {at % 31}" for at in range(lines)
    )


@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        ("gemini-2.5-flash", 128_000), ("gemini-2.5-pro", 128_000), ("gpt-5", 128_000), ("claude-sonnet-4-5", 128_000),
        ("gpt-4o", 128_000), ("gpt-3.5-turbo", 16_385), ("nobody-knows-it", 32_768),
    ],
)  # fmt: skip
def test_the_default_is_no_more_than_the_model_takes_nor_than_its_first_price(model: str, tokens: int) -> None:
    assert usual_window(model) == tokens


def usual_window(model: str) -> int:
    chat = Chat(model=model)
    chat.say("Hello")
    return chat.manifests()[0].window


def test_a_model_whose_price_doubles_sooner_has_less() -> None:
    from genai_prices.data_snapshot import get_snapshot

    cheaper = set()
    for provider in get_snapshot().providers:
        for info in provider.models:
            for prices in [info.prices] if not isinstance(info.prices, list) else [one.prices for one in info.prices]:
                tiers = getattr(prices.input_mtok, "tiers", ())
                if tiers and min(tier.start for tier in tiers) < 128_000:
                    cheaper.add(f"{provider.id}/{info.id}")
    assert cheaper
    assert all(usual_window(name) < 128_000 for name in cheaper)


def test_a_call_that_needs_more_takes_more_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    text, script = document(8_000), ["Read.", call("look_up", key="k"), "Yes.", "Bye.", "Read."]
    with caplog.at_level(logging.INFO, logger="aether_context"):
        chat = Chat(script, [look_up])
        chat.say("Hello", f"Which day has house 21?\n{text}", "Thanks.", f"And this?\n{document(8_500)}")
    marks = [(manifest.window, manifest.window_mark, manifest.most_window) for manifest in chat.manifests()]
    exceeded = "default_exceeded"
    assert [mark for _, mark, _ in marks] == ["default", exceeded, exceeded, "default", exceeded]
    assert {most for _, _, most in marks} == {1_048_576}
    assert marks[0][0] == marks[3][0] == 128_000
    assert marks[1][0] == marks[2][0] > 150_000
    assert text in chat.sent[1].text
    assert text in chat.sent[2].text
    assert document(8_500) in chat.sent[-1].text
    told = [record.message for record in caplog.records if "see max_input_tokens" in record.message]
    assert ["exceeded" in message for message in told] == [False, True]
    chat.replays()
    resolved = replay(chat.manifests()[1], chat.store)
    assert resolved.pack.source.window == marks[1][0]


def test_in_its_tool_loop_too_and_results_have_room() -> None:
    text = document(6_000)
    chat = Chat([*(call("look_up", key=f"k{at}") for at in range(4)), "Done."], [look_up])
    chat.say(f"Compare.\n{text}")
    assert all(text in sent.text for sent in chat.sent)
    assert {manifest.window_mark for manifest in chat.manifests()} == {"default_exceeded"}
    assert len({manifest.window for manifest in chat.manifests()}) == 1
    assert len(chat.sent[-1].answers()) == 4
    chat.replays()


@pytest.mark.parametrize(
    ("setting", "window", "mark"),
    [
        (None, 128_000, "default"), ("model", 1_048_576, ""), (200_000, 200_000, ""),
        ({"gemini-2.5-flash": "model"}, 1_048_576, ""), ({"gemini-2.5-flash": 300_000}, 300_000, ""),
        ({"gpt-5": "model"}, 128_000, "default"),
    ],
)  # fmt: skip
@pytest.mark.rows(2)
def test_what_is_set_is_hard(setting: Any, window: int, mark: str) -> None:
    chat = Chat(policy=PackPolicy(max_input_tokens=setting))
    chat.say("Hello", document(8_000))
    manifests = chat.manifests()
    assert (manifests[0].window, manifests[0].window_mark) == (window, mark)
    assert (manifests[1].window > window) == (mark == "default")
    assert (document(8_000) in chat.sent[1].text) == (mark == "default" or window > 200_000)
    assert manifests[0].policy == PackPolicy(**(manifests[0].settings or {})).digest
    chat.replays()


def test_another_word_is_an_error() -> None:
    with pytest.raises(PolicyError, match="max_input_tokens"):
        PackPolicy(max_input_tokens="all")


@pytest.mark.slow
def test_a_refusal_teaches_less_than_the_model_is_said_to_take() -> None:
    """What is learned between the default and the model's own limit bounds the calls that exceed the default."""
    chat = Chat(agent=LlmAgent(name="clerk", model=strict(limit=150_000), instruction="Help."))
    chat.say("Hello", document(12_000), "And now?", document(7_000))
    manifests = chat.manifests()
    assert [manifest.most_window for manifest in manifests] == [1_048_576, 1_048_576, *[150_000] * 3]
    assert [manifest.window_mark for manifest in manifests][-2:] == ["default", "default_exceeded"]
    assert manifests[-1].window == 150_000
    chat.replays()


def test_of_several_models_the_smallest_counts() -> None:
    model = FallbackModel(models=[Scripted(model="gemini-2.5-flash", sent=[]), Scripted(model="gpt-5", sent=[])])
    chat = Chat(agent=LlmAgent(name="clerk", model=model, instruction="Help."))
    chat.say("Hello")
    assert (chat.manifests()[0].window, chat.manifests()[0].most_window) == (128_000, 272_000)
