"""What people send beside words: it leaves a mark with an address at a cut, and is shown again by it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.genai import types
from keeping import address, message, picture
from plans import small, turns, words
from restarting import Restarting, same_requests
from scripted import Chat, Scripted, Sent, call, grow, look_up, new_store
from wording import HISTORY, SUMMARY_TITLE

from aether_context import PackPolicy
from aether_context.canonical import hash_bytes


def shown(chat: Chat) -> list[bytes]:
    """The media of the latest request."""
    return shown_in(chat.sent[-1])


def shown_in(sent: Sent) -> list[bytes]:
    parts = [part for content in sent.contents for part in content.parts or ()]
    inside = [piece for part in parts if part.function_response for piece in part.function_response.parts or ()]
    return [blob.data for one in (*parts, *inside) if (blob := one.inline_data) is not None and blob.data]


@pytest.mark.parametrize(
    ("data", "kind", "mark"),
    [
        (picture(), "image/png", "[picture, 1200 × 900, {}]"),
        (b"%PDF-1.4 /Type /Page /Type /Page ", "application/pdf", "[PDF, 2 pages, {}]"),
        (b"RIFF\0\0\0\0WAVE" + bytes(3_000), "audio/wav", "[sound, 3 KB, {}]"),
    ],
)
@pytest.mark.parametrize("text", ["Here is my receipt from Oslo.", ""])
@pytest.mark.rows(1)
def test_what_people_sent_leaves_a_mark_and_is_shown_again(data: bytes, kind: str, mark: str, text: str):
    chat = Chat(policy=small(6_000), model="gemini-3-pro-preview")
    chat.say(message(data, kind, text), *turns(11, 360))
    assert data not in shown(chat)
    written = chat.sent[-1].text
    summary = written[written.index(SUMMARY_TITLE) :]
    assert mark.format(address(data)) in summary
    if text:
        assert re.search(rf"- user: {re.escape(text)}\n  \[", summary), "where it stood"
    assert chat.manifests()
    assert chat.store.evidence_data("shop", "ann", hash_bytes(data)) == data
    chat.llm.script[:] = [call("read_artifact", uri=address(data)), "I see it."]
    chat.say("Look at it again.")
    assert data in shown(chat), "as a part, and not as text"


@pytest.mark.parametrize(
    ("data", "kind", "is_kept"),
    [
        (b"name,mail\nann,ann@example.org\n" * 40, "text/csv", False),
        ("näme,mail\nann,ann@example.org\n".encode("latin-1") * 40, "text/plain", False),
        (b'{"mail": "ann@example.org"}' * 40, "application/json", False),
        (b"From: ann@example.org\n" * 40, "message/rfc822", False),
        (b"mail=ann@example.org\n" * 40, "application/octet-stream", False),
        ("mail ann@example.org\n".encode("utf-16-le") * 40, "text/csv", False),
        (b"name,town\nann,oslo\n" * 40, "text/csv", True),
        (picture(), "image/png", True),
    ],
)
@pytest.mark.rows(1)
def test_a_text_in_which_something_is_masked_is_not_kept(data: bytes, kind: str, is_kept: bool):
    chat = Chat(policy=small(6_000, redact=("personal",)), model="gemini-3-pro-preview")
    chat.say(message(data, kind, "Here is my list."), *turns(11, 360))
    assert data not in shown(chat)
    stored = [chat.store.files.read(file.path) for file in chat.store.files.below(chat.store.files.root)]
    assert not any(b"ann@example.org" in one.replace(b"\0", b"") for one in stored)
    assert any(one == data for one in stored) is is_kept


def test_every_picture_of_many_is_whole_or_has_an_address_that_reads():
    chat = Chat(policy=small(8_000), model="gemini-3-pro-preview")
    pictures = [picture(100 + at, 80, at) for at in range(7)]
    for at, data in enumerate(pictures):
        chat.say(message(data, "image/png", f"Photo {at} of the harbour."), *turns(3))
        sent = shown(chat)
        for known in pictures[: at + 1]:
            assert known in sent or address(known) in chat.sent[-1].text
    chat.llm.script[:] = [call("search_artifact", uri=HISTORY, query="Photo 3 of"), "Found."]
    chat.say("Which was it?")
    assert address(pictures[3]) in str(chat.sent[-1].answers("search_artifact"))


def test_recall_finds_a_picture_by_the_words_around_it():
    chat = Chat(policy=small(6_000, conversation={"summary_share": 0}))
    data = picture()
    chat.say(message(data, "image/png", "This is the receipt of the restaurant Bergamot in Oslo."), *turns(15, 360))
    chat.say("Which receipt did I send of the restaurant Bergamot in Oslo?")
    assert f"[picture, 1200 × 900, {address(data)}]" in chat.sent[-1].text


@pytest.mark.parametrize("record", ["full", "off"])
@pytest.mark.rows(1)
def test_no_other_session_shows_it(record: str):
    chat = Chat(policy=small(4_000, record=record), model="gemini-3-pro-preview")
    data = picture()
    chat.say(message(data, "image/png", "Mine."), *turns(6, 330), user="eve", session="e1")
    assert data not in shown(chat)
    for user, session in (("bob", "b1"), ("eve", "e2"), ("eve", "e1")):
        chat.llm.script[:] = []
        chat.say(*turns(6, 330), user=user, session=session)
        assert "read_artifact" in chat.sent[-1].readers
        chat.llm.script[:] = [call("read_artifact", uri=address(data)), "Done."]
        chat.say("Show it.", user=user, session=session)
        assert (data in shown(chat)) == (session == "e1")


def photos(number: int, count: int) -> types.Content:
    """A message with pictures, no two of which are alike."""
    pieces = [
        types.Part.from_bytes(data=picture(1200, 900, 10 * number + at), mime_type="image/png") for at in range(count)
    ]
    return types.UserContent(parts=[types.Part(text=f"Photo {number} of the harbour."), *pieces])


def marked(sent: Sent) -> list[int]:
    """The places of the people's messages in a request in which marks stand, beside their words."""
    texts = ["\n".join(part.text or "" for part in content.parts or ()) for content in sent.contents]
    return [at for at, text in enumerate(texts) if text.startswith("Photo") and "[" in text]


def sent_photos(policy: PackPolicy, model: str, count: int = 1, messages: int = 10, **settings: Any) -> Chat:
    chat = Chat(policy=policy, model=model, **settings)
    chat.say(*(photos(number, count) for number in range(messages)))
    return chat


@pytest.mark.parametrize(("count", "messages"), [(1, 10), (2, 10)], ids=["one in a message", "two in a message"])
@pytest.mark.parametrize("model", ["gemini-3-pro-preview", "claude-sonnet-4-5", "openai/gpt-4o"])
@pytest.mark.parametrize("tools", [[], [look_up]], ids=["no tools", "tools"])
@pytest.mark.rows(3)
def test_old_pictures_give_way_before_words_at_a_cut_and_stay_so(
    model: str, count: int, messages: int, tools: list[Any]
):
    window = 8_000 * count
    chat = sent_photos(small(window), model, count, messages, tools=tools)
    manifests = chat.manifests()
    places = [marked(sent) for sent in chat.sent]
    first = next(at for at, found in enumerate(places) if found)
    assert manifests[first].epoch.cut_count == 0, "no words were cut"
    assert [event.stage for event in manifests[first].truncation_events] == ["cut"]
    for at, (manifest, sent) in enumerate(zip(manifests, chat.sent, strict=True)):
        was_cut_now = any(event.stage == "cut" for event in manifest.truncation_events)
        assert was_cut_now or not at or places[at] == places[at - 1], "nothing changes between cuts"
        assert was_cut_now or grow(chat.sent[at - 1 : at + 1])
        assert manifest.request_tokens <= window
        for number in range(at + 1):
            assert f"Photo {number} of the harbour." in sent.text
    for latest in chat.sent[first:]:
        text, media = latest.text, shown_in(latest)
        sent_number = sum(f"Photo {number} of" in text for number in range(messages))
        for part in (part for number in range(sent_number) for part in photos(number, count).parts[1:]):
            assert part.inline_data.data in media or address(part.inline_data.data) in text
        assert len(media) >= count, "that of the question is there"
    for _ in range(2):  # read back twice
        data = photos(0, count).parts[-1].inline_data.data
        chat.llm.script[:] = [call("read_artifact", uri=address(data)), "I see it."]
        chat.say("Look at it again.")
        assert data in shown(chat)
    chat.replays()


def test_a_summary_stays_behind_a_frozen_head_whose_pictures_give_way():
    policy = small(8_000).changed(conversation={"strategy": ["heads_tails"]})
    chat = sent_photos(policy, "gemini-3-pro-preview", messages=3)
    chat.say(*(words(400, f"w{number}v") for number in range(12)))
    heads = [sent.contents[:3] for sent in chat.sent if SUMMARY_TITLE in sent.text]
    assert heads
    for head in heads:  # between the head's last message and the next one that is sent, all of one role
        assert [SUMMARY_TITLE in str(content.parts) for content in head] == [False, False, True]
        titled = [SUMMARY_TITLE in (part.text or "") for part in head[-1].parts]
        assert titled[-2:] == [True, False]
        assert len(titled) > 2


def test_another_agents_turn_that_shows_the_picture_again_stays_as_it_is():
    shown_again = [types.Part(text="Here it is."), photos(0, 1).parts[-1]]
    script = [shown_again, call("transfer_to_agent", agent_name="travel")]
    model = "gemini-3-pro-preview"
    travel = LlmAgent(name="travel", model=Scripted(model=model, script=[], sent=[]))
    clerk = LlmAgent(name="clerk", model=Scripted(model=model, script=script, sent=[]), sub_agents=[travel])
    policy = small(8_000).changed(conversation={"strategy": ["heads_tails"], "heads_tails": {"head": 8}})
    chat = Chat(agent=clerk, policy=policy, model=model)
    chat.say(photos(0, 1), "Go to travel.", *(words(200, f"w{number}v") for number in range(20)))
    assert marked(chat.sent[-1]), "the user's own picture gave way"
    (quoted,) = (content for content in chat.sent[-1].contents if "Here it is." in str(content.parts))
    assert quoted.parts[-1].inline_data is not None


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("gemini-2.5-flash", {}),
        ("gemini-3-pro-preview", {"record": "hashes"}),
        ("gemini-3-pro-preview", {"max_input_tokens": 1_000_000}),
    ],
    ids=["its tools answer in text", "nothing is stored", "all fits"],
)
def test_pictures_stay_where_they_could_not_be_shown_again_or_all_fits(model: str, settings: dict[str, Any]):
    chat = sent_photos(small(8_000).changed(**settings), model, messages=12)
    assert not any(map(marked, chat.sent))


def test_marks_stay_in_a_new_process_and_where_equal_messages_repeat():
    policy = small(8_000)
    whole = Chat(policy=policy, model="gemini-3-pro-preview")
    plugin = Restarting(policy=policy, store=new_store(), on_error="raise")
    other = Chat(policy=policy, model="gemini-3-pro-preview", plugin=plugin)
    for chat in (whole, other):
        chat.say(*(message(picture(), "image/png", "Photo of the harbour.") for _ in range(10)))
    assert any(map(marked, whole.sent))
    same_requests(other, whole)


def test_an_answer_says_so_where_its_picture_finds_no_room():
    def draw(name: str) -> Any:
        """Draws a picture."""
        return [types.Part.from_bytes(data=picture(), mime_type="image/png")]

    chat = Chat(policy=small(1_500), model="gemini-3-pro-preview", tools=[draw], script=[call("draw", name="a"), "ok"])
    chat.say(words(700))
    assert "left_out" in str(chat.sent[-1].answers("draw"))
    assert not shown(chat)
    assert 0 < chat.latest().request_tokens < 1_500
    chat.replays()


@pytest.mark.slow
def test_the_users_orders_and_marks_stay_beside_a_question_that_fills_the_window():
    chat = Chat(policy=small(6_000), model="gemini-3-pro-preview")
    chat.say(message(picture(), "image/png", "Never push to main. Here is my receipt."), *turns(45))
    for size in (1_500, 2_200, 2_500, 60):
        chat.say(words(size, f"w{size}v"))
        assert "Never push to main." in chat.sent[-1].text
        assert address(picture()) in chat.sent[-1].text
