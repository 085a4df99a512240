"""`why` says of each text that is planted in a session at which calls the model read it, and what took it out."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from browsing import Browser
from google.adk.events.event import Event
from google.adk.platform.time import reset_time_provider, set_time_provider
from harbour import CARD, harbour, tide_table
from packs import recording
from plans import words
from scripted import Chat, call, new_store, was_cut
from terminal import run, told

from aether_context import Manifest, PackPolicy, PackStore, why
from aether_context.canonical import canonical_json
from aether_context.errors import PackNotFound
from aether_context.lab.reading import Answer, Comparison, Place, Span, read_view, session_packs
from aether_context.store.replay import Replayer

PLANTED = {
    "reserve the blue kayak": "clerk message whole; billing message whole, summarized; summary",
    "blue kayak is reserved": "clerk message whole; billing message whole, summarized",
    "What are the tides": "clerk message whole; billing message whole, summarized; summary",
    "hour 2: Skagen": "clerk tool result offloaded; billing message whole, summarized",
    "hour 250: Skagen": "clerk tool result offloaded",
    "QX-4471": "clerk tool result whole; billing message whole, summarized",
    "find where pelicans nest": "ornithologist message whole; clerk tool call whole; billing message whole, summarized",
    "Pelicans nest at Lake Orrin": "clerk tool result whole; billing message whole, summarized",
    "They nest at": "clerk message whole; billing message whole, summarized",
    CARD: "clerk message whole; billing message whole, summarized",
    "keep your card in mind": "clerk message whole; billing message whole, summarized",
    "Was invoice 88-12 paid": "clerk message whole; billing message whole, summarized",
    "was paid on Tuesday": "billing message whole, summarized",
    "slipway is closed": "clerk note left_out; ornithologist note left_out; billing note left_out",
    "half past six": "clerk note whole, left_out; ornithologist note whole; billing note whole, left_out",
    "Ingrid Vale": "clerk memory whole, left_out; billing memory left_out",
    "Byzantine coins": "clerk memory whole, left_out; billing memory left_out",
    "You help at the harbour": "clerk system instruction whole",
    "a harbour's table of tides": "clerk tool declaration whole",
    "the code of a gate": "clerk tool declaration whole",
    "pier0w5 pier0w6": "billing message whole, summarized",
    "pier1w5 pier1w6": "billing message whole, summarized",
    "Answer 0:": "billing message whole, summarized",
    "Answer 1:": "billing message whole, summarized",
    "pier 21:": "billing message whole",
    "nobody said a word of zebras": "",
}
"""Texts, and in which forms they stand for which agents, in the order of the calls."""


@pytest.fixture(scope="module", autouse=True)
def _packs_are_built_once() -> Iterator[None]:
    """Each question builds all packs again; that this gives the same each time is held in test_verify.py."""
    built: dict[Any, Any] = {}
    replay = Replayer.replay

    def once(self: Replayer, manifest: Manifest, *changes: Any, **more: Any) -> Any:
        key = self.store.url, manifest.digest, repr(changes), repr(more)
        if key not in built:
            built[key] = replay(self, manifest, *changes, **more)
        return built[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Replayer, "replay", once)
        yield


@pytest.fixture(scope="module")
def chat() -> Chat:
    return harbour()


@cache
def answer_to(store: PackStore, text: str) -> Answer:
    """What `why` says of a text in the session, asked once."""
    return why(store, text, session="s1")


def at(place: Place, number: int) -> Span | None:
    return next((span for span in place.spans if span.first <= number <= span.last), None)


def read_in(chat: Chat, text: str) -> dict[str, list[bool]]:
    """Whether each request of a session held the text, by what was sent: no pack is looked at."""
    plain = " ".join(text.split()).casefold()
    held: dict[str, list[bool]] = {}
    for one in chat.sent:
        whole = f"{one.system} {' '.join(one.wires)}".replace("\\\\n", " ").replace("\\n", " ")
        held.setdefault(one.session.partition("/")[2], []).append(plain in " ".join(whole.split()).casefold())
    return held


@pytest.mark.parametrize("text", [text for text, where in PLANTED.items() if "declaration" not in where])
@pytest.mark.rows(3, slow=7)
def test_it_says_of_each_call_whether_its_request_held_the_words(chat: Chat, text: str) -> None:
    answer = answer_to(chat.store, text)
    assert read_in(chat, text)
    for session, held in read_in(chat, text).items():
        places = [place for place in answer.places if place.session == session]
        for number, expected in enumerate(held, 1):
            spans = [span for place in places if (span := at(place, number)) is not None]
            said = any(span.holds or span.elsewhere for span in spans)
            assert said == expected, (session, number, spans)


@pytest.mark.parametrize("text", [text for text, where in PLANTED.items() if "declaration" not in where])
@pytest.mark.rows(3, slow=4)
def test_the_verdict_says_whether_the_call_read_the_words_and_comes_first(chat: Chat, text: str) -> None:
    held = read_in(chat, text)["s1"]
    call_number = (1, len(held) // 2, len(held))[[*PLANTED].index(text) % 3]
    answer = why(chat.store, text, session="s1", call=call_number)
    agent = next(one.agent for one in chat.manifests() if (one.session, one.number) == ("s1", call_number))
    expected = f"At call {call_number} {agent} {'read it: ' if held[call_number - 1] else 'did not read it'}"
    (sentence,) = answer.sentences
    if answer.exact or not answer.places:
        assert sentence.startswith(expected if answer.places else "No call of session s1 knew"), sentence


def test_each_agent_whose_conversation_the_text_touches_has_a_verdict_and_the_latest_comes_first(chat: Chat) -> None:
    verdicts = answer_to(chat.store, "find where pelicans nest").verdicts
    last = {(one.session, one.agent): one.number for one in chat.manifests()}
    assert [verdict.agent for verdict in verdicts] == ["billing", "clerk", "ornithologist"]
    assert all(verdict.call == last[verdict.session, verdict.agent] for verdict in verdicts)
    assert [verdict.is_read for verdict in verdicts] == [False, True, True]
    assert f"of session {verdicts[-1].session} ornithologist read it: as a message" in verdicts[-1].sentence
    alone = why(chat.store, "find where pelicans nest", session="s1", agent="clerk")
    assert alone.verdicts == (verdicts[1],)
    assert {place.agent for place in alone.places} == {"clerk"}
    with pytest.raises(PackNotFound, match="no call of 'nobody', but of clerk, ornithologist, billing"):
        why(chat.store, "kayak", session="s1", agent="nobody")


def test_a_verdict_names_kinds_dates_and_numbers() -> None:
    chat = Chat()
    chat.say("My name is Thora.", "My boat is blue.")
    (sentence,) = why(chat.store, "name is Thora", session=chat.session).sentences
    assert re.fullmatch(r"At call 2 clerk read it: as a message \((\d+ \w+ \d{4}, )?user\)\.", sentence)
    (sentence,) = why(chat.store, "zebras", session=chat.session).sentences
    assert sentence == f"No call of session {chat.session} knew these words."


@pytest.mark.parametrize(("text", "expected"), PLANTED.items())
@pytest.mark.rows(6)
def test_each_text_is_found_where_it_was_planted_in_the_forms_that_it_took(
    chat: Chat, text: str, expected: str
) -> None:
    forms: dict[str, dict[str, None]] = {}
    for place in answer_to(chat.store, text).places:
        name = place.kind if place.kind == "summary" else f"{place.agent} {place.kind}"
        forms.setdefault(name, {}).update(dict.fromkeys(span.form for span in place.spans))
    told = {name: set(found) for name, found in forms.items()}
    for one in filter(None, expected.split("; ")):
        name, _, wanted = one.rpartition(" ") if "," not in one else one.partition(" whole")
        wanted = wanted if "," not in one else f"whole{wanted}"
        if one == "summary":
            assert "summary" in told
        else:
            assert set(wanted.split(", ")) <= told[name], (one, told)
    assert expected or not told


def test_the_act_is_a_sentence_with_the_number_that_decided(chat: Chat) -> None:
    acts: dict[str, Span] = {}
    for text in ("blue kayak", "hour 250: Skagen", "slipway is closed", "Ingrid Vale"):
        for place in answer_to(chat.store, text).places:
            acts |= {f"{place.kind} {span.form} {span.act}": span for span in place.spans if span.act}
    cut = next(span for name, span in acts.items() if name.startswith("message summarized"))
    words = r"cut before call \d+: the request counted ([\d,]+) tokens, above its budget of ([\d,]+)(?: \(.*\))?"
    counted, budget = re.fullmatch(words, cut.act).groups()  # type: ignore[union-attr]
    assert int(counted.replace(",", "")) > int(budget.replace(",", ""))
    assert any("note left_out it had expired" == name for name in acts)
    assert any("it stands in the conversation anyway" in name for name in acts)
    result = next(span for name, span in acts.items() if name.startswith("tool result offloaded"))
    assert "all of it is at artifact://evidence/" in result.act


def test_what_the_user_took_back_was_not_cut() -> None:
    chat = Chat()
    events = [*chat.say("The kayak is blue."), *chat.say("The canoe is green.")]
    back = {"user_id": chat.user, "session_id": chat.session, "rewind_before_invocation_id": events[-1].invocation_id}
    asyncio.run(chat.runner.rewind_async(**back))
    chat.say("What colour?")
    (place,) = why(chat.store, "canoe").places
    assert [(span.first, span.form) for span in place.spans] == [(2, "whole"), (3, "absent")]
    assert "the host did not hand it over (rewound," in place.spans[-1].act


def test_what_the_user_took_back_is_not_called_cut_once_what_came_after_it_is() -> None:
    chat = Chat(policy=PackPolicy(max_input_tokens=1_500))
    events = [chat.say(text)[0] for text in ("The kayak is blue.", "The canoe is green.", *map(words, (100, 101, 102)))]
    back = {"user_id": chat.user, "session_id": chat.session, "rewind_before_invocation_id": events[1].invocation_id}
    asyncio.run(chat.runner.rewind_async(**back))
    chat.say(*(f"Turn {turn}: {words(90 + turn)}" for turn in range(8)))
    assert was_cut(chat.latest()) or chat.latest().epoch.cut_count > 2
    (verdict,) = why(chat.store, "canoe", most_packs=0).verdicts
    assert "did not read it: the host did not hand it over (rewound," in verdict.sentence


def test_a_result_that_was_taken_out_is_known_by_its_tool_and_its_address(chat: Chat) -> None:
    place, *records = why(chat.store, "hour 250: Skagen", session="s1").places
    assert place.who == "tide_table(harbour: Skagen)"
    assert {(record.kind, record.who, record.uri) for record in records} <= {("evidence", "tide_table", place.uri)}
    assert place.uri.startswith("artifact://evidence/")
    assert not place.read_back
    assert all(span.holds is False for span in place.spans), "the extract holds other lines"


@pytest.mark.slow
def test_masked_words_are_looked_for_as_they_are_masked() -> None:
    chat = harbour(PackPolicy.load("chat", max_input_tokens=4_000, redact=("card",)))
    answer = why(chat.store, f"my card is {CARD}", session="s1")
    assert [place.kind for place in answer.places][:2] == ["message", "message"]
    assert "4111" not in repr(answer)
    assert any("`redact` masks it" in note and "as it was" in note for note in answer.notes)


def test_words_in_another_order_are_found_where_no_place_has_them_as_they_are(chat: Chat) -> None:
    answer = why(chat.store, "THORA kayak blue", session="s1")
    assert not answer.exact
    assert any("reserve the blue kayak" in place.text for place in answer.places)


def test_a_search_that_did_not_bring_words_back_is_said_of_calls_that_made_one_alone() -> None:
    def failing(key: str) -> dict[str, Any]:
        """Looks a key up."""
        return {"error": f"there is no {key}: {words(250, 'e')}"}

    script = [reply for at in range(8) for reply in (call("failing", key="k"), words(200, f"a{at}w"))]
    chat = Chat(script, tools=[failing], policy=PackPolicy(max_input_tokens=3_000))
    chat.say(*(words(200, f"u{at}w") for at in range(8)))
    searched = {manifest.number: manifest.searched for manifest in chat.manifests()}
    acts = []
    for text in (f"{who}{at}w50 " for at in range(8) for who in "ua"):
        for span in (
            span for place in why(chat.store, text).places for span in place.spans if "; a search" in span.act
        ):
            latest = [count for number, count in searched.items() if count and span.first <= number <= span.last]
            note = f"{latest[-1]} turns did not bring it back" if latest else "turns was not made"
            acts.append((span.act.endswith(f"; a search of {note}"), bool(latest)))
    assert {*acts} == {(True, True), (True, False)}


def test_one_call_alone(chat: Chat) -> None:
    answer = why(chat.store, "reserve the blue kayak", session="s1", call=3)
    assert answer.calls == 1
    assert [(span.first, span.last) for place in answer.places for span in place.spans] == [(3, 3)]
    later, whole = (why(chat.store, "reserve the blue kayak", session="s1", call=call) for call in (20, None))
    assert {place.agent for place in later.places} == {"billing"}
    for place in later.places:
        (span,) = place.spans
        (same,) = [at(one, 20) for one in whole.places if (one.id, one.agent) == (place.id, "billing")]
        assert same is not None
        assert span == replace(same, first=20, last=20)
        assert span.act or span.form == "whole"
    with pytest.raises(PackNotFound, match="no call 99: its calls are 1 to"):
        why(chat.store, "kayak", session="s1", call=99)
    with pytest.raises(PackNotFound, match="no packs of such a session"):
        why(chat.store, "kayak", session="s9")
    with pytest.raises(ValueError, match="give some words"):
        why(chat.store, " … ")


def test_without_texts_whole_messages_are_found_by_their_hash() -> None:
    chat = Chat(policy=PackPolicy.load("chat", record="hashes"))
    chat.say("the blue kayak", "is it mine?")
    answer = why(chat.store, "the blue kayak")
    assert [(span.form, span.holds) for span in answer.places[0].spans] == [("whole", True)]
    assert answer.sentences[0].startswith("At call 2 clerk read it")
    assert any("by hash" in note for note in answer.notes)
    assert not why(chat.store, "blue").places


def test_what_a_hash_cannot_tell_is_not_said() -> None:
    long = "the blue kayak " * 1_500
    chat = Chat(policy=PackPolicy.load("chat", record="hashes", max_input_tokens=2_000))
    chat.say(long)
    answer = why(chat.store, long.strip() + " ")
    assert [span.form for place in answer.places for span in place.spans] != ["whole"]
    assert "is not known: the texts of its request are not recorded" in answer.sentences[0]


@pytest.fixture(scope="module")
def url(chat: Chat) -> str:
    return chat.store.url


def test_on_the_command_line(url: str) -> None:
    said = run("why", "reserve the blue kayak", "--session", "s1", "--store", url)
    assert (
        "message of user, for clerk in session s1\n  “Please reserve the blue kayak for Thora.”\n  calls 1-"
        in said.output
    )
    assert "summarized, the words stand there: cut before call" in said.output
    assert said.output.startswith("At call 32 billing read it")
    assert "kept with" not in said.output, "the words are there"
    found = told("why", "kayak", "--store", url, "--call", "3")
    assert found["calls"] == 1
    assert "they never reached the plugin" in run("why", "zebras", "--store", url, code=1).output


def test_calls_have_numbers_that_every_command_takes(url: str) -> None:
    listed = told("list", "--store", url)
    third = next(one for one in listed if one["session"] == "s1" and one["number"] == 3)
    words = [one["words"] for one in listed if one["session"] == "s1"]
    assert words[0] == "Please reserve the blue kayak for Thora."
    assert words[2] == "", "the second call of a turn answers the same words"
    shown = run("inspect", "3", "--session", "s1", "--store", url).output
    assert third["pack_id"] in shown
    assert "call 3 of session s1: turn 2, call 2 of clerk" in shown
    assert "tide_table(harbour: Skagen)" in shown
    assert third["pack_id"] in run("replay", "3", "--session", "s1", "--store", url).output
    assert third["pack_id"] in run("diff", "2", "3", "--session", "s1", "--store", url, code=1).output
    run("inspect", "99999", "--store", url, code=3)


def test_the_summary_is_a_row_whose_text_can_be_read(url: str) -> None:
    store = PackStore(url)
    number = next(
        one.number for one in store.manifests(session="s1") if "cut" in {event.stage for event in one.truncation_events}
    )
    manifest = next(one for one in store.manifests(session="s1") if one.number == number + 1)
    view = read_view(Replayer(store), manifest)
    (piece,) = [piece for piece in view.request or () if piece.form == "summary"]
    assert view.summary is not None
    assert view.summary.tokens == piece.tokens
    assert view.texts[view.summary.id] in piece.text
    last_line = view.texts[view.summary.id].splitlines()[-1]
    gone = manifest.epoch.cut_count - sum(stop - start for start, stop in manifest.epoch.kept)
    told = f"summary of {gone} messages, written before call {number}"
    command = ("inspect", str(number + 1), "--session", "s1", "--store", url)
    short, whole = run(*command).output, run(*command, "--all").output
    for output in (short, whole):
        (row,) = [line for line in output.splitlines() if view.summary.id in line]
        assert f"{told}" in output
        assert "summarized" in row
    assert last_line not in short
    assert "--all shows them whole" in short
    assert last_line in whole
    *_, details = re.findall("<details>.*?</details>", Browser(store).open(f"/pack/{manifest.pack_id}").html, re.DOTALL)
    assert last_line in details
    before = run("inspect", str(number - 1), "--session", "s1", "--store", url).output
    assert " summary " not in before


def test_a_text_that_looks_like_a_content_is_not_read_for_one() -> None:
    store, made = new_store(), recording()
    text = canonical_json('{"parts": what read_artifact gave')
    store.write(made._replace(lines=(*made.lines, text)))
    assert [place.read_back for place in why(store, "is called Rex").places] == [()]


def test_a_result_that_was_an_extract_and_then_cut_was_cut() -> None:
    def loans() -> list[dict[str, str]]:
        """Lists loans."""
        return [{"id": f"L{494_000 + at}", "book": words(9, f"b{at}x")} for at in range(120)]

    policy = PackPolicy(max_input_tokens=2_000, retrieval={"recall": False})
    chat = Chat([call("loans"), "Many."], [loans], policy)
    chat.say("List all loans.", *(f"Note {at}: {words(80, f'n{at}w')}" for at in range(9)))
    answer = why(chat.store, "L494077")
    cut_at = next(manifest.number for manifest in chat.manifests() if manifest.epoch_reason == "high_water")
    assert f"did not read it: cut before call {cut_at}: " in answer.sentences[0]
    result = next(each for each in answer.places if each.kind == "tool result")
    assert [(span.form, span.first) for span in result.spans] == [("offloaded", 2), ("summarized", cut_at)]


def test_of_equal_results_the_reason_is_that_of_the_one_that_was_read_last() -> None:
    def gauge(key: str) -> str:
        """Reads a gauge."""
        return f"The gauge at Skagen stands at 613 mm. {words(60, 'g')}"

    asked = {turn: [call("gauge", key="a")] for turn in (1, 4, 9)}
    script = [reply for turn in range(12) for reply in (*asked.get(turn, []), f"Noted. {words(120, f'a{turn}w')}")]
    policy = PackPolicy(max_input_tokens=2_500, offload={"mode": "off"}, retrieval={"recall": False})
    chat = Chat(script, [gauge], policy)
    chat.say(*(f"Turn {turn}: {words(80, f't{turn}w')}" for turn in range(12)))
    cuts = [manifest.number for manifest in chat.manifests() if manifest.epoch_reason == "high_water"]
    assert len(cuts) == 3
    (sentence,) = why(chat.store, "stands at 613 mm").sentences
    assert f"did not read it: cut before call {cuts[-1]}: " in sentence
    assert f"The last call that did is {cuts[-1] - 1}." in sentence
    (sentence,) = why(chat.store, "stands at 613 mm", call=cuts[1]).sentences
    assert f"did not read it: cut before call {cuts[1]}: " in sentence


def test_an_offloaded_result_says_at_which_call_it_was_read_back(tmp_path: Path) -> None:
    store = PackStore(str(tmp_path))
    script = [call("tide_table", harbour="Skagen"), "The tides are known."]
    chat = Chat(store=store, tools=[tide_table], script=script, policy=PackPolicy(max_input_tokens=4_000))
    chat.say("What are the tides in Skagen?")
    manifest = chat.latest()
    (uri,) = {row.uri for row in manifest.rows if row.form == "offloaded"}

    def told() -> list[str]:
        texts = [
            run("why", "hour 250: Skagen", "--store", store.url).output,
            run("inspect", manifest.pack_id, "--store", store.url).output,
            Browser(store).open(f"/pack/{manifest.pack_id}").text,
        ]
        return [
            re.findall(rf"{re.escape(uri)}[,:] (never read back|read back before call \d+)\b", text)[0]
            for text in texts
        ]

    assert told() == ["never read back"] * 3
    chat.llm.script += [call("read_artifact", uri=uri, start_line=250, max_lines=3), "It was 251."]
    chat.say("Who measured the tide at hour 250?", "Thanks.")
    assert told() == ["read back before call 4"] * 3
    assert {place.read_back for place in why(store, "hour 250: Skagen").places if place.uri} == {(4,)}


def test_the_figures_of_a_session_s_page_add_up(url: str) -> None:
    store = PackStore(url)
    page = Browser(store).open("/session?app=shop&user=ann&session=s1")
    rows = re.findall(r'<tr>\s*<td class="r">.*?</tr>', page.html, re.DOTALL)
    columns = [[int(cell.replace(",", "")) for cell in re.findall(r'<td class="r">([\d,]+)</td>', row)] for row in rows]
    counted, reported, cached, answered = map(sum, zip(*columns, strict=True))
    figures = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page.html))
    assert figures["calls"] == f"{len(rows)}" == "33", "the call of the agent that ran as a tool is one of them"
    assert figures["input"] == f"{reported:,}"
    assert figures["cached"] == f"{100 * cached // reported}%"
    assert figures["answers"] == f"{answered:,}"
    manifests = session_packs(store, session="s1")
    assert counted == sum(manifest.request_tokens for manifest in manifests)
    without = Comparison((one, one.usage(store.outcome(one))) for one in manifests).unpacked.totals
    assert f"Without packs the same calls would have read {without.input_tokens:,} tokens" in page.text


def test_the_parts_of_a_request_sum_to_what_it_is_counted_as(chat: Chat) -> None:
    assert chat.manifests()
    for manifest in chat.manifests():
        assert sum(layer.used for layer in manifest.allocation.values()) == manifest.counted_tokens


def test_calls_stand_in_their_order_though_the_clock_is_set_back() -> None:
    moments = iter([2e9 - 3_600 * at for at in range(1_000)])
    set_time_provider(lambda: next(moments))
    try:
        chat = Chat(script=[call("tide_table", harbour="Skagen"), "low"] * 3, tools=[tide_table])
        chat.say("Where is the kayak?", "And the pier?", "And the blue buoy?")
    finally:
        reset_time_provider()
    assert [manifest.number for manifest in chat.manifests()] == [1, 2, 3, 4, 5, 6]
    (place,) = why(chat.store, "blue buoy").places
    assert [(span.first, span.last, span.form) for span in place.spans] == [(5, 6, "whole")]


def test_an_event_of_a_far_day_dates_no_later_call() -> None:
    chat = Chat()
    chat.say("Where is the kayak?")

    async def append() -> None:
        session = await chat.held()
        await chat.sessions.append_event(session, Event(author="clerk", timestamp=session.last_update_time + 1e7))

    asyncio.run(append())
    chat.say("And the pier?", "And the blue buoy?")
    moments = [manifest.last_event_time for manifest in chat.manifests()]
    assert moments == sorted(moments)
    assert moments[-1] - moments[0] < 86_400
