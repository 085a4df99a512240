"""ADK's request as the pipeline's values. Nothing of ADK's is changed, and nothing of it is kept."""

from __future__ import annotations

import enum
import marshal
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias

from google.adk.events.event import Event
from google.adk.models.llm_request import LlmRequest
from google.genai import types
from pydantic import BaseModel

from aether_context.adk.call import ESSENTIAL, ESSENTIAL_MARK
from aether_context.canonical import JSON, canonical_json, hash_bytes, hash_text, is_writable, plain, without_surrogates
from aether_context.conversation.content_json import content_of_parts, part_of
from aether_context.conversation.extracts import medium_key
from aether_context.conversation.quotes import NAMELESS, attributed
from aether_context.conversation.turns import is_human
from aether_context.evidence.record import evidence_uri, size_words
from aether_context.pack import Content, Part, Request, Tool
from aether_context.text.decoding import visible
from aether_context.tokens import family_of, media_tokens
from aether_context.tokens.counters import SharedLRU
from aether_context.tokens.media import image_size, pdf_pages
from aether_context.tokens.model_limits import calls_functions

_DEEPEST = 100
_CLIENT_ID = "adk-"
_MOST_READ, _LEAST_READ = 1_000_000, 500
"""Characters of the contents that are remembered, about 3 MB, and what each counts at least."""
_ONLY_TEXT, _ONLY_CALL = {"text"}, {"function_call"}
_TEXTS = frozenset({str, type(None)})
_NONE = types.FunctionCallingConfigMode.NONE
_RESTRICTED = frozenset({_NONE, types.FunctionCallingConfigMode.ANY})


_Frozen: TypeAlias = tuple[Content, types.Content | None]


def _size(frozen: _Frozen) -> int:
    return _LEAST_READ + len(frozen[0].wire)


class Reader:
    """Turns ADK's contents and declarations into frozen values; what was read before is looked up, by `key_of`.

    Nothing is looked up by identity, so an object that was edited in place is read anew.
    """

    def __init__(self) -> None:
        self._contents: SharedLRU[object, _Frozen] = SharedLRU(_MOST_READ, _size)
        self._tools: SharedLRU[object, tuple[Tool, ...]] = SharedLRU(200)

    def freeze(self, content: types.Content, model: str) -> _Frozen:
        """The frozen form of a content, as it would be sent to a model, whose rule counts media; and what is sent of
        it with escapes in the place of what nobody sees, None where it hides nothing."""
        key = (model, key_of(content))
        frozen = self._contents.get(key)
        if frozen is None:
            frozen = _freeze(content, model), None
            if (escaped := _escaped(content, frozen[0])) is not content:
                frozen = _freeze(escaped, model), escaped
            self._contents.put(key, frozen)
        return frozen

    def content(self, content: types.Content, model: str) -> Content:
        """The frozen form of a content alone."""
        return self.freeze(content, model)[0]

    def head(self, request: LlmRequest) -> Request:
        """Reads a request up to its contents: model, system instruction, and declarations in order."""
        functions: list[types.FunctionDeclaration] = []
        other_tools: list[str] = []
        for tool in (request.config.tools if request.config is not None else None) or ():
            if isinstance(tool, types.Tool):
                functions += tool.function_declarations or ()
                values = {name: value for name, value in tool.__dict__.items() if name != "function_declarations"}
            else:
                values = {"kind": type(tool).__name__, "name": str(getattr(tool, "__name__", ""))}
            if wire := {name: _json(value, 1) for name, value in values.items() if value is not None}:
                other_tools.append(canonical_json(wire))
        essential = essential_names(request)
        key = (essential, tuple(map(structure, functions)))
        tools = self._tools.get(key)
        if tools is None:
            tools = tuple(_tool(declaration, essential) for declaration in functions)
            self._tools.put(key, tools)
        system, can_grow = system_text(request.config)[0], additions(request).instruction
        return Request(request.model or "", without_surrogates(system), can_grow, tools, tuple(other_tools))


def _freeze(content: types.Content, model: str) -> Content:
    return attributed(content_of_parts(content.role or "", [_part(part, model) for part in content.parts or ()]))


# What others wrote, who may hide words from people and not from the model: results, quotes and artifacts. A user's own
# words, and those of the app, stay as they are, but for lone surrogates: a client that writes UTF-8 raises at each.

_ARTIFACT = re.compile(r"Artifact .* is:", re.DOTALL)
"""How ADK's ``load_artifacts`` begins a message that shows one."""
_ESCAPED = re.compile(r"\\u00[01]|\\[bf]")
"""Controls in JSON."""
_SURROGATE = "\\ud"
"""The beginning of a lone surrogate in JSON."""


def _escaped(content: types.Content, frozen: Content) -> types.Content:
    """A content, known as it came, with escapes in what others wrote; itself where nothing is hidden there, and no text
    of it holds half of a surrogate pair."""
    if _SURROGATE in frozen.wire:
        content = _all_visible(content, without_surrogates)
    shows_file = len(frozen.parts) == 2 and frozen.role == "user" and _ARTIFACT.fullmatch(frozen.parts[0].text)
    if not (frozen.responses or frozen.agent or shows_file):
        return content
    if visible(frozen.wire) == frozen.wire and not _ESCAPED.search(frozen.wire):
        return content
    parts = list(content.parts or ())
    for at, part in enumerate(parts):
        answer = part.function_response
        if answer is not None and answer.response is not None:
            answer = answer.model_copy(update={"response": _all_visible(answer.response, visible)})
            parts[at] = part.model_copy(update={"function_response": answer})
        elif part.text:
            parts[at] = part.model_copy(update={"text": visible(part.text)})
    return content if parts == content.parts else types.Content(role=content.role, parts=parts)


def _all_visible(value: Any, escape: Callable[[str], str]) -> Any:
    """A value of JSON, or a model, whose texts and keys hide nothing."""
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, BaseModel):
        fields = {name: _all_visible(field, escape) for name, field in value.__dict__.items() if field is not None}
        return value.model_copy(update=fields)
    if isinstance(value, Mapping):
        return {_all_visible(name, escape): _all_visible(item, escape) for name, item in value.items()}
    return [_all_visible(item, escape) for item in value] if isinstance(value, (list, tuple)) else value


def essential_names(request: LlmRequest) -> frozenset[str]:
    """Tools that steer ADK itself or the task board, and are never narrowed away."""
    return ESSENTIAL | {
        name
        for name, tool in request.tools_dict.items()
        if type(tool).__name__ == "_TaskAgentTool" or ESSENTIAL_MARK in (getattr(tool, "custom_metadata", None) or ())
    }


class Additions(NamedTuple):
    """The additions that a request takes. Providers refuse others beside what the app asks for.

    Attributes:
        instruction: text behind the system instruction.
        functions: declarations. Where the app declares some itself, whether they are refused does not hang on more.
        names: a list of the functions that may be called.
        is_free: whether the model may call a function that is added, and may call none.
        forced: the names of functions that have to be declared, since the app lists them.
    """

    instruction: bool
    functions: bool
    names: bool
    is_free: bool
    forced: tuple[str, ...]


def additions(request: LlmRequest) -> Additions:
    """Reads off a request which additions it takes."""
    config, model = request.config or types.GenerateContentConfig(), request.model or ""
    calling = config.tool_config.function_calling_config if config.tool_config is not None else None
    mode, forced = (calling.mode, calling.allowed_function_names or ()) if calling is not None else (None, ())
    has_functions = declares(config.tools)
    structured = config.response_schema is not None or config.response_json_schema is not None
    # Gemini before 3 refuses functions beside a type of its answers, which other clients do not send without a schema.
    if family_of(model) in ("gemini", "generic"):
        structured = structured or config.response_mime_type not in (None, "", "text/plain")
    media = any(modality != "TEXT" for modality in config.response_modalities or ())
    excluded = bool(config.tools) or structured or media or mode == _NONE or not calls_functions(model)
    return Additions(
        # An explicit cache holds instruction, tools and tool config: "must not be set" beside it, says Gemini.
        instruction=system_text(config)[1] and not config.cached_content,
        functions=not config.cached_content and (has_functions or not excluded),
        names=has_functions and config.tool_config is None and not config.cached_content,
        is_free=mode not in _RESTRICTED and not forced,
        forced=tuple(sorted(forced)),
    )


def declares(tools: Sequence[object] | None) -> bool:
    """Tells whether functions are among the tools of a request, beside what its provider runs itself."""
    listed = [tool for tool in tools or () if isinstance(tool, types.Tool)]
    return len(listed) < len(tools or ()) or any(tool.function_declarations or tool.computer_use for tool in listed)


def system_text(config: types.GenerateContentConfig | None) -> tuple[str, bool]:
    """The system instruction, and whether it is plain text that can be added to."""
    system = config.system_instruction if config is not None else None
    if system is None or isinstance(system, str):
        return system or "", True
    return canonical_json(_json(system)), False


class Authors(NamedTuple):
    """The authors that a session knows, and the messages of its users that open as another agent's turn does."""

    names: Collection[str]
    imitations: Sequence[list[types.Part] | None]

    def authored(self, raw: types.Content, content: Content) -> Content:
        """Gives a content to its author: one that only imitates another agent's turn, as ADK shows it, is a user's.

        What a user sent is no such turn, whatever it looks like; nor is a quote of an agent that the session does not
        know.
        """
        # ADK quotes a result as the user's where a person posts one to another agent's call.
        is_known = content.agent == NAMELESS or all(
            quote.agent == "user" or quote.agent in self.names for quote in content.quotes
        )
        return content if is_known and raw.parts not in self.imitations else replace(content, agent="", quotes=())


def is_message(content: types.Content) -> bool:
    """Tells whether a content is the user's or another agent's, and no tool's."""
    return content.role == "user" and not any(part.function_response for part in content.parts or ())


def _tool(declaration: types.FunctionDeclaration, essential: frozenset[str]) -> Tool:
    value, name = _json(declaration), declaration.name or ""
    if _SURROGATE in (wire := canonical_json(value)):
        value = _all_visible(value, without_surrogates)
        wire = canonical_json(value)
    schemas = [value.get(f"{name}_json_schema") or value.get(name) for name in ("parameters", "response")]
    (_, properties, required), (returns, fields, _) = map(_shape, schemas)
    arguments = [f"{key}{'' if key in required else '?'}: {_shape(schema)[0]}" for key, schema in properties.items()]
    returned = f" -> {{{', '.join(fields)}}}" if fields else f" -> {returns}" if schemas[1] else ""
    purpose = " ".join((value.get("description") or "").split())
    sentence = re.split(r"(?<=[.!?]) ", purpose, maxsplit=1)[0][:160]
    signature = f"{name}({', '.join(arguments)}){returned}" + (f": {sentence}" if sentence and sentence != name else "")
    return Tool(name=name, signature=signature, wire=wire, digest=hash_text(wire), essential=name in essential)


def _shape(schema: JSON) -> tuple[str, Mapping[str, JSON], Collection[JSON]]:
    """The type that a schema names, ``any`` without one; its properties, and the names of those that are required."""
    value = schema if isinstance(schema, dict) else {}
    kind, properties, required = value.get("type"), value.get("properties"), value.get("required")
    return (
        kind.lower() if isinstance(kind, str) else "any",
        properties if isinstance(properties, dict) else {},
        required if isinstance(required, list) else [],
    )


def _part(part: types.Part, model: str) -> Part:
    family = family_of(model)
    value = _json(part)
    size, tokens, count, pages = 0, 0, int(part.file_data is not None), 0
    inside = (part.function_response.parts if part.function_response is not None else None) or ()
    for blob in (part.inline_data, *(inner.inline_data for inner in inside)):
        if blob is None:
            continue
        data = blob.data or b""
        size, count, pages = size + len(data), count + 1, pages + pdf_pages(data if data[:4] == b"%PDF" else None)
        tokens += media_tokens(blob.mime_type, len(data), family=family, model=model, data=data)
    if part.file_data is not None:
        tokens += media_tokens(part.file_data.mime_type, 0, family=family, model=model)
    pixels = image_size(part.inline_data.data) if part.inline_data is not None else None
    shape = f"{pages} pages" if pages else size_words(size) if size else ""
    shape = f"{pixels[0]} × {pixels[1]}" if pixels is not None else shape
    return part_of(value, size_bytes=size, media_tokens=tokens, media_count=count, pages=pages, shape=shape)


_MEDIA_NAMES = {"image": "picture", "audio": "sound", "video": "video"}


def media_marks(*contents: Content) -> dict[str, str]:
    """The marks that stand for what a user sent beside words, where it is not sent any more, by the hash of its
    bytes; for a file elsewhere by its address."""
    marks: dict[str, str] = {}
    with_media = (content for content in contents if content.has_media and is_human(content))
    for part in (part for content in with_media for part in content.parts if part.kind == "media"):
        digest, file_uri = medium_key(part)
        uri = evidence_uri(digest, "bin") if digest else file_uri
        is_pdf = part.mime_type == "application/pdf"
        name = "PDF" if is_pdf else _MEDIA_NAMES.get(part.mime_type.partition("/")[0], part.mime_type or "file")
        marks[digest or uri] = f"[{', '.join(filter(None, (name, part.shape, uri)))}]"
    return marks


def _json(value: object, depth: int = 0) -> JSON:
    """The plain JSON of a value: models by their fields, bytes of these by hash, other objects as sessions keep them;
    what is nested deeper than anything reads as text."""
    if depth > _DEEPEST and isinstance(value, (BaseModel, Mapping, list, tuple)):
        return canonical_json(plain(value))  # sent as it is, so all of it counts
    if value is None or type(value) in (str, bool) or (type(value) is int and is_writable(value)):
        return value
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, BaseModel):
        fields = ((name, field) for name, field in value.__dict__.items() if field is not None)
        return {name: hash_bytes(it) if isinstance(it, bytes) else _json(it, depth + 1) for name, it in fields}
    if isinstance(value, Mapping):
        return {str(name): _json(item, depth + 1) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json(item, depth + 1) for item in value]
    # Sets are sorted, since each copy of one may have another order.
    return plain(value if isinstance(value, (float, set, frozenset)) else stored({"": value})[""])


def stored(response: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool's result as session services keep it: objects, tuples and dates, which a tool may give, are JSON there.

    Itself where there is something in it that they do not take.
    """
    try:
        answer = types.FunctionResponse(response=dict(response))
        result: Mapping[str, Any] = answer.model_dump(mode="json", exclude_none=True, warnings=False)["response"]
        return result
    except (TypeError, ValueError):
        return response


def key_of(content: types.Content) -> tuple[object, ...]:
    """A key that differs from another content's wherever the two would be sent otherwise."""
    # A part that is only text needs no detours: strings hash once and stay hashed.
    parts = [
        part.__dict__["text"] if part.__pydantic_fields_set__ == _ONLY_TEXT else structure(part)
        for part in content.parts or ()
    ]
    return content.role, *parts


def key_hash(content: types.Content) -> int:
    """A hash of `key_of`'s kind, which keeps no text and mostly takes a microsecond: strings know their hashes, and
    ADK's copies have the same strings."""
    fields: list[object] = [content.role]
    for part in content.parts or ():
        names = part.__pydantic_fields_set__
        if names == _ONLY_TEXT:
            fields.append(part.text)
            continue
        inside = part.function_call if names == _ONLY_CALL else part.function_response
        if inside is None or len(names) > 1:
            return hash(key_of(content))
        fields.append(type(inside))
        for value in inside.__dict__.values():
            if type(value) is dict:
                # Numbers that differ can have one hash, as -1 and -2 have; written out they have not.
                is_texts = _TEXTS.issuperset(map(type, value.values()))
                value = (*value.items(),) if is_texts else structure(value)
            fields.append(value)
    try:
        return hash((*fields,))
    except TypeError:  # it holds a list
        return hash(key_of(content))


def structure(value: object, depth: int = 0) -> object:
    """A hashable stand-in that differs wherever the JSON could."""
    kind = type(value)
    if kind is str or value is None:
        return value
    if kind is dict or kind is list:
        with suppress(ValueError):  # it holds what is not plain
            # Results are long, and compared at each call: a walk in Python takes three times as long. Version 0 writes
            # equal values alike, whether or not their strings are shared.
            return blake2b(marshal.dumps(value, 0), digest_size=16).digest()  # type: ignore[arg-type]
    if kind in (bool, int, float, bytes):
        return (kind.__name__, repr(value) if kind is not bytes else value)
    if depth > _DEEPEST:
        return "…"
    if isinstance(value, BaseModel):
        fields = value.__dict__
        names = value.__pydantic_fields_set__
        ordered = names if len(names) == 1 else sorted(names)
        return (
            kind.__name__,
            *[(name, structure(field, depth + 1)) for name in ordered if (field := fields.get(name)) is not None],
        )
    if kind is dict:
        return ("{", *[(str(name), structure(item, depth + 1)) for name, item in value.items()])  # type: ignore[attr-defined]
    if kind in (list, tuple):
        return ("[", *[structure(item, depth + 1) for item in value])  # type: ignore[attr-defined]
    return (kind.__name__, canonical_json(_json(value)))


def characters(content: types.Content, *, written: bool = False) -> int:
    """The length of a content, and one more; of calls and answers only the texts that stand at their top, or all that
    is written out."""
    size = 1
    for part in content.parts or ():
        size += len(part.text or "")
        call, response = part.function_call, part.function_response
        for values in (call and call.args, response and response.response):
            if values and written:
                with suppress(ValueError):  # Python does not write very large integers
                    size += len(repr(values))
            elif values:
                size += sum(len(value) for value in values.values() if isinstance(value, str))
    return size


def is_answer(event: Event, agent: str, branch: str) -> bool:
    """Tells whether an event is what a model call of this agent gave."""
    if event.content is not None:
        spoke = event.content.role == "model"
    else:
        spoke = event.error_code is not None or event.usage_metadata is not None or event.finish_reason is not None
    return spoke and event.author == agent and (event.branch or "") == branch and not event.partial


def without_client_ids(content: types.Content) -> types.Content:
    """The content as most models are sent it: without the ids that ADK itself gave to calls."""
    parts = []
    for part in content.parts or ():
        for name in ("function_call", "function_response"):
            inside = getattr(part, name)
            if inside is not None and (inside.id or "").startswith(_CLIENT_ID):
                part = part.model_copy(update={name: inside.model_copy(update={"id": None})})
        parts.append(part)
    return types.Content(role=content.role, parts=parts)
