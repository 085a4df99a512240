"""Masks what must not be searched by, embedded or sent: e-mail addresses, numbers of phones, cards and accounts, keys.

mask = masker(("email", "phone", r"ACME-\\d+"))
mask("write to ann@example.com")     # "write to [email]"
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from aether_context.canonical import hash_json
from aether_context.errors import PolicyError

PATTERNS = {
    "email": r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+",
    "key": (
        r"\b(?:sk|pk|rk|ghp|gho|xox[abp]|AKIA|AIza|glpat)[-_]?[A-Za-z0-9_-]{12,}"
        r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*|-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----"
    ),
    "iban": r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b",
    "card": r"\b(?:\d[ -]?){12,18}\d\b",
    "ip": r"\b(?:\d{1,3}\.){3}\d{1,3}\b",
    "phone": r"(?<![\w.])(?:\+\d{1,3}[ ./-]?)?(?:\(\d{1,4}\)[ ./-]?)?\d{2,4}(?:[ ./-]\d{2,5}){1,4}(?![\w.])",
}
"""Regular expressions by the names that a policy may give, in the order in which they are masked."""


class Masker:
    """Masks texts: each match becomes the pattern's name in brackets, ``[redacted]`` where it has none.

    Args:
        patterns: names of `PATTERNS`, or regular expressions.

    Raises:
        PolicyError: one of them is neither.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        own = []
        for pattern in patterns:
            if pattern in PATTERNS:
                continue
            try:
                own.append(("redacted", re.compile(pattern)))
            except re.error as error:
                known = ", ".join(PATTERNS)
                raise PolicyError(
                    f"redaction pattern {pattern!r} is neither one of {known} nor a regular expression: {error}",
                    field="retrieval.redact_before_retrieval",
                ) from error
        self._patterns = (*own, *((name, re.compile(PATTERNS[name])) for name in PATTERNS if name in patterns))

    @property
    def name(self) -> str:
        """Equal names mask alike."""
        return hash_json([[name, pattern.pattern] for name, pattern in self._patterns])

    def __call__(self, text: str) -> str:
        for name, pattern in self._patterns:
            text = pattern.sub(f"[{name}]", text)
        return text


masker = Masker
