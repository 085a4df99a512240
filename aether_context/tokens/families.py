"""Which vocabulary counts for which model."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from aether_context.pack import Accuracy
from aether_context.windows import bare_model_name

from .counter import CachedCounter, TokenCounter
from .estimate import EstimateCounter


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Models that count alike.

    Attributes:
        pattern: regular expression at the start of a bare model name.
        tables: the vocabularies' tables; of several, the most tokens count.
        percent: what the tables' count is scaled by.
    """

    name: str
    pattern: str
    tables: tuple[str, ...]
    accuracy: Accuracy
    percent: int = 100


GENERIC = Family(name="generic", pattern="", tables=("gemini", "openai", "claude"), accuracy="heuristic")
"""For models whose vocabulary is not known: rarely under any of those that are."""

FAMILIES = (
    Family(name="gemini-3", pattern=r"gemini-(?:[3-9]|flash-|pro-)", tables=("gemini",), accuracy="approximate"),
    Family(name="gemini", pattern=r"gemini|gemma|learnlm", tables=("gemini",), accuracy="approximate"),
    Family(
        name="openai",
        pattern=r"gpt-(?:4o|4\.|[5-9]|oss|chat|realtime|audio)|chatgpt|o[1-9](?:-|$)|codex|computer-use",
        tables=("openai",),
        accuracy="approximate",
    ),
    Family(
        name="claude",
        pattern=r"claude-(?:v?[12]|instant|3|(?:opus|sonnet|haiku)-4(?:-[0-6])?(?:[-@]\d{8}|$)|4-)",
        tables=("claude",),
        accuracy="heuristic",
        percent=110,
    ),
    Family(name="claude-4.7", pattern="claude", tables=("claude",), accuracy="heuristic", percent=148),
    GENERIC,
)
"""In order; the first whose pattern matches counts.

Gemini counts by Gemma 3's vocabulary, which Google's SDK uses for it too (`google.genai.local_tokenizer`); for some
versions from 3.1 on that names Gemma 4's, which may differ. Media differ from 3 on. OpenAI's models from GPT-4o on
share the vocabulary o200k. Anthropic publishes only the vocabulary of Claude 2: 110% of it matches the usage reported
in a recorded session of Claude Sonnet 4.5, and models from 4.7 on are documented to need up to 1.35 times the tokens of
those before (platform.claude.com, "What's new in Claude Opus 4.7").
"""


def family_of(model: str) -> str:
    """The name of the family whose rules count the model's text and media, `generic` for a model that is not known."""
    return _family(bare_model_name(model)).name


def estimate_for(model: str) -> TokenCounter:
    """The built-in estimate of a model; models of one family share it and what it remembers."""
    return _counter(_family(bare_model_name(model)))


def _family(bare: str) -> Family:
    return next(family for family in FAMILIES if re.match(family.pattern, bare))


@functools.cache
def _counter(family: Family) -> TokenCounter:
    estimate = EstimateCounter(family.name, family.tables, accuracy=family.accuracy, percent=family.percent)
    return CachedCounter(estimate)
