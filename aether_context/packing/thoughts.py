"""The signed thoughts of a model that binds each to what it was made behind: instruction, declarations, all contents.

Claude refuses a request with a thought behind anything that changed, or with a gap among the thoughts before it. So all
of them leave where that is so, and the calls of the present turn that were made with one are told as text.
"""

from __future__ import annotations

from aether_context.pack import Pack

_MOST_REFUSALS = 2
"""Refusals after which no thoughts are sent: somebody behind this package changes each request."""


def stale_thoughts(pack: Pack) -> int:
    """The index in the host's list behind the last signed thought of a request that may be refused; 0 for none.

    A request may be sent with thoughts where it goes on from the one before, and has those alone that this one had, and
    of the answer to it.
    """
    source, contents = pack.source, pack.contents
    last = max((at for at, item in enumerate(contents) if item.content.signed_thoughts), default=-1)
    if last < 0 or not source.binds_thoughts:
        return 0
    epoch, begin = source.epoch, len(contents) - len(pack.sent.blocks) + source.epoch.last_request[0]
    goes_on = epoch.last_request[0] > 0 and pack.sent.beginning(epoch.last_request[0]) == epoch.last_request
    answer_end = next((at for at in range(begin, len(contents)) if contents[at].content.role != "model"), len(contents))
    if goes_on and last < answer_end and epoch.refusals <= _MOST_REFUSALS:
        return 0
    places = zip(source.request.positions, source.request.contents, strict=True)
    return 1 + max(position for position, content in places if content.signed_thoughts)
