"""Epochs through ADK's own Runner: what a long piece of work still has in its request after several cuts."""

from __future__ import annotations

from typing import Any

import pytest
from restarting import Restarting
from scripted import Chat, call, exact, new_store
from wording import SUMMARY_TITLE

from aether_context import PackPolicy
from aether_context.store import Manifest

WINDOW = 3_000
ORDERS = [f"order_{number:04}" for number in range(1, 37)]


def look_up_order(order_id: str) -> dict[str, Any]:
    """Looks an order up."""
    items = [{"sku": f"SKU-{order_id[-4:]}-{at}", "state": "packed", "note": "nothing to add " * 4} for at in range(6)]
    return {"order_id": order_id, "status": "late", "items": items}


def work(last_turns: int = 3, **settings: Any) -> Chat:
    """An invocation for each order: the model looks it up and answers."""
    script = [one for order in ORDERS for one in (call("look_up_order", order_id=order), f"{order} is late.")]
    policy = PackPolicy(max_input_tokens=WINDOW, conversation={"last_turns": last_turns})
    chat = Chat(script=script, tools=[look_up_order], policy=policy, **settings)
    chat.say("Tell me about each order.\nAnswer with one line an order.")
    chat.say(*(f"And {order}?" for order in ORDERS[1:]))
    return chat


def cuts(chat: Chat) -> list[Manifest]:
    return [one for one in chat.manifests() if any(event.stage == "cut" for event in one.truncation_events)]


def seen(chat: Chat, at: int = -1) -> str:
    """All that one request says, calls and responses included."""
    return "\n".join(content.model_dump_json(exclude_none=True) for content in chat.sent[at].contents)


def test_what_calls_used_and_people_said_is_still_in_the_request_after_many_cuts() -> None:
    chat = work()
    assert len(cuts(chat)) > 3
    assert all(one.request_tokens <= WINDOW for one in chat.manifests())
    last = seen(chat)
    assert [order for order in ORDERS if order not in last] == []
    assert "Tell me about each order.\\n  Answer with one line an order." in last
    chat.replays()


def test_a_long_task_stays_inside_the_cached_prefix_through_every_cut() -> None:
    task = "Look up the orders below.\n" + "\n".join(f"{order} was placed in week {order[-2:]}." for order in ORDERS)
    script = [*(call("look_up_order", order_id=order) for order in ORDERS), "All are late."]
    chat = Chat(script=script, tools=[look_up_order], policy=PackPolicy(max_input_tokens=WINDOW))
    chat.say(task)
    assert len(cuts(chat)) > 2
    assert {exact(one.contents[0].parts[0]) for one in chat.sent} == {exact(chat.sent[0].contents[0].parts[0])}
    whole = chat.manifests()[0].request_tokens
    assert all(one.prefix.shared_tokens >= whole for one in chat.manifests()[1:])
    message = chat.sent[-1].contents[0]
    assert [part.text.startswith(SUMMARY_TITLE) for part in message.parts] == [False, True]
    chat.replays()


@pytest.mark.slow
def test_another_process_goes_on_with_the_same_bytes() -> None:
    whole = work()
    other = work(plugin=Restarting(policy=PackPolicy(max_input_tokens=WINDOW), store=new_store(), on_error="raise"))
    assert [one.wires for one in other.sent] == [one.wires for one in whole.sent]


def test_a_result_that_is_read_again_is_sent_whole_where_it_fits() -> None:
    def report(name: str) -> dict[str, Any]:
        """Reads a report."""
        return {"result": "\n".join(f"{at}: value {at * 37 % 1009} in {name}" for at in range(330))}

    def lengths(at: int) -> list[int]:
        parts = [part for content in chat.sent[at].contents for part in content.parts or ()]
        return [len(str(part.function_response.response)) for part in parts if part.function_response]

    script = [*(call("report", name=name) for name in "abc"), "read", call("report", name="b"), "again", "more"]
    policy = PackPolicy(max_input_tokens=8_000, offload={"mode": "off"})
    chat = Chat(script, tools=[report], policy=policy)
    chat.say("Read them.", "Read b again.", "And?")
    whole = lengths(1)[0]
    assert lengths(3)[0] < whole
    assert lengths(5)[0] == lengths(4)[0]
    assert lengths(5)[-1] == whole
    assert lengths(6)[-1] == whole
    chat.check()
    chat.replays()
