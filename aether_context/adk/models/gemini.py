"""Gemini's local tokenizer, through google-genai."""

from __future__ import annotations

from aether_context.tokens.counters import Tokenizer
from aether_context.tokens.model_limits import bare_model_name


def local_tokenizer(model: str) -> Tokenizer:
    """Counts by `google.genai.local_tokenizer`, which fetches its vocabulary and keeps it in the temporary folder."""
    from google.genai.local_tokenizer import LocalTokenizer

    bare = bare_model_name(model)
    tokenizer = LocalTokenizer(model_name=bare)
    return Tokenizer(
        f"gemini-local/{bare}", lambda texts: [tokenizer.count_tokens(text).total_tokens or 0 for text in texts]
    )
