"""What people send beside words: it leaves a mark with an address at a cut, and is shown again by it."""

from __future__ import annotations

import re

import pytest
from keeping import address, message, picture
from plans import small, turns
from scripted import Chat, call

from aether_context.canonical import hash_bytes
from aether_context.conversation.summary import SUMMARY_TITLE
from aether_context.text.entities import HISTORY


def shown(chat: Chat) -> list[bytes]:
    """The media of the latest request."""
    parts = [part for content in chat.sent[-1].contents for part in content.parts or ()]
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
def test_what_people_sent_leaves_a_mark_and_is_shown_again(data: bytes, kind: str, mark: str, text: str):
    chat = Chat(policy=small(6_000), model="gemini-3-pro-preview")
    chat.say(message(data, kind, text), *turns(45))
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
def test_a_text_in_which_something_is_masked_is_not_kept(data: bytes, kind: str, is_kept: bool):
    chat = Chat(policy=small(6_000, redact=("personal",)), model="gemini-3-pro-preview")
    chat.say(message(data, kind, "Here is my list."), *turns(45))
    assert data not in shown(chat)
    stored = [chat.store.files.read(file.path) for file in chat.store.files.below(chat.store.files.root)]
    assert not any(b"ann@example.org" in one.replace(b"\0", b"") for one in stored)
    assert any(one == data for one in stored) is is_kept


def test_every_picture_of_many_is_whole_or_has_an_address_that_reads():
    chat = Chat(policy=small(8_000), model="gemini-3-pro-preview")
    pictures = [picture(100 + at, 80, at) for at in range(12)]
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
    chat.say(message(data, "image/png", "This is the receipt of the restaurant Bergamot in Oslo."), *turns(45))
    chat.say("Which receipt did I send of the restaurant Bergamot in Oslo?")
    assert f"[picture, 1200 × 900, {address(data)}]" in chat.sent[-1].text


@pytest.mark.parametrize("record", ["full", "off"])
def test_no_other_session_shows_it(record: str):
    chat = Chat(policy=small(6_000, record=record), model="gemini-3-pro-preview")
    data = picture()
    chat.say(message(data, "image/png", "Mine."), *turns(45), user="eve", session="e1")
    for user, session in (("bob", "b1"), ("eve", "e2"), ("eve", "e1")):
        chat.llm.script[:] = []
        chat.say(*turns(45), user=user, session=session)
        chat.llm.script[:] = [call("read_artifact", uri=address(data)), "Done."]
        chat.say("Show it.", user=user, session=session)
        assert (data in shown(chat)) == (session == "e1")
