"""The input of a model call from the host's whole history: what of it is sent, and what of the rest is looked for."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

from aether_context.canonical import utf8_size
from aether_context.conversation.epoch import align, live_positions, reset
from aether_context.conversation.turns import is_human, other_turns, torn, unpaired
from aether_context.pack import (
    MOST_PARTS,
    Content,
    Epoch,
    Identity,
    Pack,
    PackInput,
    Request,
    Unseen,
    is_unseen,
    medium_place,
)
from aether_context.packing.compaction import sent_bytes
from aether_context.retrieval.ranking import LEAST_ROOM
from aether_context.tokens.model_limits import RequestLimits


def next_input(
    base: PackInput,
    total: int,
    content_at: Callable[[int], Content],
    epoch: Epoch,
    *,
    request_index: int | None,
    begin: int = 0,
    request_only: bool = False,
    restored: int = 0,
    limits: RequestLimits | None = None,
    sees_own: bool = False,
) -> PackInput:
    """The input of the call that follows on an epoch; ``base`` with contents, epoch, and what follows from these.

    Every host's calls come this way, recorded ones that are simulated too, so that all of them cut alike.

    Args:
        base: what does not depend on the history.
        total: the number of contents in the host's list.
        content_at: the content at a position in it; asked for those that are needed alone.
        epoch: as the call before left it.
        request_index: the position of the message that is answered; it is sent even where a cut took it.
        begin: the first content that may be sent.
        request_only: whether the agent is shown nothing but what it answers, so that its epochs last no longer.
        restored: the contents before this position are not the host's own now: of these whole exchanges are sent alone.
        limits: what the provider takes in one request beside tokens; None where media are left out as they were.
        sees_own: whether other agents' turns are left out, see `other_turns`.
    """
    identity = base.identity
    passthrough = bool(base.host.passthrough_reason)
    epoch = Epoch(number=0) if passthrough else epoch
    answered = content_at(request_index) if request_index is not None else None
    if request_only and epoch.number and _is_first_call(identity, epoch, answered):
        aligned = reset(epoch, "")
    else:
        aligned = align(epoch, total, lambda at: content_at(at).digest)
    boundary = aligned.epoch.cut_count - 1
    if request_index is not None and request_index < boundary and is_human(content_at(boundary)):
        # What the host puts behind a loop for one call alone is no place in history.
        aligned = reset(epoch, "the last cut was made at a message that is not the session's")
    positions = live_positions(aligned.epoch, total)
    if aligned.epoch.cut_count and torn([content_at(at) for at in positions]):
        # The host took contents away so that an exchange would be torn: everything is live again.
        aligned = reset(epoch, "the host rewrote history inside an exchange")
        positions = tuple(range(total))
    if request_index is not None and request_index not in positions:
        positions = tuple(sorted((*positions, request_index)))
    hidden = {positions[at] for at in other_turns([content_at(at) for at in positions])} if sees_own else set[int]()
    hidden -= {request_index}
    positions = tuple(at for at in positions if at >= begin and at not in hidden) if begin or hidden else positions
    if restored and positions and positions[0] < restored:
        alone_at = unpaired([content_at(at) for at in positions])
        positions = tuple(at for index, at in enumerate(positions) if index not in alone_at)
    request = base.request._replace(
        contents=tuple(map(content_at, positions)),
        positions=positions,
        request_index=positions.index(request_index) if request_index is not None else None,
        first_call=identity.call == 1 or (not passthrough and _is_first_call(identity, aligned.epoch, answered)),
        rewritten=base.request.rewritten or aligned.rewritten,
    )
    problems = (*base.problems, aligned.note) if aligned.note else base.problems
    host = base.host._replace(hidden_turns=len(hidden))
    if limits is not None:
        unseen = _unseen(request, () if request.rewritten else aligned.epoch.unseen, limits)
        host = host._replace(unseen=() if passthrough else unseen)
    return base._replace(request=request, epoch=aligned.epoch, host=host, problems=problems)


# Limits that are not tokens.

_LOW_WATER = 0.5
"""Old media give way down to this share of a limit, so that the next ones end no prefix."""


def _media(request: Request) -> dict[int, tuple[int, int, int]]:
    """Bytes, media and pages of each part of a request that holds media, by its place."""
    return {
        medium_place(position, at): (4 * part.size_bytes // 3, part.media_count, part.pages)
        for position, content in zip(request.positions, request.contents, strict=True)
        if content.has_media
        for at, part in enumerate(content.parts)
        if part.media_count
    }


def sent_sizes(request: Request, unseen: Unseen) -> tuple[int, ...]:
    """Bytes, media and pages of a whole request; 0 of everything where it holds no media."""
    media_sizes = [sizes for medium_at, sizes in _media(request).items() if not is_unseen(medium_at, unseen)]
    if not media_sizes:
        return 0, 0, 0
    texts = [request.system, *(tool.wire for tool in request.tools), *(content.wire for content in request.contents)]
    return tuple(map(sum, zip((sum(map(utf8_size, texts)), 0, 0), *media_sizes, strict=True)))


def request_bytes(pack: Pack) -> int:
    """Bytes of a request as it is sent, in UTF-8, without those of its media."""
    head = (pack.system, *(tool.wire for tool in pack.tools.sent), *pack.source.request.other_tools)
    return sum(map(utf8_size, head)) + sent_bytes(outgoing.content for outgoing in pack.contents)


def _unseen(request: Request, earlier: Unseen, limits: RequestLimits) -> Unseen:
    """The media that notes stand for, in this request and in those after it.

    The oldest give way first; then what the model has yet to read, and the current message's own last of all.
    """
    if not (media := _media(request)):
        return ()
    sizes = sent_sizes(request, earlier)
    hidden = {at for at in media if is_unseen(at, earlier)}
    answered = max(
        (at for at, content in zip(request.positions, request.contents, strict=True) if content.role == "model"),
        default=-1,
    )
    current = request.positions[request.request_index] if request.request_index is not None else -1
    ages = {at: (at // MOST_PARTS == current, at // MOST_PARTS > answered) for at in media.keys() - hidden}

    def excess(share: float) -> bool:
        return any(limit is not None and size > share * limit for size, limit in zip(sizes, limits, strict=True))

    for at in sorted(ages, key=lambda at: (ages[at], at)) if excess(1) else ():
        if not excess(1 if any(ages[at]) else _LOW_WATER):
            break
        hidden.add(at)
        sizes = tuple(size - part for size, part in zip(sizes, media[at], strict=True))
    runs = ([*run] for is_hidden, run in groupby(sorted(media), key=hidden.__contains__) if is_hidden)
    return tuple((run[0], run[-1] + 1) for run in runs)


def turns_to_find(pack: Pack) -> tuple[frozenset[int], int] | None:
    """The search for earlier turns that a pack calls for: the positions that it sends whole, and the tokens for the
    others; None where there is nothing to look for.

    A cut has left room; a strategy that puts placeholders has to find it among what it still sends.
    """
    # The pack is then built a second time, with the turns that are found, and cuts alike. The session recall of LoCoMo
    # is .933 so, and falls to .133 where the first build is sent.
    source, budget, room = pack.source, pack.allocation.budget, pack.source.search.room
    if not pack.to_store.chose:
        return None
    is_searched = source.search.turns is not None and all(event.stage != "cut" for event in pack.events)
    if is_searched and not any(item.form == "placeholder" and item.raw.words for item in pack.contents):
        return None
    # Words that stand there without what was sent beside them are not looked for.
    extracts = [item for item in pack.contents if item.form == "extract"]
    worded = (item for item in extracts if is_human(item.raw) or item.raw.signed_thoughts)
    sent = pack.whole.union(item.origin for item in worded if item.raw.text in item.content.text)
    positions = frozenset(source.request.positions[at] for at in sent)
    if pack.epoch.cut_count > (source.epoch.cut_count if source.request.first_call else 0):
        return positions, room
    forms = {row.form for at, row in enumerate(pack.rows[: len(source.request.contents)]) if at not in sent}
    if forms.isdisjoint(("placeholder", "extract", "told")):
        return None
    return positions, min(room, max(budget // 10, (budget - pack.tokens.expected) // 2, LEAST_ROOM))


# The signed thoughts of a model that binds each to what it was made behind: instruction, declarations, all contents.
# Claude refuses a request with a thought behind anything that changed, and one with a gap among its thoughts. So all of
# them leave there, and calls of the present turn that were made with one are told as text.

_MOST_REFUSALS = 2
"""Refusals after which no thoughts are sent: somebody behind this package changes each request."""


def stale_thoughts(pack: Pack) -> int:
    """The index in the host's list behind the last signed thought of a request that may be refused; 0 for none.

    A request may be sent with thoughts where it goes on from the one before, and has those alone that this one had, and
    of the answer to it.
    """
    source, contents = pack.source, pack.contents
    if not source.binds_thoughts:
        return 0
    last = max((at for at, item in enumerate(contents) if item.content.signed_thoughts), default=-1)
    if last < 0:
        return 0
    sent_before, count = source.epoch.last_request, source.epoch.last_request[0]
    if count and pack.sent.beginning(count) == sent_before and source.epoch.refusals <= _MOST_REFUSALS:
        new = range(len(contents) - len(pack.sent.blocks) + count, len(contents))
        if last < next((at for at in new if contents[at].content.role != "model"), len(contents)):
            return 0
    places = zip(source.request.positions, source.request.contents, strict=True)
    return 1 + max(position for position, content in places if content.signed_thoughts)


def _is_first_call(identity: Identity, epoch: Epoch, answered: Content | None) -> bool:
    """Tells whether a request is the first one to what it answers.

    That is an invocation's first one, and each that answers what another agent has handed over since: an agent in a
    loop may be shown nothing but the last turn of the agent before it.
    """
    if identity.call == 1 or answered is None or not answered.agent:
        return identity.call == 1
    packed_keys = ((message.of, message.invocation) for message in epoch.payloads)
    return (answered.digest, identity.invocation) not in packed_keys
