"""A tool's result in two pieces: the text that goes to the store, and what the model reads in its place."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from aether_context.canonical import JSON, Path, canonical_json, hash_bytes, replaced, strings
from aether_context.evidence.record import READ, SEARCH, EvidenceRecord, Form, evidence_uri, size_words
from aether_context.evidence.show import MEDIA_TYPES, UNSHORTENED, data_type, extractor_of, kind_of, show
from aether_context.policy import OffloadSettings
from aether_context.text.decoding import said_once
from aether_context.text.entities import HISTORY
from aether_context.text.shorten import Excerpt, lines_view, tokens_of
from aether_context.tokens import TokenCounter

ARTIFACT_KEY = "artifact"
"""The key of a response under which the address of the whole stands."""
CITE_KEY = "cite_as"
"""The key of a response that is whole, under which the address stands by which it can be cited."""
_SUPERSEDES_KEY = "supersedes"
"""The key of a response under which the address of an earlier answer to the same call stands."""
_NAMES_KEY = "also_mentions"
"""The key of a response under which identifiers of the lines left out stand."""
_PAST_KEY, _PAST = "more_results", f"{HISTORY} finds lines of earlier turns and results"
"""The key of an agent's first extract under which the address of its session's past stands, in words."""
_DOMINANT = 0.8
_LEAST_SAVING = 0.25
"""Share of a result's tokens that its extract and address have to save; else the result stays as it is."""
_ERROR_KEYS = ("error", "errors", "error_message", "isError", "is_error")
_ERROR_STATES = frozenset({"error", "failed", "failure"})
_ERROR_STARTS = ("Traceback (most recent call last)", "Error:", "error:", "ERROR:", "Error executing tool")
_ERROR_FACTOR = 8


class StoredResult(NamedTuple):
    """A result as it is stored and as it is sent.

    ``data`` is what the store keeps: the one text that makes up most of the response, else the response as JSON;
    ``record`` says what is known of it, but for the call that it answers. ``response``, which has ``shown_tokens``, is
    read in the place of the result; it names the record's address where something is missing in it.
    """

    response: Mapping[str, JSON]
    data: bytes
    record: EvidenceRecord
    shown_tokens: int


def offload(
    response: Mapping[str, JSON], tool: str, settings: OffloadSettings, *, counter: TokenCounter, query: str = ""
) -> StoredResult:
    """Decides what a model reads of a response; the record's ``form`` says what that is.

    Equal arguments give equal results. An error stays as it is up to eight times the threshold.

    Args:
        response: JSON values only.
        tool: its name, for the policy's rule.
        query: what the agent is after.

    Raises:
        PolicyError: the policy names an extractor that is not registered.
    """
    rule = settings.tools.get(tool, "threshold")
    once = said_once(response)
    path, text = _dominant(once)
    tokens = tokens_of(text, counter)
    data = text.encode("utf-8", "surrogatepass")
    digest = hash_bytes(data)
    record = EvidenceRecord(
        uri=evidence_uri(digest, "txt"), digest=digest, size_bytes=len(data), lines=text.count("\n") + 1, tokens=tokens
    )
    whole_result = StoredResult(response, data, record, tokens)
    if rule in UNSHORTENED or tokens <= (0 if rule == "always" else settings.threshold_tokens):
        return whole_result
    if tokens <= _ERROR_FACTOR * settings.threshold_tokens and is_error(response):
        return whole_result
    if (extractor := extractor_of(rule)) is None:
        excerpt, kind = show(
            text,
            extract_tokens=settings.extract_tokens,
            whole_tokens=0 if rule == "always" else settings.threshold_tokens,
            data_tokens=0 if rule == "always" else settings.data_tokens,
            counter=counter,
            query=query,
        )
    else:
        extract_text = extractor(text, max_tokens=settings.extract_tokens, counter=counter, query=query)
        view = lines_view(text)
        excerpt = Excerpt(text=extract_text, kept=0, total=len(view.lines))
        kind = "json" if view.outline else kind_of(view.whole or text)
    media_type, ending = MEDIA_TYPES[kind]
    if kind == "data":
        media_type = data_type(text[:200])
    uri = evidence_uri(digest, ending)
    record = record.model_copy(update={"uri": uri, "media_type": media_type, "lines": excerpt.total})
    value: JSON = excerpt.text
    if path:
        value = replaced(once, path, excerpt.text)
    else:
        with suppress(ValueError):
            value = json.loads(excerpt.text)
    new_response = dict(value) if isinstance(value, dict) else {"result": value}
    if excerpt.ends_early:
        new_response[free_key(new_response, "note")] = "the tool's output ends in the middle"
    if not excerpt.is_whole:
        size = size_words(len(data))
        records = f"{excerpt.records} records in " if excerpt.records else ""
        lines = f" has all {records}{excerpt.total} lines ({size}): use {READ} or {SEARCH}"
        new_response[free_key(new_response, ARTIFACT_KEY)] = uri + (f" ({size})" if kind == "data" else lines)
        if excerpt.names:
            new_response[free_key(new_response, _NAMES_KEY)] = excerpt.names
    used = tokens_of(canonical_json(new_response), counter)
    if used > (1 - _LEAST_SAVING) * tokens:
        return whole_result._replace(record=record)
    form: Form = "whole" if excerpt.is_whole else "described" if kind == "data" else "extract"
    return StoredResult(new_response, data, record.model_copy(update={"form": form}), used)


def stored_bytes(response: Mapping[str, JSON]) -> bytes:
    """The bytes that the store keeps of a response, see `StoredResult.data`; JSON values only."""
    return _dominant(said_once(response))[1].encode("utf-8", "surrogatepass")


def is_error(response: Mapping[str, JSON]) -> bool:
    """Tells whether a response says that the tool failed."""
    if any(response.get(key) for key in _ERROR_KEYS):
        return True
    state = response.get("status")
    if isinstance(state, str) and state.lower() in _ERROR_STATES:
        return True
    text = response.get("result")
    return isinstance(text, str) and (
        text.lstrip()[:60].startswith(_ERROR_STARTS) or text.rstrip().endswith("isError=True")
    )


def _dominant(response: Mapping[str, JSON]) -> tuple[Path, str]:
    """The text that makes up most of a response, with the path to it; else all of it as JSON, and no path."""
    if response.keys() == {"result"} and isinstance(response["result"], str):
        return ("result",), response["result"]
    leaf = max(strings(response), key=lambda leaf_text: (len(leaf_text[1]), str(leaf_text[0])), default=None)
    if leaf is not None:
        path, text = leaf
        besides = len(canonical_json(replaced(response, path, "")))
        if len(text) >= _DOMINANT * (len(text) + besides):
            return leaf
    return (), canonical_json(response)


def superseding(response: Mapping[str, JSON], earlier: str) -> dict[str, JSON]:
    """A response that names the address of an earlier one, which differs; itself where there is none.

    The later one tells, since what was sent cannot change without breaking the provider's cache.
    """
    return {**response, free_key(response, _SUPERSEDES_KEY): earlier} if earlier else dict(response)


def naming_past(response: Mapping[str, JSON]) -> dict[str, JSON]:
    """A response that names the address under which earlier turns and results are found."""
    return {**response, free_key(response, _PAST_KEY): _PAST}


def free_key(response: Mapping[str, JSON], key: str) -> str:
    """A key, with underlines behind it where a response has it already."""
    while key in response:
        key += "_"
    return key
