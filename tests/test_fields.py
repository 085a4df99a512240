"""Each field of the values that a plan and a request become: it reaches the model, is shortened, and is masked.

The tests go through the fields that there are, so that a new one is covered without a line here: a field that is not
handled like the others fails until it is named where the code names its kind (`UNMASKED`, `STEP_WORDS`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints
from unittest.mock import patch

import pytest
from plans import small
from scripted import Chat, Memories, call, look_up, remembered

import aether_context
from aether_context.pack import STEP_WORDS, AcceptanceItem, Anchor, Candidate, Reason, Step
from aether_context.packing import payload
from aether_context.packing.payload import step_text
from aether_context.plans import PlanShape, StepShape
from aether_context.plans.schema import (
    AcceptanceShape,
    ConstraintShape,
    EvidenceShape,
    KnowledgeShape,
    NoteShape,
    Shape,
)
from aether_context.reading import WHY
from aether_context.redaction import masker
from aether_context.state import read_state
from aether_context.state.candidates import ROLES
from aether_context.store.masking import UNMASKED, _masked

SECRET = "sk_live_4eC39HqLyjWDarjtT1zdp7dc"
NAMES = {
    *("id", "task_id", "step_id", "current_step", "claimed_by", "depends_on", "covers", "hash", "tools"),
    *("status", "kind", "profile", "risk", "step", "steps"),
}
"""Fields of session state that name things, or take one of a few words: they are not masked, and say what belongs
together."""


def is_text(kind: Any) -> bool:
    """Tells whether a type, or one inside it, is a text."""
    return kind is str or any(map(is_text, get_args(kind)))


def hints(kind: type) -> dict[str, Any]:

    return get_type_hints(kind)


MASKED = [
    pytest.param(kind, name, id=f"{kind.__name__}.{name}")
    for kind in UNMASKED
    for name, hint in hints(kind).items()
    if is_text(hint) and name not in UNMASKED[kind] and name in {item.name for item in dataclasses.fields(kind)}
]


def test_every_kind_with_texts_is_among_those_that_are_masked() -> None:
    assert UNMASKED.keys() == {Step, AcceptanceItem, Candidate, Anchor}
    assert len(MASKED) > 12


def filled(kind: type, **values: Any) -> Any:
    """A value whose required texts are words."""
    required = {
        item.name: "word" if is_text(hints(kind)[item.name]) else 0
        for item in dataclasses.fields(kind)
        if item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
    }
    return kind(**required | values)


@pytest.mark.parametrize(("kind", "name"), MASKED)
def test_every_text_is_masked(kind: type, name: str) -> None:
    mask, hint = masker(("secrets",)), hints(kind)[name]
    value: Any = SECRET if hint is str else (SECRET,)
    if hint == tuple[AcceptanceItem, ...]:
        value = (filled(AcceptanceItem, text=SECRET),)
    masked = _masked(filled(kind, **{name: value}), mask)
    assert SECRET in repr(value)
    assert SECRET not in repr(masked)


def shapes(kind: type[Shape], text: str) -> dict[str, Any]:
    """A mapping with a text in every field of a shape that takes words, and the same in the shapes inside it."""
    values: dict[str, Any] = {"id": "s1"} if kind is StepShape else {}
    for name in kind.model_fields:
        inner = {"acceptance": AcceptanceShape, "constraints": ConstraintShape}.get(name)
        inner = EvidenceShape if name == "evidence" else NoteShape if kind is KnowledgeShape else inner
        if inner is not None:
            values[name] = (
                shapes(inner, f"{text} in {name}") if name == "constraints" else [shapes(inner, f"{text} in {name}")]
            )
        elif name not in NAMES and is_text(kind.model_fields[name].annotation):
            values[name] = f"artifact://{text}.md" if name == "uri" else f"{name} {text}"
    return values


def test_a_secret_in_any_field_of_the_state_is_written_nowhere() -> None:
    plan = {**shapes(PlanShape, SECRET), "step": shapes(StepShape, SECRET)}
    knowledge = shapes(KnowledgeShape, SECRET)
    assert repr(plan).count(SECRET) > 12
    assert repr(knowledge).count(SECRET) >= 5
    script = [call("look_up", key="a"), "Done.", "Done again."]
    chat = Chat(
        script=script,
        tools=[look_up],
        policy=small(8_000, redact=("secrets",)),
        state={"plan": plan, "knowledge": knowledge, "other": SECRET},
        memory=Memories(remembered(f"The key is {SECRET}")),
    )
    chat.say(f"Which key is {SECRET}?", "And now?")
    assert SECRET in chat.sent[0].text
    files = list(written(chat))
    assert len(files) > 3
    assert [name for name, data in files if SECRET.encode() in data] == []
    chat.replays()


@pytest.mark.parametrize("prompt", [False, True])
def test_a_secret_as_the_name_of_a_called_tool_is_in_no_replay(prompt: bool) -> None:
    def tool(key: str) -> str:
        """Looks a key up."""
        return "It is of ann."

    tool.__name__ = SECRET
    chat = Chat(
        script=[call(SECRET, key="a"), "Done.", "Done again."],
        tools=[tool],
        policy=small(8_000, redact=("secrets",), redact_prompt=prompt, tools={"scope": "off"}),
    )
    chat.say("Whose key is it?", "And now?")
    replays = [data for name, data in written(chat) if "manifest" not in name]
    assert len(replays) > 1
    calls = [data for data in replays if b'"function_call"' in data]
    assert calls
    assert [name for name, data in written(chat) if SECRET.encode() in data] == []
    chat.replays()


@pytest.mark.parametrize(
    "secret",
    [
        f"123456789:AA{'b3c' * 11}",
        f"MTk4NjIyNDgzNDcxOTI1MjQ4.{'aB3' * 2}.{'d4E' * 9}",
        "password: hunter22",
        "api_key = 'abcdef12'",
        "DB_PASSWORD=${x}y",
        "DB_PASS=hunter22",
        "password=${X:-hunter22}",
    ],
)
def test_tokens_and_passwords_are_masked(secret: str) -> None:
    value = secret.split(" ")[-1].strip("'")
    assert value not in masker(("secrets",))(f"It is {secret} as of today")


@pytest.mark.parametrize(
    ("members", "is_masked"),
    [
        (
            {"api_key_header": "X-Api-Key", "apiKeyHeader": "X-Api-Key", "password_reset_url": "https://a.example"},
            False,
        ),
        ({"password": "${API_KEY}", "api_key": "<your key>", "client_secret": "os.environ['KEY']"}, False),
        ({"token": "${GH1_TOKEN}", "secret": "{{ secret_1 }}", "pwd": "string"}, False),
        ({"password": "${API_KEY}x", "api_key": "x<your key>", "secret": "hunter", "DB Password (new)": "a b"}, True),
        ({"password": 1234, "db_pass": "hunter22", "client_secret": "${X:-hunter22}", "token": "abcd1234"}, True),
    ],
)
def test_under_the_name_of_a_password_all_but_placeholders_is_masked(members: dict[str, Any], is_masked: bool) -> None:
    expected = dict.fromkeys(members, "[password]") if is_masked else members
    assert masker(("secrets",)).json(members) == expected


@pytest.mark.parametrize(
    "text",
    [
        "key = os.environ['API_KEY']",
        "API_KEY=${API_KEY}",
        "api_key_header: X-Api-Key",
        "Das Passwort: bitte nicht teilen",
        "def login(user, password: str) -> None",
        "client_secret: {{ vault_secret }}",
        "apiKey: process.env.API_KEY",
        "password: <your password>",
        "Wrong password: try again",
    ],
)
def test_what_only_names_a_secret_stays(text: str) -> None:
    assert masker(("secrets",))(text) == text


def written(chat: Chat) -> Iterator[tuple[str, bytes]]:
    """Every file of a chat's store, decompressed where it is packed."""
    from gzip import decompress

    system, root = chat.store.files.fs, chat.store.files.root
    for path in system.find(root):
        data = system.cat_file(path)
        yield path, decompress(data) if data[:2] == b"\x1f\x8b" else data


PLANNED = [
    pytest.param(kind, name, id=f"{kind.__name__}.{name}")
    for kind in (PlanShape, StepShape)
    for name, field in kind.model_fields.items()
    if name not in NAMES and is_text(field.annotation)
]


@pytest.mark.parametrize(("kind", "name"), PLANNED)
def test_every_text_of_a_plan_reaches_the_model(kind: type[Shape], name: str) -> None:
    values = {name: ["Mind the gap"] if name in ("acceptance", "next", "stop_when") else "Mind the gap"}
    step = {"id": "s1", "acceptance": ["It is done"]} | ({} if name == "text" else {"text": "Do it"})
    step = {key: value for key, value in step.items() if not (kind is PlanShape and key == name)}
    plan = {"step": step | values} if kind is StepShape else {"step": step, **values}
    planned = read_state({"plan": plan})
    shown = step_text(planned.step) + "\n".join(candidate.text for candidate in planned.candidates)
    assert "Mind the gap" in shown


@pytest.mark.parametrize("name", STEP_WORDS)
def test_the_words_of_a_step_that_is_too_large_are_shortened(name: str) -> None:
    long = " ".join(f"word{at}" for at in range(900))
    hint = hints(Step)[name]
    assert is_text(hint), f"{name} holds no words: name it in STEP_WORDS"
    plan = {"step": {"text": "Do it", "acceptance": ["It is done"]}, name: long}
    plan = {"step": {**plan["step"], "text": long}} if name == "text" else plan  # type: ignore[dict-item]
    chat = Chat(state={"plan": plan}, policy=small(2_000))
    chat.say("Please do it")
    assert 0 < chat.sent[0].text.count("word") < 900
    assert [event.stage for event in chat.manifests()[0].truncation_events if event.layer == "task"]


def test_every_reason_has_words() -> None:
    assert WHY.keys() == set(get_args(Reason))
    assert all(WHY.values())


def contract_changed(**lines: str) -> Any:
    """A patch by which this version explains its packs in other words than the recorded ones."""
    return patch.dict(payload.WORDING, lines)


@pytest.mark.parametrize("contract", ["system", "payload"])
def test_a_pack_replays_whatever_later_versions_tell_the_model(contract: str) -> None:
    plan = {"step": {"text": "Find the rate", "acceptance": ["It is named"]}, "role": "operator"}
    state = {"plan": plan, "knowledge": {"notes": ["The rate is 19 percent"]}}
    policy = small(8_000, payload={"contract": contract, "recitation": True})
    chat = Chat(script=[call("look_up", key="a"), "Done."], tools=[look_up], policy=policy, state=state)
    chat.say("Which rate?", "And now?")
    new_roles = patch.dict(ROLES, operator=("You are the Operator, in other words.",))
    with contract_changed(authority="Another line.", recitation="Say it.", opening="Anew."), new_roles:
        chat.replays()
        later = Chat(policy=policy, state=state)
        later.say("Which rate?")
        told = f"{later.sent[0].system}\n{later.sent[0].text}"
        assert [told.count(line) for line in ("Another line.", "Say it.", "in other words")] == [1, 1, 1]
        later.replays()
    later.replays()
    with patch.dict(payload.WORDING), contract_changed():
        payload.WORDING.pop("unknown")  # a line that is taken away
        later.replays()


def test_the_page_names_every_place_that_a_new_field_a_section_or_a_reason_touches() -> None:
    page = (Path(__file__).parent.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (field of a step|section of the payload|reason[^|]*) \| (.*) \|$", page, re.MULTILINE))
    assert len(rows) == 3
    package = Path(aether_context.__file__).parent
    for places in rows.values():
        files = re.findall(r"`([\w/]+\.(?:py|toml|json))`", places)
        names = re.findall(r"`([A-Za-z_]+)`", places)
        texts = [text for file in files for path in package.rglob(file) for text in [path.read_text(encoding="utf-8")]]
        assert len(texts) >= len(files) > 1
        assert [name for name in names if not any(re.search(rf"\b{name}\b", text) for text in texts)] == []
