"""What a provider's refusal of a request that is too long tells of the model's window.

Errors are read by their messages and status, in the words of each provider and as LiteLLM, google-genai, anthropic and
openai wrap them; none of these packages is imported.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_NUMBER = r"(\d[\d,_]{0,15})"
_LIMITS = (
    r"exceeds the maximum number of tokens allowed \(NUMBER\)",  # Gemini
    r"input token count is [\d,]+ but model only supports up to NUMBER",  # Vertex AI
    r"prompt is too long: [\d,]+ tokens > NUMBER maximum",  # Anthropic, there and on Bedrock and Vertex AI
    r"exceed context limit: [\d,]+ \+ [\d,]+ > NUMBER",  # Anthropic
    r"maximum input length of NUMBER tokens",  # vLLM, with its context length beside it
    r"maximum (?:context|prompt) length (?:is|of):? NUMBER",  # OpenAI, Azure, DeepSeek, xAI, OpenRouter, vLLM
    r"model maximum context length:? NUMBER",  # Fireworks
    r"context length is only NUMBER tokens",  # vLLM
    r"with NUMBER maximum context length",  # Mistral
    r"context length \(?NUMBER(?: tokens)?\)",  # SGLang, vLLM
    r"maximum model length of NUMBER",  # vLLM
    r"loaded with context length of only NUMBER",  # LM Studio
    r"exceeds the available context size \(NUMBER tokens\)",  # llama.cpp, Ollama
    r"tokens exceed the configured limit of NUMBER tokens",  # OpenAI
    r"prompt tokens \([\d,]+\) exceed model maximum \(NUMBER\)",  # Bedrock
    r"max input tokens: NUMBER, request input token count",  # Bedrock
    r"current length is [\d,]+ while limit is NUMBER",  # Cerebras
    r"`inputs` must have less than NUMBER tokens",  # Text Generation Inference
    r"`max_new_tokens` must be <= NUMBER",  # Text Generation Inference, Together
    r"tokens in this prompt cannot exceed NUMBER",  # Cohere
    r"exceeded model token limit: NUMBER",  # Moonshot
    r"range of input length should be \[\d+, NUMBER\]",  # DashScope
    r"request body too large for [^ ]+ model\. max size: NUMBER tokens",  # GitHub Models
)
"""The most tokens that a model takes, in a refusal's words, in lower case."""

_SENT = (
    r"input token count \(NUMBER\)",
    r"input token count is NUMBER",
    r"prompt is too long: NUMBER tokens",
    r"exceed context limit: NUMBER \+",
    r"messages resulted in NUMBER tokens",
    r"NUMBER input tokens",
    r"NUMBER tokens from the input",
    r"the request contains NUMBER tokens",
    r"prompt contains NUMBER tokens",
    r"prompt tokens \(NUMBER\)",
    r"request input token count: NUMBER",
    r"request \(NUMBER tokens\)",
    r"the input \(NUMBER tokens\)",
    r"current length is NUMBER",
)
"""The tokens of the request without its answer, as the provider counted them."""

_ANSWER = (
    r"exceed context limit: [\d,]+ \+ NUMBER >",
    r"NUMBER in the (?:completion|output)\b",
    r"NUMBER tokens for the completion",
    r"requested NUMBER output tokens",
    r"plus NUMBER 'max_(?:completion_)?tokens'",
    r"'max_(?:completion_)?tokens'[^.]{0,60} is too large: NUMBER",
    r"NUMBER `max_new_tokens`",
)
"""The tokens that the request wanted to keep for its answer, which count against the same limit."""

_NUMBERLESS = re.compile(
    r"context_length_exceeded|context_window_exceeded|exceeds? the (?:model's )?context window"
    r"|exceeds the available context size|input is too long|prompt is too long|prompt exceeds max length"
    r"|too many (?:input )?tokens|input tokens exceeded|exceed context limit|context window exceeds limit"
    r"|longer than the (?:model's|maximum) (?:context|model) length|please reduce the length of the (?:messages|prompt)"
    r"|maximum context length"
)
"""Refusals for length that name no limit, or name it in words that are not known."""

_RATE = re.compile(
    r"^429\b|rate.?limit|\bper (?:min|minute|day|hour)\b|\btpm\b|quota|resource_exhausted|too many requests"
    r"|throttl|please wait"
)
"""Refusals of what is asked for in a while: their numbers say nothing of a window."""

_MOST_CHARACTERS = 4_000
"""So much of an error is read: what follows the provider's own words may repeat the request."""
_MOST_CAUSES = 3
_OVERFLOW = "ContextWindowExceededError"
"""LiteLLM's class for it."""


class Overflow(NamedTuple):
    """A refusal of a request for its length.

    Attributes:
        limit: the most input tokens; None where the refusal has no number.
        sent: the input tokens of the request, as the provider counted them; None where it does not say.
        answer: tokens that were kept for the answer and are not in ``limit``, though they share one window with it.
    """

    limit: int | None = None
    sent: int | None = None
    answer: int = 0


def overflow_of(error: BaseException | str) -> Overflow | None:
    """What an error, or its message, says of a request that was too long; None where it is about anything else.

    An error that was raised from another one is read with it.
    """
    texts, is_overflow = [error] if isinstance(error, str) else [], False
    cause = None if isinstance(error, str) else error
    for _ in range(_MOST_CAUSES):
        if cause is None:
            break
        holders = (cause, getattr(cause, "response", None))
        named = [getattr(holder, name, None) for holder in holders for name in ("status_code", "code")]
        if next((status for status in named if type(status) is int), None) == 429:
            return None
        texts += [str(cause)[:_MOST_CHARACTERS], *(code[:100] for code in named[1:2] if isinstance(code, str))]
        is_overflow |= any(kind.__name__ == _OVERFLOW for kind in type(cause).__mro__)
        cause = cause.__cause__
    text = " ".join(" ".join(texts).lower()[:_MOST_CHARACTERS].split())
    if not text or _RATE.search(text):
        return None
    limit = _first(_LIMITS, text)
    if limit is None:
        return Overflow() if is_overflow or _NUMBERLESS.search(text) else None
    answer = _first(_ANSWER, text) or 0
    answer = answer if answer < limit else 0  # an answer that takes all of it leaves nothing to learn but the limit
    return Overflow(limit - answer, _first(_SENT, text), answer)


def _first(patterns: tuple[str, ...], text: str) -> int | None:
    found = (re.search(pattern.replace("NUMBER", _NUMBER), text) for pattern in patterns)
    digits = next((re.sub(r"\D", "", match[1]) for match in found if match is not None), "")
    return int(digits) if 0 < len(digits) < 12 else None
