"""Token counts: the built-in estimate, counters by tokenizers and by providers, and what providers add to a text."""

from aether_context.tokens.choice import Counters, Offer, Pick, counter_for, register
from aether_context.tokens.counters import CachedCounter, EstimateCounter, TokenCounter, family_of
from aether_context.tokens.framing import Framing, framing_of
from aether_context.tokens.media import media_tokens

__all__ = [
    "CachedCounter",
    "Counters",
    "EstimateCounter",
    "Framing",
    "Offer",
    "Pick",
    "TokenCounter",
    "counter_for",
    "family_of",
    "framing_of",
    "media_tokens",
    "register",
]
