"""A user's standing orders: found in seven languages, first in the summary of a cut, until they are taken back."""

from __future__ import annotations

import re
from itertools import takewhile

import pytest
from packs import said, summary_of
from plans import small
from scripted import Chat
from wording import ORDERS_TITLE, SUMMARY_TITLE

from aether_context.tokens import counter_for

PAGES = [f"Page {at}. {'It rained in the hills. ' * 80}" for at in range(3)]


def orders(*texts: str) -> list[str]:
    """The user's orders at the beginning of the summary of so many messages."""
    title, *rest = summary_of(*map(said, texts)).split("\n")
    return [line[2:] for line in takewhile(lambda line: line.startswith("  "), rest if title == ORDERS_TITLE else ())]


@pytest.mark.parametrize(
    "sentence",
    [
        "never push to main", "in metric units", "I would only want e2e tests for AgentSession",
        "From now on use tabs, not spaces.", "Fix the bug, and never push to main.",
        "It's AgentSession, not SessionAgent.", "No emojis please", "Could you always answer in German?",
        "Nie auf main pushen!", "Ab jetzt keine Kommentare im Code.", "Ich möchte nur E2E-Tests.",
        "A partir de ahora responde siempre en español.", "No uses emojis.", "Ne pousse jamais sur main.",
        "N'utilise pas d'emojis.", "Responda sempre em português.", "Não use emojis.", "不要推送到main分支。",
        "以后都用公制单位。", "今後は日本語で答えてください。", "絵文字は使わないでください。",
    ],
)  # fmt: skip
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
        ("Never drop the table.", "You can drop the table now."),
        ("Always revert failed migrations.", "You no longer need to revert failed migrations."),
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
        ("Never delete the table customers.", "Drop the table orders."),
        ("Never commit.", "You can see the commit."),
        ("No borres nada si no te lo pido.", "Avísame siempre si algo falla."),
        ("Never drop the metric tables.", "Always log the metric name."),
        ("Never answer in French.", "Answer in German."),
    ],
)
def test_other_sentences_leave_it_standing(order: str, sentence: str):
    assert orders(order, sentence)[0] == order


@pytest.mark.parametrize(
    ("order", "sentence"),
    [
        ("From now on, always answer in French.", "You can go back to English now."),
        ("From now on, always answer in French.", "English again, please."),
        ("From now on, always answer in French.", "Could you answer in English again?"),
        ("Always keep the budget under 5,000 euros.", "The budget is now 8,000 euros."),
        ("Keep all answers under 100 words.", "Keep all answers under 200 words."),
        ("Always use port 8080.", "From now on use port 9090."),
        ("From now on call me Doctor Weber.", "Please just call me Anna."),
        ("From now on call me Doctor Weber.", "You can call me Anna."),
        ("Always use metric units.", "Switch to imperial units."),
        ("Always use tabs, please.", "On second thought, use spaces instead."),
        ("Always answer in detail.", "Keep your answers brief from now on."),
        ("Antworte ab jetzt immer mit Sie.", "Du kannst mich wieder duzen."),
        ("À partir de maintenant, tutoie-moi.", "Vouvoie-moi de nouveau, s'il te plaît."),
        ("Antworte ab jetzt immer auf Französisch.", "Du kannst wieder auf Deutsch antworten."),
        ("Nenn mich ab jetzt Doktor Weber.", "Du kannst mich Anna nennen."),
        ("Halte das Budget immer unter 5.000 Euro.", "Das Budget ist jetzt 8.000 Euro."),
        ("Désormais, écris toujours les montants en dollars.", "Finalement, écris les montants en euros."),
        ("Dorénavant, vouvoie-moi.", "Tu peux me tutoyer."),
        ("A partir de ahora responde siempre en inglés.", "Puedes volver al español."),
        ("A partir de agora, me chame de Doutor Weber.", "Pode me chamar de Ana."),
        ("以后都用英文回答。", "换回中文吧。"),
        ("今後は英語で答えてください。", "日本語に戻してください。"),
    ],
)
def test_a_new_value_of_the_same_kind_ends_the_old_one(order: str, sentence: str):
    assert orders(order, sentence) == [sentence]


@pytest.mark.parametrize(
    ("order", "sentence"),
    [
        ("From now on delete the branch after every merge.", "Cancel that: branches stay after a merge."),
        ("From now on put a joke at the end of each answer.", "Forget the jokes."),
        ("From now on sign every mail with 'Best, Tom'.", "Drop the signature."),
        ("From now on prefix each branch with 'wip/'.", "Revert to branch names without a prefix."),
        ("Always run the linter before you commit.", "You can skip the linter from now on."),
        ("Never push to main.", "You can push to main if I say so."),
        ("Never push to main.", "You can push to main, but only after a review."),
        ("Answer in German.", "Answer the customer in Spanish."),
        ("Answer in German.", "Also answer in English."),
        ("Write all amounts in dollars from now on.", "Use euros instead."),
        ("Always add a summary at the end.", "Drop the summary."),
        ("Never drop the summary.", "Drop the summary."),
        ("No emojis please.", "Drop the emojis."),
        ("Keine Witze.", "Schluss mit den Witzen."),
        ("Do not deploy on Fridays.", "The ban on Friday deploys is lifted."),
        ("Always cite your sources.", "Scrap the sources."),
        ("From now on use tabs for indentation.", "Revert to spaces for indentation."),
        ("Désormais, ajoute une blague à la fin.", "Oublie les blagues."),
        ("从现在起，每次回答都要附上来源。", "不用再附上来源了。"),
        ("今後は必ず敬語で答えてください。", "もう敬語でなくていいです。"),
    ],
)
def test_what_may_take_an_order_back_stands_behind_it(order: str, sentence: str):
    assert orders(order, sentence) == [order, sentence]


@pytest.mark.parametrize(
    ("order", "sentence"),
    [
        ("Always ask before you send a mail.", "My colleague said that she no longer asks before she sends a mail."),
        ("Answer in German.", "Just this once answer in English."),
        ("Answer in German.", "Translate the letter into English."),
        ("Never push to main.", "You don't have to push to main."),
        ("Never push to main.", "This time you may push to main."),
        ("Never push to main.", "Cancel that flight."),
        ("Always run the tests before a commit.", "Revert to commit 4f1c and deploy."),
        ("Keep the budget under 5,000 euros at all times.", "The rent is now 900 euros."),
        ("From now on call me Doctor Weber.", "My dog is called Anna."),
        ("Keep your answers short.", "The list is now too long."),
        ("Always run the tests before a commit.", "Run the tests again."),
        ("Nie auf main pushen!", "Du musst nicht auf main pushen."),
        ("Antworte ab jetzt immer auf Englisch.", "Übersetze den Brief auf Deutsch."),
        ("A partir de ahora responde siempre en inglés.", "El cliente habla español."),
        ("À partir de maintenant, réponds toujours en anglais.", "Le client parle français."),
        ("A partir de agora, responda sempre em inglês.", "Traduza a carta para o português."),
        ("以后都用英文回答。", "把这封信翻译成中文。"),
        ("今後は日本語で答えてください。", "この手紙を英語に翻訳してください。"),
    ],
)
def test_what_is_of_something_else_changes_no_order(order: str, sentence: str):
    assert orders(order, sentence) == [order]


def test_that_is_the_order_just_before() -> None:
    assert orders("Always use tabs.", "Always run the tests twice.", "Scrap that.") == ["Always use tabs."]
    assert orders("Always use tabs.", "Book a flight to Rome.", "Cancel that.") == ["Always use tabs."]
    both = orders("Never push to main. Book a flight to Rome.", "Cancel that.")
    assert both == ["Never push to main.", "Cancel that."], "it may be either"


def test_many_orders_are_read_fast_and_held_to_a_number():
    told = "Our rules:\n" + "\n".join(f"- never touch box{at}" for at in range(400))
    held = orders(*(told[at : at + 3_900] for at in range(0, len(told), 3_900)))
    assert len(held) == 200
    assert held[-1].endswith("box399")


def test_what_was_left_out_is_counted_on():
    messages = [said(f"Never touch the folder box{at}.") for at in range(30)]
    text = summary_of(*messages[:29], max_tokens=200)
    (first,) = re.findall(r"\((\d+) older ones", text)
    (second,) = re.findall(r"\((\d+) older ones", summary_of(messages[29], earlier=text, max_tokens=200))
    assert int(second) == int(first) + 1
    assert summary_of(said("Never push to main."), max_tokens=8) == "", "nothing where nothing fits"


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
    text = summary_of(said("Never push to main."), said("My dog is Rex."), max_tokens=400)
    assert text.startswith(f"{ORDERS_TITLE}\n  Never push to main.\n- user: My dog is Rex.")
    later = summary_of(said("I live in Bern."), earlier=text, max_tokens=400)
    assert later.startswith(text), "a cut without an order ends no prefix"
    more = summary_of(said("Always use tabs."), earlier=later, max_tokens=400)
    assert more.startswith(f"{ORDERS_TITLE}\n  Never push to main.\n  Always use tabs.\n- user: My dog is Rex.")
    many = summary_of(*(said(f"Never touch the folder box{at}.") for at in range(99)), max_tokens=400)
    held = many.partition("\n- user")[0]
    assert counter_for("").count(held) <= 160
    assert re.search(r"\(\d+ older ones are left out\)", held)
    assert "box98" in held


def test_agents_and_tools_give_no_orders():
    assert ORDERS_TITLE not in summary_of(said("Never push to main.", "model"))


def test_an_order_is_in_every_request_after_its_cut_and_gone_when_it_is_taken_back():
    chat = Chat(policy=small(1_000))
    chat.say("Hello. I would only want e2e tests for AgentSession.", *PAGES)
    summaries = [sent.text for sent in chat.sent if SUMMARY_TITLE in sent.text]
    assert len(summaries) > 1
    for text in summaries:
        summary = text[text.index(SUMMARY_TITLE) :]
        assert summary.split("\n")[1:3] == [ORDERS_TITLE, "  I would only want e2e tests for AgentSession."]
    chat.say("You don't need to use only e2e tests for AgentSession any more.", *PAGES)
    assert SUMMARY_TITLE in chat.sent[-1].text
    assert ORDERS_TITLE not in chat.sent[-1].text


def test_a_summary_holds_the_new_value_alone():
    chat = Chat(policy=small(1_000))
    chat.say("Hello. From now on, always answer in French.", *PAGES)
    assert f"{ORDERS_TITLE}\n  From now on, always answer in French.\n" in chat.sent[-1].text
    chat.say("You can go back to English now.", *PAGES)
    assert f"{ORDERS_TITLE}\n  You can go back to English now.\n-" in chat.sent[-1].text


def test_of_a_long_message_whole_sentences_are_read() -> None:
    filler = "It rains in the hills. " * 300
    cut_in_two = f"{'x' * 900}. They said that we should never push to main, said he. {filler}Never delete a branch."
    assert orders(cut_in_two) == ["Never delete a branch."]
    end = f"{filler}It was he who wrote that you must always {'y ' * 470}. Use tabs from now on."
    assert orders(end) == ["Use tabs from now on."]
