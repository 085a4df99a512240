"""A model that takes less than is known of it: its refusal is understood, learned once, and kept."""

from __future__ import annotations

import pytest
from google.adk.agents import LlmAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.models import FallbackModel
from google.adk.models.llm_request import LlmRequest
from google.genai import types
from google.genai.errors import ClientError
from scripted import Chat, new_store
from strict import Strict, strict, turns

from aether_context.adk import ContextPackPlugin
from aether_context.adk.overflow import Overflow, overflow_of

REFUSALS = [
    (
        "400 INVALID_ARGUMENT. {'error': {'code': 400, 'message': 'The input token count (1200293) exceeds the maximum "
        "number of tokens allowed (1048576).', 'status': 'INVALID_ARGUMENT'}}",
        Overflow(1_048_576, 1_200_293),
    ),
    (
        "Unable to submit request because the input token count is 1200000 but model only supports up to 1048576. "
        "Reduce the input token count and try again.",
        Overflow(1_048_576, 1_200_000),
    ),
    (
        "Error code: 400 - {'type': 'error', 'error': {'type': 'invalid_request_error', 'message': 'prompt is too long:"
        " 215431 tokens > 200000 maximum'}}",
        Overflow(200_000, 215_431),
    ),
    (
        'litellm.BadRequestError: AnthropicException - b\'{"type":"error","error":{"message":"input length and '
        "`max_tokens` exceed context limit: 178959 + 64000 > 200000, decrease input length\"}}'",
        Overflow(136_000, 178_959, 64_000),
    ),
    (
        "litellm.ContextWindowExceededError: litellm.BadRequestError: ContextWindowExceededError: OpenAIException - "
        "This model's maximum context length is 128000 tokens. However, your messages resulted in 140012 tokens.",
        Overflow(128_000, 140_012),
    ),
    (
        "This model's maximum context length is 65536 tokens. However, you requested 72814 tokens (68718 in the "
        "messages, 4096 in the completion). Please reduce the length of the messages or completion.",
        Overflow(61_440, None, 4_096),
    ),
    (
        "This endpoint's maximum context length is 32768 tokens. However, you requested about 42832 tokens (40000 of "
        "text input, 2832 in the output).",
        Overflow(29_936, None, 2_832),
    ),
    (
        "'max_tokens' or 'max_completion_tokens' is too large: 8192. This model's maximum context length is 32768 "
        "tokens and your request has 30000 input tokens (8192 > 32768 - 30000).",
        Overflow(24_576, 30_000, 8_192),
    ),
    (
        "You passed 8193 input tokens and requested 1 output tokens. However, the model's context length is only 8192 "
        "tokens, resulting in a maximum input length of 8191 tokens.",
        Overflow(8_190, 8_193, 1),
    ),
    ("The prompt (total length 25938) is too long to fit into the model (context length 4096).", Overflow(4_096)),
    (
        "Input tokens exceed the configured limit of 272,000 tokens. Your messages resulted in 285,554 tokens.",
        Overflow(272_000, 285_554),
    ),
    (
        "Prompt contains 33000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
        Overflow(32_768, 33_000),
    ),
    (
        "This model's maximum prompt length is 131072 but the request contains 150000 tokens.",
        Overflow(131_072, 150_000),
    ),
    (
        "OllamaException - request (12010 tokens) exceeds the available context size (4096 tokens), try increasing it",
        Overflow(4_096, 12_010),
    ),
    (
        "Please reduce the length of the messages or completion. Current length is 9000 while limit is 8192",
        Overflow(8_192, 9_000),
    ),
    (
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193. Given: 9000 `inputs` tokens and "
        "512 `max_new_tokens`",
        Overflow(7_681, None, 512),
    ),
    (
        "This model's maximum context length is 6048 tokens. However, you requested 6616 tokens (568 in the messages, "
        "6048 in the completion).",
        Overflow(6_048),
    ),
    ("BedrockException - prompt tokens (9000) exceed model maximum (8192)", Overflow(8_192, 9_000)),
    (
        "too many tokens: total number of tokens in this prompt cannot exceed 4081 tokens, received 10000",
        Overflow(4_081),
    ),
    ("Invalid request: Your request exceeded model token limit: 131072 (requested: 140000)", Overflow(131_072)),
    ("Range of input length should be [1, 129024]", Overflow(129_024)),
    ("Request body too large for gpt-4o model. Max size: 8000 tokens.", Overflow(8_000)),
    ("Your input exceeds the context window of this model. Please adjust your input and try again.", Overflow()),
    ("BedrockException: Context Window Error - Input is too long for requested model.", Overflow()),
    ('{"error": {"message": "…", "code": "context_length_exceeded"}}', Overflow()),
    ("Input Tokens Exceeded: Number of input tokens exceeds maximum length.", Overflow()),
]
OTHERS = [
    "429 RESOURCE_EXHAUSTED. {'error': {'message': 'You exceeded your current quota, limit: 250000'}}",
    "Request too large for gpt-4o in organization org-1 on tokens per min (TPM): Limit 30000, Requested 45000.",
    "litellm.RateLimitError: AnthropicException - This request would exceed your organization's rate limit of 50,000 "
    "input tokens per minute: prompt is too long: 60000 tokens > 50000 maximum",
    "An error occurred (ThrottlingException) when calling the Converse operation (reached max retries: 4): Too many "
    "tokens, please wait before trying again.",
    "max_tokens: 64000 > 8192, which is the maximum allowed number of output tokens for claude-3-5-sonnet",
    "max_tokens is too large: 100000. This model supports at most 16384 completion tokens.",
    "The maximum tokens you requested exceeds the model limit of 4096. Try again with a lower maximum tokens value.",
    "503 UNAVAILABLE. The model is overloaded.",
    "",
]


@pytest.mark.parametrize(("message", "meaning"), REFUSALS)
def test_a_refusal_for_length_is_understood(message: str, meaning: Overflow) -> None:
    assert overflow_of(ValueError(message)) == meaning
    assert overflow_of(message) == meaning


@pytest.mark.parametrize("message", OTHERS)
def test_other_errors_teach_nothing(message: str) -> None:
    assert overflow_of(ValueError(message)) is None


def test_errors_that_are_not_refusals_are_recorded_and_teach_nothing() -> None:
    error = ClientError(429, {"error": {"message": "limit is 500 tokens per minute", "status": "RESOURCE_EXHAUSTED"}})
    chat = Chat(script=[error, "fine"])
    with pytest.raises(ClientError):
        chat.say("One?")
    chat.say("Two?")
    first, second = chat.manifests()
    assert chat.store.outcome(first)["error_code"] == "ClientError"
    assert chat.store.outcome(second)["error_code"] is None
    assert first.window == second.window
    assert second.window_mark == ""


def test_a_window_belongs_to_a_model_at_an_endpoint() -> None:
    plugin = ContextPackPlugin(store=new_store(), on_error="raise")
    llm = strict()
    small = Chat(agent=LlmAgent(name="clerk", model=llm, instruction="You help."), plugin=plugin)
    assert turns(small, range(14)) == []
    assert len(llm.refused) == 1

    class Elsewhere(Strict):
        base_url: str = "https://user:secret@models.example"

    large = Elsewhere(sent=[], refused=[], limit=200_000)
    chat = Chat(agent=LlmAgent(name="clerk", model=large, instruction="You help."), plugin=plugin, session="s2")
    assert turns(chat, range(3)) == []
    assert [manifest.window_mark for manifest in chat.store.manifests(session="s2")] == [""] * 3


@pytest.mark.filterwarnings("ignore:.*EXPERIMENTAL:UserWarning")
def test_the_model_of_a_fallback_that_refused_is_the_one_that_is_learned_of() -> None:
    busy = ClientError(503, {"error": {"message": "overloaded", "status": "UNAVAILABLE"}})
    first, second = strict(limit=200_000, script=[busy] * 9), strict(model="gemini-2.5-pro")
    chat = Chat(agent=LlmAgent(name="clerk", model=FallbackModel(models=[first, second]), instruction="You help."))
    failed = turns(chat, range(14))
    assert (len(failed), len(second.refused)) == (0, 0)  # the first one answers from turn 10 on
    first.script[:] = [busy] * 4
    assert turns(chat, range(14, 18)) == []
    assert len(second.refused) == 1
    assert chat.manifests()[-1].window_mark == "learned"


def test_a_call_is_tried_twice_at_most_and_not_behind_a_callback_that_changed_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    llm = strict(limit=300)  # less than any window that is learned
    failed = turns(Chat(agent=LlmAgent(name="clerk", model=llm, instruction="You help.")), range(1))
    assert (failed, len(llm.refused)) == ([0], 2)

    def add(callback_context: CallbackContext, llm_request: LlmRequest) -> None:
        llm_request.contents = [*llm_request.contents[:-1], types.UserContent("behind the plugin")]

    llm = strict(limit=300)
    agent = LlmAgent(name="clerk", model=llm, instruction="You help. " * 300, before_model_callback=add)
    assert turns(Chat(agent=agent), range(1)) == [0]
    assert len(llm.refused) == 1
    assert "a callback behind the plugin changed it" in caplog.text


def test_the_second_try_is_counted_as_a_call_of_the_model() -> None:
    chat = Chat(agent=LlmAgent(name="clerk", model=strict(), instruction="You help."))
    assert turns(chat, range(14)) == []
    assert isinstance(chat.plugin, ContextPackPlugin)
    report = chat.plugin.usage(app="shop", user="ann", session="s1")
    assert report is not None
    assert report.session.totals.calls == 14
    assert len({manifest.pack_id for manifest in chat.manifests()}) == 15
