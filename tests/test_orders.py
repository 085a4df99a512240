"""A user's standing orders: found in seven languages, first in the summary of a cut, until they are taken back."""

from __future__ import annotations

import re

import pytest
from packs import said
from plans import small, turns
from scripted import Chat

from aether_context.conversation.orders import TITLE, standing_orders
from aether_context.conversation.summary import SUMMARY_TITLE, Recap, recap
from aether_context.tokens import counter_for

COUNTER = counter_for("gemini-2.5-flash")


def orders(*texts: str) -> list[str]:
    return standing_orders([], map(said, texts))


@pytest.mark.parametrize(
    "sentence",
    [
        "never push to main",
        "in metric units",
        "I would only want e2e tests for AgentSession",
        "From now on use tabs, not spaces.",
        "Fix the bug, and never push to main.",
        "It's AgentSession, not SessionAgent.",
        "No emojis please",
        "Could you always answer in German?",
        "Nie auf main pushen!",
        "Ab jetzt keine Kommentare im Code.",
        "Ich möchte nur E2E-Tests.",
        "A partir de ahora responde siempre en español.",
        "No uses emojis.",
        "Ne pousse jamais sur main.",
        "N'utilise pas d'emojis.",
        "Responda sempre em português.",
        "Não use emojis.",
        "不要推送到main分支。",
        "以后都用公制单位。",
        "今後は日本語で答えてください。",
        "絵文字は使わないでください。",
    ],
)
def test_what_holds_for_good_is_an_order(sentence: str):
    assert orders("Hello there.", sentence) == [sentence]


@pytest.mark.parametrize(
    "sentence",
    [
        "Fix the login bug.",
        "I never got the mail.",
        "It always fails when I click.",
        "What is 20 celsius in fahrenheit?",
        "No problem.",
        "Never mind.",
        "Don't worry about it.",
        "Stop the server.",
        "Write a poem in French.",
        "Ich habe das nie gesehen.",
        "Das funktioniert immer noch nicht.",
        "El servidor nunca responde.",
        "Le serveur ne répond pas.",
        "O servidor não responde.",
        "这个文件总是报错。",
        "テストが失敗しました。",
        "> never do this\nIs that so?",
        "```\nnever = always()\n```",
        "That may not be the cause.",
        "I may not have time today.",
        "Every time you run it, it crashes.",
        "It fails no matter what I try.",
        "Nobody knows what happens in the future.",
        "No luck so far.",
        "Geht immer noch nicht.",
        "Leider kommt der Fehler immer wieder.",
        "No funciona el botón.",
        "Siempre me da error.",
        "Não funciona.",
        "Não entendi a resposta.",
        "Mais ça ne marche pas.",
        "Rien ne marche plus.",
        "特别感谢你的帮助。",
        "三天以后我去北京。",
        "他必须去医院。",
        "毎回エラーが出ます。",
        "It waits in the spool behind the file with its texts, so that it\nnever arrives before what it names.",
        "The letter says: you must not park here.",
        "Here are the linter's rules:\n- max line length 80\n- no tabs",
        "These are the rules of the house I rent:\n- no dogs",
    ],
)
def test_what_is_told_or_asked_once_is_none(sentence: str):
    assert orders(sentence) == []


def test_lines_under_a_heading_are_orders_each():
    assert orders("My rules:\n- tabs\n- pytest only\n\nNow fix it") == ["tabs", "pytest only"]


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("Never push to main.", "You can push to main now."),
        ("No emojis please", "You may use emojis again."),
        ("Always use metric units.", "Forget what I said about metric units."),
        ("Always use tabs.", "Forget all my rules."),
        ("Nie auf main pushen!", "Du darfst jetzt auf main pushen."),
        ("Nunca hagas push a main.", "Ya puedes hacer push a main."),
        ("Ne pousse jamais sur main.", "Tu peux maintenant pousser sur main."),
        ("Nunca faça push para a main.", "Agora você pode fazer push para a main."),
        ("不要推送到main分支。", "现在可以推送到main分支了。"),
        ("絶対にmainにプッシュしないでください。", "もうmainにプッシュしてもいいです。"),
    ],
)
def test_an_order_holds_until_the_user_takes_it_back(given: str, taken: str):
    assert orders(given) == [given]
    assert orders(given, taken) == []
    assert orders(given, taken, given) == [given]


@pytest.mark.parametrize(
    ("order", "sentence"),
    [
        ("Never push to main.", "You can find all conventions in CONTRIBUTING.md."),
        ("Never push to main.", "You may read all the instructions in README.md first."),
        ("Never push to main.", "You can see all the rules in the file."),
        ("Never commit.", "You can see the commit."),
        ("No borres nada si no te lo pido.", "Avísame siempre si algo falla."),
        ("Never drop the metric tables.", "Always log the metric name."),
        ("Never answer in French.", "Answer in German."),
    ],
)
def test_other_sentences_leave_it_standing(order: str, sentence: str):
    assert orders(order, sentence)[0] == order


def test_many_orders_are_read_fast_and_held_to_a_number():
    told = "Our rules:\n" + "\n".join(f"- never touch box{at}" for at in range(400))
    held = orders(*(told[at : at + 3_900] for at in range(0, len(told), 3_900)))
    assert len(held) == 200
    assert held[-1].endswith("box399")


def test_what_was_left_out_is_counted_on():
    texts = [f"Never touch the folder box{at}." for at in range(30)]
    text = recap([said(text) for text in texts[:29]], [], Recap(), max_tokens=200, counter=COUNTER)
    (first,) = re.findall(r"\((\d+) older ones", text)
    later = recap([said(texts[29])], [], Recap(text), max_tokens=200, counter=COUNTER)
    (second,) = re.findall(r"\((\d+) older ones", later)
    assert int(second) == int(first) + 1
    assert recap([said("Never push to main.")], [], Recap(), max_tokens=8, counter=COUNTER) == "", (
        "nothing where nothing fits"
    )


def test_what_speaks_of_an_order_does_not_take_it_back():
    told = "You can see in the log that somebody did push to main."
    assert orders("Never push to main.", told, "Can you push to main?") == ["Never push to main."]
    part = "You can push to release now."
    assert orders("Never push to main or release.", part) == ["Never push to main or release.", part]


def test_of_equal_orders_and_of_those_that_exclude_each_other_the_latest_stays():
    assert orders("Never push to main.", "Please, never push to main!") == ["Please, never push to main!"]
    assert orders("Answer in German.", "Answer in English.") == ["Answer in English."]
    assert orders("Never touch port 80.", "Never touch port 443.") == ["Never touch port 80.", "Never touch port 443."]


def test_orders_come_first_are_bounded_and_stay_while_the_summary_grows():
    text = recap([said("Never push to main."), said("My dog is Rex.")], [], Recap(), max_tokens=400, counter=COUNTER)
    assert text.startswith(f"{TITLE}\n  Never push to main.\n- user: My dog is Rex.")
    later = recap([said("I live in Bern.")], [], Recap(text), max_tokens=400, counter=COUNTER)
    assert later.startswith(text), "a cut without an order ends no prefix"
    more = recap([said("Always use tabs.")], [], Recap(later), max_tokens=400, counter=COUNTER)
    assert more.startswith(f"{TITLE}\n  Never push to main.\n  Always use tabs.\n- user: My dog is Rex.")
    many = recap(
        [said(f"Never touch the folder box{at}.") for at in range(99)], [], Recap(), max_tokens=400, counter=COUNTER
    )
    held = many[: many.index("\n- ")] if "\n- " in many else many
    assert COUNTER.count(held) <= 160
    assert re.search(r"\(\d+ older ones are left out\)", held)
    assert "box98" in held


def test_agents_and_tools_give_no_orders():
    contents = [said("Never push to main.", "model")]
    assert standing_orders([], contents) == []


def test_an_order_is_in_every_request_after_its_cut_and_gone_when_it_is_taken_back():
    chat = Chat(policy=small(3_000))
    chat.say("Hello. I would only want e2e tests for AgentSession.", *turns(30))
    summaries = [sent.text for sent in chat.sent if SUMMARY_TITLE in sent.text]
    assert len(summaries) > 5
    for text in summaries:
        summary = text[text.index(SUMMARY_TITLE) :]
        assert summary.split("\n")[1:3] == [TITLE, "  I would only want e2e tests for AgentSession."]
    chat.say("You don't need to use only e2e tests for AgentSession any more.", *turns(30))
    assert TITLE not in chat.sent[-1].text


def test_of_a_long_message_whole_sentences_are_read() -> None:
    filler = "It rains in the hills. " * 300
    cut_in_two = f"{'x' * 900}. They said that we should never push to main, said he. {filler}Never delete a branch."
    assert orders(cut_in_two) == ["Never delete a branch."]
    end = f"{filler}It was he who wrote that you must always {'y ' * 470}. Use tabs from now on."
    assert orders(end) == ["Use tabs from now on."]
