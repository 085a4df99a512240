"""Gemini's local tokenizer, through google-genai."""

from __future__ import annotations

from aether_context.tokens.counters import Tokenizer
from aether_context.tokens.model_limits import bare_model_name

_OF_ALIASES = "gemini-2.5-flash"
"""The model by whose vocabulary, which nearly all share, a name that only points to a model is counted."""


def local_tokenizer(model: str) -> Tokenizer:
    """Counts by `google.genai.local_tokenizer`, which fetches its vocabulary and keeps it in the temporary folder; it
    knows no name that only points to a model, such as `gemini-flash-latest`."""
    from google.genai.local_tokenizer import LocalTokenizer

    bare = bare_model_name(model)
    is_alias = bare.endswith("-latest")
    tokenizer = LocalTokenizer(model_name=_OF_ALIASES if is_alias else bare)
    return Tokenizer(
        f"gemini-local/{bare}",
        lambda texts: [tokenizer.count_tokens(text).total_tokens or 0 for text in texts],
        accuracy="approximate" if is_alias else "exact",
    )
