"""Token counts: the estimate, which needs neither a tokenizer nor the network, and the framing of each provider."""

from .counter import CachedCounter, TokenCounter
from .estimate import EstimateCounter
from .families import counter_for, family_of
from .framing import Framing, framing_of
from .media import media_tokens

__all__ = [
    "CachedCounter",
    "EstimateCounter",
    "Framing",
    "TokenCounter",
    "counter_for",
    "family_of",
    "framing_of",
    "media_tokens",
]
