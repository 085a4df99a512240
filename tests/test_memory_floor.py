"""What the app put into the state enters, and of what a search found only what is far from the best stays out."""

from __future__ import annotations

from typing import Any

import pytest
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
    found = reasons(chat, chat.manifests()[-1])
    assert "below_floor" in found.values()
    text = memory_section(chat)
    assert "toner" not in text
    assert "Harbour fee fact" in text
    assert all(f"- note: {one}" in text for one in OWN[:2])
    chat.replays()


def test_the_contract_says_what_is_authoritative() -> None:
    for contract in ("system", "payload"):
        chat = Chat(state={"plan": PLAN}, policy=PackPolicy(payload={"contract": contract}))
        chat.say("What is 2 + 2?")
        sent = f"{chat.sent[0].system}{chat.sent[0].text}"
        assert sent.count("TASK, STEP and ACCEPTANCE are authoritative for the current step") == 1
        assert (
            sent.count("\n- Where USER REQUEST asks for something beyond STEP, do STEP alone: name in your answer") == 1
        )
        assert "USER REQUEST holds" not in sent
        assert "HANDED OVER" not in sent
