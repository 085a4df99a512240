"""Token counts: the built-in estimate, counters by tokenizers and by providers, and what providers add to a text."""

from .choice import Counters, Offer, Pick, counter_for, register
from .counter import CachedCounter, TokenCounter
from .estimate import EstimateCounter
from .families import family_of
from .framing import Framing, framing_of
from .media import media_tokens

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
