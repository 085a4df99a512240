"""A packed request can be copied deeply and pickled, as wrappers that try again, recorders and caches do; and the tools
of a copy work on the same store and session."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents.callback_context import CallbackContext
from google.adk.models.llm_request import LlmRequest
from scripted import Chat, big_file, call, look_up, results, state_of

from aether_context import PackPolicy, PackStore
from aether_context.adk import context_tools, evidence_tools, memory_tools, planning_tools

WAYS: dict[str, Callable[[Any], Any]] = {
    "copy.copy": copy.copy,
    "copy.deepcopy": copy.deepcopy,
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
}


def with_copies(way: Callable[[Any], Any], **options: Any) -> Chat:
    """A chat whose model is sent copies of the requests, tools included."""

    def copied(callback_context: CallbackContext, llm_request: LlmRequest) -> None:
        llm_request.model_copy(deep=True)
        changed = way(llm_request)
        llm_request.tools_dict = changed.tools_dict
        llm_request.config, llm_request.contents = changed.config, changed.contents

    return Chat(settings={"before_model_callback": copied}, **options)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("window", [5_000, 100_000])
def test_copied_readers_read_what_the_tools_gave(way: str, window: int, figure: Callable[[str, float], None]) -> None:
    chat = with_copies(
        WAYS[way], tools=[big_file, *planning_tools()], policy=PackPolicy(max_input_tokens=window, profile="chat")
    )
    chat.llm.script += [call("big_file", name="a.txt", lines=3_000), "read"]
    chat.say("Read a.txt.")
    [uri] = [record["uri"] for record in state_of(chat)["aether:evidence"].values()]
    chat.llm.script += [
        [
            call("read_artifact", uri=uri, start_line=2_001, max_lines=1),
            call("search_artifact", uri=uri, query="2500:"),
        ],
        "ok",
    ]
    found = results(chat.say("Which value stands in line 2000?"))
    figure("not_copied", len(chat.raw) - len(chat.llm.sent))
    assert len(chat.llm.sent) == len(chat.raw) == 4
    assert found[0]["text"] == f"2000: value {2_000 * 37 % 1009} in a.txt"
    assert f"2500: value {2_500 * 37 % 1009} in a.txt" in found[1]["found"][0]["text"]


@pytest.mark.parametrize("way", WAYS)
def test_every_tool_of_the_package_can_be_copied(way: str, tmp_path: Path) -> None:
    own = PackStore(f"memory://own-{tmp_path.name}-{way}")
    tools = [*planning_tools(), *memory_tools(), *context_tools()]
    chat = with_copies(WAYS[way], tools=[*tools, *evidence_tools(own)])
    chat.llm.script += [
        [call("keep_evidence", text="Oslo has 717,710 people.", source="census", covers=[]), call("list_steps")],
        [call("add_note", text="look again")],
        "done",
    ]
    kept, steps, note = results(chat.say("Keep it."))
    assert steps == {"steps": [], "can_be_claimed": []}
    assert "noted" in note
    data = own.evidence_data("shop", "ann", next(iter(own.evidence("shop", "ann", "s1"))).digest)
    assert data == b"Oslo has 717,710 people."
    assert kept["uri"].startswith("artifact://evidence/")


def test_a_copied_store_shares_what_waits_for_its_index_and_a_pickled_one_takes_nothing_along(tmp_path: Path) -> None:
    store = PackStore(tmp_path / "packs")
    Chat(store=store, script=["ok"]).say("Where does Alma live?")
    assert store._index._users
    assert b"Alma" not in pickle.dumps(store)
    assert not pickle.loads(pickle.dumps(store))._index._users
    assert copy.deepcopy(store)._index is store._index


def test_copies_of_a_store_write_to_one_index_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aether_context.store.index._write_block", lambda files, owner, block: blocks.append(block))
    store, faults, blocks = PackStore(tmp_path / "packs"), list[Exception](), list[Any]()
    count, before = 5_000, sys.getswitchinterval()

    def write(copied: PackStore, name: str) -> None:
        try:
            for number in range(count):
                user = f"shop/user-{number // 200 % 5}/s/packs"
                copied._index.add(copied.files, f"{user}/{name}{number}", b"{}")
        except Exception as error:
            faults.append(error)

    writers = [threading.Thread(target=write, args=(copy.deepcopy(store), name)) for name in "abcd"]
    sys.setswitchinterval(1e-6)
    try:
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
    finally:
        sys.setswitchinterval(before)
    assert not faults
    assert sum(map(len, blocks)) + store._index._waiting == 4 * count


def test_a_store_is_copied_while_packs_are_written(tmp_path: Path) -> None:
    store, stopped = PackStore(tmp_path / "packs"), threading.Event()

    def write() -> None:
        for number in itertools.count():
            if stopped.is_set():
                break
            store._index.add(store.files, f"shop/user-{number}/s/packs/p", b"{}")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(300):
            copy.deepcopy(store), pickle.dumps(store)
    finally:
        stopped.set()
        writer.join()


@pytest.mark.parametrize("way", WAYS)
def test_the_finder_of_tools_can_be_copied(way: str) -> None:
    def tool(at: int) -> Callable[..., Any]:
        def act(key: str) -> str:
            return key

        act.__name__, act.__doc__ = f"act_{at}", f"Does the work of department {at} of the company. " * 8
        act.__qualname__ = act.__name__
        globals()[act.__name__] = act  # so that pickle finds it
        return act

    tools = [tool(at) for at in range(60)]
    chat = with_copies(WAYS[way], tools=tools, policy=PackPolicy(max_input_tokens=6_000))
    chat.llm.script += [[call("find_tools", query="act_57")], "ok"]
    [found] = results(chat.say("Do the work of department 3."))
    assert found["found"][0]["name"] == "act_57"


def test_a_reader_that_comes_to_another_process_reads_the_same_store(tmp_path: Path) -> None:
    pickled: list[bytes] = []

    def seen(callback_context: CallbackContext, llm_request: LlmRequest) -> None:
        pickled.append(pickle.dumps(llm_request))

    store = PackStore(tmp_path / "packs", auto_mkdir=True)
    chat = Chat(tools=[look_up], store=store, settings={"before_model_callback": seen})
    chat.llm.script += [call("look_up", key="k"), "ok"]
    chat.say("Look k up.")
    (tmp_path / "request").write_bytes(pickled[-1])
    assert b"auto_mkdir" not in pickled[-1]  # storage options may hold credentials
    program = (
        "import json, pickle, sys; request = pickle.load(open(sys.argv[1], 'rb'))\n"
        "print(json.dumps(sorted(request.tools_dict)))"
    )
    paths = [str(folder) for folder in Path(__file__).parents[:3]]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {paths!r}\n{program}", str(tmp_path / "request")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["look_up", "read_artifact", "search_artifact"]
