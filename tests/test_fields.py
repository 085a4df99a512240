"""Each field of the values that a plan and a request become: it reaches the model, is shortened, and is masked.

The fields are named here, not taken from the code that handles them: a new one fails until it is named among those
that hold words or among the others, and one of words until it is masked, shortened and shown.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints
from unittest.mock import patch

import pytest
from packs import memory, pack_input, said, write
from plans import small
from scripted import Chat, Memories, call, look_up, new_store, remembered

import aether_context
from aether_context import PackPolicy, PackStore, build_pack
from aether_context.lab.reading import WHY
from aether_context.pack import STEP_WORDS, AcceptanceItem, Anchor, Candidate, PackInput, Reason, Step
from aether_context.plans import PlanShape, StepShape
from aether_context.redaction import masker
from aether_context.store.masking import MaskedPacks

SECRET = "sk_live_4eC39HqLyjWDarjtT1zdp7dc"
TEXTS: Mapping[type, tuple[str, ...]] = {
    Step: (
        *("task", "goal", "text", "role", "role_lines", "acceptance", "constraints", "open_questions", "next"),
        "stop_when",
    ),
    AcceptanceItem: ("text",),
    Candidate: ("source", "text", "speaker", "line", "uri", "superseded_by"),
    Anchor: ("description",),
}
"""The fields that hold words: they are masked in what is recorded."""
OTHERS: Mapping[type, tuple[str, ...]] = {
    Step: ("task_id", "step_id", "risk", "tools", "expected_tool_calls"),
    AcceptanceItem: ("id", "needs_evidence"),
    Candidate: (*("id", "layer", "digest", "covers", "content_hash", "kind", "tokens", "time", "expires", "scores"),),
    Anchor: ("place", "kind", "priority"),
}
"""The fields that name things, say what belongs together, or are figures."""
PLAN = ("task", "goal", "role", "acceptance", "constraints", "open_questions", "next", "stop_when")
STEP = ("text", "role", "acceptance", "constraints", "notes", "open_questions", "next")
"""The words of a plan and of a step in a session's state."""
OF_A_PHASE = ("acceptance", "constraints", "role")
"""The words that the steps of a phase have from it."""


@pytest.mark.parametrize("kind", TEXTS)
def test_every_field_of_a_value_is_masked_or_named_here(kind: type) -> None:
    assert sorted(item.name for item in dataclasses.fields(kind)) == sorted([*TEXTS[kind], *OTHERS[kind]])


def test_every_field_of_a_plan_and_of_a_step_is_named_here() -> None:
    plan = {*PLAN, "task_id", "step", "steps", "current_step", "tools", "expected_tool_calls", "profile"}
    step = {*STEP, "id", "tools", "depends_on", "status", "claimed_by", "expected_tool_calls", "profile"}
    assert (PlanShape.model_fields.keys(), StepShape.model_fields.keys()) == (plan, step)
    words = {"task", "goal", "text", "constraints", "open_questions", "next", "stop_when"}
    assert set(STEP_WORDS) == words


def holding(kind: type, name: str) -> PackInput:
    """What a pack is built from, with a secret in a field of one of its values."""
    value: Any = SECRET
    if name == "acceptance":
        value = (AcceptanceItem(id="a", text=SECRET),)
    elif get_type_hints(kind)[name] is not str:
        value = (SECRET,)
    if kind is Anchor:
        anchor = Anchor(place=0, kind="custom", priority=1, description=value)
        return pack_input([said("Go on.")], anchors=(anchor,))
    if kind is Candidate:
        return pack_input([said("Go on.")], candidates=[replace(memory("m", "Go on."), **{name: value})])
    item = AcceptanceItem(id="a", text=SECRET if kind is AcceptanceItem else "It is done")
    step = Step(text="Do it", acceptance=(item,))
    return pack_input([said("Go on.")], step=replace(step, **{name: value}) if kind is Step else step)


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in TEXTS.items() for name in names])
def test_every_text_is_masked(kind: type, name: str) -> None:
    source, store, policy = holding(kind, name), new_store(), PackPolicy(redact=("secrets",), on_invalid="warn")
    write(store, MaskedPacks().of(build_pack(source, policy), policy, "p"), policy)
    files = [data for _, data in written(store)]
    assert SECRET in repr(source)
    assert len(files) >= 2
    assert not any(SECRET.encode() in data for data in files)


def words_in(names: Sequence[str]) -> dict[str, Any]:
    return {name: f"{name} {SECRET}" for name in names}


def test_a_secret_in_any_field_of_the_state_is_written_nowhere() -> None:
    plan = {**words_in(PLAN), "step": {"id": "s1", **words_in(STEP)}}
    knowledge: dict[str, Any] = {name: [words_in(["text"])] for name in ("notes", "memories", "decisions", "entities")}
    knowledge["evidence"] = [{"uri": f"artifact://{SECRET}.md", "summary": SECRET}]
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
    files = list(written(chat.store))
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
    replays = [data for name, data in written(chat.store) if "manifest" not in name]
    assert len(replays) > 1
    calls = [data for data in replays if b'"function_call"' in data]
    assert calls
    assert [name for name, data in written(chat.store) if SECRET.encode() in data] == []
    chat.replays()


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


def written(store: PackStore) -> Iterator[tuple[str, bytes]]:
    """Every file of a store, decompressed where it is packed."""
    from gzip import decompress

    system, root = store.files.fs, store.files.root
    for path in system.find(root):
        data = system.cat_file(path)
        yield path, decompress(data) if data[:2] == b"\x1f\x8b" else data


@pytest.mark.parametrize(("place", "name"), [*(("plan", name) for name in PLAN), *(("step", name) for name in STEP)])
def test_every_text_of_a_plan_reaches_the_model(place: str, name: str) -> None:
    values = {name: ["Mind the gap"] if name in ("acceptance", "next", "stop_when") else "Mind the gap"}
    step = {"id": "s1", "acceptance": ["It is done"]} | ({} if name == "text" else {"text": "Do it"})
    step = {key: value for key, value in step.items() if not (place == "plan" and key == name)}
    plan = {"step": step | values} if place == "step" else {"step": step, **values}
    chat = Chat(state={"plan": plan})
    chat.say("Go on.")
    assert "Mind the gap" in chat.sent[0].text


@pytest.mark.parametrize("name", STEP_WORDS)
def test_the_words_of_a_step_that_is_too_large_are_shortened(name: str) -> None:
    long = " ".join(f"word{at}" for at in range(900))
    plan = {"step": {"text": "Do it", "acceptance": ["It is done"]}, name: long}
    plan = {"step": {**plan["step"], "text": long}} if name == "text" else plan  # type: ignore[dict-item]
    chat = Chat(state={"plan": plan}, policy=small(2_000))
    chat.say("Please do it")
    assert 0 < chat.sent[0].text.count("word") < 900
    assert [event.stage for event in chat.manifests()[0].truncation_events if event.layer == "task"]


@pytest.mark.parametrize("name", OF_A_PHASE)
def test_a_step_has_the_words_of_its_phase(name: str) -> None:
    phase = {"title": "Dig", "steps": ["Mark the bed", "Lift the turf"], name: ["Mind the gap"]}
    chat = Chat(state={"plan": {"goal": "A garden", "phases": [phase]}})
    chat.say("Go on.")
    assert "Mind the gap" in chat.sent[0].text


def test_every_reason_has_words() -> None:
    assert WHY.keys() == set(get_args(Reason))
    assert all(WHY.values())


def contract_changed(**lines: str) -> Any:
    """A patch by which this version explains its packs in other words than the recorded ones."""
    return patch.dict("aether_context.packing.payload.WORDING", lines)


@pytest.mark.parametrize("contract", ["system", "payload"])
def test_a_pack_replays_whatever_later_versions_tell_the_model(contract: str) -> None:
    plan = {"step": {"text": "Find the rate", "acceptance": ["It is named"]}, "role": "operator"}
    state = {"plan": plan, "knowledge": {"notes": ["The rate is 19 percent"]}}
    policy = small(8_000, payload={"contract": contract, "recitation": True})
    chat = Chat(script=[call("look_up", key="a"), "Done."], tools=[look_up], policy=policy, state=state)
    chat.say("Which rate?", "And now?")
    new_roles = patch.dict("aether_context.state.candidates.ROLES", operator=("You are the Operator, in other words.",))
    with contract_changed(authority="Another line.", recitation="Say it.", opening="Anew."), new_roles:
        chat.replays()
        later = Chat(policy=policy, state=state)
        later.say("Which rate?")
        told = f"{later.sent[0].system}\n{later.sent[0].text}"
        assert [told.count(line) for line in ("Another line.", "Say it.", "in other words")] == [1, 1, 1]
        later.replays()
    later.replays()
    with contract_changed() as words:
        words.pop("unknown")  # a line that is taken away
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
