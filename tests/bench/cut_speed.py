"""How long it takes to cut a long conversation: rows in Markdown, milliseconds of CPU time.

    python tests/bench/cut_speed.py [--messages 1000] [--rounds 15]

The conversation consists of turns of four messages (a question, a call, its result of twelve lines, an answer) and ends
with a result; the window is as large as the whole of it, so that each strategy acts once, as it does where a session
grows into its window.

first     a strategy's first cut of these messages in this process
strategy  the same once more, which is what a preview or a second strategy takes; the median of the rounds
pack      a whole pack with that cut in it: counted, allocated, cut, summarized, rendered, hashed; the median
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

from aether_context import PackPolicy, build_pack
from aether_context.conversation import Conversation, identify, select_strategy, strategies_of, strategy_names
from aether_context.conversation.content_json import content_of_parts, part_of
from aether_context.conversation.turns import is_human
from aether_context.pack import Content, Identity, PackInput, Request, Step
from aether_context.tokens import counter_for
from aether_context.tokens.cache import TokenCache

MODEL = "gemini-2.5-flash"
LINES = 12


def talk(messages: int) -> list[Content]:
    """A conversation of so many messages that ends in the middle of a turn, with a result that the model has yet to
    read."""
    whole = (messages - 3) // 4
    opening = [said("user", "Hello"), said("model", "Hello.")] * 2
    contents = [one for at in range(whole) for one in turn(at)]
    return [*opening[: messages - 3 - 4 * whole], *contents, *turn(whole)[:3]]


def turn(at: int) -> list[Content]:
    order = f"A-{1_000 + at}"
    rows = (f"row {row}: {order} total={row * 13}.50 status=shipped path=/srv/{at}/{row}.json" for row in range(LINES))
    call = {"name": "look_up", "args": {"key": order}}
    result = {"name": "look_up", "response": {"result": "\n".join(rows)}}
    return [
        said("user", f"Question {at}: what about order {order}?"),
        content_of_parts("model", [part_of({"function_call": call})]),
        content_of_parts("user", [part_of({"function_response": result})]),
        said("model", f"Order {order} was shipped on day {at % 28}; it cost {at * 3} euros."),
    ]


def said(role: str, text: str) -> Content:
    return content_of_parts(role, [part_of({"text": text})])


def policy_of(name: str, window: int) -> PackPolicy:
    return PackPolicy(
        max_input_tokens=window, conversation={"strategy": name, "sliding_turns": {"tokens": window}}, usage={"gate": 0}
    )


def pack_input(contents: Sequence[Content], window: int) -> PackInput:
    """What a pack of these contents is built from."""
    return PackInput(
        identity=Identity(app="bench", user="u", session="s", invocation="i", agent="a", last_event_id="e"),
        request=Request(
            model=MODEL,
            system="You look things up.",
            system_is_text=True,
            tools=(),
            other_tools=(),
            contents=tuple(contents),
            positions=tuple(range(len(contents))),
            human=max(at for at, content in enumerate(contents) if is_human(content)),
        ),
        window=window,
        step=Step(),
        candidates=(),
        validity="unplanned",
    )


def spent(work: Callable[[], object]) -> float:
    """Milliseconds of this thread's CPU time."""
    began = time.thread_time()
    work()
    return 1_000 * (time.thread_time() - began)


def median(rounds: int, work: Callable[[], object]) -> float:
    return statistics.median(spent(work) for _ in range(rounds))


def cuts(contents: Sequence[Content], window: int, rounds: int) -> Iterator[Sequence[str]]:
    """A row for each strategy."""
    source, counter, cache = pack_input(contents, window), counter_for(MODEL), TokenCache()
    for name in strategy_names():
        policy = policy_of(name, window)
        held = Conversation.of(contents, window=window, model=MODEL, anchors=identify(contents))
        (strategy,) = strategies_of(policy.conversation)
        first = spent(lambda held=held, strategy=strategy: strategy.trim(held))
        again = median(rounds, lambda held=held, strategy=strategy: strategy.trim(held))
        build_pack(source, policy, counter=counter, cache=cache)
        packed = median(rounds, lambda policy=policy: build_pack(source, policy, counter=counter, cache=cache))
        yield name, f"{first:.1f}", f"{again:.1f}", f"{packed:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000, help="messages (default: 1000)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds that are timed (default: 15)")
    given = parser.parse_args()
    contents = talk(given.messages)
    window = sum(Conversation.of(contents, window=1_000_000, model=MODEL).tokens)
    (warm_up,) = strategies_of(policy_of("epochs", 1_000).conversation)
    warm_up.trim(Conversation.of(talk(40), window=1_000))
    print(f"{len(contents):,} messages, {window:,} tokens\n")
    print("| strategy | first | strategy alone | pack |\n| --- | --- | --- | --- |")
    for row in cuts(contents, window, given.rounds):
        print("| " + " | ".join((f"`{row[0]}`", *row[1:])) + " |", flush=True)
    held = Conversation.of(contents, window=window, model=MODEL)
    print(f"\nchoice of a strategy: {median(given.rounds, lambda: select_strategy(held)):.2f} ms")
    print(f"anchors: {median(given.rounds, lambda: identify(contents, marked={9: 'marked'})):.2f} ms")


if __name__ == "__main__":
    main()
