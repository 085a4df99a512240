"""Tokens of whole contents and declarations, cached by digest, with a record of all counts.

The counts are of what reaches the model: the texts as the provider writes them out, and what it adds around them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any, TypeVar

from aether_context.canonical import hash_text, short
from aether_context.pack import Accuracy, Content, Outgoing, Part, Tool
from aether_context.tokens.counters import SharedLRU, TokenCounter
from aether_context.tokens.framing import (
    Framing,
    argument_count,
    framing_of,
    written_call,
    written_declaration,
    written_response,
)

_Item = TypeVar("_Item")
_Value = TypeVar("_Value")


class DerivedColumns:
    """Values derived of each item of a sequence, kept so that a longer sequence derives only what is new.

    A conversation grows at its end, so nearly all of what a call needs of its contents an earlier call has read. What
    is kept changes nothing but the time: a sequence that nothing is known of is one whose every item is new. Threads
    may share it, since every column is immutable.
    """

    def __init__(self) -> None:
        self._columns: dict[Hashable, tuple[tuple[tuple[Any, ...], ...], tuple[Any, ...]]] = {}

    def extend(
        self, name: Hashable, derive: Callable[..., Iterable[_Value]], *sources: tuple[Any, ...]
    ) -> tuple[_Value, ...]:
        """A value for each item of the sources, which are of one length.

        Args:
            name: stands for all that the values depend on besides the items.
            derive: returns the values of items: those at the end that are new, or differ from the ones before.
        """
        known_sources, values = self._columns.get(name, (tuple(() for _ in sources), ()))
        shared = min(shared_length(known, source) for known, source in zip(known_sources, sources, strict=True))
        if shared < max(len(values), len(sources[0])):
            values = (*values[:shared], *derive(*(source[shared:] for source in sources)))
        self._columns[name] = sources, values
        return values


def shared_length(before: tuple[Any, ...], after: tuple[Any, ...]) -> int:
    """The number of items that two sequences have in common from the start."""
    length = min(len(before), len(after))
    if before is after or before[:length] == after[:length]:  # by identity first, so at once for what only grew
        return length
    return next(at for at in count() if before[at] is not after[at] and before[at] != after[at])


class TokenCache:
    """Counts and shortened contents by digest, and what was derived of conversations. Safe to share between threads.

    Args:
        shared: one whose counts and contents it shares, so that it holds only what is derived of conversations.
    """

    def __init__(self, shared: TokenCache | None = None) -> None:
        self.counts: SharedLRU[str, int] = shared.counts if shared else SharedLRU(10_000)
        self.contents: SharedLRU[str, Content] = shared.contents if shared else SharedLRU(500)
        self.columns: SharedLRU[Hashable, DerivedColumns] = SharedLRU(16)


class PackCounter:
    """Counts for one pack. ``counts`` holds every number by short digest, so that a replay needs no tokenizer.

    ``method`` is how accurate a whole content's count is: never ``exact``, since no provider documents all that it
    adds.

    Args:
        recorded: counts of an earlier build, which are used first.
        framing: what the model's provider adds; by default that of an unknown model.
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
        self._texts: dict[str | tuple[int, str], int] = {}
        self._prepared: dict[str, tuple[str, int]] = {}
        self._cache = cache or TokenCache()
        self._scope = f"{counter.name} {self.framing.name}"
        self._recorded = recorded or {}

    def columns(self, *conversation: Hashable) -> DerivedColumns:
        """The values that earlier packs of a conversation derived of its contents, with this counter."""
        if self._recorded:  # another build's counts are no cache's
            return DerivedColumns()
        return self._cache.columns.get_or_put((self._scope, conversation), lambda _: DerivedColumns())

    def column(self, columns: DerivedColumns, contents: tuple[Content, ...]) -> tuple[int, ...]:
        """Tokens of many contents as `contents` counts them, in a column."""
        tokens = columns.extend("tokens", self.contents, contents)
        keys = columns.extend("key", lambda new: [short(content.digest, 16) for content in new], contents)
        self.counts.update(zip(keys, tokens, strict=True))
        return tokens

    def count(self, text: str) -> int:
        """Tokens of a text; 0 for none."""
        if not text:
            return 0
        if text not in self._texts:
            self.prepare((text,))
            key, tokens = self._prepared[text]
            self.counts[key] = self._texts[text] = tokens
        return self._texts[text]

    def count_all(self, texts: Sequence[str]) -> list[int]:
        """Tokens of many texts, counted in one pass."""
        return self._count_items([(short(hash_text(text), 16), 0, text) for text in texts], lambda text: (text, 0))

    def prepare(self, texts: Sequence[str]) -> None:
        """Counts texts in one pass that are likely to be asked for; none is a count of this pack until it is."""
        items = [(short(hash_text(text), 16), 0, text) for text in texts if text not in self._prepared]
        counts = self._counts_of(items, lambda text: (text, 0)) if items else {}
        self._prepared.update((text, (key, counts[key])) for key, _, text in items)

    def content(self, content: Content) -> int:
        """Tokens of a content, framing included; its parts are counted as one text."""
        return self.counts.get(short(content.digest, 16)) or self.contents((content,))[0]

    def contents(self, contents: Sequence[Content]) -> list[int]:
        """Tokens of many contents; unknown ones are counted in one pass."""
        media = (sum(part.media_tokens for part in content.parts) for content in contents)
        items = [(short(content.digest, 16), tokens, content) for content, tokens in zip(contents, media, strict=True)]
        return self._count_items(items, self._written_content)

    def frames(self, items: Sequence[Outgoing]) -> list[int]:
        """Tokens of the framing of many contents, which `contents` includes."""
        return [frame_of(item.content, self.framing) for item in items]

    def tools(self, tools: Sequence[Tool]) -> list[int]:
        """Tokens of declarations as the provider writes them out, counted in one pass."""
        framing = self.framing
        items = [(short(tool.digest, 16), 0, tool) for tool in tools]
        return self._count_items(items, lambda tool: (written_declaration(tool.wire, framing), framing.tool))

    def system(self, text: str, *, declares: bool) -> int:
        """Tokens of a system instruction, with those that the provider adds once to a request.

        Args:
            declares: whether any tool is declared.
        """
        framing = self.framing
        frame = framing.request + (framing.system if text else 0) + (framing.tools if declares else 0)
        if (frame, text) not in self._texts:
            key = short(hash_text(f"system+{frame}\n{text}"), 16)
            self._texts[frame, text] = self._count_items([(key, 0, text)], lambda text: (text, frame))[0]
        return self._texts[frame, text]

    def head(self, system: str, tools: Sequence[Tool], other_tools: Sequence[str]) -> tuple[int, int]:
        """Tokens of what stands before the contents of a request: of the system instruction as by `system`, and of all
        declarations."""
        declarations = sum(self.tools(tools)) + sum(self.count_all(other_tools))
        return self.system(system, declares=bool(tools or other_tools)), declarations

    def media(self, part: Part) -> int:
        """Tokens of a part's media. A recorded part no longer has its media, so an earlier build's count is used."""
        key = short(hash_text(f"media\n{part.wire}"), 16)
        tokens = self._recorded.get(key, part.media_tokens)
        if tokens:
            self.counts[key] = tokens
        return tokens

    def remembered(self, key: str) -> Content | None:
        """The content that `remember` stored under a key for this counter, None where there is none."""
        return self._cache.contents.get(f"{self._scope}:{key}")

    def remember(self, key: str, content: Content) -> None:
        self._cache.contents.put(f"{self._scope}:{key}", content)

    def _count_items(
        self, items: Sequence[tuple[str, int, _Item]], write: Callable[[_Item], tuple[str, int]]
    ) -> list[int]:
        """Tokens of items, which are counts of this pack from then on; see `_counts_of`."""
        counts = self._counts_of(items, write)
        self.counts.update(counts)
        return [counts[key] for key, _, _ in items]

    def _counts_of(
        self, items: Sequence[tuple[str, int, _Item]], write: Callable[[_Item], tuple[str, int]]
    ) -> dict[str, int]:
        """Tokens of items by their keys; unknown ones are written out and counted in one pass.

        Args:
            items: key, tokens of media, and the item. Media are not cached: models of one family differ in them.
            write: returns the text of an item that is counted, and the tokens of its framing.
        """
        known_counts = {key: self.counts.get(key) or self._recorded.get(key) for key, _, _ in items}
        for key, media, _ in items:
            if known_counts[key] is None and (cached := self._cache.counts.get(f"{self._scope}:{key}")) is not None:
                known_counts[key] = cached + media
        missing = {key: (media, *write(item)) for key, media, item in items if known_counts[key] is None}
        counted = self.counter.count_all([text for _, text, _ in missing.values()]) if missing else []
        for (key, (media, _, frame)), tokens in zip(missing.items(), counted, strict=True):
            self._cache.counts.put(f"{self._scope}:{key}", tokens + frame)
            known_counts[key] = tokens + frame + media
        return {key: tokens or 0 for key, tokens in known_counts.items()}

    def _written_content(self, content: Content) -> tuple[str, int]:
        texts = []
        for part in content.parts:
            if part.kind == "call":
                texts.append(written_call(part.name, part.text, self.framing))
            elif part.kind == "response":
                texts.append(written_response(part.name, part.text, self.framing))
            else:
                texts.append(part.text)
        return "\n".join(filter(None, texts)), frame_of(content, self.framing)


def frame_of(content: Content, framing: Framing) -> int:
    """Tokens of a content's framing: those that its role, calls and responses take besides text and media."""
    frame = framing.message + framing.response * len(content.responses)
    for call in content.calls:
        frame += framing.call + (framing.argument * argument_count(call.text) if framing.argument else 0)
    return frame
