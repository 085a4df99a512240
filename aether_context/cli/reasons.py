"""`aether-context why`: what became of some words, call by call."""

from __future__ import annotations

from dataclasses import asdict

from aether_context.cli import packs
from aether_context.cli.terminal import FAILED, head, plain, print_json, say, tell
from aether_context.packing.payload import minute
from aether_context.reading import Answer, Span, why
from aether_context.reading.sessions import reads_told
from aether_context.store import PackStore

_FEW = 6


def show(
    url: str,
    text: str,
    *,
    app: str | None,
    user: str | None,
    session: str | None,
    call: int | None,
    everything: bool,
    as_json: bool,
) -> int:
    """Prints the places that hold the words."""
    store = packs.require(PackStore(url))
    answer = why(store, text, app=app, user=user, session=session, call=call)
    if as_json:
        print_json(asdict(answer))
    else:
        _print(answer, everything)
    return 0 if answer.places else FAILED


def _print(answer: Answer, everything: bool) -> None:
    if answer.places and not answer.exact:
        say("no place holds the text as it is; these hold all of its words", "yellow")
    for place in answer.places if everything else answer.places[:_FEW]:
        who, when = place.who != place.kind and f" of {place.who}", place.time and f", {minute(place.time)}"
        head(f"{place.kind}{who or ''}, for {place.agent} in session {place.session}{when or ''}")
        say(f"  “{plain(answer.excerpt(place))}”")
        for span in place.spans:
            say(f"  {_span(span)}", "green" if span.holds else "yellow")
        if place.uri:
            say(f"  all of it is at {place.uri}: {reads_told(place.read_back)}")
    if len(answer.places) > _FEW and not everything:
        say(f"… and {len(answer.places) - _FEW} more places (--all shows them)")
    for note in answer.notes:
        tell(note)


def _span(span: Span) -> str:
    calls = f"call {span.first}" if span.first == span.last else f"calls {span.first}-{span.last}"
    if span.form == "whole" and span.holds is not False:
        return f"{calls}: whole"
    held = {True: "the words stand there", False: "without these words", None: "its text is not recorded"}[span.holds]
    said = {"absent": "not in the request", "left_out": "left out"}.get(span.form, f"{span.form}, {held}")
    elsewhere = f"; the words also stand in {', '.join(span.elsewhere[:3])}" if span.elsewhere else ""
    settings = f" (would keep it: {span.settings})" if span.settings else ""
    return f"{calls}: {said}: {span.act}{elsewhere}{settings}"
