"""Families of models that count alike, and the built-in estimate of each."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Sequence

from aether_context.pack import Accuracy
from aether_context.tokens.counters import CachedCounter, TokenCounter
from aether_context.tokens.model_limits import bare_model_name


class EstimateCounter:
    """Counts by the named tables; with several, by the highest cost and the fewest known words among them.

    Args:
        family: the name of the family that it counts for, as `family_of` returns it.
        tables: names of the tables beside this module, one or more.
        accuracy: how close the counts are.
        percent: scales the count: 110 counts a tenth more than the tables say.
    """

    def __init__(self, family: str, tables: tuple[str, ...], *, accuracy: Accuracy, percent: int = 100) -> None:
        self.family = family
        self.accuracy: Accuracy = accuracy
        self._tables = tables
        self._percent = percent

    @functools.cached_property
    def name(self) -> str:
        """The family, the scale in percent, and a hash over the bytes of the tables."""
        from aether_context.tokens.estimate import table_bytes

        digest = hashlib.sha256(b"".join(map(table_bytes, self._tables))).hexdigest()
        return f"estimate/{self.family}@{self._percent}%-{digest[:12]}"

    def count(self, text: str) -> int:
        """Tokens of the text, rounded to the nearest whole one and at least 1; 0 for the empty text."""
        return self.count_all((text,))[0]

    def count_all(self, texts: Sequence[str]) -> list[int]:
        """The same for many texts in a few passes over all of them; a pass costs about as much as a short text."""
        from aether_context.tokens.estimate import UNIT, text_costs  # it loads numpy

        costs = text_costs(texts, self._tables)
        return [
            max(1, (cost * self._percent // 50 + UNIT) // (2 * UNIT)) if text else 0
            for text, cost in zip(texts, costs, strict=True)
        ]


FAMILIES = (
    (r"gemini-(?:[3-9]|flash-|pro-)", EstimateCounter("gemini-3", ("gemini",), accuracy="approximate")),
    (r"gemini|gemma|learnlm", EstimateCounter("gemini", ("gemini",), accuracy="approximate")),
    (
        r"gpt-(?:4o|4\.|[5-9]|oss|chat|realtime|audio)|chatgpt|o[1-9](?:-|$)|codex|computer-use",
        EstimateCounter("openai", ("openai",), accuracy="approximate"),
    ),
    (
        r"claude-(?:v?[12]|instant|3|(?:opus|sonnet|haiku)-4(?:-[0-6])?(?:[-@]\d{8}|$)|4-)",
        EstimateCounter("claude", ("claude",), accuracy="heuristic", percent=110),
    ),
    (r"claude", EstimateCounter("claude-4.7", ("claude",), accuracy="heuristic", percent=148)),
    (r"", EstimateCounter("generic", ("gemini", "openai", "claude"), accuracy="heuristic")),
)
"""Patterns of bare model names, in order: the first that matches from the beginning says what counts.

Gemini counts by Gemma 3's vocabulary, which Google's SDK uses for it too (`google.genai.local_tokenizer`); for some
versions from 3.1 on that names Gemma 4's, which may differ. Media differ from 3 on. OpenAI's models from GPT-4o on
share the vocabulary o200k. Anthropic publishes only the vocabulary of Claude 2: 110% of it matches the usage reported
in a recorded session of Claude Sonnet 4.5, and models from 4.7 on are documented to need up to 1.35 times the tokens of
those before (platform.claude.com, "What's new in Claude Opus 4.7"). A model whose vocabulary is not known counts
rarely under any of those that are.
"""

_CACHED = {counter.family: CachedCounter(counter) for _, counter in FAMILIES}


@functools.lru_cache(maxsize=1024)
def family_of(model: str) -> str:
    """The name of the family whose rules count the model's text and media, `generic` for a model that is not known."""
    bare = bare_model_name(model)
    return next(counter.family for pattern, counter in FAMILIES if re.match(pattern, bare))


def estimate_for(model: str) -> TokenCounter:
    """The built-in estimate of a model; models of one family share it and what it remembers."""
    return _CACHED[family_of(model)]
