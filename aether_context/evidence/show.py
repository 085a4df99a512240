"""The shown part of a tool's output: all of it or an excerpt, by the package or by extractors from outside."""

from __future__ import annotations

from typing import Protocol

from aether_context.errors import PolicyError, near_names
from aether_context.evidence.lines import Kind, data_type, kind_of
from aether_context.text import Counts
from aether_context.text.shorten import Excerpt, lines_view, query_words, sampled, shorten, shorten_line, tokens_of
from aether_context.tokens import TokenCounter

# Extractors from outside, by name.

RULES = ("never", "threshold", "always", "instructs")
"""What a policy can say of a tool without an extractor."""


class Extractor(Protocol):
    """Chooses what is shown of a long output.

    Equal arguments have to give equal texts. What it gives should be the output's own lines.
    """

    def __call__(self, text: str, *, max_tokens: int, counter: Counts, query: str) -> str: ...


_EXTRACTORS: dict[str, Extractor] = {}


def register_extractor(name: str, extractor: Extractor) -> None:
    """Makes an extractor known to policies under a name.

    Raises:
        PolicyError: the name is one of a rule's.
    """
    if name in RULES:
        raise PolicyError(f"{name!r} is a rule: give the extractor another name", field="offload.tools")
    _EXTRACTORS[name] = extractor


def extractor_of(rule: str) -> Extractor | None:
    """The extractor that a policy's rule names; None for one of `RULES`.

    Raises:
        PolicyError: it is neither.
    """
    if rule not in RULES and rule not in _EXTRACTORS:
        hint = near_names(rule, (*RULES, *sorted(_EXTRACTORS)))
        raise PolicyError(
            f"offload.tools: {rule!r} is neither a rule nor a registered extractor: {hint}", field="offload"
        )
    return _EXTRACTORS.get(rule)


# What is shown of an output.

_PROSE = 100


def show(
    text: str, *, extract_tokens: int, whole_tokens: int, data_tokens: int, counter: TokenCounter, query: str = ""
) -> tuple[Excerpt, Kind]:
    """An output as a model is to read it, whole where it is short enough without its envelope, and its kind.

    Args:
        extract_tokens: ceiling of an extract, notes included.
        whole_tokens: tokens up to which an output stays whole.
        data_tokens: the same for tables and lists, and for JSON that is not mostly prose.
        query: what the agent is after: the request and the arguments of the call.
    """
    view = lines_view(text)
    whole = view.whole or text
    kind = "json" if view.outline else kind_of(whole)
    if kind == "data":
        described = f"[{data_type(text[:200])}, {len(text)} characters of encoded data]"
        return Excerpt(text=described, kept=0, total=text.count("\n") + 1), kind
    # Of rows and of the values of JSON any one may be needed, unlike of the prose in it.
    prose = sum(len(line.text) for line in view.outline if line.text.startswith('"') and len(line.text) > _PROSE)
    is_data = kind in ("table", "list", "json") and prose * 2 <= sum(len(line.text) for line in view.outline)
    if tokens_of(whole, counter) <= (max(whole_tokens, data_tokens) if is_data else whole_tokens):
        total = len(view.lines)
        return Excerpt(text=whole, kept=total, total=total, ends_early=view.ends_early), kind
    return shorten(view, extract_tokens, counter=counter, query=query, names=True), kind


_SUMMARY_TOKENS = 48


def summary_of(data: bytes, counter: TokenCounter, query: str) -> str:
    """The lines of a stored text that answer a query best, in at most 48 tokens."""
    # Without what databases refuse in the JSON of a session's state.
    lines = lines_view(data.decode("utf-8", "replace").replace("\0", "\ufffd")).lines
    text = "\n".join(lines[at] for at in sampled(lines, query_words(query)))
    return shorten_line(text, _SUMMARY_TOKENS, counter=counter, query=query)
