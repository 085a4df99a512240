"""Claude's prompt cache, which holds nothing that a request does not mark.

ADK marks the ends of declarations, system instruction and conversation where a request has a cache configuration. For
Gemini the same configuration makes an explicit cache that is billed by the hour, so only requests that no other model
can get have one.
"""

from __future__ import annotations

from google.adk.agents.context_cache_config import ContextCacheConfig

from aether_context.adk.call import ModelCall
from aether_context.adk.windows import ServedModel, served_models
from aether_context.tokens.model_limits import bare_model_name, provider_of

_MARKING = frozenset({"", "anthropic", "bedrock", "vertex_ai", "openrouter", "azure_ai", "databricks"})
"""LiteLLM providers that pass the marks of a request on to Claude."""


def mark_prefix(call: ModelCall) -> None:
    """Lets ADK mark a request of Claude's, unless the app has a configuration of its own or the policy says no.

    To write a cache costs a quarter of the input price, which one call alone never earns back: an agent without tools
    marks nothing in a session that no agent has answered yet.
    """
    request, invocation = call.request, call.invocation
    if call.policy.cache == "off" or request.cache_config is not None or invocation.context_cache_config is not None:
        return
    if not request.tools_dict and all(event.author == "user" for event in call.context.session.events):
        return
    if all(map(_is_marked_claude, served_models(invocation.agent, call.model))):
        request.cache_config = ContextCacheConfig()


_UPLOADING = frozenset({"openai", "azure"})
"""LiteLLM providers for which ADK uploads documents."""
_INLINE = ("text/", "audio/", "image/", "video/")
_UPLOADED = (
    "{} is uploaded anew at every call, under a new name, so no cache serves what comes behind it: upload it once"
)


def uploaded_anew(call: ModelCall) -> str:
    """What ends the common prefix at the provider, where a request's own contents do not show it; else empty.

    ADK's ``LiteLlm`` uploads a document that stands in a message, and names the file that this call made.
    """
    served = served_models(call.invocation.agent, call.model)
    if not any("LiteLlm" in model.kinds and provider_of(model.name) in _UPLOADING for model in served):
        return ""
    parts = (part for content in call.request.contents for part in content.parts or ())
    kinds = (part.inline_data.mime_type or "" for part in parts if part.inline_data is not None)
    return next((_UPLOADED.format(kind) for kind in kinds if kind and not kind.startswith(_INLINE)), "")


def _is_marked_claude(model: ServedModel) -> bool:
    if "AnthropicLlm" in model.kinds:
        return True
    is_claude = bare_model_name(model.name).startswith("claude")
    return "LiteLlm" in model.kinds and is_claude and provider_of(model.name) in _MARKING
