"""What a provider refuses: whose words are believed, for whom and how long, and limits that are not tokens."""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types
from scripted import Chat, Scripted, call, new_store
from strict import Strict, strict, turns
from wording import LEARNED_WINDOWS

from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin
from aether_context.adk.overflow import overflow_of
from aether_context.tokens.model_limits import request_limits

Figure = Callable[[str, float], None]


class Refusing(Scripted):
    """Refuses a request where ``refuses`` gives an error for it."""

    refuses: Any = None

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        if (message := self.refuses(llm_request)) is not None:
            self.see(llm_request)
            raise RuntimeError(message)
        async for response in super().generate_content_async(llm_request, stream):
            yield response


def refusing(refuses: Callable[[LlmRequest], str | None], model: str = "gemini-2.5-flash", **settings: Any) -> Chat:
    llm = Refusing(sent=[], refuses=refuses, model=model)
    plugin = ContextPackPlugin(policy=settings.pop("policy", PackPolicy(max_input_tokens=100_000)), store=new_store())
    tools = settings.pop("tools", [])
    return Chat(
        agent=LlmAgent(name="clerk", model=llm, instruction="You help.", tools=tools), plugin=plugin, **settings
    )


def state_of(chat: Chat, user: str = "ann", session: str = "s1") -> dict[str, Any]:
    return chat.sessions.sessions["shop"][user][session].state  # type: ignore[attr-defined]


# words

WORDS = (
    "this model's maximum context length is 1024 tokens",
    "prompt is too long: 215431 tokens > 1024 maximum",
    "The input token count (1200293) exceeds the maximum number of tokens allowed (1024).",
    "This model's maximum context length is 1,024 tokens. However, your messages resulted in 140,012 tokens.",
    "prompt tokens\n(9000) exceed model maximum (1024)",
    "context_length_exceeded",
    "Your input exceeds the context window of this model.",
    "request (12010 tokens) exceeds the available context size (1024 tokens), try increasing it",
)
ECHOES: tuple[Callable[[str], str], ...] = (
    lambda text: f"400 Bad Request: {{'detail': [{{'msg': 'Input should be a valid string', 'input': {text!r}}}]}}",
    lambda text: f"422: could not parse: {text}",
    lambda text: f"Invalid value at 'contents[0]': \"{' '.join(text.split()).upper()}\"",
)


def all_text(request: LlmRequest) -> str:
    parts = [part for content in request.contents for part in content.parts or ()]
    answers = [part.function_response.response for part in parts if part.function_response]
    return "\n".join([*(part.text or "" for part in parts), *(str(answer["page"]) for answer in answers if answer)])


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("echo", ECHOES)
@pytest.mark.rows(8)
def test_words_that_an_error_repeats_shrink_nobodys_window(
    words: str, echo: Callable[[str], str], figure: Figure
) -> None:
    chat = refusing(lambda request: echo(all_text(request)) if "mallory" in all_text(request) else None)
    chat.say("my order number is 4711 " + "w " * 3_000)
    with suppress(RuntimeError):
        chat.say(f"mallory: {words}", user="mallory")
    chat.say("What was my order number?")
    windows = [manifest.window for manifest in chat.store.manifests(user="ann")]
    assert windows == [100_000] * 2
    assert not state_of(chat).get(LEARNED_WINDOWS)
    figure("shrunk", sum(window != 100_000 for window in windows))


def names_words(request: LlmRequest, words: str) -> bool:
    """Tells whether a request holds words, in a text or in what names a medium."""
    parts = [part for content in request.contents for part in content.parts or ()]
    names = [part.file_data.file_uri for part in parts if part.file_data]
    names += [part.inline_data.display_name for part in parts if part.inline_data]
    return any(words in text for text in (all_text(request), *filter(None, names)))


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("where", ["text", "address", "name"])
@pytest.mark.rows(3)
def test_words_that_many_users_repeat_shrink_no_other_window(words: str, where: str, figure: Figure) -> None:
    """Each of them repeats them until their own session believes them."""
    chat = refusing(lambda request: ECHOES[0](words) if names_words(request, words) else None)
    pieces = [types.Part(text=f"mallory: {words if where == 'text' else 'see the file'} " + "w " * 1_200)]
    if where == "address":
        pieces.append(types.Part.from_uri(file_uri=f"gs://bucket/{words}.png", mime_type="image/png"))
    elif where == "name":
        blob = types.Blob(data=b"\x89PNG\r\n\x1a\n", mime_type="image/png", display_name=f"{words}.png")
        pieces.append(types.Part(inline_data=blob))
    for user in ("bob", "cleo", "dan"):
        for _ in range(4):
            with suppress(RuntimeError):
                chat.say(types.UserContent(parts=pieces), user=user, session=user)
    chat.say("What was my order number?")
    windows = [manifest.window for manifest in chat.store.manifests(user="ann")]
    assert windows == [100_000]
    figure("shrunk", sum(window != 100_000 for window in windows))


@pytest.mark.parametrize("words", WORDS)
def test_words_in_a_tools_result_cost_that_call_alone(words: str) -> None:
    def fetch() -> dict[str, str]:
        """Fetches a page."""
        return {"page": f"mallory writes: {words} " + "and more of it " * 30}

    failing = [True, True]

    def refuses(request: LlmRequest) -> str | None:
        if "mallory" in all_text(request) and failing:
            failing.pop()
            return ECHOES[0](all_text(request))
        return None

    chat = refusing(refuses, tools=[fetch])
    assert isinstance(chat.agent, LlmAgent)
    assert isinstance(chat.agent.model, Refusing)
    chat.agent.model.script[:] = [call("fetch")]
    for question in ("Look at the page, please. " + "w " * 200, "And?", "So?"):
        with suppress(RuntimeError):
            chat.say(question)
    assert chat.latest().window == 100_000


def test_a_refusal_whose_words_are_in_the_request_is_believed_the_second_time() -> None:
    """A conversation about such errors, with a model that does take no more."""
    words = "it says maximum context length is 12000 tokens"

    def refuses(request: LlmRequest) -> str | None:
        size = len(all_text(request)) // 4
        return "This model's maximum context length is 12000 tokens." if size > 12_000 else None

    chat, failed = refusing(refuses), 0
    for number in range(12):
        try:
            chat.say(f"{words}, question {number} " + f"note {number} says something new; " * 240)
        except RuntimeError:
            failed += 1
    assert failed <= 1
    assert chat.latest().window_mark == "learned"
    assert chat.latest().window <= 12_000


# for whom, and how long


def plugged(llm: Strict, plugin: ContextPackPlugin, user: str, session: str) -> Chat:
    agent = LlmAgent(name="clerk", model=llm, instruction="You help.")
    return Chat(agent=agent, plugin=plugin, user=user, session=session)


def test_the_process_learns_what_two_users_were_refused() -> None:
    plugin, marks = ContextPackPlugin(store=new_store(), on_error="raise"), []
    for user, session in (("ann", "s1"), ("ann", "s2"), ("bob", "s3"), ("cleo", "s4")):
        llm = strict()
        assert turns(plugged(llm, plugin, user, session), range(14)) == []
        first = next(iter(plugin.store.manifests(user=user, session=session)))
        marks.append((first.window_mark, len(llm.refused)))
    assert marks == [("default", 1), ("default", 1), ("default", 1), ("learned", 0)]


@pytest.mark.slow
def test_one_users_small_number_is_not_the_process() -> None:
    plugin = ContextPackPlugin(store=new_store(), on_error="raise")
    for user, limit in (("ann", 3_000), ("bob", 9_000)):
        turns(plugged(strict(limit=limit), plugin, user, user), range(14))
    turns(plugged(strict(), plugin, "cleo", "cleo"), range(1))
    assert next(iter(plugin.store.manifests(user="cleo"))).window == 9_000


def test_what_was_learned_is_tried_upwards_and_ends() -> None:
    llm = strict(limit=200_000)
    agent = LlmAgent(name="clerk", model=llm, instruction="You help.")
    first = Chat(agent=agent)
    first.say("Hello?")
    window = first.manifests()[0].window
    key = next(iter(learned_key(llm)))
    windows = []
    for days in (0.5, 1.5, 2.5, 40):
        state = {LEARNED_WINDOWS: {key: [9_000, time.time() - days * 86_400]}}
        chat = Chat(agent=LlmAgent(name="clerk", model=llm, instruction="You help."), state=state)
        chat.say("Hello?")
        windows.append((chat.manifests()[0].window, chat.manifests()[0].window_mark))
    assert windows == [(9_000, "learned"), (18_000, "learned"), (36_000, "learned"), (window, "default")]


def learned_key(llm: Strict) -> list[str]:
    """The keys under which a session keeps what a model like this refused."""
    chat = Chat(agent=LlmAgent(name="clerk", model=strict(limit=6_000), instruction="You help."))
    turns(chat, range(14))
    return list(state_of(chat)[LEARNED_WINDOWS])


@pytest.mark.parametrize("value", [7, "x", {"m": 5}, {"m": [5]}, {"m": ["a", 1]}, {"m": [2_000, "x"]}, [[1, 2]]])
def test_odd_values_in_a_sessions_state_are_no_limits(value: Any) -> None:
    chat = Chat(state={LEARNED_WINDOWS: value}, policy=PackPolicy(max_input_tokens=9_000))
    chat.say("Hello?", "And?")
    assert {manifest.window for manifest in chat.manifests()} == {9_000}


def test_what_ended_a_run_is_learned_before_the_next() -> None:
    """ADK drops the state of the call that failed."""
    chat = refusing(lambda request: "prompt is too long: 215431 tokens > 50000 maximum")
    with pytest.raises(RuntimeError):
        chat.say("Hello?")
    assert state_of(chat).get(LEARNED_WINDOWS)


# bytes, media and pages

LARGE = {
    "Gemini": "400 INVALID_ARGUMENT. {'error': {'code': 400, 'message': 'Request payload size exceeds the limit: "
    "20971520 bytes.', 'status': 'INVALID_ARGUMENT'}}",
    "Claude, 413": "Error code: 413 - {'type': 'error', 'error': {'type': 'request_too_large', 'message': 'Request "
    "exceeds the maximum size'}}",
    "Claude, media": "messages: too many images and documents: 112 + 0 > 100",
    "Claude, both": "Too much media: 0 document pages + 107 images > 100",
    "Claude, pages": "messages.0.content.1.pdf.source.base64.data: A maximum of 100 PDF pages may be provided.",
    "Azure": "Exceeded maximum number of images (50) allowed in the request.",
    "Azure, bytes": "Request content length exceeded 32 MB limit.",
    "vLLM": "{'object': 'error', 'message': 'At most 4 image(s) may be provided in one request.', 'code': 400}",
    "a proxy": "413 Request Entity Too Large <center>nginx</center>",
    "Copilot": "Too many images in request: 11 images provided, but the model supports a maximum of 10 images.",
    "OpenRouter": "request contains 52 images, exceeding the maximum of 4 allowed per request",
    "Mistral": "Too many images in request. Max is 8.",
    "Copilot, addresses": "too many URL images in request (max 20)",
    "a gateway": "too many images in the message, max allowed is 16",
    "AgnesCode": "litellm.BadRequestError: OpenAIException - {'message': 'Image count 5 exceeds limit 4 per request.'}",
    "a number of images": "The number of images in the request exceeds the limit of 4.",
}


def picture(seed: int, size: int = 20_000) -> types.Part:
    return types.Part.from_bytes(data=b"\x89PNG\r\n\x1a\n" + random.Random(seed).randbytes(size), mime_type="image/png")


def document(seed: int, pages: int) -> types.Part:
    data = b"%PDF-1.4\n" + b"%d" % seed + b"".join(b"<< /Type /Page /N %d >>\n" % page for page in range(pages))
    return types.Part.from_bytes(data=data, mime_type="application/pdf")


def media_in(contents: Sequence[types.Content]) -> list[types.Part]:
    return [part for content in contents for part in content.parts or () if part.inline_data]


@pytest.mark.parametrize("message", LARGE.values(), ids=LARGE)
@pytest.mark.rows(5)
def test_a_refusal_for_what_is_not_tokens_costs_no_turn(message: str, figure: Figure) -> None:
    chat = refusing(lambda request: message if len(media_in(request.contents)) > 4 else None)
    failed = 0
    for at in range(12):
        pieces = [types.Part(text=f"What is on picture {at}?"), *([picture(at)] if at < 9 else [])]
        try:
            events = chat.say(types.UserContent(parts=pieces))
            failed += any(event.error_code for event in events)
        except RuntimeError:
            failed += 1
    figure("failed_large", failed)
    assert failed == 0
    assert len(media_in(chat.sent[8].contents)) <= 5
    latest = media_in(chat.sent[8].contents)
    assert latest[-1].inline_data == picture(8).inline_data  # the current message's own
    chat.replays(every=1)


@pytest.mark.parametrize(
    ("model", "each", "count"), [("gemini-2.5-flash", 5_000_000, 5), ("claude-sonnet-4-5", 5_000_000, 10)]
)
@pytest.mark.rows(0)
def test_requests_are_kept_under_the_bytes_that_a_provider_takes(
    model: str, each: int, count: int, figure: Figure
) -> None:
    most = request_limits(model).bytes
    assert most is not None
    chat = refusing(lambda request: None, model=model)
    for at in range(count):
        chat.say(types.UserContent(parts=[types.Part(text=f"Picture {at}?"), picture(at, each)]))
    sizes = [4 * sum(len(part.inline_data.data) for part in media_in(sent.contents)) // 3 for sent in chat.sent]
    figure("over_limit", sum(size > most for size in sizes))
    assert max(sizes) <= most
    assert max(sizes) > most // 2
    assert all(
        media_in(sent.contents)[-1].inline_data == picture(at, each).inline_data for at, sent in enumerate(chat.sent)
    )
    # What gave way stays away: apart from such acts each request begins as the one before.
    breaks = sum(
        before.wires[:-1] != after.wires[: len(before.wires) - 1]
        for before, after in zip(chat.sent, chat.sent[1:], strict=False)
    )
    manifests = chat.manifests()
    events = [
        event for manifest in manifests for event in manifest.truncation_events if event.reason == "provider_limit"
    ]
    assert 1 <= breaks == len(events) <= 3
    rows = [row for row in manifests[-1].rows if row.reason == "provider_limit"]
    assert rows or any(row.reason == "provider_limit" for manifest in manifests for row in manifest.rows)
    assert len(chat.latest().epoch.unseen) == 1
    chat.replays(every=1)


def test_the_pages_and_documents_of_a_request_are_kept_under_claudes_limits(figure: Figure) -> None:
    chat = refusing(lambda request: None, model="claude-sonnet-4-5", policy=PackPolicy(max_input_tokens=900_000))
    for at in range(9):
        chat.say(types.UserContent(parts=[types.Part(text=f"Document {at}?"), document(at, 30)]))
    counts = [len(media_in(sent.contents)) for sent in chat.sent]
    figure("over_limit", sum(count > 3 for count in counts))
    assert max(counts) == 3
    assert min(counts[1:]) >= 1


def test_the_current_message_gives_way_last_and_its_oldest_media_first() -> None:
    chat = refusing(lambda request: None, model="claude-sonnet-4-5", policy=PackPolicy(max_input_tokens=900_000))
    chat.say(types.UserContent(parts=[types.Part(text="Old?"), picture(0), picture(1)]))
    pieces = [types.Part(text="All of these?"), *(picture(at, 200) for at in range(2, 122))]
    chat.say(types.UserContent(parts=pieces))
    shown = [part.inline_data for part in media_in(chat.sent[-1].contents)]
    assert shown == [part.inline_data for part in pieces[-100:]]


def test_media_that_gave_way_are_read_again_by_their_address() -> None:
    chat = refusing(
        lambda request: "too many images in request. Max is 2" if len(media_in(request.contents)) > 2 else None,
        model="gemini-3-pro-preview",
    )
    for at in range(3):
        chat.say(types.UserContent(parts=[types.Part(text=f"Picture {at}?"), picture(at)]))
    text = chat.agent.model.sent[-1].text  # type: ignore[union-attr]
    assert "artifact://evidence/" in text
    uri = text[text.index("artifact://evidence/") :].split("]")[0]
    llm = chat.agent.model  # type: ignore[union-attr]
    llm.script[:] = [call("read_artifact", uri=uri), "seen"]
    chat.say("Look at the first one again.")
    answers = [
        part.function_response
        for content in chat.sent[-1].contents
        for part in content.parts or ()
        if part.function_response
    ]
    assert answers
    assert "shown" in str(answers[-1].response) or answers[-1].parts


def test_screenshots_in_a_loop_give_way_before_the_users_picture() -> None:
    def look(at: int) -> dict[str, Any]:
        """Shows the screen."""
        return {"shown": f"screen {at}", "media": picture(100 + at)}

    chat = refusing(
        lambda request: "Too many images in request. Max is 4." if count_all(request.contents) > 4 else None,
        tools=[look],
    )
    llm = chat.agent.model  # type: ignore[union-attr]
    llm.script[:] = [call("look", at=at) for at in range(9)]
    chat.say(types.UserContent(parts=[types.Part(text="Watch the screen, compare it with this."), picture(1)]))
    chat.say("And?")
    assert all(
        picture(1).inline_data in [part.inline_data for part in media_in(sent.contents)] for sent in chat.sent[:-1]
    )
    assert max(count_all(sent.contents) for sent in chat.sent[8:]) <= 4
    chat.replays(every=1)


def count_all(contents: Sequence[types.Content]) -> int:
    parts = [part for content in contents for part in content.parts or ()]
    inside = [piece for part in parts if part.function_response for piece in part.function_response.parts or ()]
    return len(media_in(contents)) + len(inside)


def test_without_media_a_refusal_for_bytes_shortens_the_text() -> None:
    def refuses(request: LlmRequest) -> str | None:
        return "413 Request Entity Too Large" if len(all_text(request)) > 60_000 else None

    chat, failed = refusing(refuses), 0
    for at in range(20):
        try:
            chat.say(f"Question {at} " + f"note {at} of the report; " * 150)
        except RuntimeError:
            failed += 1
    assert failed <= 1


@pytest.mark.parametrize(
    "message",
    [
        os.strerror(errno.EMFILE),
        "Cannot connect to host api.example.com:443 [Too many open files]",
        "The total size of images in the request exceeds the limit of 20 MB",
        "The documents in the prompt exceed the maximum of 200000 tokens",
        "images with dimensions that exceed the maximum of 8000 pixels",
    ],
)
def test_an_error_that_counts_no_media_is_no_limit_of_their_number(message: str) -> None:
    refused = overflow_of(RuntimeError(message), "")
    assert refused is None or refused.kind != "media"
