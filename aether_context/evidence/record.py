"""The record of a piece of evidence, and the address under which a model reads it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from aether_context.canonical import canonical_json, hash_text, short
from aether_context.pack import Candidate, describe
from aether_context.text.entities import SCHEME

Form: TypeAlias = Literal["verbatim", "whole", "extract", "described"]
"""What of a result stands in the prompt: itself, the same without envelope and white space, some of its lines, or only
what it is."""

READ, SEARCH = "read_artifact", "search_artifact"
READERS = frozenset({READ, SEARCH})
"""The tools by which a model reads what an address stands for."""
_DIGITS = 16
_ARGUMENTS_CHARACTERS = 80
"""Of a call's arguments in the summary of its result."""
_URI = re.compile(rf"{SCHEME}evidence/([0-9a-f]{{{_DIGITS}}})\.([a-z]{{2,4}})")
STORED = re.compile(rf"{SCHEME}(?:evidence/[0-9a-f]{{16}}\.[a-z]{{2,4}}|messages/[0-9a-f]{{16}}\.txt)")
"""The addresses that this package gives."""
HEAD = re.compile(
    rf"call \d{{1,9}}, (?:earlier|[\d-]{{10}} [\d:]{{5}}), "
    rf"(?:\S+ gave (?:{SCHEME}\S+ )?|\S+ called \S+ |[^:]{{1,80}}: )"
)
"""What an entry of a session's past begins with: when it was, who spoke, and the address of a stored result."""
_Size: TypeAlias = Annotated[int, Field(ge=0, le=1_000_000_000_000)]


class EvidenceRecord(BaseModel):
    """A piece of evidence: a tool's result, a file, or another text."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, json_schema_extra=describe, defer_build=True
    )

    uri: str
    """Its address within the session."""
    digest: str
    """The tagged hash of its bytes, by which the store keeps them."""
    size_bytes: _Size
    """The size of its bytes."""
    lines: _Size = 1
    """Lines, as they are read and searched."""
    tokens: _Size = 0
    """Tokens, estimated."""
    media_type: str = "text/plain"
    """Its media type."""
    source: str = ""
    """The tool that gave it, or where else it is from."""
    arguments: str = ""
    """The short hash of the call's arguments."""
    piece: _Size = 0
    """Which of the call's results it is: 0 is the text, 1 the first medium."""
    agent: str = ""
    """The agent that asked for it."""
    invocation: str = ""
    """The invocation in which it came."""
    time: float | None = None
    """The time of the event that asked for it, seconds since 1970 UTC."""
    form: Form = "verbatim"
    """What of it stands in the prompt."""
    query: str = ""
    """What the agent was after, by which the lines of an extract were chosen."""
    limit: _Size = 0
    """The most tokens of an extract when the tool's result came; 0 for what the app keeps by itself."""
    summary: str = ""
    """Lines of a tool's result that tell what is in it, for packs that do not send the result any more."""

    @property
    def call(self) -> str:
        """A key of the call that it answers: later results of equal calls replace earlier ones, piece by piece."""
        return f"{self.source}:{self.arguments}:{self.piece}"

    @property
    def candidate(self) -> Candidate:
        """A tool's result as a candidate for evidence: its call in the first line, then its summary."""
        call = f"{self.source} {self.query.rpartition(chr(10))[2][:_ARGUMENTS_CHARACTERS]}".strip()
        result = Candidate(
            id=f"result_{evidence_key(self.uri)}", layer="evidence", source=self.source, text=call, digest=""
        )
        result = replace(result, time=self.time, uri=self.uri, content_hash=self.digest)
        return with_summary(result, self.summary)

    @property
    def name(self) -> str:
        """A name for the record that no other one has."""
        return short(hash_text(self.to_json()), _DIGITS)

    def to_json(self) -> str:
        """Canonical JSON without fields that have their default."""
        return canonical_json(self.model_dump(mode="json", exclude_defaults=True))


def with_summary(result: Candidate, summary: str) -> Candidate:
    """A tool's result with another summary behind its call."""
    text = f"{result.text.partition(chr(10))[0]}\n{summary}"
    return replace(result, text=text, digest=hash_text(f"{result.uri}\n{text}"))


def evidence_uri(digest: str, ending: str) -> str:
    """The address of bytes by their hash; nothing of it is a model's or a tool's word."""
    return f"{SCHEME}evidence/{short(digest, _DIGITS)}.{ending}"


def message_uri(digest: str) -> str:
    """The address of what was taken out of a message that was too long, by the hash of the message."""
    return f"{SCHEME}messages/{short(digest, _DIGITS)}.txt"


def evidence_key(uri: str) -> str | None:
    """The digits by which an address names its evidence; None where it is not such an address."""
    match = _URI.fullmatch(uri.strip())
    return match.group(1) if match is not None else None


def superseded(records: list[EvidenceRecord]) -> dict[str, str]:
    """The addresses of results, given as they came, that a later one of an equal call differs from, with the address of
    the latest. What names no source is superseded by nothing."""
    named = [record for record in records if record.source]
    latest = {record.call: record for record in named}
    return {record.uri: latest[record.call].uri for record in named if record.digest != latest[record.call].digest}


def size_words(size_bytes: int) -> str:
    """A size for people and models: ``43 KB``."""
    if size_bytes < 1_000:
        return f"{size_bytes} bytes"
    if size_bytes < 1_000_000:
        return f"{round(size_bytes / 1_000)} KB"
    return f"{size_bytes / 1_000_000:.1f} MB"
