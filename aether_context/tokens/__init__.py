"""Token counts: the built-in estimate, counters by tokenizers, and what providers add to a text."""

from aether_context.tokens.choice import Counters, Pick, register_counter
from aether_context.tokens.counters import EstimateCounter, TokenCounter, counter_for, family_of
from aether_context.tokens.framing import Framing, framing_of
from aether_context.tokens.media import media_tokens

__all__ = [
    "Counters",
    "EstimateCounter",
    "Framing",
    "Pick",
    "TokenCounter",
    "counter_for",
    "family_of",
    "framing_of",
    "media_tokens",
    "register_counter",
]
