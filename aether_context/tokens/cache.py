"""Tokens of whole contents and declarations, cached by digest, with an account of what was counted.

What is counted is what is sent: the texts as the model's provider writes them out, and what it adds around them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from aether_context.canonical import hash_text, short
from aether_context.pack import Accuracy, Content, Part, Tool
from aether_context.tokens.counters import CachedCounter, SharedLRU, TokenCounter
from aether_context.tokens.framing import (
    Framing,
    argument_count,
    framing_of,
    written_call,
    written_declaration,
    written_response,
)

_Piece = TypeVar("_Piece")


class TokenCache:
    """Counts and shortened contents by digest. Safe to share between threads."""

    def __init__(self) -> None:
        self.counts: SharedLRU[str, int] = SharedLRU(50_000)
        self.contents: SharedLRU[str, Content] = SharedLRU(500)


class PackCounter:
    """Counts for one pack. ``counts`` holds every number by short digest, so that a replay needs no tokenizer.

    ``method`` is how sure a whole content's count is: never ``exact``, since no provider says all that it adds.

    Args:
        recorded: counts of an earlier build, used before the counter is asked.
        framing: what the model's provider adds; that of a model that is not known by default.
    """

    def __init__(
        self,
        counter: TokenCounter,
        cache: TokenCache | None = None,
        recorded: Mapping[str, int] | None = None,
        *,
        framing: Framing | None = None,
    ) -> None:
        self.counter = counter
        self.framing = framing or framing_of("")
        self.method: Accuracy = "approximate" if counter.accuracy == "exact" else counter.accuracy
        self.counts: dict[str, int] = {}
        self._texts: dict[str, int] = {}
        self._cache = cache or TokenCache()
        self._scope = f"{counter.name} {self.framing.name}"
        self._recorded = recorded or {}

    def count(self, text: str) -> int:
        """Tokens of a text; 0 for none."""
        if not text:
            return 0
        found = self._texts.get(text)
        if found is None:
            key = short(hash_text(text), 16)
            found = self._found(key)
            if found is None:
                found = self.counter.count(text)
                self._cache.counts.put(f"{self._scope}:{key}", found)
            self.counts[key] = self._texts[text] = found
        return found

    def count_all(self, texts: Sequence[str]) -> list[int]:
        """The same for many texts at once."""
        return self._pieces([(short(hash_text(text), 16), 0, text) for text in texts], lambda text: (text, 0))

    def count_ahead(self, texts: Sequence[str]) -> None:
        """Counts texts in one pass that are likely to be asked for one by one: a pass costs about as much as a text.

        Nothing is noted in ``counts``, and no provider is asked.
        """
        if isinstance(self.counter, CachedCounter) and not self._recorded:
            self.counter.count_ahead(texts)

    def content(self, content: Content) -> int:
        """Tokens of a content, framing included; its parts are counted as one text."""
        return self.contents((content,))[0]

    def contents(self, contents: Sequence[Content]) -> list[int]:
        """The same for many contents; those that are not known are counted at once."""
        media = (sum(part.media_tokens for part in content.parts) for content in contents)
        pieces = [(short(content.digest, 16), tokens, content) for content, tokens in zip(contents, media, strict=True)]
        return self._pieces(pieces, self._written)

    def tool(self, tool: Tool) -> int:
        """Tokens of a declaration as the provider writes it out."""
        return self.tools((tool,))[0]

    def tools(self, tools: Sequence[Tool]) -> list[int]:
        """The same for many declarations at once."""
        framing = self.framing
        pieces = [(short(tool.digest, 16), 0, tool) for tool in tools]
        return self._pieces(pieces, lambda tool: (written_declaration(tool.wire, framing), framing.tool))

    def system(self, text: str, *, declares: bool) -> int:
        """Tokens of a system instruction, with what the provider adds once to a request.

        Args:
            declares: whether any tool is declared.
        """
        framing = self.framing
        frame = framing.request + (framing.system if text else 0) + (framing.tools if declares else 0)
        key = short(hash_text(f"system+{frame}\n{text}"), 16)
        return self._pieces([(key, 0, text)], lambda text: (text, frame))[0]

    def media(self, part: Part) -> int:
        """Tokens of a part's media, from an earlier build where it was counted there: a recorded part has lost them."""
        key = short(hash_text(f"media\n{part.wire}"), 16)
        found = self._recorded.get(key, part.media_tokens)
        if found:
            self.counts[key] = found
        return found

    def remembered(self, key: str) -> Content | None:
        """A content that was made from this key before, with this counter."""
        return self._cache.contents.get(f"{self._scope}:{key}")

    def remember(self, key: str, content: Content) -> None:
        self._cache.contents.put(f"{self._scope}:{key}", content)

    def _pieces(
        self, pieces: Sequence[tuple[str, int, _Piece]], write: Callable[[_Piece], tuple[str, int]]
    ) -> list[int]:
        """Tokens of pieces by their keys; those that are not known are written out and counted in one pass.

        Args:
            pieces: key, tokens of media, and the piece. Media are not remembered: models of one family differ in them.
            write: a piece as it is counted, and the tokens that are added to it.
        """
        found = {key: self.counts.get(key) or self._found(key, media) for key, media, _ in pieces}
        new = {key: (media, *write(piece)) for key, media, piece in pieces if found[key] is None}
        counted = self.counter.count_all([text for _, text, _ in new.values()]) if new else []
        for (key, (media, _, frame)), tokens in zip(new.items(), counted, strict=True):
            self._cache.counts.put(f"{self._scope}:{key}", tokens + frame)
            found[key] = tokens + frame + media
        counts = {key: tokens or 0 for key, tokens in found.items()}
        self.counts.update(counts)
        return [counts[key] for key, _, _ in pieces]

    def _written(self, content: Content) -> tuple[str, int]:
        texts = []
        for part in content.parts:
            if part.kind == "call":
                texts.append(written_call(part.name, part.text, self.framing))
            elif part.kind == "response":
                texts.append(written_response(part.name, part.text, self.framing))
            else:
                texts.append(part.text)
        return "\n".join(filter(None, texts)), frame_of(content, self.framing)

    def _found(self, key: str, media: int = 0) -> int | None:
        if key in self._recorded:
            return self._recorded[key]
        known = self._cache.counts.get(f"{self._scope}:{key}")
        return None if known is None else known + media


def frame_of(content: Content, framing: Framing) -> int:
    """Tokens of a content that are neither text nor media: what its role, calls and responses are framed with."""
    frame = framing.message + framing.response * len(content.responses)
    for call in content.calls:
        frame += framing.call + (framing.argument * argument_count(call.text) if framing.argument else 0)
    return frame
