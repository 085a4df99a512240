"""What the app put into the state enters, and of what a search found only what is far from the best stays out."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.tools.preload_memory_tool import PreloadMemoryTool
from scripted import Chat, Memories, remembered

from aether_context import Manifest, PackPolicy
from aether_context.store.replay import Replayer

OWN = [f"{word} stays as it is" for word in ("zebra", "copper", "violin", "glacier", "saffron", "comet", "tulip")]
PLAN = {"task_id": "42", "goal": "Be brief", "step": {"id": "3", "text": "Add numbers", "acceptance": ["A sum"]}}


def harbour(count: int, words: int = 40) -> list[Any]:
    crowd = ("berth", "tariff", "harbour", "fee", "Kiel", "pilot", "ferry", "customs", "anchor", "quay", "tide")
    return [
        remembered(f"Harbour fee fact {at}: " + " ".join(crowd[(at + step) % 11] for step in range(words)))
        for at in range(count)
    ]


def memory_section(chat: Chat) -> str:
    return chat.sent[-1].human().partition("MEMORY:\n")[2].partition("\nACCEPTANCE:")[0].partition("\nUSER REQUEST:")[0]


def reasons(chat: Chat, manifest: Manifest) -> dict[str, str | None]:
    rows = Replayer(chat.store).resolve(manifest).rows.values()
    return {row.id: row.reason for row in rows if row.layer == "memory"}


@pytest.mark.parametrize("policy", ["quality_first", "balanced", "cost_first"])
@pytest.mark.parametrize("key", ["notes", "memories", "decisions", "entities"])
@pytest.mark.parametrize("as_mapping", [False, True])
def test_what_the_app_put_there_enters_whatever_is_asked(policy: str, key: str, as_mapping: bool) -> None:
    own = [{"text": text, "step_id": "3"} if as_mapping and key == "notes" else text for text in OWN]
    chat = Chat(
        state={"plan": PLAN, "knowledge": {key: own}},
        policy=PackPolicy.load(preset=policy),
        memory=Memories(*harbour(30)),
    )
    chat.say("What is 2 + 2?")
    label = {"notes": "note: ", "memories": "", "decisions": "decision: ", "entities": "entity: "}[key]
    assert all(f"- {label}{text}" in memory_section(chat) for text in OWN)
    chat.replays()


def test_in_short_room_what_was_found_has_to_be_near_the_best_and_the_apps_own_does_not() -> None:
    chat = Chat(
        state={"knowledge": {"notes": OWN[:2]}},
        memory=Memories(remembered("Second-floor printer needs toner", author=None), *harbour(8)),
        policy=PackPolicy(max_input_tokens=1_300, retrieval={"recall": False}),
    )
    chat.say("Hello " + "there and so on " * 260, "Which harbour fee is due in Kiel?")
    found = reasons(chat, chat.latest())
    assert "below_floor" in found.values()
    text = memory_section(chat)
    assert "toner" not in text
    assert "Harbour fee fact" in text
    assert all(f"- note: {one}" in text for one in OWN[:2])
    chat.replays()


STANDING = ["Always answer in German", "The user is allergic to peanuts", "Locker 14 is at the gym"]


def test_of_a_short_list_all_stands_while_there_is_room() -> None:
    chat = Chat(memory=Memories(*map(remembered, STANDING)))
    chat.say("Which harbour fee is due in Kiel?")
    assert all(text in memory_section(chat) for text in STANDING)
    chat.replays()


def test_a_long_list_is_floored_by_meaning_and_standing_wishes_pass() -> None:
    chat = Chat(memory=Memories(*map(remembered, STANDING), *harbour(30)))
    chat.say("Which harbour fee is due in Kiel?")
    section = memory_section(chat)
    assert STANDING[0] in section
    assert STANDING[1] in section
    assert STANDING[2] not in section
    assert section.count("Harbour fee fact") == PackPolicy().retrieval.memory_k - 2
    chat.replays()


@pytest.mark.parametrize("lucky", [(), ("Locker 7 is at the gym",)])
def test_a_term_that_one_memory_shares_by_chance_moves_no_other(lucky: tuple[str, ...]) -> None:
    names = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu",
             "nu", "xi", "omicron"]  # fmt: skip
    facts = [f"Harbour fee {name}: the tariff for the quay and the ferry" for name in names]
    chat = Chat(memory=Memories(*map(remembered, [*facts, *lucky])), policy=PackPolicy(max_input_tokens=4_000))
    chat.say("Which harbour fee is due at the quay for 7 ferries?")
    assert all(fact in memory_section(chat) for fact in facts)


@pytest.mark.parametrize("request_text", ["Which harbour fee is due in Kiel?", "List all harbour fees in Kiel."])
def test_no_more_memories_enter_than_the_policy_says_whatever_is_asked(request_text: str) -> None:
    notes = [f"Note {at} of the harbour fee in Kiel" for at in range(12)]
    plan = {**PLAN, "goal": "Summarize everything, all of the list", "steps": ["List every fee in total"]}
    policy = PackPolicy(retrieval={"memory_k": 4})
    chat = Chat(state={"plan": plan, "knowledge": {"notes": notes}}, memory=Memories(*harbour(12)), policy=policy)
    chat.say(request_text)
    assert memory_section(chat).count("- note: ") == 4
    assert memory_section(chat).count("Harbour fee fact") == 4
    chat.replays()


def test_a_request_for_many_things_lowers_the_floor_and_a_goal_does_not() -> None:
    far = ["The lighthouse was built long ago", "The train to the coast is late", "Customs officers wear blue"]

    def passing(said: str, goal: str) -> int:
        plan = {**PLAN, "goal": goal}
        chat = Chat(state={"plan": plan}, memory=Memories(*harbour(18), *map(remembered, far)))
        chat.say(said)
        return sum(reason != "below_floor" for reason in reasons(chat, chat.latest()).values())

    usual = passing("Harbour fee in Kiel?", "Be brief")
    assert passing("Harbour fee in Kiel?", "Summarize all of everything") == usual == 18
    assert passing("Harbour fees in Kiel, list all?", "Be brief") > usual


SAME = "The user is allergic to peanuts."


@pytest.mark.parametrize("preloads", [False, True])
@pytest.mark.parametrize("again", [SAME, "the user is  allergic to peanuts", f"“{SAME}”"])
def test_one_memory_from_two_sources_is_one(again: str, preloads: bool) -> None:
    tools = [PreloadMemoryTool()] if preloads else []
    chat = Chat(state={"knowledge": {"memories": [SAME]}}, memory=Memories(remembered(again)), tools=tools)
    chat.say("What can we cook?")
    assert chat.sent[0].human().casefold().count("allergic to peanuts") == 1
    assert sorted(map(str, reasons(chat, chat.manifests()[0]).values())) == ["None", "duplicate"]
    chat.replays()


def test_what_two_people_said_in_the_same_words_stays_twice() -> None:
    chat = Chat(memory=Memories(*(remembered("I love pottery", author=author) for author in ("caroline", "melanie"))))
    chat.say("Who loves pottery?")
    assert memory_section(chat).count("I love pottery") == 2


@pytest.mark.parametrize("window", range(500, 2_300, 100))
def test_compression_leaves_no_stubs(window: int) -> None:
    long = [
        f"Harbour fact {at}. " + "The fee of the harbour grows with the length of the ship. " * 12 for at in range(5)
    ]
    notes = [
        f"Note {at}: " + "berth and pilot and tug are paid at the quay before the ferry leaves " * 4 for at in range(4)
    ]
    chat = Chat(
        state={"knowledge": {"notes": [*notes, "Pay in euro"]}},
        memory=Memories(*map(remembered, long)),
        policy=PackPolicy(max_input_tokens=window, retrieval={"floor": 0.0}),
    )
    chat.say("Which harbour fee is due in Kiel?")
    wholes = [" ".join(text.split()) for text in (*long, *notes, "Pay in euro")]
    for line in memory_section(chat).splitlines():
        text = line.removeprefix("- ").partition(": ")[2]
        assert text in wholes or len(text.split()) >= 12, line
    manifest = chat.manifests()[0]
    rows = [row for row in Replayer(chat.store).resolve(manifest).rows.values() if row.layer == "memory"]
    dropped = {name for event in manifest.truncation_events if event.stage == "drop" for name in event.item_ids}
    assert dropped == {row.id for row in rows if row.form == "left_out"}
    chat.replays()


def test_diversity_weighs_what_is_new_against_what_is_near() -> None:
    near = [f"The harbour fee in Kiel is {at} euro for a ship at the quay" for at in range(6)]
    other = "Harbour pilots in Kiel ask for a surcharge"

    def enters(diversity: float) -> bool:
        policy = PackPolicy(retrieval={"memory_k": 3, "diversity": diversity})
        chat = Chat(memory=Memories(*map(remembered, [*near, other])), policy=policy)
        chat.say("What is the harbour fee in Kiel?")
        chat.replays()
        return other in memory_section(chat)

    assert [enters(diversity) for diversity in (0.8, 0.0)] == [True, False]
