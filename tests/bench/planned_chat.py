"""What a chat at one step of a plan sends, beside what it would with one pack a request: through ADK's Runner.

    python tests/bench/planned_chat.py [--turns 20] [--answer-words 40] [--window 16000]
        [--set conversation.cached_price=0.001 ...]

Each turn is a question and an answer in so many words. One pack a request is what
``conversation.cached_price = 1.0`` sends; a tiny price keeps packed text until the next cut.

packs   the most packs in one request
tokens  counted tokens of all requests, system instruction and declarations included
ratio   tokens, over those with one pack a request
cost    uncached tokens and a tenth of those in the common prefix with the request before, over the same sum for one
        pack a request
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from scripted import Chat
from sessions import settings

from aether_context import PackPolicy

STATE = {
    "plan": {
        "task_id": "42",
        "task": "Write the refund guide for the shop's clerks",
        "role": "operator",
        "step": {
            "id": "3",
            "goal": "A clerk can tell who approves a refund without asking",
            "text": "Describe how a refund is approved, from the customer's wish to the payment",
            "constraints": ["Cite the rule for every sum", "Use the shop's own words", "At most one page"],
            "acceptance": [
                {"id": "a1", "text": "Names who approves a refund, by sum", "needs_evidence": True},
                {"id": "a2", "text": "Says how long an approval takes"},
                {"id": "a3", "text": "Says what a clerk does where nobody can approve"},
            ],
        },
    }
}
WORDS = [
    "the",
    "clerk",
    "asks",
    "the",
    "manager",
    "who",
    "looks",
    "at",
    "the",
    "receipt",
    "and",
    "decides",
    "by",
    "the",
    "sum",
    "and",
    "the",
    "date",
    "of",
    "the",
    "order",
]


def chat(policy: PackPolicy, turns: int = 20, answer_words: int = 40) -> Chat:
    """The chat after so many turns."""
    answers = [" ".join(WORDS[(at + word) % len(WORDS)] for word in range(answer_words)) for at in range(turns)]
    made = Chat(script=answers, state=STATE, policy=policy)
    made.llm.usage = False
    made.say(*(f"And what about case {at}, where the customer lost the receipt?" for at in range(turns)))
    return made


def measure(made: Chat) -> dict[str, float]:
    manifests = made.manifests()
    tokens = sum(one.allocation[layer].used for one in manifests for layer in one.allocation)
    shared = sum(one.prefix.shared_tokens or 0 for one in manifests)
    return {
        "packs": max(one.text.count("CONTEXT PACK\n") for one in made.sent),
        "tokens": tokens,
        "cost": tokens - 0.9 * shared,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--answer-words", type=int, default=40)
    parser.add_argument("--window", type=int, default=16_000)
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.FIELD=VALUE", help="a setting, in JSON")
    options = parser.parse_args()
    policy = PackPolicy(**settings(options.set), max_input_tokens=options.window)
    found = measure(chat(policy, options.turns, options.answer_words))
    single = measure(chat(policy.changed(conversation={"cached_price": 1.0}), options.turns, options.answer_words))
    ratios = {name: round(found[name] / single[name], 3) for name in ("tokens", "cost")}
    print(json.dumps({**found, "cost": ratios["cost"], "ratio": ratios["tokens"]}))


if __name__ == "__main__":
    main()
