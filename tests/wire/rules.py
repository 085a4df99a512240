"""What each provider's documentation demands of a request, a function a rule.

A rule is given a request's body and what the provider has issued in its session (`Issued`), and yields what is wrong.
Its docstring holds the sentence and the page that it stands on, as stored copies of these pages have it, or says that
it is what the API answers with: "error 400". Where there is no such sentence, it says what is assumed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Body: TypeAlias = Mapping[str, Any]
Found: TypeAlias = Iterator[str]


@dataclass
class Issued:
    """What a provider has handed out: signed texts and calls by their signatures, the signatures that a call, by its id
    or (Gemini) by its name and arguments, was made under, and the hash of all that a signed text was made behind."""

    signed: dict[str, str] = field(default_factory=dict)
    under: dict[str, list[str]] = field(default_factory=dict)
    behind: dict[str, str] = field(default_factory=dict)


Rule: TypeAlias = Callable[[Body, Issued], Found]


def violations(rules: Sequence[Rule], body: Body, issued: Issued) -> list[str]:
    """Everything that is wrong with a request, each with the name of its rule."""
    return [f"{rule.__name__}: {fault}" for rule in rules for fault in rule(body, issued)]


def same(value: object) -> str:
    """A value as text that equal values share."""
    return json.dumps(value, sort_keys=True)


# Anthropic: https://platform.claude.com/docs/en


def _blocks(message: Body) -> list[Body]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _turns(body: Body) -> list[tuple[str, list[Body]]]:
    """Roles and blocks: "Consecutive user or assistant turns in your request will be combined into a single turn"
    (api/messages)."""
    turns: list[tuple[str, list[Body]]] = []
    for message in body["messages"]:
        if turns and turns[-1][0] == message["role"]:
            turns[-1][1].extend(_blocks(message))
        else:
            turns.append((message["role"], _blocks(message)))
    return turns


def _of(blocks: Sequence[Body], *kinds: str) -> list[Body]:
    return [block for block in blocks if block["type"] in kinds]


def claude_begins_with_the_user(body: Body, issued: Issued) -> Found:
    """ "The first message must always use the user role." (api/messages until 2025; what the API does without is not
    documented any more)"""
    if not body["messages"] or body["messages"][0]["role"] != "user":
        yield "the first message is the assistant's"


def claude_contents_are_not_empty(body: Body, issued: Issued) -> Found:
    """ "all messages must have non-empty content except for the optional final assistant message"; "text content blocks
    must be non-empty" (error 400)"""
    for at, message in enumerate(body["messages"]):
        if not message["content"]:
            yield f"message {at} has no content"
        if any(not block["text"].strip() for block in _of(_blocks(message), "text")):
            yield f"message {at} has an empty text"


def claude_calls_are_answered(body: Body, issued: Issued) -> Found:
    """ "Tool result blocks must immediately follow their corresponding tool use blocks in the message history. You
    cannot include any messages between the assistant's tool use message and the user's tool result message."
    (agents-and-tools/tool-use/handle-tool-calls)"""
    turns = _turns(body)
    for at, (_, blocks) in enumerate(turns):
        calls = {block["id"] for block in _of(blocks, "tool_use")}
        following = turns[at + 1][1] if at + 1 < len(turns) else []
        answers = {block["tool_use_id"] for block in _of(following, "tool_result")}
        if calls - answers:
            yield f"turn {at}: {sorted(calls - answers)} have no result"


def claude_results_have_calls(body: Body, issued: Issued) -> Found:
    """ "Each `tool_result` block must have a corresponding `tool_use` block in the previous message." (error 400)"""
    turns = _turns(body)
    for at, (_, blocks) in enumerate(turns):
        answers = [block["tool_use_id"] for block in _of(blocks, "tool_result")]
        calls = {block["id"] for block in _of(turns[at - 1][1], "tool_use")} if at else set()
        if set(answers) - calls or len(set(answers)) != len(answers):
            yield f"turn {at}: results for {answers}, calls {sorted(calls)}"


def claude_results_come_first(body: Body, issued: Issued) -> Found:
    """ "In the user message containing tool results, the tool_result blocks must come FIRST in the content array. Any
    text must come AFTER all tool results." (agents-and-tools/tool-use/handle-tool-calls)"""
    for at, (_, blocks) in enumerate(_turns(body)):
        kinds = [block["type"] == "tool_result" for block in blocks]
        if any(kinds) and kinds != sorted(kinds, reverse=True):
            yield f"turn {at} has something before a result"


def claude_ids_are_unique(body: Body, issued: Issued) -> Found:
    """ "`tool_use` ids must be unique" (error 400); they match ^[a-zA-Z0-9_-]+$, to which ADK's client makes them"""
    ids = [block["id"] for _, blocks in _turns(body) for block in _of(blocks, "tool_use")]
    if len(set(ids)) != len(ids):
        yield "an id stands twice"
    for name in ids:
        if not re.fullmatch(r"[a-zA-Z0-9_-]+", name):
            yield f"the id {name!r}"


def claude_thinking_is_unmodified(body: Body, issued: Issued) -> Found:
    """ "The entire sequence of consecutive thinking blocks must match the outputs generated by the model during the
    original request; you cannot rearrange or modify the sequence of these blocks."
    (build-with-claude/extended-thinking, "Preserving thinking blocks")"""
    for at, (_, blocks) in enumerate(_turns(body)):
        for block in _of(blocks, "thinking"):
            if issued.signed.get(block["signature"]) != block["thinking"]:
                yield f"turn {at}: {len(block['thinking'])} characters under a signature that is not theirs"


def claude_thinking_is_bound(body: Body, issued: Issued) -> Found:
    """ "Invalid `signature` in `thinking` block. The block is bound to a different conversation. Remove the block" "The
    `system` prompt differs from the one this block was created with." (error 400, models from 5.1 on) A thought is
    valid only behind the tools, the system prompt and the blocks that it was made behind, earlier thoughts among them;
    of two consecutive messages of a role it is held to be the same whether they are one or two."""
    for signature, before in claude_befores(body):
        if signature and issued.behind.get(signature, before) != before:
            yield f"a thought, {signature!r}, behind something else than it was made behind"


def claude_befores(body: Body) -> Iterator[tuple[str, str]]:
    """The signature of each block, empty for one without, and the hash of all before it; last of all that of the whole
    request, without a signature. Marks for the cache change nothing."""
    system = body.get("system", ())
    system = [{"type": "text", "text": system}] if isinstance(system, str) else system
    pieces = [("tools", tool) for tool in body.get("tools", ())] + [("system", block) for block in system]
    pieces += [(role, block) for role, blocks in _turns(body) for block in blocks]
    digest = hashlib.sha256()
    for role, block in pieces:
        thinks = block.get("type") in ("thinking", "redacted_thinking")
        yield block.get("signature", block.get("data", "")) if thinks else "", digest.hexdigest()
        digest.update(same([role, {name: item for name, item in block.items() if name != "cache_control"}]).encode())
    yield "", digest.hexdigest()


def claude_calls_keep_their_thinking(body: Body, issued: Issued) -> Found:
    """ "During tool use, you must pass thinking blocks back to the API for the last assistant message. Include the
    complete unmodified block." "you can omit thinking blocks from prior assistant role turns"
    (build-with-claude/extended-thinking). "When `thinking` is enabled, a final `assistant` message must start with a
    thinking block (preceeding the lastmost set of `tool_use` and `tool_result` blocks)." (error 400) A turn begins with
    a user's message that holds no tool result."""
    turns = _turns(body)
    begins = max(
        (at for at, (role, blocks) in enumerate(turns) if role == "user" and not _of(blocks, "tool_result")), default=0
    )
    for at, (_, blocks) in enumerate(turns[begins:], begins):
        before = [block.get("signature", block.get("data")) for block in _of(blocks, "thinking", "redacted_thinking")]
        for call in _of(blocks, "tool_use"):
            if any(signature not in before for signature in issued.under.get(call["id"], ())):
                yield f"turn {at}: call {call['id']} without its thinking"


def claude_marks_are_few(body: Body, issued: Issued) -> Found:
    """ "You can define up to 4 cache breakpoints." "Thinking blocks cannot be cached directly with cache_control."
    "Empty text blocks cannot be cached." (build-with-claude/prompt-caching)"""
    marked = [block for block in claude_prefix(body) if "cache_control" in block]
    if len(marked) > 4:
        yield f"{len(marked)} marks"
    if _of([block for block in marked if "type" in block], "thinking", "redacted_thinking"):
        yield "a mark on thinking"


def claude_prefix(body: Body) -> list[Body]:
    """What a cache takes in: "Cache prefixes are created in the following order: tools, system, then messages"."""
    system = body.get("system", ())
    system = [{"type": "text", "text": system}] if isinstance(system, str) else list(system)
    blocks = [block for message in body["messages"] for block in _blocks(message)]
    return [*({"type": "tool", **tool} for tool in body.get("tools", ())), *system, *blocks]


def claude_declares_what_was_called(body: Body, issued: Issued) -> Found:
    """ "Requests which include `tool_use` or `tool_result` blocks must define tools." "Tool names must be unique";
    names match ^[a-zA-Z0-9_-]{1,128}$ (error 400)"""
    names = [tool["name"] for tool in body.get("tools", ())]
    if not names and any(_of(blocks, "tool_use", "tool_result") for _, blocks in _turns(body)):
        yield "calls without declarations"
    if len(set(names)) != len(names):
        yield f"a tool is declared twice: {names}"
    yield from (f"the name {name!r}" for name in names if not re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", name))


def claude_ends_with_the_user(body: Body, issued: Issued) -> Found:
    """ "You cannot pre-fill responses when thinking is enabled." (build-with-claude/extended-thinking)"""
    if body.get("thinking", {}).get("type") == "enabled" and body["messages"][-1]["role"] != "user":
        yield "the last message is the assistant's"


def claude_media_are_few(body: Body, issued: Issued) -> Found:
    """ "100 per request on the API, for models with a 200k-token context window." (build-with-claude/vision) "Maximum
    pages per request: 600 (100 for models with a 200k-token context window)." (build-with-claude/pdf-support)"""
    blocks = [block for _, blocks in _turns(body) for block in blocks]
    inside = [piece for block in _of(blocks, "tool_result") if isinstance(block.get("content"), list)
              for piece in block["content"]]  # fmt: skip
    media = _of([*blocks, *inside], "image", "document")
    if len(media) > 100:
        yield f"{len(media)} images and documents"
    sources = [block["source"].get("data", "") for block in _of(media, "document")]
    pages = sum(len(re.findall(rb"/Type /Page\b", base64.b64decode(source))) for source in sources)
    if pages > 100:
        yield f"{pages} PDF pages"


def claude_requests_are_small(body: Body, issued: Issued) -> Found:
    """ "Maximum request size: 32 MB" (api/overview, "Request size limits"), 30 on Vertex AI"""
    if (size := len(json.dumps(body))) > 30 << 20:
        yield f"{size} bytes"


CLAUDE: tuple[Rule, ...] = (
    claude_media_are_few, claude_requests_are_small, claude_begins_with_the_user, claude_contents_are_not_empty,
    claude_calls_are_answered, claude_results_have_calls, claude_results_come_first, claude_ids_are_unique,
    claude_thinking_is_unmodified, claude_thinking_is_bound, claude_calls_keep_their_thinking, claude_marks_are_few,
    claude_declares_what_was_called, claude_ends_with_the_user,
)  # fmt: skip


# Gemini: https://ai.google.dev/gemini-api/docs


def _holding(content: Body, name: str) -> list[Body]:
    return [part[name] for part in content.get("parts", ()) if name in part]


def gemini_begins_with_the_user(body: Body, issued: Issued) -> Found:
    """ "Please ensure that function call turn comes immediately after a user turn or after a function response turn."
    (error 400); of a model's text at the beginning nothing is documented: it is held to be wrong, as for Claude."""
    contents = body["contents"]
    if not contents or contents[0].get("role", "user") != "user" or _holding(contents[0], "functionResponse"):
        yield "the first content is no user's message"


def gemini_roles_are_known(body: Body, issued: Issued) -> Found:
    """ "The producer of the content. Must be either 'user' or 'model'." (ai.google.dev/api/caching#Content)"""
    for at, content in enumerate(body["contents"]):
        if content.get("role", "user") not in ("user", "model"):
            yield f"content {at} is of {content['role']!r}"


def gemini_contents_are_not_empty(body: Body, issued: Issued) -> Found:
    """ "required oneof field 'data' must have one initialized field" (error 400); a content without parts is held to be
    wrong, too."""
    for at, content in enumerate(body["contents"]):
        parts = content.get("parts", ())
        if not parts:
            yield f"content {at} has no parts"
        for part in parts:
            if not set(part) - {"thought", "thoughtSignature", "videoMetadata", "mediaResolution"}:
                yield f"content {at} has a part without data"


def gemini_calls_follow_a_user(body: Body, issued: Issued) -> Found:
    """ "Please ensure that function call turn comes immediately after a user turn or after a function response turn."
    (error 400)"""
    contents = body["contents"]
    for at, content in enumerate(contents):
        if _holding(content, "functionCall"):
            before = contents[at - 1].get("role") if at else None
            if content.get("role") != "model" or before != "user":
                yield f"content {at} calls behind {before!r}"


def gemini_calls_are_answered(body: Body, issued: Issued) -> Found:
    """ "Please ensure that function response turn comes immediately after a function call turn." "Please ensure that
    the number of function response parts is equal to the number of function call parts of the function call turn."
    (error 400) The names of both are held to be equal."""
    contents = body["contents"]
    for at, content in enumerate(contents):
        calls, answers = _holding(content, "functionCall"), _holding(content, "functionResponse")
        if calls:
            following = _holding(contents[at + 1], "functionResponse") if at + 1 < len(contents) else []
            if sorted(call["name"] for call in calls) != sorted(answer["name"] for answer in following):
                yield f"content {at} has {len(calls)} calls, the next {len(following)} responses"
        if answers and (not at or not _holding(contents[at - 1], "functionCall")):
            yield f"content {at} answers no call"


GEMINI_UNSIGNED = base64.b64encode(b"skip_thought_signature_validator").decode()
""" "you can set the following dummy signatures of either "context_engineering_is_the_way_to_go" or
"skip_thought_signature_validator" in the thought signature field to skip validation" (thought-signatures, FAQ)"""


def gemini_signatures_are_unmodified(body: Body, issued: Issued) -> Found:
    """ "Always send the thought_signature back to the model inside its original Part." "Don't merge a Part containing a
    signature with one that does not." (function-calling)"""
    for at, content in enumerate(body["contents"]):
        for part in content.get("parts", ()):
            if signature := part.get("thoughtSignature"):
                signature = signature.replace("-", "+").replace("_", "/")
                if signature != GEMINI_UNSIGNED and issued.signed.get(signature) != gemini_signed(part):
                    yield f"content {at}: a part under a signature that is not its"


def gemini_signed(part: Body) -> str:
    """What a signature stands for."""
    if "functionCall" in part:
        return same([part["functionCall"]["name"], part["functionCall"].get("args", {})])
    return same(part.get("text", ""))


def gemini_calls_keep_their_signature(body: Body, issued: Issued) -> Found:
    """ "Strict validation is enforced for all function calls within the current turn." "The first `functionCall` part
    in each step of the current turn must include its `thought_signature`." (generate-content/thought-signatures) A turn
    begins with a user's message that holds no function response."""
    contents = body["contents"]
    begins = max(
        (
            at
            for at, content in enumerate(contents)
            if content.get("role") == "user" and not _holding(content, "functionResponse")
        ),
        default=0,
    )
    for at, content in enumerate(contents[begins:], begins):
        signatures = {part.get("thoughtSignature") for part in content.get("parts", ())} - {None}
        for call in _holding(content, "functionCall"):
            wanted = issued.under.get(same([call["name"], call.get("args", {})]), [])
            if wanted and not signatures:
                yield f"content {at}: the call of {call['name']} has lost its signature"


def gemini_ends_with_the_user(body: Body, issued: Issued) -> Found:
    """ "Please ensure that multiturn requests ends with a user role or a function response." (error 400)"""
    if body["contents"] and body["contents"][-1].get("role", "user") != "user":
        yield "the last content is the model's"


def gemini_declares_once(body: Body, issued: Issued) -> Found:
    """ "Duplicate function declaration found" (error 400); names "must be a-z, A-Z, 0-9, or contain underscores,
    colons, dots, and dashes, with a maximum length of 64" (ai.google.dev/api/caching#FunctionDeclaration)"""
    names = [one["name"] for tool in body.get("tools", ()) for one in tool.get("functionDeclarations", ())]
    if len(set(names)) != len(names):
        yield f"a function is declared twice: {names}"
    yield from (f"the name {name!r}" for name in names if not re.fullmatch(r"[a-zA-Z0-9_:.-]{1,64}", name))


def gemini_requests_are_small(body: Body, issued: Issued) -> Found:
    """ "Inline image data limits your total request size (text prompts, system instructions, and inline bytes) to
    20MB." (image-understanding, until 2026)"""
    if (size := len(json.dumps(body))) > 20 << 20:
        yield f"{size} bytes"


GEMINI: tuple[Rule, ...] = (
    gemini_requests_are_small, gemini_begins_with_the_user, gemini_roles_are_known, gemini_contents_are_not_empty,
    gemini_calls_follow_a_user, gemini_calls_are_answered, gemini_signatures_are_unmodified,
    gemini_calls_keep_their_signature, gemini_ends_with_the_user, gemini_declares_once,
)  # fmt: skip


# Models behind servers with OpenAI's and Ollama's shapes


def roles_alternate(body: Body, issued: Issued) -> Found:
    """ "After the optional system message, conversation roles must alternate user/assistant/user/assistant/..." (the
    chat template of Mistral's models, as vLLM and llama.cpp have it; Gemma's says the same). What holds calls or
    results of tools is not looked at by Mistral's."""
    roles = [
        message["role"]
        for message in body["messages"]
        if message["role"] in ("user", "assistant") and not message.get("tool_calls")
    ]
    for at in range(1, len(roles)):
        if roles[at] == roles[at - 1]:
            yield f"message {at} without system and tools is a second one of {roles[at]!r}"


# OpenAI: https://platform.openai.com/docs/api-reference/chat/create


def openai_calls_are_answered(body: Body, issued: Issued) -> Found:
    """ "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'."
    (error 400)"""
    messages = body["messages"]
    for at, message in enumerate(messages):
        wanted = {call["id"] for call in message.get("tool_calls") or ()}
        for following in messages[at + 1 :]:
            if following["role"] != "tool":
                break
            wanted.discard(following["tool_call_id"])
        if wanted:
            yield f"message {at}: {sorted(wanted)} have no response"


def openai_answers_have_calls(body: Body, issued: Issued) -> Found:
    """ "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'." (error 400)"""
    known: set[str] = set()
    for at, message in enumerate(body["messages"]):
        if message["role"] == "tool":
            if message["tool_call_id"] not in known:
                yield f"message {at} answers no call"
        else:
            known = {call["id"] for call in message.get("tool_calls") or ()}


def openai_contents_are_there(body: Body, issued: Issued) -> Found:
    """ "content: the contents of the assistant message. Required unless tool_calls or function_call is specified."
    (chat/create); an empty list of messages is held to be wrong."""
    if not body["messages"]:
        yield "no messages"
    for at, message in enumerate(body["messages"]):
        if message.get("content") in (None, "", []) and not message.get("tool_calls"):
            yield f"message {at} of {message['role']} has no content"


def openai_calls_are_well_formed(body: Body, issued: Issued) -> Found:
    """ "The arguments to call the function with, as generated by the model in JSON format."; function names "must be
    a-z, A-Z, 0-9, or contain underscores and dashes, with a maximum length of 64" (chat/create); of ids "string too
    long. Expected a string with maximum length 40", of tools "array too long. Expected an array with maximum length
    128" (error 400)"""
    tools = body.get("tools") or ()
    names = [tool["function"]["name"] for tool in tools]
    names += [call["function"]["name"] for one in body["messages"] for call in one.get("tool_calls") or ()]
    yield from (f"the name {name!r}" for name in names if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name))
    if len(tools) > 128:
        yield f"{len(tools)} tools"
    for message in body["messages"]:
        for call in message.get("tool_calls") or ():
            if not isinstance(json.loads(call["function"]["arguments"]), dict):
                yield "arguments that are no object"
            if len(call["id"]) > 40:
                yield f"an id of {len(call['id'])} characters"


def openai_roles_are_known(body: Body, issued: Issued) -> Found:
    """ "role" is one of developer, system, user, assistant, tool (chat/create)"""
    for at, message in enumerate(body["messages"]):
        if message["role"] not in ("developer", "system", "user", "assistant", "tool"):
            yield f"message {at} is of {message['role']!r}"


OPENAI: tuple[Rule, ...] = (
    roles_alternate, openai_calls_are_answered, openai_answers_have_calls, openai_contents_are_there,
    openai_calls_are_well_formed, openai_roles_are_known,
)  # fmt: skip


# Ollama: https://docs.ollama.com/api/chat


def ollama_roles_are_known(body: Body, issued: Issued) -> Found:
    """ "role: the role of the message, either system, user, assistant, or tool" (api/chat)"""
    for at, message in enumerate(body["messages"]):
        if message["role"] not in ("system", "user", "assistant", "tool"):
            yield f"message {at} is of {message['role']!r}"


def ollama_calls_are_objects(body: Body, issued: Issued) -> Found:
    """ "tool_calls (optional): a list of tools in JSON that the model wants to use" (api/chat); in its examples the
    arguments are an object."""
    for at, message in enumerate(body["messages"]):
        for call in message.get("tool_calls") or ():
            if not isinstance(call["function"]["arguments"], dict):
                yield f"message {at}: arguments that are no object"


def ollama_results_follow_calls(body: Body, issued: Issued) -> Found:
    """A message of role "tool" holds "the result of the tool call" of the message before it
    (capabilities/tool-calling)"""
    waiting = 0
    for at, message in enumerate(body["messages"]):
        if message["role"] == "tool":
            waiting -= 1
            if waiting < 0:
                yield f"message {at} answers no call"
        else:
            if waiting > 0:
                yield f"message {at} comes before {waiting} results"
            waiting = len(message.get("tool_calls") or ())


def ollama_images_are_base64(body: Body, issued: Issued) -> Found:
    """ "images (optional): a list of base64-encoded images (for multimodal models such as llava)" (api/chat)"""
    for message in body["messages"]:
        for image in message.get("images") or ():
            try:
                base64.b64decode(image, validate=True)
            except ValueError:
                yield "an image that is not base64"


OLLAMA: tuple[Rule, ...] = (
    roles_alternate,
    ollama_roles_are_known,
    ollama_calls_are_objects,
    ollama_results_follow_calls,
    ollama_images_are_base64,
)
