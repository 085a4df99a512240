"""Servers on 127.0.0.1 in the shapes of four providers. Each records and judges every request that it gets, answers
from a script, and says what its cache would have served by the provider's own rule."""

from __future__ import annotations

import base64
import itertools
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, NamedTuple

from wire.rules import (
    CLAUDE,
    GEMINI,
    OLLAMA,
    OPENAI,
    Body,
    Issued,
    Rule,
    claude_befores,
    claude_prefix,
    gemini_signed,
    same,
    violations,
)

MEDIUM_TOKENS = 258
"""What an image or a page counts here, as Gemini has it."""
_MEDIA = ("data", "file_data", "image_url", "images", "signature", "thoughtSignature")


class Reply(NamedTuple):
    """What a model answers: a signed thought, a text, code with its output, calls as pairs of name and arguments.
    ``redacted`` has Claude hide the thought's words, and ``interleaved`` is a second thought between text and calls."""

    text: str = ""
    calls: Sequence[tuple[str, Mapping[str, Any]]] = ()
    thought: str = ""
    code: tuple[str, str] | None = None
    redacted: bool = False
    interleaved: str = ""


class Refusal(NamedTuple):
    """An error in an answer's place."""

    status: int
    message: str


class Usage(NamedTuple):
    """Input tokens of one request; those that the cache served, and those that it wrote at a price of their own."""

    input: int
    cached: int
    written: int = 0


class Recorded(NamedTuple):
    """A request: its body, what is wrong with it, and its tokens; ``refused`` where it got no answer."""

    body: Body
    faults: list[str]
    usage: Usage
    refused: bool


def tokens_of(value: Any) -> int:
    """Characters / 4 of all texts and names, and a fixed number for each medium: a counter that is nobody's."""
    characters, media = _sizes(value)
    return characters // 4 + media * MEDIUM_TOKENS


def _sizes(value: Any) -> tuple[int, int]:
    if isinstance(value, str):
        return len(value), 0
    if isinstance(value, Mapping):
        characters = media = 0
        for name, item in value.items():
            if name == "cache_control":
                continue
            if (name in _MEDIA and isinstance(item, (str, list))) or (name == "image_url" and item):
                # LiteLLM sends Ollama an empty list with every message.
                media += len(item) if isinstance(item, list) else name not in ("signature", "thoughtSignature")
                continue
            more = _sizes(item)
            characters, media = characters + more[0], media + more[1]
        return characters, media
    if isinstance(value, (list, tuple)):
        sizes = [_sizes(item) for item in value]
        return sum(size[0] for size in sizes), sum(size[1] for size in sizes)
    return 4, 0


class Provider(ThreadingHTTPServer):
    """One provider. ``script`` are its next answers; once it is empty, it answers ``ok``.

    Args:
        limit: the most input tokens; more are refused in the provider's words.
        window: the most input tokens that a request should have; more are noted in ``over``.
    """

    rules: ClassVar[tuple[Rule, ...]] = ()
    daemon_threads = True
    least_cached = 1_024

    def __init__(self, limit: int | None = None, window: int | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.limit, self.window = limit, window
        self.script: list[Reply | Refusal] = []
        self.requests: list[Recorded] = []
        self.over: list[int] = []
        self.uploads = 0
        self.issued = Issued()
        self._entries: list[list[str]] = []
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    # what tests read

    @property
    def faults(self) -> list[str]:
        return [fault for request in self.requests for fault in request.faults]

    @property
    def invalid(self) -> int:
        """Requests with a fault."""
        return sum(bool(request.faults) for request in self.requests)

    @property
    def cached_share(self) -> float:
        """The share of all input that the cache served."""
        answered = [request.usage for request in self.requests if not request.refused]
        return sum(usage.cached for usage in answered) / max(1, sum(usage.input for usage in answered))

    @property
    def input_price(self) -> int:
        """Input in tokens at full price: what is read from a cache costs a tenth, what is written a quarter more."""
        answered = [request.usage for request in self.requests if not request.refused]
        return round(
            sum(
                usage.input - usage.cached - usage.written + 0.1 * usage.cached + 1.25 * usage.written
                for usage in answered
            )
        )

    # what comes in

    def answer(self, path: str, body: Body) -> tuple[int, Any, bool]:
        """Status, answer and whether it is a stream of events."""
        with self._lock:
            if path.rstrip("/").endswith("/files"):
                self.uploads += 1
                return 200, {"id": f"file-{self.uploads}", "object": "file", "bytes": 9, "created_at": 1,
                             "filename": "f.pdf", "purpose": "user_data"}, False  # fmt: skip
            if path.endswith("/api/show"):  # LiteLLM asks Ollama what a model can do
                return 200, {"capabilities": ["completion", "tools"], "model_info": {}, "template": "tools"}, False
            faults = violations(self.rules, body, self.issued)
            tokens = tokens_of(self.sent(body))
            if self.window is not None and tokens > self.window:
                self.over.append(tokens)
            reply = self.script[0] if self.script else Reply("ok")
            refusal = reply if isinstance(reply, Refusal) else self.forbidden(faults) or self.overflow(tokens)
            usage = Usage(tokens, 0) if refusal is not None else self.use(body, tokens)
            self.requests.append(Recorded(body, faults, usage, refusal is not None))
            if isinstance(reply, Refusal) or refusal is None:
                del self.script[:1]
            if refusal is not None:
                return refusal.status, self.error(refusal), False
            assert isinstance(reply, Reply)
            return 200, self.said(body, reply, usage), self.streams(path, body)

    def overflow(self, tokens: int) -> Refusal | None:
        if self.limit is None or tokens <= self.limit:
            return None
        return Refusal(400, self.too_long(tokens, self.limit))

    def forbidden(self, faults: Sequence[str]) -> Refusal | None:
        """The refusal of a request with these faults; most are only noted."""
        return None

    def signature(self) -> str:
        return base64.b64encode(b"signature %d" % next(self._numbers)).decode()

    def use(self, body: Body, tokens: int) -> Usage:
        """Usage where a cache serves the longest prefix that an earlier request began with."""
        pieces = [json.dumps(piece, sort_keys=True) for piece in self.prefix(body)]
        sizes = [tokens_of(piece) for piece in self.prefix(body)]
        longest = 0
        for entry in self._entries:
            shared = 0
            for ours, theirs, size in zip(pieces, entry, sizes, strict=False):
                if ours != theirs:
                    break
                shared += size
            longest = max(longest, shared)
        self._entries.append(pieces)
        return Usage(tokens, min(tokens, longest) if longest >= self.least_cached else 0)

    # what each provider has of its own

    def sent(self, body: Body) -> Any:
        """What counts as input."""
        return {name: body[name] for name in ("system", "messages", "tools") if name in body}

    def prefix(self, body: Body) -> list[Any]:
        return [body.get("tools"), *body["messages"]]

    def streams(self, path: str, body: Body) -> bool:
        return bool(body.get("stream"))

    def too_long(self, tokens: int, limit: int) -> str:
        raise NotImplementedError

    def error(self, refusal: Refusal) -> Any:
        return {"error": {"message": refusal.message, "type": "invalid_request_error", "code": None, "param": None}}

    def said(self, body: Body, reply: Reply, usage: Usage) -> Any:
        """The answer of one request, not streamed."""
        raise NotImplementedError

    def events(self, answer: Any) -> Iterator[bytes]:
        """The same, streamed."""
        raise NotImplementedError


def _halves(text: str) -> list[str]:
    return [half for half in (text[: len(text) // 2], text[len(text) // 2 :]) if half]


UNBOUND = (
    "messages.1.content.0: Invalid `signature` in `thinking` block. The block is bound to a different conversation."
)


class Claude(Provider):
    rules = CLAUDE

    def forbidden(self, faults: Sequence[str]) -> Refusal | None:
        return Refusal(400, UNBOUND) if any(fault.startswith("claude_thinking_is_bound") for fault in faults) else None

    def too_long(self, tokens: int, limit: int) -> str:
        return f"prompt is too long: {tokens} tokens > {limit} maximum"

    def error(self, refusal: Refusal) -> Any:
        kind = "rate_limit_error" if refusal.status == 429 else "invalid_request_error"
        return {"type": "error", "error": {"type": kind, "message": refusal.message}}

    def use(self, body: Body, tokens: int) -> Usage:
        """ "Cache hits require 100% identical prompt segments up to and including the block marked with cache control";
        "the system checks at most 20 blocks before each explicit breakpoint"; the shortest that Sonnet 4.5 caches has
        1,024 tokens (build-with-claude/prompt-caching)."""
        blocks = claude_prefix(body)
        plain = [{name: item for name, item in block.items() if name != "cache_control"} for block in blocks]
        texts, sizes, text, size = [], [], "", 0
        for block in plain:
            text, size = text + json.dumps(block, sort_keys=True), size + tokens_of(block)
            texts.append(text)
            sizes.append(size)
        known = {entry[0] for entry in self._entries}
        marks = [at for at, block in enumerate(blocks) if "cache_control" in block]
        read = 0
        for mark in marks:
            found = (sizes[at] for at in range(mark, max(-1, mark - 20), -1) if texts[at] in known)
            read = max(read, next(found, 0))
        kept = [mark for mark in marks if sizes[mark] >= self.least_cached]
        self._entries += [[texts[mark]] for mark in kept]
        written = max([0, *(sizes[mark] - read for mark in kept)])
        total = max(tokens, sizes[-1])
        return Usage(total, read, written)

    def said(self, body: Body, reply: Reply, usage: Usage) -> Any:
        content: list[dict[str, Any]] = []
        signatures: list[str] = []

        def think(thought: str) -> None:
            if not thought or body.get("thinking", {}).get("type") != "enabled":
                return
            signatures.append(self.signature())
            self.issued.signed[signatures[-1]] = thought
            answered = {**body, "messages": [*body["messages"], {"role": "assistant", "content": [*content]}]}
            *_, (_, self.issued.behind[signatures[-1]]) = claude_befores(answered)
            shown = {"type": "thinking", "thinking": thought, "signature": signatures[-1]}
            hidden = {"type": "redacted_thinking", "data": signatures[-1]}
            content.append(hidden if reply.redacted else shown)

        think(reply.thought)
        if reply.text:
            content.append({"type": "text", "text": reply.text})
        think(reply.interleaved)
        for name, arguments in reply.calls:
            call = {"type": "tool_use", "id": f"toolu_{next(self._numbers):06}", "name": name, "input": arguments}
            self.issued.under[str(call["id"])] = signatures
            content.append(call)
        return {
            "id": "msg_1", "type": "message", "role": "assistant", "model": body["model"], "content": content,
            "stop_reason": "tool_use" if reply.calls else "end_turn", "stop_sequence": None,
            "usage": {
                "input_tokens": usage.input - usage.cached - usage.written, "cache_read_input_tokens": usage.cached,
                "cache_creation_input_tokens": usage.written, "output_tokens": 9,
            },
        }  # fmt: skip

    def events(self, answer: Any) -> Iterator[bytes]:
        def event(kind: str, **values: Any) -> bytes:
            return f"event: {kind}\ndata: {json.dumps({'type': kind, **values})}\n\n".encode()

        yield event("message_start", message={**answer, "content": [], "stop_reason": None})
        for at, block in enumerate(answer["content"]):
            if block["type"] == "thinking":
                start: dict[str, Any] = {"type": "thinking", "thinking": "", "signature": ""}
                deltas = [{"type": "thinking_delta", "thinking": half} for half in _halves(block["thinking"])]
                deltas.append({"type": "signature_delta", "signature": block["signature"]})
            elif block["type"] == "redacted_thinking":
                start, deltas = block, []
            elif block["type"] == "text":
                start = {"type": "text", "text": ""}
                deltas = [{"type": "text_delta", "text": half} for half in _halves(block["text"])]
            else:
                start = {**block, "input": {}}
                halves = _halves(json.dumps(block["input"]))
                deltas = [{"type": "input_json_delta", "partial_json": half} for half in halves]
            yield event("content_block_start", index=at, content_block=start)
            for delta in deltas:
                yield event("content_block_delta", index=at, delta=delta)
            yield event("content_block_stop", index=at)
        ended = {"stop_reason": answer["stop_reason"], "stop_sequence": None}
        yield event("message_delta", delta=ended, usage={"output_tokens": 9})
        yield event("message_stop")


class Gemini(Provider):
    """``signs`` has it sign its calls, as Gemini 3 does."""

    rules = GEMINI
    signs = True

    def too_long(self, tokens: int, limit: int) -> str:
        return f"The input token count ({tokens}) exceeds the maximum number of tokens allowed ({limit})."

    def error(self, refusal: Refusal) -> Any:
        status = "RESOURCE_EXHAUSTED" if refusal.status == 429 else "INVALID_ARGUMENT"
        return {"error": {"code": refusal.status, "message": refusal.message, "status": status}}

    def sent(self, body: Body) -> Any:
        return [body.get("systemInstruction"), body["contents"], body.get("tools")]

    def prefix(self, body: Body) -> list[Any]:
        return [body.get("systemInstruction"), body.get("tools"), *body["contents"]]

    def streams(self, path: str, body: Body) -> bool:
        return "streamGenerateContent" in path

    def said(self, body: Body, reply: Reply, usage: Usage) -> Any:
        parts: list[dict[str, Any]] = []
        if reply.thought and not reply.calls:
            parts.append({"text": reply.thought, "thought": True})
        if reply.text:
            parts.append({"text": reply.text})
        if reply.code is not None:
            code, output = reply.code
            parts.append({"executableCode": {"language": "PYTHON", "code": code}})
            parts.append({"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": output}})
        for at, (name, arguments) in enumerate(reply.calls):
            part: dict[str, Any] = {"functionCall": {"name": name, "args": arguments}}
            if at == 0 and self.signs:
                part["thoughtSignature"] = signature = self.signature()
                self.issued.signed[signature] = gemini_signed(part)
                self.issued.under[same([name, arguments])] = [signature]
            parts.append(part)
        metadata = {"promptTokenCount": usage.input, "candidatesTokenCount": 9, "totalTokenCount": usage.input + 9}
        if usage.cached:  # where nothing is served, Gemini leaves the count out
            metadata["cachedContentTokenCount"] = usage.cached
        candidate = {"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}
        return {"candidates": [candidate], "usageMetadata": metadata, "modelVersion": "gemini-2.5-flash"}

    def events(self, answer: Any) -> Iterator[bytes]:
        (candidate,) = answer["candidates"]
        parts = candidate["content"]["parts"]
        for at, part in enumerate(parts):
            last = at == len(parts) - 1
            pieces = [{**part, "text": half} for half in _halves(part["text"])] if "text" in part else [part]
            for number, piece in enumerate(pieces):
                chunk = {"content": {"role": "model", "parts": [piece]}, "index": 0}
                if last and number == len(pieces) - 1:
                    chunk["finishReason"] = "STOP"
                yield f"data: {json.dumps({**answer, 'candidates': [chunk]})}\r\n\r\n".encode()


class OpenAI(Provider):
    rules = OPENAI

    def too_long(self, tokens: int, limit: int) -> str:
        return (
            f"This model's maximum context length is {limit} tokens. However, your messages resulted in {tokens} "
            "tokens. Please reduce the length of the messages."
        )

    def error(self, refusal: Refusal) -> Any:
        code = "rate_limit_exceeded" if refusal.status == 429 else "context_length_exceeded"
        return {"error": {"message": refusal.message, "type": "invalid_request_error", "code": code, "param": None}}

    def use(self, body: Body, tokens: int) -> Usage:
        """ "Caching is available for prompts containing 1024 tokens or more, with cache hits occurring in increments of
        128 tokens." (docs/guides/prompt-caching)"""
        usage = super().use(body, tokens)
        return usage._replace(cached=usage.cached // 128 * 128)

    def said(self, body: Body, reply: Reply, usage: Usage) -> Any:
        message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
        if reply.calls:
            message["tool_calls"] = [
                {
                    "id": f"call_{next(self._numbers):06}",
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps(arguments)},
                }
                for name, arguments in reply.calls
            ]
        return {
            "id": "c1", "object": "chat.completion", "created": 1, "model": body["model"],
            "choices": [
                {"index": 0, "message": message, "finish_reason": "tool_calls" if reply.calls else "stop"}
            ],
            "usage": {
                "prompt_tokens": usage.input, "completion_tokens": 9, "total_tokens": usage.input + 9,
                "prompt_tokens_details": {"cached_tokens": usage.cached},
            },
        }  # fmt: skip

    def events(self, answer: Any) -> Iterator[bytes]:
        (choice,) = answer["choices"]
        message = choice["message"]

        def chunk(delta: Any, finish: str | None = None, **more: Any) -> bytes:
            choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
            value = {**answer, "object": "chat.completion.chunk", "usage": None, "choices": choices, **more}
            return f"data: {json.dumps(value)}\n\n".encode()

        yield chunk({"role": "assistant", "content": ""})
        for half in _halves(message["content"] or ""):
            yield chunk({"content": half})
        for at, call in enumerate(message.get("tool_calls") or ()):
            function = call["function"]
            yield chunk({"tool_calls": [{**call, "index": at, "function": {**function, "arguments": ""}}]})
            for half in _halves(function["arguments"]):
                yield chunk({"tool_calls": [{"index": at, "function": {"arguments": half}}]})
        yield chunk({}, choice["finish_reason"])
        yield f"data: {json.dumps({**answer, 'object': 'chat.completion.chunk', 'choices': []})}\n\n".encode()
        yield b"data: [DONE]\n\n"


class Ollama(Provider):
    rules = OLLAMA

    def too_long(self, tokens: int, limit: int) -> str:
        return f"request ({tokens} tokens) exceeds the available context size ({limit} tokens), try increasing it"

    def error(self, refusal: Refusal) -> Any:
        return {"error": refusal.message}

    def said(self, body: Body, reply: Reply, usage: Usage) -> Any:
        message: dict[str, Any] = {"role": "assistant", "content": reply.text}
        if reply.calls:
            message["tool_calls"] = [{"function": {"name": name, "arguments": args}} for name, args in reply.calls]
        return {
            "model": body["model"], "created_at": "2026-01-01T00:00:00Z", "message": message, "done": True,
            "done_reason": "stop", "prompt_eval_count": usage.input, "eval_count": 9,
        }  # fmt: skip

    def events(self, answer: Any) -> Iterator[bytes]:
        message = answer["message"]
        for half in _halves(message["content"]):
            said = {**answer, "message": {"role": "assistant", "content": half}, "done": False}
            yield (json.dumps(said) + "\n").encode()
        yield (json.dumps({**answer, "message": {**message, "content": ""}}) + "\n").encode()


class _Handler(BaseHTTPRequestHandler):
    server: Provider

    def do_POST(self) -> None:
        data = self._body()
        is_json = "multipart" not in self.headers.get("content-type", "")
        status, answer, streams = self.server.answer(self.path.partition("?")[0], json.loads(data) if is_json else {})
        self.send_response(status)
        if not streams:
            body = json.dumps(answer).encode()
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        kind = "application/x-ndjson" if isinstance(self.server, Ollama) else "text/event-stream"
        self.send_header("content-type", kind)
        self.send_header("connection", "close")
        self.end_headers()
        for event in self.server.events(answer):
            self.wfile.write(event)
            self.wfile.flush()

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("transfer-encoding", ""):
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        pieces = []
        while size := int(self.rfile.readline(), 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@contextmanager
def serving(provider: Provider) -> Iterator[Provider]:
    with provider:
        thread = threading.Thread(target=provider.serve_forever, args=[0.02], daemon=True)
        thread.start()
        try:
            yield provider
        finally:
            provider.shutdown()
            thread.join()
