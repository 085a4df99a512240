"""Tokens of whole contents and declarations, cached by digest, with an account of what was counted.

Framing is counted as 4 tokens a message and 6 a call or response, the middle of what providers are seen to add
(OpenAI's chat format adds 3 a message; Anthropic's and Google's are not published).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from threading import Lock

from aether_context.canonical import hash_text, short
from aether_context.pack import Accuracy, Content, Part, Tool
from aether_context.tokens import TokenCounter

PER_MESSAGE = 4
PER_CALL = 6


class Memo:
    """Counts and shortened contents by digest, the oldest forgotten first. Safe to share between threads."""

    def __init__(self, counts: int = 50_000, contents: int = 500) -> None:
        self._counts: OrderedDict[str, int] = OrderedDict()
        self._contents: OrderedDict[str, Content] = OrderedDict()
        self._most_counts, self._most_contents = counts, contents
        self._lock = Lock()

    def tokens(self, key: str) -> int | None:
        return self._counts.get(key)

    def content(self, key: str) -> Content | None:
        return self._contents.get(key)

    def put_tokens(self, key: str, tokens: int) -> None:
        with self._lock:
            self._counts[key] = tokens
            if len(self._counts) > self._most_counts:
                self._counts.popitem(last=False)

    def put_content(self, key: str, content: Content) -> None:
        with self._lock:
            self._contents[key] = content
            if len(self._contents) > self._most_contents:
                self._contents.popitem(last=False)


class Tally:
    """Counts for one pack. ``counts`` holds every number by short digest, so that a replay needs no tokenizer.

    Args:
        recorded: counts of an earlier build, used before the counter is asked.
    """

    def __init__(
        self, counter: TokenCounter, memo: Memo | None = None, recorded: Mapping[str, int] | None = None
    ) -> None:
        self.counter = counter
        self.method: Accuracy = counter.accuracy
        self.counts: dict[str, int] = {}
        self._memo = memo or Memo()
        self._recorded = recorded or {}

    def count(self, text: str) -> int:
        """Tokens of a text; 0 for none."""
        return self._count(hash_text(text), text) if text else 0

    def content(self, content: Content) -> int:
        """Tokens of a content, framing included; its parts are counted as one text."""
        key = short(content.digest, 16)
        found = self._known(key)
        if found is None:
            said = "\n".join(map(_said, content.parts))
            media = sum(part.media_tokens for part in content.parts)
            found = framing(content) + media + (self.counter.count(said) if said else 0)
            self._remember(key, found)
        self.counts[key] = found
        return found

    def tool(self, tool: Tool) -> int:
        return self._count(tool.digest, tool.wire) + PER_CALL

    def remembered(self, key: str) -> Content | None:
        """A content that was made from this key before, with this counter."""
        return self._memo.content(f"{self.counter.name}:{key}")

    def remember(self, key: str, content: Content) -> None:
        self._memo.put_content(f"{self.counter.name}:{key}", content)

    def _count(self, digest: str, text: str) -> int:
        key = short(digest, 16)
        found = self._known(key)
        if found is None:
            found = self.counter.count(text)
            self._remember(key, found)
        self.counts[key] = found
        return found

    def _known(self, key: str) -> int | None:
        if key in self._recorded:
            return self._recorded[key]
        return self._memo.tokens(f"{self.counter.name}:{key}")

    def _remember(self, key: str, tokens: int) -> None:
        self._memo.put_tokens(f"{self.counter.name}:{key}", tokens)


def framing(content: Content) -> int:
    """Tokens of a content that are neither text nor media: what its role, calls and responses are framed with."""
    return PER_MESSAGE + PER_CALL * sum(bool(part.name) for part in content.parts)


def _said(part: Part) -> str:
    """What a part is counted by: its text, after the tool's name where there is one."""
    return f"{part.name} {part.text}" if part.name else part.text
