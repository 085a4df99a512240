"""Token counts, by an estimate that needs neither the model's tokenizer nor the network."""

from .counter import CachedCounter, TokenCounter
from .estimate import EstimateCounter
from .families import counter_for, family_of
from .media import media_tokens

__all__ = ["CachedCounter", "EstimateCounter", "TokenCounter", "counter_for", "family_of", "media_tokens"]
