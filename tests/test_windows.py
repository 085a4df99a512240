"""What a model can hold, in every spelling of its name; its default; and what is learned where it takes less."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
from genai_prices.data_snapshot import get_snapshot
from genai_prices.types import ModelInfo
from google.adk.agents import LlmAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.models import FallbackModel
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.genai import types
from google.genai.errors import ClientError
from pydantic import PrivateAttr
from scripted import Chat, Scripted, call, look_up, new_store
from strict import Strict, strict, turns

from aether_context import Manifest, PackPolicy, replay
from aether_context.adk import ContextPackPlugin
from aether_context.adk.overflow import Overflow, overflow_of
from aether_context.errors import PolicyError
from aether_context.store.replay import Replayer
from aether_context.tokens.model_limits import bare_model_name, known_window, listed_models, model_window

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("spelling", "bare"),
    [
        ("gemini-2.5-flash", "gemini-2.5-flash"), (" Gemini-2.5-Flash ", "gemini-2.5-flash"),
        ("models/gemini-2.5-flash", "gemini-2.5-flash"), ("ollama_chat/llama3.1:8b", "llama3.1:8b"),
        ("projects/p/locations/us-central1/publishers/google/models/gemini-2.5-pro", "gemini-2.5-pro"),
        ("vertex_ai/claude-sonnet-4@20250514", "claude-sonnet-4-20250514"),
        ("claude-opus-4-5@default", "claude-opus-4-5"), ("apigee/gemini/v1/gemini-2.5-flash", "gemini-2.5-flash"),
        ("openrouter/anthropic/claude-3.5-sonnet:beta", "claude-3.5-sonnet"),
        ("bedrock/us.anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4-5-20250929"),
        ("anthropic.claude-3-5-sonnet-20241022-v2:0", "claude-3-5-sonnet-20241022"),
        ("bedrock/openai.gpt-oss-120b-1:0", "gpt-oss-120b"), ("", ""),
    ],
)  # fmt: skip
def test_the_bare_name_is_what_the_model_is_called(spelling: str, bare: str) -> None:
    assert bare_model_name(spelling) == bare


WINDOWS = {
    1_048_576: (
        "gemini-2.5-flash models/gemini-2.5-flash gemini/gemini-2.5-pro vertex_ai/gemini-2.5-pro "
        "Gemini-Flash-Latest gemini-flash-latest-scripted gemini-3.1-pro-preview apigee/gemini/v1/gemini-2.5-flash "
        "projects/p/locations/l/publishers/google/models/gemini-3-pro-preview "
        "openrouter/google/gemini-2.5-pro"
    ),
    32_768: "gemini-2.5-flash-image models/gemini-2.5-flash-image-preview",
    65_536: "gemini-3-pro-image-preview",
    8_192: "gemini-2.5-flash-preview-tts gpt-4 fireworks_ai/accounts/fireworks/models/llama-v3-70b-instruct",
    131_072: (
        "gemini-2.0-flash-live-001 gemma-3-27b-it groq/openai/gpt-oss-120b "
        "fireworks_ai/accounts/fireworks/models/llama-v3p1-405b-instruct "
        "fireworks_ai/accounts/fireworks/models/llama-v3p3-70b-instruct "
        "fireworks_ai/accounts/fireworks/models/llama4-maverick-instruct-basic groq/llama-3.3-70b-versatile "
        "groq/meta-llama/llama-4-scout-17b-16e-instruct together_ai/meta-llama/Llama-3.3-70B-Instruct-Turbo "
        "mistral/mistral-large-latest mistral/ministral-8b-latest deepseek/deepseek-chat "
        "deepseek/deepseek-reasoner xai/grok-3-mini"
    ),
    128_000: (
        "gemini-2.5-computer-use-preview-10-2025 gpt-4o openai/gpt-4o azure/gpt-4o chatgpt-4o-latest "
        "gpt-5-chat-latest gpt-5.1-chat-latest bedrock/us.meta.llama3-3-70b-instruct-v1:0 command-r-plus "
        "openai/ft:gpt-4o-2024-08-06:acme::b1x9 bedrock/openai.gpt-oss-120b-1:0"
    ),
    1_000_000: (
        "gpt-4.1 azure/gpt-4.1-mini claude-opus-4-6 claude-opus-4.6 openrouter/anthropic/claude-opus-4.6 "
        "anthropic.claude-opus-4-6-v1 vertex_ai/claude-opus-4-6@default databricks/databricks-claude-opus-4-6"
    ),
    16_385: "gpt-3.5-turbo",
    200_000: (
        "o1 o3 openai/o4-mini claude-haiku-4-5 claude-haiku-4.5 claude-sonnet-4.5 claude-sonnet-4-5-20250929 "
        "anthropic/claude-sonnet-4-5 claude-3-5-sonnet-latest claude-3.7-sonnet "
        "openrouter/anthropic/claude-3.5-sonnet:beta anthropic.claude-3-5-sonnet-20241022-v2:0 "
        "us.anthropic.claude-sonnet-4-20250514-v1:0 us-gov.anthropic.claude-3-5-sonnet-20240620-v1:0 "
        "bedrock/us.anthropic.claude-sonnet-4-5-20250929-v1:0 "
        "bedrock/converse/eu.anthropic.claude-opus-4-1-20250805-v1:0 vertex_ai/claude-sonnet-4@20250514 "
        "projects/p/locations/us-east5/publishers/anthropic/models/claude-sonnet-4-5@20250929 "
        "azure_ai/claude-sonnet-4-5 databricks/databricks-claude-sonnet-4 databricks-claude-3-7-sonnet "
        "zai/glm-4.6 bedrock/zai.glm-4.6 perplexity/sonar-pro "
        "bedrock/arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.anthropic.claude-sonnet-4-5-20250929-v1:0"
    ),
    272_000: (
        "gpt-5 gpt-5-2025-08-07 openai/gpt-5-mini azure/gpt-5-nano openrouter/openai/gpt-5 gpt-5.1 "
        "gpt-5.1-codex gpt-5.2-pro gpt-5.4-mini"
    ),
    922_000: "gpt-5.4 gpt-5.5",
    300_000: "bedrock/us.amazon.nova-lite-v1:0",
    256_000: "xai/grok-4-0709 cohere/command-a-03-2025",
    129_024: "dashscope/qwen-plus",
    262_144: "moonshot/kimi-k2-0905-preview bedrock/moonshot.kimi-k2-thinking",
}
"""Names as apps give them, with what the providers' pages and LiteLLM's list say that the models take."""


@pytest.mark.parametrize(
    ("model", "tokens"), [(model, tokens) for tokens, models in WINDOWS.items() for model in models.split()]
)
def test_known_models_have_their_window(model: str, tokens: int) -> None:
    assert known_window(model) == tokens


@pytest.mark.parametrize(
    "model",
    ["no-such-model-17", "hosted_vllm/llama3.1", "azure/a-deployment", "projects/p/locations/l/endpoints/123", None],
)
def test_an_unknown_model_gets_a_small_window_and_one_warning(
    model: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    model_window.cache_clear()
    with caplog.at_level(logging.WARNING, logger="aether_context"):
        windows = [model_window(model) for _ in range(3)]
    assert windows == [32_768] * 3
    assert [record.name for record in caplog.records] == ["aether_context"]
    assert f"set max_input_tokens = {{{model or ''!r}: …}} in the policy" in caplog.text


class Wrapped(Scripted):
    """A model with settings for its client, as ``LiteLlm`` keeps them."""

    _additional_args: dict[str, Any] = PrivateAttr(default_factory=dict)

    def given(self, **settings: Any) -> Wrapped:
        self._additional_args = settings
        return self


def manifest_of(llm: BaseLlm, **settings: Any) -> Manifest:
    """The manifest of one call of an agent with this model."""
    chat = Chat(agent=LlmAgent(name="clerk", model=llm, instruction="You help."), **settings)
    chat.say("Hello?")
    return chat.latest()


def test_the_context_that_ollama_is_asked_for_is_the_window() -> None:
    def ollama(**settings: Any) -> Wrapped:
        return Wrapped(model="ollama_chat/llama3.1", sent=[]).given(**settings)

    manifest = manifest_of(ollama(num_ctx=16_384))
    assert (manifest.window, manifest.window_mark) == (16_384, "")
    manifest = manifest_of(ollama(num_ctx="much"))
    assert (manifest.window, manifest.window_mark) == (4_096, "assumed")
    manifest = manifest_of(ollama(num_ctx=16_384), policy=PackPolicy(max_input_tokens=9_000))
    assert (manifest.window, manifest.window_mark) == (9_000, "")


REFUSALS = [
    ("400 INVALID_ARGUMENT. {'error': {'code': 400, 'message': 'The input token count (1200293) exceeds the maximum "
     "number of tokens allowed (1048576).', 'status': 'INVALID_ARGUMENT'}}", Overflow(1_048_576, 1_200_293)),
    ("Unable to submit request because the input token count is 1200000 but model only supports up to 1048576. "
     "Reduce the input token count and try again.", Overflow(1_048_576, 1_200_000)),
    ("Error code: 400 - {'type': 'error', 'error': {'type': 'invalid_request_error', 'message': 'prompt is too long:"
     " 215431 tokens > 200000 maximum'}}", Overflow(200_000, 215_431)),
    ('litellm.BadRequestError: AnthropicException - b\'{"type":"error","error":{"message":"input length and '
     "`max_tokens` exceed context limit: 178959 + 64000 > 200000, decrease input length\"}}'",
     Overflow(136_000, 178_959, 64_000)),
    ("litellm.ContextWindowExceededError: litellm.BadRequestError: ContextWindowExceededError: OpenAIException - "
     "This model's maximum context length is 128000 tokens. However, your messages resulted in 140012 tokens.",
     Overflow(128_000, 140_012)),
    ("This model's maximum context length is 65536 tokens. However, you requested 72814 tokens (68718 in the "
     "messages, 4096 in the completion). Please reduce the length of the messages or completion.",
     Overflow(61_440, 68_718, 4_096)),
    ("This endpoint's maximum context length is 32768 tokens. However, you requested about 42832 tokens (40000 of "
     "text input, 2832 in the output).", Overflow(29_936, 40_000, 2_832)),
    ("'max_tokens' or 'max_completion_tokens' is too large: 8192. This model's maximum context length is 32768 "
     "tokens and your request has 30000 input tokens (8192 > 32768 - 30000).", Overflow(24_576, 30_000, 8_192)),
    ("You passed 8193 input tokens and requested 1 output tokens. However, the model's context length is only 8192 "
     "tokens, resulting in a maximum input length of 8191 tokens.", Overflow(8_190, 8_193, 1)),
    ("The prompt (total length 25938) is too long to fit into the model (context length 4096).",
     Overflow(4_096, 25_938)),
    ("Input tokens exceed the configured limit of 272,000 tokens. Your messages resulted in 285,554 tokens.",
     Overflow(272_000, 285_554)),
    ("Prompt contains 33000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
     Overflow(32_768, 33_000)),
    ("This model's maximum prompt length is 131072 but the request contains 150000 tokens.",
     Overflow(131_072, 150_000)),
    ("OllamaException - request (12010 tokens) exceeds the available context size (4096 tokens), try increasing it",
     Overflow(4_096, 12_010)),
    ("Please reduce the length of the messages or completion. Current length is 9000 while limit is 8192",
     Overflow(8_192, 9_000)),
    ("Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193. Given: 9000 `inputs` tokens and "
     "512 `max_new_tokens`", Overflow(7_681, 9_000, 512)),
    ("This model's maximum context length is 6048 tokens. However, you requested 6616 tokens (568 in the messages, "
     "6048 in the completion).", Overflow(6_048, 568)),
    ("BedrockException - prompt tokens (9000) exceed model maximum (8192)", Overflow(8_192, 9_000)),
    ("too many tokens: total number of tokens in this prompt cannot exceed 4081 tokens, received 10000",
     Overflow(4_081, 10_000)),
    ("Invalid request: Your request exceeded model token limit: 131072 (requested: 140000)",
     Overflow(131_072, 140_000)),
    ("Range of input length should be [1, 129024]", Overflow(129_024)),
    ("Request body too large for gpt-4o model. Max size: 8000 tokens.", Overflow(8_000)),
    ("Your input exceeds the context window of this model. Please adjust your input and try again.", Overflow()),
    ("BedrockException: Context Window Error - Input is too long for requested model.", Overflow()),
    ('{"error": {"message": "…", "code": "context_length_exceeded"}}', Overflow()),
    ("Input Tokens Exceeded: Number of input tokens exceeds maximum length.", Overflow()),
]  # fmt: skip
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
    assert second.window_mark == "default"


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
    assert [manifest.window_mark for manifest in chat.store.manifests(session="s2")] == ["default"] * 3


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
    assert chat.latest().window_mark == "learned"


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


class Unknown(Strict):
    """Refuses in words that no pattern knows."""

    words: str = "Request size cannot exceed {limit} bytes"
    most: int = 20_000
    unit: str = "bytes"

    async def generate_content_async(self, llm_request: LlmRequest, stream: bool = False) -> Any:
        text = repr(llm_request.config.system_instruction) + "".join(map(repr, llm_request.contents))
        if len(text) // (1 if self.unit == "bytes" else 4) > self.most:
            self.refused.append(len(text))
            words = self.words.format(limit=self.most)
            raise ClientError(400, {"error": {"message": words, "status": "INVALID_ARGUMENT"}})
        async for response in super().generate_content_async(llm_request, stream):
            yield response


@pytest.mark.parametrize(
    ("words", "most", "unit"),
    [
        ("Request size cannot exceed {limit} bytes", 20_000, "bytes"),
        ("The body may hold {limit} characters, no more", 20_000, "bytes"),
        ("input is over the allowed length of {limit}", 5_000, "tokens"),
    ],
)
@pytest.mark.rows(1)
def test_a_number_of_a_refusal_that_nobody_knows_is_tried_once_and_learned_where_it_passes(
    words: str, most: int, unit: str
) -> None:
    llm = Unknown(sent=[], refused=[], limit=10**9, words=words, most=most, unit=unit, usage=False)
    chat = Chat(agent=LlmAgent(name="clerk", model=llm, instruction="You help."))
    assert turns(chat, range(16)) == []
    assert len(llm.refused) == 1
    assert chat.latest().window_mark == "learned"
    chat.restart()
    assert turns(chat, range(16, 18)) == []
    assert len(llm.refused) == 1


@pytest.mark.parametrize(
    "words",
    [
        "The output length is limited to {limit} tokens",
        "max_tokens may not pass a limit of {limit}",
        "the name of a function has a length above 64",
        "limit {limit}99 of something",
    ],
)
def test_other_numbers_are_not_tried(words: str) -> None:
    llm = Unknown(sent=[], refused=[], limit=10**9, words=words, most=2_000)
    chat = Chat(agent=LlmAgent(name="clerk", model=llm, instruction="You help. " * 300))
    assert turns(chat, range(2)) == [0, 1]
    assert len(llm.refused) == 2
    assert chat.latest().window_mark == "default"


# the default


def document(lines: int) -> str:
    return "\n".join(
        f"clause {at}: the tenant of house {at * 7} sweeps the stairs on day {at % 31}" for at in range(lines)
    )


@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        ("gemini-2.5-flash", 128_000), ("gemini-2.5-pro", 128_000), ("gpt-5", 128_000), ("claude-sonnet-4-5", 128_000),
        ("gpt-4o", 128_000), ("gpt-3.5-turbo", 16_385), ("nobody-knows-it", 32_768),
    ],
)  # fmt: skip
def test_the_default_is_no_more_than_the_model_takes_nor_than_its_first_price(model: str, tokens: int) -> None:
    assert usual_window(model) == tokens


def usual_window(model: str) -> int:
    chat = Chat(model=model)
    chat.say("Hello")
    return chat.manifests()[0].window


def test_a_model_whose_price_doubles_sooner_has_less() -> None:
    from genai_prices.data_snapshot import get_snapshot

    cheaper = set()
    for provider in get_snapshot().providers:
        for info in provider.models:
            for prices in [info.prices] if not isinstance(info.prices, list) else [one.prices for one in info.prices]:
                tiers = getattr(prices.input_mtok, "tiers", ())
                if tiers and min(tier.start for tier in tiers) < 128_000:
                    cheaper.add(f"{provider.id}/{info.id}")
    assert cheaper
    assert all(usual_window(name) < 128_000 for name in cheaper)


def test_a_call_that_needs_more_takes_more_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    text, script = document(8_000), ["Read.", call("look_up", key="k"), "Yes.", "Bye.", "Read."]
    with caplog.at_level(logging.INFO, logger="aether_context"):
        chat = Chat(script, [look_up])
        chat.say("Hello", f"Which day has house 21?\n{text}", "Thanks.", f"And this?\n{document(8_500)}")
    marks = [(manifest.window, manifest.window_mark, manifest.most_window) for manifest in chat.manifests()]
    exceeded = "default_exceeded"
    assert [mark for _, mark, _ in marks] == ["default", exceeded, exceeded, "default", exceeded]
    assert {most for _, _, most in marks} == {1_048_576}
    assert marks[0][0] == marks[3][0] == 128_000
    assert marks[1][0] == marks[2][0] > 150_000
    assert text in chat.sent[1].text
    assert text in chat.sent[2].text
    assert document(8_500) in chat.sent[-1].text
    told = [record.message for record in caplog.records if "see max_input_tokens" in record.message]
    assert ["exceeded" in message for message in told] == [False, True]
    chat.replays()
    resolved = replay(chat.manifests()[1], chat.store)
    assert resolved.pack.source.window == marks[1][0]


def test_in_its_tool_loop_too_and_results_have_room() -> None:
    text = document(6_000)
    chat = Chat([*(call("look_up", key=f"k{at}") for at in range(4)), "Done."], [look_up])
    chat.say(f"Compare.\n{text}")
    assert all(text in sent.text for sent in chat.sent)
    assert {manifest.window_mark for manifest in chat.manifests()} == {"default_exceeded"}
    assert len({manifest.window for manifest in chat.manifests()}) == 1
    assert len(chat.sent[-1].answers()) == 4
    chat.replays()


@pytest.mark.parametrize(
    ("setting", "window", "mark"),
    [
        (None, 128_000, "default"), ("model", 1_048_576, ""), (200_000, 200_000, ""),
        ({"gemini-2.5-flash": "model"}, 1_048_576, ""), ({"gemini-2.5-flash": 300_000}, 300_000, ""),
        ({"gpt-5": "model"}, 128_000, "default"),
    ],
)  # fmt: skip
@pytest.mark.rows(2)
def test_what_is_set_is_hard(setting: Any, window: int, mark: str) -> None:
    chat = Chat(policy=PackPolicy(max_input_tokens=setting))
    chat.say("Hello", document(8_000))
    manifests = chat.manifests()
    assert (manifests[0].window, manifests[0].window_mark) == (window, mark)
    assert (manifests[1].window > window) == (mark == "default")
    assert (document(8_000) in chat.sent[1].text) == (mark == "default" or window > 200_000)
    assert Replayer(chat.store).policy(manifests[0]) == PackPolicy(max_input_tokens=setting)
    chat.replays()


def test_another_word_is_an_error() -> None:
    with pytest.raises(PolicyError, match="max_input_tokens"):
        PackPolicy(max_input_tokens="all")


@pytest.mark.slow
def test_a_refusal_teaches_less_than_the_model_is_said_to_take() -> None:
    """What is learned between the default and the model's own limit bounds the calls that exceed the default."""
    chat = Chat(agent=LlmAgent(name="clerk", model=strict(limit=150_000), instruction="Help."))
    chat.say("Hello", document(12_000), "And now?", document(7_000))
    manifests = chat.manifests()
    assert [manifest.most_window for manifest in manifests] == [1_048_576, 1_048_576, *[150_000] * 3]
    assert [manifest.window_mark for manifest in manifests][-2:] == ["default", "default_exceeded"]
    assert manifests[-1].window == 150_000
    chat.replays()


def test_of_several_models_the_smallest_counts() -> None:
    model = FallbackModel(models=[Scripted(model="gemini-2.5-flash", sent=[]), Scripted(model="gpt-5", sent=[])])
    chat = Chat(agent=LlmAgent(name="clerk", model=model, instruction="Help."))
    chat.say("Hello")
    assert (chat.manifests()[0].window, chat.manifests()[0].most_window) == (128_000, 272_000)
    windows = {"gemini-2.5-flash": 60_000, "gpt-5": 50_000}
    assert manifest_of(model, policy=PackPolicy(max_input_tokens=windows)).window == 50_000


# The public list of models, as the installed `genai-prices` has it.

_CALLED = re.compile(r"(?:gemini|gemma|claude)-\d|gpt-[4-9]|o[1-9]")
_NAMED = re.compile(
    r"""(?x) (?: --model[ ] | (?:model\w*|default|summarizer|critic) ["']? \s*[=:]\s* (?:\w+\()? ["'] ) (?:\w+/)?
    ((?:gemini|claude|gpt|o\d)-[\w.-]+)"""
)
"""A name where somebody would copy it from, or a default."""


def listed() -> dict[str, ModelInfo]:
    providers = {provider.id: provider.models for provider in get_snapshot().providers}
    models = [model for name in ("google", "openai", "anthropic") for model in providers[name]]
    return {model.id: model for model in models if _CALLED.match(model.id) and not model.deprecated}


def test_no_listed_model_gets_more_than_its_window_and_each_has_one() -> None:
    windows = {name: model.context_window for name, model in listed().items() if model.context_window}
    assert len(windows) > 60
    assert {name: tokens for name, tokens in windows.items() if not 0 < (known_window(name) or 0) <= tokens} == {}


def test_examples_and_defaults_name_models_that_are_listed_and_have_a_price() -> None:
    folders = [ROOT / name for name in ("docs", "samples", "aether_context")]
    files = [
        ROOT / "README.md",
        *(path for folder in folders for ending in ("md", "py") for path in folder.rglob(f"*.{ending}")),
    ]
    named = {name.removesuffix("-offline") for path in files for name in _NAMED.findall(path.read_text("utf-8"))}
    assert {"gemini-flash-latest", "claude-sonnet-5-5"} <= named
    for name in named:
        models = listed_models(name)
        assert models, f"{name} is not listed"
        assert not models[0].deprecated, name
        assert models[0].prices, name
        assert not re.search(r"\d{6}|\d\d-\d\d", name), f"{name} has the date of a version, which ends"
