"""The input of a model call from the host's whole history: what of it is sent, and what of the rest is looked for."""

from __future__ import annotations

from collections.abc import Callable

from aether_context.conversation.epoch import align, live_positions, reset
from aether_context.conversation.turns import is_human, torn
from aether_context.pack import Content, Epoch, Identity, Pack, PackInput


def next_input(
    given: PackInput,
    total: int,
    content_at: Callable[[int], Content],
    epoch: Epoch,
    *,
    request_index: int | None,
    begin: int = 0,
    alone: bool = False,
) -> PackInput:
    """The input of the call that follows on an epoch; ``given`` with contents, epoch, and what follows from these.

    Every host's calls come this way, recorded ones that are simulated too, so that all of them cut alike.

    Args:
        given: what does not depend on the history.
        total: the number of contents in the host's list.
        content_at: the content at a position in it; asked for those that are needed alone.
        epoch: as the call before left it.
        request_index: the position of the message that is answered; it is sent even where a cut took it.
        begin: the first content that may be sent.
        alone: whether the agent is shown nothing but what it answers, so that its epochs last no longer than that.
    """
    identity = given.identity
    passthrough = bool(given.host.passthrough_reason)
    epoch = Epoch(number=0) if passthrough else epoch
    answered = content_at(request_index) if request_index is not None else None
    if alone and epoch.number and _opens(identity, epoch, answered):
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
    positions = tuple(at for at in positions if at >= begin)
    request = given.request._replace(
        contents=tuple(map(content_at, positions)),
        positions=positions,
        request_index=positions.index(request_index) if request_index is not None else None,
        first_call=identity.call == 1 or (not passthrough and _opens(identity, aligned.epoch, answered)),
        rewritten=given.request.rewritten or aligned.rewritten,
    )
    problems = (*given.problems, aligned.note) if aligned.note else given.problems
    return given._replace(request=request, epoch=aligned.epoch, problems=problems)


def turns_to_find(pack: Pack) -> tuple[frozenset[int], int | None] | None:
    """Where a pack leaves turns out that could answer the request: the positions that it sends whole, and the tokens
    for the others, None for as many as there are; None where there is nothing to look for.

    A cut makes room; a strategy that puts placeholders has to find it among what it still sends.
    """
    source, budget = pack.source, pack.allocation.budget
    cut = pack.epoch.cut_count > (source.epoch.cut_count if source.request.first_call else 0)
    forms = {row.form for row in pack.rows[: len(source.request.contents)]}
    shortened = not forms.isdisjoint(("placeholder", "extract", "told"))
    if source.search.turns is not None or not (pack.to_store.chose and (cut or shortened)):
        return None
    whole = frozenset(source.request.positions[at] for at in pack.whole)
    return whole, None if cut else max(budget // 10, (budget - pack.tokens.expected) // 2)


def _opens(identity: Identity, epoch: Epoch, answered: Content | None) -> bool:
    """Whether a request is the first one to what it answers.

    That is an invocation's first one, and each that answers what another agent has handed over since: an agent in a
    loop may be shown nothing but the last turn of the agent before it.
    """
    if identity.call == 1 or answered is None or not answered.agent:
        return identity.call == 1
    made = ((packed.of, packed.invocation) for packed in epoch.payloads)
    return (answered.digest, identity.invocation) not in made
