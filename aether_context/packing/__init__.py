"""One pack from its input: the stages in order, pure and synchronous.

I/O happens before it (the edge gathers memory hits, evidence, state) and after it (the store writes).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy

from aether_context.pack import Outgoing, Pack, PackInput
from aether_context.packing.allocation import exceeding
from aether_context.packing.carryover import restore_forms
from aether_context.packing.compaction import compact, leave_out_media, trim_early
from aether_context.packing.compression import compress, tighten
from aether_context.packing.demand import allocate_window
from aether_context.packing.draft import Draft
from aether_context.packing.inputs import next_input, turns_to_find
from aether_context.packing.instructions import absent_instructions
from aether_context.packing.last_resort import bring_within_window
from aether_context.packing.payload import write_payload
from aether_context.packing.rendering import render
from aether_context.packing.selection import choose, leave_out_summarized
from aether_context.packing.tools import select_tools
from aether_context.policy import PackPolicy
from aether_context.tokens import TokenCounter, counter_for, framing_of
from aether_context.tokens.cache import PackCounter, TokenCache

__all__ = ["build_pack", "next_input", "turns_to_find"]

_MOST_CHOICES = 3
"""So often candidates are chosen at most: for the conversation as it came, and again where it lost what they repeat."""


def build_pack(
    source: PackInput,
    policy: PackPolicy,
    *,
    counter: TokenCounter | None = None,
    cache: TokenCache | None = None,
    recorded: Mapping[str, int] | None = None,
) -> Pack:
    """Builds the request of one model call, with the account of it.

    Equal arguments give equal packs, byte for byte, on every machine.

    Candidates that the conversation says anyway are left out. Where a cut takes those words out of it, candidates are
    chosen once more, and so are relevant tools, since the prefix ends there anyway; and again where those that are
    chosen push more of it out.

    Args:
        counter: counts tokens; the built-in estimate for the request's model by default.
        cache: counts and shortened contents by digest, kept between packs for speed.
        recorded: counts of an earlier build, by short digest; they come before the counter's.

    Raises:
        StepTooLarge: system, task and tools alone exceed the input budget, and the policy's ``on_invalid`` is not
            ``warn``.
    """
    model = source.request.model
    cached = PackCounter(counter or counter_for(model), cache, recorded, framing=framing_of(model))
    given = _given(source, policy, cached)
    made = _fitted(given, given.history.items)
    standing = given.history.items
    # What is chosen depends on what the conversation says, that on the cut, and the cut on what is chosen. An epoch
    # that begins at this call has just chosen everything, and would choose the same where nothing was left out as said.
    has_new_choice = given.begins and not given.carried.has_chosen and made.found.stands_alone
    renews = given.is_worth_choosing_again and not has_new_choice
    if made.history.cut and (renews or (given.tools.mode == "relevant" and not given.tools.scores)):
        given = _given(source, policy, cached, at_cut=True)
        standing, made = made.history.items, _fitted(given, made.history.items)
    for _ in range(_MOST_CHOICES - 1 - given.at_cut):
        if made.found.stands_alone or not _lost(given.request_index, standing, made.history.items):
            break
        standing, made = made.history.items, _fitted(given, made.history.items)
    # What a cut took of these goes into the payload, where each stays from then on.
    while lost := absent_instructions(made, made.history.items).difference(made.instructs):
        given.instructs = (*made.instructs, *sorted(lost))
        made = _fitted(given, made.history.items)
    leave_out_summarized(made)
    return render(made)


def _given(source: PackInput, policy: PackPolicy, counter: PackCounter, *, at_cut: bool = False) -> Draft:
    """Begins a draft with what the call and its epoch determine, before anything is chosen."""
    agent = source.identity._replace(invocation="", call=0, last_event_id="", last_event_time=0.0)
    columns = counter.columns(agent)
    # Of equal contents the ones that are known, so that later comparisons end at their identity.
    contents = columns.extend("contents", lambda new: new, source.request.contents)
    source = source._replace(request=source.request._replace(contents=contents))
    draft = Draft(input=source, policy=policy, counter=counter, columns=columns, at_cut=at_cut, step=source.step)
    select_tools(draft)
    most = source.host.most_window
    window = exceeding(draft.needed_tokens, source.window, most, policy.budget, source.output_tokens) if most else 0
    if window > source.window:
        host = source.host._replace(window_mark="default_exceeded")
        draft.input = source._replace(window=window, host=host)
    restore_forms(draft)
    leave_out_media(draft)
    return draft


def _fitted(draft: Draft, standing: Sequence[Outgoing]) -> Draft:
    """Chooses candidates beside these contents, and brings all of it within the window."""
    draft = copy(draft)
    choose(draft, standing)
    carried = draft.carried.packed.instructs if draft.carried.packed is not None else ()
    draft.instructs = (*dict.fromkeys((*draft.instructs, *carried, *sorted(absent_instructions(draft, standing)))),)
    # What a payload takes cannot be known from its parts: headers come and go with sections, and a tokenizer counts a
    # text otherwise than its lines. So it is written and counted before anything is decided by what the layers take.
    write_payload(draft)
    trim_early(draft)
    # Before the allocation, which gives tools and step what they measure.
    tighten(draft)
    allocate_window(draft)
    compress(draft)
    write_payload(draft)
    # After all other layers, since the water marks are what these leave of the input budget.
    compact(draft)
    bring_within_window(draft)
    return draft


def _lost(request_index: int | None, before: Sequence[Outgoing], after: Sequence[Outgoing]) -> bool:
    """Tells whether contents that stood in the conversation do not stand there any longer, or in another form."""
    sent = {item.origin: item.content.digest for item in after}
    return any(sent.get(item.origin) != item.content.digest for item in before if item.origin != request_index)
