"""One pack from its input: the stages in order, pure and synchronous.

I/O happens before it (the edge gathers memory hits, evidence, state) and after it (the store writes).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial

from aether_context.pack import Outgoing, Pack, PackInput
from aether_context.packing.allocation import exceeding
from aether_context.packing.compaction import compact_conversation, leave_out_media, results_to_keep, trim_early
from aether_context.packing.compression import compress, trim_tools_and_step
from aether_context.packing.demand import allocate_window
from aether_context.packing.draft import Draft
from aether_context.packing.epoch_state import apply_epoch
from aether_context.packing.inputs import next_input, stale_thoughts, turns_to_find
from aether_context.packing.instructions import absent_instructions
from aether_context.packing.last_resort import bring_within_window
from aether_context.packing.payload import write_payload
from aether_context.packing.rendering import render_pack
from aether_context.packing.selection import choose, leave_out_summarized
from aether_context.packing.tools import select_tools
from aether_context.policy import PackPolicy
from aether_context.tokens import TokenCounter, counter_for, framing_of
from aether_context.tokens.cache import PackCounter, TokenCache

__all__ = ["build_pack", "next_input", "turns_to_find"]

_MOST_CHOICES = 3
"""Upper bound on rounds of selection. A further round is needed where a cut removes text that made a candidate a
duplicate."""


def build_pack(
    source: PackInput,
    policy: PackPolicy,
    *,
    counter: TokenCounter | None = None,
    cache: TokenCache | None = None,
    recorded: Mapping[str, int] | None = None,
    proposes: bool = False,
) -> Pack:
    """Builds the request of one model call, with the account of it.

    Equal arguments give equal packs, byte for byte, on every machine.

    Candidates that the conversation says anyway are left out. Where a cut takes those words out of it, candidates are
    chosen once more, since the prefix ends there anyway; and again where those that are chosen push more of it out.
    What a proposed cut leaves comes back in the input's search, and all is chosen for that at once.

    Args:
        counter: counts tokens; the built-in estimate for the request's model by default.
        cache: counts and shortened contents by digest, kept between packs for speed.
        recorded: counts of an earlier build, by short digest; they come before the counter's.
        proposes: whether a cut behind which candidates are chosen anew is only proposed, so that what answers the
            request can be looked for in what it takes before the pack is built.

    Raises:
        StepTooLarge: system, task and tools alone exceed the input budget, and the policy's ``on_invalid`` is not
            ``warn``.
    """
    model = source.request.model
    pack_counter = PackCounter(counter or counter_for(model), cache, recorded, framing=framing_of(model))
    # Thoughts that leave begin a build of their own, which goes on from all of the one before.
    pack = _build(source, policy, pack_counter, is_cut_due=False, proposes=proposes and not source.binds_thoughts)
    # Without the thoughts all that is sent is chosen anew, since they may have filled much of the window.
    if end := stale_thoughts(pack):
        thoughtless, weighed = source._replace(epoch=replace(source.epoch, thoughts=end)), pack.to_store.chose
        is_cut = any(event.stage == "cut" for event in pack.events)
        pack = _build(thoughtless, policy, pack_counter, is_cut_due=is_cut, proposes=False)
        to_store = pack.to_store._replace(weighed=weighed)
        pack = pack._replace(source=pack.source._replace(epoch=source.epoch), to_store=to_store)
    return pack._replace(remaining=None) if source.binds_thoughts else pack


def _build(source: PackInput, policy: PackPolicy, counter: PackCounter, *, is_cut_due: bool, proposes: bool) -> Pack:
    """Builds a pack with the signed thoughts that the epoch of its input leaves, or proposes one."""
    start, proposed = partial(start_draft, source, policy, counter, is_cut_due=is_cut_due), source.search.remaining
    base = start()
    sent_contents = base.history.items
    if proposed is not None and base.is_worth_choosing_again:
        base = start(at_cut=True)
        sent_contents = tuple(item for item in base.history.items if base.position(item) in proposed)
    draft = fit_to_window(base, sent_contents)
    # What is chosen depends on what the conversation says, that on the cut, and the cut on what is chosen. An epoch
    # that begins at this call has just chosen everything, and would choose the same where nothing was left out as said.
    has_new_choice = base.starts_epoch and not base.epoch.has_chosen and draft.rankings.has_no_duplicates
    is_cut = bool(draft.history.cut) and not base.at_cut
    remaining = frozenset(map(draft.position, draft.history.items)) if is_cut else None
    if is_cut and base.is_worth_choosing_again and not has_new_choice:
        if proposes:
            return render_pack(draft)._replace(remaining=remaining, is_proposed=True)
        base, sent_contents = start(at_cut=True), draft.history.items
        draft = fit_to_window(base, sent_contents)
    for _ in range(_MOST_CHOICES - 1 - base.at_cut):
        if draft.rankings.has_no_duplicates or not content_changed(sent_contents, draft):
            break
        sent_contents, draft = draft.history.items, fit_to_window(base, draft.history.items)
    # What a cut took of these goes into the payload, where each stays from then on.
    while absent := absent_instructions(draft, draft.history.items).difference(draft.instructs):
        base.instructs = (*draft.instructs, *sorted(absent))
        draft = fit_to_window(base, draft.history.items)
    leave_out_summarized(draft)
    return render_pack(draft)._replace(remaining=remaining)


def start_draft(
    source: PackInput, policy: PackPolicy, counter: PackCounter, *, at_cut: bool = False, is_cut_due: bool = False
) -> Draft:
    """Begins a draft with what the call and its epoch determine, before anything is chosen."""
    agent = source.identity._replace(invocation="", call=0, last_event_id="", last_event_time=0.0)
    columns = counter.columns(agent)
    # Of equal contents the ones that are known, so that later comparisons end at their identity.
    contents = columns.extend("contents", lambda new: new, source.request.contents)
    source = source._replace(request=source.request._replace(contents=contents))
    draft = Draft(input=source, policy=policy, counter=counter, columns=columns, at_cut=at_cut, step=source.step)
    draft.is_cut_due = is_cut_due
    draft.raw_tokens = counter.column(columns, contents)
    select_tools(draft)
    limit = source.host.most_window
    needed_tokens = draft.needed_tokens + draft.input_budget - draft.countable_budget
    window = exceeding(needed_tokens, source.window, limit, policy.budget, source.output_tokens) if limit else 0
    if window > source.window:
        host = source.host._replace(window_mark="default_exceeded")
        draft.input = source._replace(window=window, host=host)
    apply_epoch(draft)
    draft.kept_results = tuple(results_to_keep(draft)) if policy.offload.tools else ()
    leave_out_media(draft)
    return draft


def fit_to_window(draft: Draft, sent_contents: Sequence[Outgoing]) -> Draft:
    """Chooses candidates beside these contents, and brings all of it within the window."""
    draft = copy(draft)
    choose(draft, sent_contents)
    packed_instructs = draft.epoch.packed_form.instructs if draft.epoch.packed_form is not None else ()
    absent = sorted(absent_instructions(draft, sent_contents))
    draft.instructs = (*dict.fromkeys((*draft.instructs, *packed_instructs, *absent)),)
    # What a payload takes cannot be known from its parts: headers come and go with sections, and a tokenizer counts a
    # text otherwise than its lines. So it is written and counted before anything is decided by what the layers take.
    write_payload(draft)
    trim_early(draft)
    # Before the allocation, which gives tools and step what they measure.
    trim_tools_and_step(draft)
    allocate_window(draft)
    compress(draft)
    write_payload(draft)
    # After all other layers, since the water marks are what these leave of the input budget.
    compact_conversation(draft)
    bring_within_window(draft)
    return draft


def content_changed(contents: Sequence[Outgoing], draft: Draft) -> bool:
    """Tells whether a draft removed or shortened any of these contents, but for the request."""
    digests = {item.origin: item.content.digest for item in draft.history.items}
    compared_items = (item for item in contents if item.origin != draft.input.request.request_index)
    return any(digests.get(item.origin) != item.content.digest for item in compared_items)
