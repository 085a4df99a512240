"""What a cut leaves: a recap that mostly grows, a shortened edge, long work that goes on; and when it pays."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from google.adk.agents.callback_context import CallbackContext
from google.adk.models.llm_request import LlmRequest
from google.genai import types
from packs import Session, answered, called, lines, said, trim
from plans import loop, small, turns, words
from scripted import Chat, big_file, call, exact, inside, look_up, new_store, was_cut
from wording import SUMMARY_TITLE

from aether_context import PackPolicy, packing
from aether_context.conversation import Budget, Conversation
from aether_context.pack import Content, ContentForm, Host, Identity, PackInput, Request, Step
from aether_context.packing import build_pack
from aether_context.policy import ConversationSettings
from aether_context.store import Manifest
from aether_context.text import entities
from aether_context.tokens import counter_for
from aether_context.tokens.cache import PackCounter

TALLY = PackCounter(counter_for("gemini-2.5-flash"))


def work(count: int, size: int = 20) -> list[Content]:
    """A turn with so many exchanges, and a question after it."""
    contents = [said("Check all reports in docs/reports.")]
    for at in range(count):
        contents += [
            called("read", f"r{at}", path=f"docs/reports/r{at}.md"),
            answered("read", f"r{at}", lines(f"r{at}", size)),
        ]
    return [*contents, said("Done with docs/reports/all.md.", "model"), said("And which is late?")]


def recap(contents: list[Content], cut: Iterable[int], earlier: str = "", *, max_tokens: int) -> str:
    """The text in the place of the contents that a cut takes, behind that of earlier cuts."""
    conversation = Conversation.of(contents, window=100)
    conversation = replace(conversation, recap=conversation.recap._replace(summary=earlier))
    return conversation.summarized({at: ContentForm("left_out", "threshold") for at in cut}, max_tokens)


def test_a_recap_holds_peoples_words_and_the_entities_of_all_that_left():
    contents = work(5)
    said_before = recap(contents, range(9), max_tokens=400)
    assert "- user: Check all reports in docs/reports." in said_before
    assert "docs/reports/r0.md" in said_before
    assert "docs/reports/r4.md" not in said_before, "it stands in what stays"
    assert TALLY.count(said_before) <= 400


def test_a_recap_grows_while_there_is_room_and_is_ranked_anew_after_that():
    contents = work(60)
    made, texts = "", []
    for start in range(1, 100, 10):
        made = recap([*contents[start : start + 10], *contents[-2:]], range(10), made, max_tokens=300)
        assert TALLY.count(made) <= 300
        texts.append(made)
    grown = [later.startswith(earlier) for earlier, later in zip(texts, texts[1:], strict=False)]
    assert any(grown)
    assert not all(grown)
    assert "docs/reports/r49.md" in texts[-1]
    assert all(line.startswith(("- ", "  ")) for line in texts[-1].splitlines())


def test_the_edge_of_a_cut_is_shortened_where_it_is_a_message():
    contents = [said("Go on."), *(said(lines(f"a{at}", 30), "model") for at in range(6)), said("And which is late?")]
    budget = Budget(window=10_000, slack=0, fixed=0, cut_above=900, cut_to=900, most=10_000)
    conversation = replace(Conversation.of(contents, window=10_000, budget=budget), pressure="by_hand")
    made = trim(conversation, ConversationSettings(summary_share=0))
    (short,) = (at for at, form in made.forms.items() if form.form == "extract")
    assert not contents[short].calls
    assert 850 < conversation.apply(made).used <= 900


@pytest.mark.parametrize("recall", [True, False])
@pytest.mark.parametrize("last_turns", [1, 3])
@pytest.mark.rows(1)
def test_a_cut_keeps_the_models_last_answer_and_its_question(recall: bool, last_turns: int):
    def text(who: str, at: int, size: int) -> str:
        return f"{who} {at}: " + " ".join(f"{who[0]}{at}w{word}" for word in range(size))

    policy = PackPolicy(max_input_tokens=4_000, retrieval={"recall": recall}, conversation={"last_turns": last_turns})
    chat = Chat(script=[text("Answer", at, 140) for at in range(16)], policy=policy)
    chat.say(*(text("Question", at, 50) for at in range(16)))
    cuts = 0
    for at, (sent, manifest) in enumerate(zip(chat.sent, chat.manifests(), strict=True)):
        if any(event.stage == "cut" for event in manifest.truncation_events):
            cuts += 1
            texts = [part.text for content in sent.contents for part in content.parts]
            assert text("Answer", at - 1, 140) in texts
            assert text("Question", at - 1, 50) in texts
    assert cuts > 1
    chat.replays()


def test_last_turns_say_whose_answers_outlive_the_exchanges_of_a_cut() -> None:
    def look_up(key: str) -> dict[str, str]:
        """Looks a key up."""
        return {"result": " ".join(f"{key}w{word}" for word in range(60))}

    def kept(last_turns: int) -> list[int]:
        script = [
            reply
            for turn in range(4)
            for reply in (*(call("look_up", key=f"k{turn}n{at}") for at in range(4)), f"Answer {turn}: it is so.")
        ]
        policy = PackPolicy(max_input_tokens=3_600, conversation={"last_turns": last_turns})
        chat = Chat(script=script, tools=[look_up], policy=policy)
        chat.say(*(f"Question {turn}?" for turn in range(4)))
        cuts = (at for at, one in enumerate(chat.manifests()) if any(e.stage == "cut" for e in one.truncation_events))
        texts = [part.text or "" for content in chat.sent[next(cuts)].contents for part in content.parts]
        return [turn for turn in range(4) if f"Answer {turn}: it is so." in texts]

    turns = [kept(last_turns) for last_turns in (1, 3, 8)]
    assert turns[0] == turns[2][-1:]
    assert turns[1] == turns[2][-2:]
    assert len(turns[2]) > 2


def pays(*, freed: int, kept: int, calls: int, cached_price: float) -> bool:
    contents = [said("So it is.", "model")] * calls
    conversation = Conversation.of(contents, window=10_000)
    first, *others = (item._replace(tokens=0) for item in conversation.items)
    budget = conversation.budget._replace(cached_price=cached_price)
    return replace(conversation, items=(first._replace(tokens=freed + kept), *others), budget=budget).pays(kept)


def test_a_cut_pays_by_what_it_frees_what_it_keeps_and_what_a_cache_costs():
    assert pays(freed=6_000, kept=5_000, calls=37, cached_price=0.1)
    assert not pays(freed=4_000, kept=5_000, calls=30, cached_price=0.1)
    assert pays(freed=4_000, kept=5_000, calls=30, cached_price=0.25)
    assert pays(freed=4_000, kept=2_000, calls=20, cached_price=0.1)
    assert not pays(freed=4_000, kept=2_000, calls=7, cached_price=0.1)
    assert pays(freed=1, kept=5_000, calls=17, cached_price=1)


@pytest.mark.parametrize(
    ("window", "script", "messages"),
    [
        (1_500, [call("look_up", key="a"), [*loop(4)]], [f"What do they hold? {words(80)}"]),
        (1_500, [*loop(8)], turns(3, 90)),
    ],
)
def test_something_tells_of_what_was_cut_in_the_smallest_windows(window, script, messages):
    chat = Chat(script=script, tools=[look_up, big_file], policy=small(window))
    chat.say(*messages)
    cuts = [manifest for manifest in chat.manifests() if manifest.epoch.cut_count]
    assert cuts
    assert all(manifest.epoch.summary for manifest in cuts)
    assert all(inside(manifest, window) for manifest in cuts)
    chat.replays()


@pytest.mark.parametrize("question", ["What does A-17 cost?", f"What does A-17 cost? {words(150)}"])
def test_a_file_too_large_for_the_window_goes_before_what_is_asked_of_it(question):
    table = types.Part(inline_data=types.Blob(mime_type="text/csv", data=b"A-17;19.50\n" * 4_000))
    chat = Chat(policy=small(4_000), tools=[look_up], script=[call("look_up", key="k"), "ok"])
    chat.say(types.UserContent(parts=[types.Part(text=question), table]), "And A-18?")
    assert all(f"{question}\n[Left out of this message: text/csv" in sent.text for sent in chat.sent)
    manifests = chat.manifests()
    assert all(inside(manifest, 4_000) for manifest in manifests)
    assert any("the files beside it" in told for told in manifests[0].degradations)
    chat.replays()


REMINDER = "Remember: the customer is called Ödegård."


def remind(context: CallbackContext, request: LlmRequest) -> None:
    """Puts a message behind all others, for one call alone, as many apps do."""
    request.contents.append(types.Content(role="user", parts=[types.Part(text=REMINDER)]))


@pytest.mark.parametrize("length", [1, 3_000])
@pytest.mark.parametrize("strategy", ["epochs", "stable_prefix", "sliding_turns"])
@pytest.mark.parametrize("way", ["instruction", "reminder"])
@pytest.mark.rows(2)
def test_what_the_host_puts_behind_a_loop_takes_no_result_from_the_model(way: str, strategy: str, length: int) -> None:
    """ADK moves a dynamic instruction behind the results where there is a static one, too."""
    is_instruction = way == "instruction"
    chat = Chat(
        script=[call("look_up", key=f"k{at}") for at in range(12)],
        tools=[look_up],
        policy=PackPolicy(max_input_tokens=1_600, offload={"mode": "off"}, conversation={"strategy": (strategy,)}),
        settings={"static_instruction": "You are kind."} if is_instruction else {},
        instruction=REMINDER,
        alter=None if is_instruction else remind,
    )
    chat.say("Settle claim Q-7719. " + "It is urgent. " * length)
    assert len(chat.sent) == 13
    assert any(manifest.truncation_events for manifest in chat.manifests())
    for at, one in enumerate(chat.sent):
        assert REMINDER in one.text
        assert "Q-7719" in one.text
        if at:
            assert f"of k{at - 1}" in one.answers()[-1]["lines"]
    chat.replays()


def test_a_summary_that_is_sent_once_stays_where_a_cut_only_shortened_a_result() -> None:
    policy = small(10_000).changed(offload={"mode": "off"})
    script = [call("big_file", name="a", lines=400), "It is long."]
    chat = Chat(policy=policy, model="gemini-3-pro-preview", tools=[big_file], script=script)
    chat.say("Never push to main. Read the file.", words(900, "w0v"), words(900, "w1v"), *(words(50) for _ in "cde"))
    cut = [bool(manifest.truncation_events) for manifest in chat.manifests()]
    assert any(cut)
    assert not any(manifest.epoch.cut_count for manifest in chat.manifests())
    has_summary = [SUMMARY_TITLE in sent.text for sent in chat.sent]
    assert has_summary == sorted(has_summary)


def test_a_cut_finds_what_its_contents_mention_read_by_the_thread_that_records(monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[Content]()

    def parts_of(content: Content) -> Any:
        read.append(content)
        return parts(content)

    parts = entities._parts_with_rank
    monkeypatch.setattr(entities, "_parts_with_rank", parts_of)
    chat, reads = Chat(policy=PackPolicy(max_input_tokens=2_500)), [0]
    for number in range(24):
        chat.say(
            f"Order A-{number}{number} of unit{number}.py goes to gate {number}. " + f"word{number} and more " * 20
        )
        reads.append(len(read))
    each = zip(chat.manifests(), itertools.pairwise(reads), strict=True)
    reads_at_cut = [later - earlier for manifest, (earlier, later) in each if was_cut(manifest)]
    assert reads_at_cut
    assert max(reads_at_cut) <= 8  # the message itself, and contents in the form in which a cut leaves them


# the levels of a cut


def talked(turns: int, question: int, answers: Sequence[int], **conversation: Any) -> Session:
    """A chat of questions and answers of so many lines, answers in the order of the numbers and from the first again,
    with 3,600 tokens for all that is sent."""
    session = Session(new_store(), PackPolicy(conversation=conversation), window=4_000)
    for turn, answer in zip(range(turns), itertools.cycle(answers), strict=False):
        gate = f"gate {turn}, which opens at {turn * 7} and closes {turn * 13} minutes later, at pier {turn * 3}"
        session.ask(f"Please look into the case of {gate}. {lines(f'q{turn}', question)}")
        session.answer(f"Answer {turn}. {lines(f'a{turn}', answer)}")
    return session


def first_cut(session: Session) -> Manifest:
    return next(manifest for manifest in session.manifests if was_cut(manifest))


def test_the_net_cuts_a_quarter_less_deep_than_a_mark() -> None:
    cut = first_cut(talked(40, 5, [0], strategy="none", compact_to=0.4, summary_share=0))
    assert 0.5 < cut.counted_tokens / 3_600 < 0.6


def test_what_may_stay_is_held_to_the_mark_of_the_policy() -> None:
    ends = {"head": 2, "tail": 60}
    session = talked(40, 5, [0], strategy="heads_tails", heads_tails=ends, compact_at=0.5, compact_to=0.3)
    assert max(one.counted_tokens for one in session.manifests) < 0.6 * 3_600


def test_an_answer_above_the_target_leaves_where_the_window_would_take_it() -> None:
    long_answer = [8, 8, 8, 8, 8, 8, 75]
    cut = first_cut(talked(8, 3, long_answer, compact_at=0.8, compact_to=0.3, summary_share=0.05))
    assert cut.counted_tokens <= 0.3 * 3_600


def test_a_summary_takes_what_a_cut_leaves_free_of_its_target() -> None:
    session = talked(30, 20, [0], compact_to=0.5, summary_share=0.05)
    assert max(TALLY.count(pack.epoch.summary) for pack in session.packs) > 2 * 0.05 * 3_600


# what long pieces of work still have


WINDOW = 3_000
ORDERS = [f"order_{number:04}" for number in range(1, 29)]


def look_up_order(order_id: str) -> dict[str, Any]:
    """Looks an order up."""
    items = [{"sku": f"SKU-{order_id[-4:]}-{at}", "state": "packed", "note": "nothing to add " * 4} for at in range(6)]
    return {"order_id": order_id, "status": "late", "items": items}


def asked(last_turns: int = 3, **settings: Any) -> Chat:
    """An invocation for each order: the model looks it up and answers."""
    script = [one for order in ORDERS for one in (call("look_up_order", order_id=order), f"{order} is late.")]
    policy = PackPolicy(max_input_tokens=WINDOW, conversation={"last_turns": last_turns})
    chat = Chat(script=script, tools=[look_up_order], policy=policy, **settings)
    chat.say("Tell me about each order.\nAnswer with one line an order.")
    chat.say(*(f"And {order}?" for order in ORDERS[1:]))
    return chat


def cuts(chat: Chat) -> list[Manifest]:
    return [one for one in chat.manifests() if any(event.stage == "cut" for event in one.truncation_events)]


def seen(chat: Chat, at: int = -1) -> str:
    """All that one request says, calls and responses included."""
    return "\n".join(content.model_dump_json(exclude_none=True) for content in chat.sent[at].contents)


def test_what_calls_used_and_people_said_is_still_in_the_request_after_many_cuts() -> None:
    chat = asked()
    assert len(cuts(chat)) > 2
    assert all(one.request_tokens <= WINDOW for one in chat.manifests())
    last = seen(chat)
    assert [order for order in ORDERS if order not in last] == []
    assert "Tell me about each order.\\n  Answer with one line an order." in last
    chat.replays()


def test_a_long_task_stays_inside_the_cached_prefix_through_every_cut() -> None:
    task = "Look up the orders below.\n" + "\n".join(f"{order} was placed in week {order[-2:]}." for order in ORDERS)
    script = [*(call("look_up_order", order_id=order) for order in ORDERS), "All are late."]
    chat = Chat(script=script, tools=[look_up_order], policy=PackPolicy(max_input_tokens=WINDOW))
    chat.say(task)
    assert len(cuts(chat)) > 2
    assert {exact(one.contents[0].parts[0]) for one in chat.sent} == {exact(chat.sent[0].contents[0].parts[0])}
    whole = chat.manifests()[0].request_tokens
    assert all(one.prefix.shared_tokens >= whole for one in chat.manifests()[1:])
    message = chat.sent[-1].contents[0]
    assert [part.text.startswith(SUMMARY_TITLE) for part in message.parts] == [False, True]
    chat.replays()


def test_a_result_that_is_read_again_is_sent_whole_where_it_fits() -> None:
    def report(name: str) -> dict[str, Any]:
        """Reads a report."""
        return {"result": "\n".join(f"{at}: value {at * 37 % 1009} in {name}" for at in range(330))}

    def lengths(at: int) -> list[int]:
        parts = [part for content in chat.sent[at].contents for part in content.parts or ()]
        return [len(str(part.function_response.response)) for part in parts if part.function_response]

    script = [*(call("report", name=name) for name in "abc"), "read", call("report", name="b"), "again", "more"]
    policy = PackPolicy(max_input_tokens=8_000, offload={"mode": "off"})
    chat = Chat(script, tools=[report], policy=policy)
    chat.say("Read them.", "Read b again.", "And?")
    whole = lengths(1)[0]
    assert lengths(3)[0] < whole
    assert lengths(5)[0] == lengths(4)[0]
    assert lengths(5)[-1] == whole
    assert lengths(6)[-1] == whole
    chat.check()
    chat.replays()


def test_a_result_of_many_numbers_keeps_its_address_however_short_it_gets() -> None:
    address = "artifact://evidence/0123456789abcdef.json"

    def measure() -> dict[str, Any]:
        """Measures."""
        return {"artifact": f"{address} (900 lines)", "rows": list(range(10_000, 10_900))}

    chat = Chat([call("measure"), "ok"], tools=[measure], policy=small(300, offload={"mode": "off"}, on_invalid="warn"))
    chat.say("Measure.")
    (answer,) = chat.sent[-1].answers()
    assert len(str(answer)) < 200
    assert answer["artifact"] == address


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else "the last leaf of it " * 3_000


@pytest.mark.parametrize("value", [nested(99), nested(240), b"\xff\x00\x7f" * 20_000], ids=["99", "240", "bytes"])
def test_a_result_nested_deeper_than_anything_reads_or_of_bytes_counts_and_is_made_to_fit(value: Any) -> None:
    def tree() -> dict[str, Any]:
        """Reads a tree."""
        return {"tree": value}

    policy = PackPolicy(max_input_tokens=8_000, offload={"mode": "off"})
    chat = Chat([call("tree"), "seen", "more"], tools=[tree], policy=policy)
    chat.say("Read it.", "And?")
    assert [len(str(sent.answers())) < 4 * 8_000 for sent in chat.raw] == [True, False, False]
    assert [len(str(sent.answers())) < 4 * 8_000 for sent in chat.sent] == [True, True, True]
    chat.replays()


def test_a_cut_by_hand_of_a_request_without_contents_is_none() -> None:
    head = Request("gemini-2.5-flash", "Weigh it. " * 3_000)
    identity = Identity("shop", "ann", "s1", "i1", "clerk")
    source = PackInput(identity, head, window=2_000, step=Step(), host=Host(asked="e1"))
    pack = build_pack(source, PackPolicy(on_invalid="warn"))
    assert (pack.contents, pack.acts) == ((), ())


def test_a_pack_without_thoughts_whose_first_build_ranked_candidates_replays() -> None:
    def lookup(part: str) -> dict[str, str]:
        """Looks a part up."""
        return {"part": part, "text": f"drawer of {part}, counted by hand. " * 30}

    def long_log() -> str:
        """Reads a log."""
        return "\n".join(f"10:{at % 60:02d} INFO pump {at} at {at % 7} bar" for at in range(1500))

    def thought(at: int) -> types.Part:
        return types.Part(text=f"I think about {at}. " * 10, thought=True, thought_signature=f"signed {at}".encode())

    calls = [call("long_log") if at == 4 else call("lookup", part=f"P{2 * at}") for at in range(14)]
    answers = [f"Answer {2 * at + 1}: in the drawer. " * 10 for at in range(14)]
    script = [[thought(at), part] for pair in zip(calls, answers, strict=True) for at, part in enumerate(pair)]
    chat = Chat(
        script=script,
        tools=[lookup, long_log],
        model="claude-fable-5-1",
        policy=PackPolicy(max_input_tokens=7_000),
        state={"knowledge": {"notes": [{"id": "n1", "text": "The store room is closed on Sundays."}]}},
    )
    chat.llm.usage = False
    for number in range(14):
        chat.say(f"Question {number}: where is it?")
    chat.replays()


def test_a_message_that_a_strategy_keeps_stays_where_a_new_result_can_become_shorter() -> None:
    policy = PackPolicy(max_input_tokens=1_000, conversation={"strategy": ["heads_tails", "epochs"]})
    script = [words(400), call("big_file", name="a", lines=300), "It is long."]
    chat = Chat(policy=policy, tools=[big_file, look_up], instruction=words(60, "rule"), script=script)
    chat.say("The depot is green.", "Read the file.")
    assert "The depot is green." in chat.sent[-1].contents[0].parts[0].text
    assert any(event.stage == "emergency" for event in chat.latest().truncation_events)
    chat.replays()


def test_a_message_that_cuts_is_fitted_for_its_proposal_and_for_its_pack(monkeypatch: pytest.MonkeyPatch) -> None:
    fits, fit = list[bool](), packing.fit_to_window

    def counted(draft: Any, contents: Any) -> Any:
        fits.append(draft.at_cut)
        return fit(draft, contents)

    monkeypatch.setattr(packing, "fit_to_window", counted)
    chat, numbers = Chat(policy=PackPolicy(max_input_tokens=2_500)), list[int]()
    for number in range(24):
        chat.say(f"Order A-{number} of unit{number}.py goes to gate {number}. " + f"word{number} and more " * 60)
        numbers.append(len(fits))
        fits.clear()
    cuts = [(manifest, count) for manifest, count in zip(chat.manifests(), numbers, strict=True) if was_cut(manifest)]
    assert len(cuts) > 2
    assert statistics.median(count for _, count in cuts) == 2
    assert any(manifest.remaining for manifest, _ in cuts)
    chat.replays()
