"""Instructions that hold until they end, like the bodies of active skills.

Each stands whole where it was loaded, or, once that is not sent any more, in the payload. All of them together take at
most a quarter of the window, but the newest is whole wherever the system instruction, the declarations and the request
leave room; those for which there is none are named with the call that loads them again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from aether_context.canonical import canonical_json
from aether_context.conversation.extracts import LEAST_EXTRACT
from aether_context.pack import Candidate, Content, Outgoing
from aether_context.packing import payload
from aether_context.packing.draft import Draft

_LOOP_TOKENS = 4 * LEAST_EXTRACT
"""What calls and results beside the newest instruction need at least."""


def protect_instructions(draft: Draft) -> None:
    """Decides which instructions are whole, and marks the latest result that holds each of them."""
    source, counter = draft.input, draft.counter
    if not source.instructions:
        return
    other_tokens = counter.count_all([payload.contract_of(source), payload.step_text(source.step)])
    room = draft.input_budget - draft.needed_tokens - sum(other_tokens) - _LOOP_TOKENS
    contents, used, max_tokens = list(source.request.contents), 0, room
    for instruction in reversed(source.instructions):
        tokens = counter.count(instruction.text)
        if instruction.text and used + tokens <= max_tokens:
            used += tokens
            draft.whole |= {instruction.id}
            holders = [at for at, content in enumerate(contents) if _holds(content, instruction)]
            for at in holders[-1:]:
                marked = {part: replace(part, is_instruction=True) for part in contents[at].responses}
                parts = tuple(marked.get(part, part) for part in contents[at].parts)
                contents[at] = replace(contents[at], parts=parts, responses=tuple(marked.values()))
        max_tokens = min(room, source.window // 4)
    draft.input = source._replace(request=source.request._replace(contents=tuple(contents)))


def absent_instructions(draft: Draft, sent_items: Iterable[Outgoing]) -> set[str]:
    """The ids of the instructions that stand in none of these contents, nor in an earlier message's payload there."""
    instructions, request_index = draft.input.instructions, draft.input.request.request_index
    if not instructions:
        return set()
    items = [item for item in sent_items if item.origin != request_index]
    digests = {item.raw.digest for item in items if item.form == "payload"}
    present = {name for message in draft.epoch.earlier if message.of in digests for name in message.instructs}
    return {
        instruction.id
        for instruction in (instructions if request_index is not None else ())
        if instruction.id not in present and not any(_holds(item.content, instruction) for item in items)
    }


def _holds(content: Content, instruction: Candidate) -> bool:
    text = instruction.text
    # What is itself the JSON of a response stands there as it is, a text in it with escapes.
    forms = (text, canonical_json(text)[1:-1]) if text and content.responses else ()
    return any(form in part.text for form in forms for part in content.responses)
