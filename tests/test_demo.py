"""The demo runs a real ADK runner offline, overflows its window, and leaves packs that verify and replay."""

from __future__ import annotations

import asyncio
import json
import re
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from unplugged import Witness

from aether_context import Manifest, PackStore
from aether_context.cli import demonstration, main
from aether_context.demo import FOLLOW_UP, QUESTION, STEPS, Folder, research
from aether_context.errors import ManifestError
from aether_context.pack import CandidateOutcome, Reason
from aether_context.reading import WHY
from aether_context.store.replay import Replayer

WINDOW = 16_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    code: int
    output: str
    store: PackStore
    manifests: tuple[Manifest, ...]


def ran(folder: Path, window: int) -> Ran:
    result = CliRunner().invoke(main, ["demo", "--store", str(folder), "--window", str(window)])
    store = PackStore(folder)
    return Ran(code=result.exit_code, output=result.stdout, store=store, manifests=tuple(store.manifests()))


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return ran(tmp_path_factory.mktemp("demo"), WINDOW)


@pytest.fixture(scope="module")
def payloads(demo: Ran) -> list[tuple[Manifest, str]]:
    """Each manifest with the human message of its request, as it was sent."""
    replayer = Replayer(demo.store)
    return [(one, _payload(replayer.replay(one).request)) for one in demo.manifests]


def _payload(request: str) -> str:
    texts: list[str] = [
        part.get("text", "") for content in json.loads(request)["contents"] for part in content["parts"]
    ]
    return next(text for text in reversed(texts) if text.startswith("CONTEXT PACK\n"))


def rows(manifests: typing.Iterable[Manifest]) -> Iterator[CandidateOutcome]:
    for one in manifests:
        yield from one.rows


def test_every_call_of_both_questions_leaves_a_pack(demo: Ran) -> None:
    assert demo.code == 0
    calls = [one.call for one in demo.manifests]
    assert len({one.invocation for one in demo.manifests}) == 2
    first = calls.index(1, 1)
    assert calls == [*range(1, first + 1), *range(1, len(calls) - first + 1)]
    assert {one.step_id for one in demo.manifests} == {step["id"] for step in STEPS}
    assert all(one.validity == "valid" and one.window == WINDOW for one in demo.manifests)


def test_the_window_overflows_and_no_request_does(demo: Ran) -> None:
    stages = {event.stage for one in demo.manifests for event in one.truncation_events}
    assert {"cut", "emergency"} <= stages
    assert all(one.request_tokens <= WINDOW for one in demo.manifests)
    assert not [note for one in demo.manifests for note in one.degradations]


def test_what_is_left_out_has_a_reason(demo: Ran) -> None:
    reasons = {row.reason for row in rows(demo.manifests)}
    assert {"expired", "duplicate", "window"} <= reasons
    assert all(row.reason for row in rows(demo.manifests) if row.form not in ("whole", "extract"))
    assert all(event.reason for one in demo.manifests for event in one.truncation_events)
    assert any("list_files" in one.tools.left_out for one in demo.manifests if one.step_id == "proof")


def test_every_pack_verifies_and_replays(demo: Ran) -> None:
    replayer = Replayer(demo.store)
    for one in demo.manifests:
        one.verify()
        assert replayer.replay(one).matches
    total = len(demo.manifests)
    assert f"{total} of {total} packs verify and replay to their checksum" in demo.output


def test_the_request_stands_verbatim_at_the_payloads_end(payloads: list[tuple[Manifest, str]]) -> None:
    invocations = list(dict.fromkeys(one.invocation for one, _ in payloads))
    for one, payload in payloads:
        asked = (QUESTION, FOLLOW_UP)[invocations.index(one.invocation)]
        assert payload.endswith(f"USER REQUEST:\n{asked}")


def test_the_acceptance_items_of_the_step_stand_in_the_payload(payloads: list[tuple[Manifest, str]]) -> None:
    for one, payload in payloads:
        for step in STEPS:
            for item in step["acceptance"]:
                line = f"[ ] {item['id']}: {item['text']}"
                assert (line in payload) == (step["id"] == one.step_id), (one.pack_id, line)


def test_evidence_that_steps_recorded_reaches_the_last_one(demo: Ran) -> None:
    report_begins = next(one for one in demo.manifests if one.step_id == "report")
    request = Replayer(demo.store).replay(report_begins).request
    assert all(f"artifact://evidence/{number}.txt" in request for number in range(1, 6))
    assert report_begins.evidence_needed == ()


def test_the_answer_quotes_what_the_tools_returned(demo: Ran) -> None:
    text = " ".join(demo.output.split())
    assert "pack.py:" in text
    assert all(reason in text for reason in typing.get_args(Reason)[:5])
    assert "unknown, no line" not in text


def test_the_last_page_names_packs_reasons_and_commands(demo: Ran) -> None:
    shown = next(one for one in demo.manifests if one.truncation_events)
    text = " ".join(demo.output.split())
    assert "cut of " in text
    assert WHY["expired"] in text
    assert demo.store.uri(shown).rsplit("/packs/", 1)[0] in demo.output
    for command in ("list", f"inspect {shown.pack_id}", f"replay {shown.pack_id}", "verify"):
        assert f"aether-context {command} --store {demo.store.url}" in demo.output


def test_every_reason_has_words() -> None:
    assert set(WHY) == set(typing.get_args(Reason))


def test_a_second_run_has_the_same_shape(demo: Ran, tmp_path: Path) -> None:
    again = ran(tmp_path, WINDOW)
    assert again.code == 0
    assert [_shape(one) for one in again.manifests] == [_shape(one) for one in demo.manifests]


def _shape(manifest: Manifest) -> tuple[object, ...]:
    events = tuple((event.stage, event.layer, event.reason) for event in manifest.truncation_events)
    return (manifest.step_id, manifest.call, manifest.request_tokens, manifest.epoch_reason, events)


def test_a_window_that_holds_everything_cuts_nothing(tmp_path: Path) -> None:
    wide = ran(tmp_path, 300_000)
    assert wide.code == 0
    assert not [event for one in wide.manifests for event in one.truncation_events]


def test_a_window_that_the_agent_does_not_fit_is_told(tmp_path: Path) -> None:
    narrow = ran(tmp_path, 256)
    over = [one for one in narrow.manifests if one.request_tokens > 256]
    assert over
    assert narrow.code == 1
    text = " ".join(narrow.output.split())
    assert f"{len(over)} of {len(narrow.manifests)} requests were sent although they are larger than the window" in text
    assert "Choose a larger --window" in text


def test_a_window_that_the_agent_fits_says_nothing_of_the_kind(demo: Ran) -> None:
    assert "Larger than the window" not in demo.output


def compared(output: str) -> dict[str, list[str]]:
    """The rows of the comparison with no plugin, by their names: with it, without it."""
    table = output.split("The same run without the plugin\n")[1].split("Checked\n")[0]
    rows = (re.split(r"\s{2,}", line.strip()) for line in table.splitlines()[1:7])
    return {name: cells for name, *cells in rows}


def test_the_demo_compares_itself_with_no_plugin(demo: Ran) -> None:
    rows = compared(demo.output)
    assert len(set(rows["model calls"])) == 1
    packed, plain = (int(cell.replace(",", "")) for cell in rows["input tokens"])
    assert packed < plain / 2
    largest = [int(cell.replace(",", "")) for cell in rows["largest request"]]
    assert largest[0] <= WINDOW < largest[1]
    over = [int(cell.split()[0]) for cell in rows["larger than the window"]]
    assert over[0] == 0
    assert over[1] > 10
    assert all(cell.endswith("%") for cell in rows["same beginning as the call before"])
    costs = [float(cell.removeprefix("$")) for cell in rows["cost of the input"]]
    assert 0 < costs[0] < costs[1]


def test_a_run_without_the_plugin_reads_what_is_said_of_it(demo: Ran) -> None:
    witness = Witness()
    asyncio.run(research(model=None, plugin=witness, root=demonstration._PACKAGE))
    rows = compared(demo.output)
    assert int(rows["model calls"][1]) == len(witness.requests)
    total = sum(request.tokens for request in witness.requests)
    assert int(rows["input tokens"][1].replace(",", "")) == pytest.approx(total, rel=0.001)
    shared = sum(request.shared for request in witness.requests)
    assert rows["same beginning as the call before"][1] == f"{shared / total:.0%}"
    over = sum(request.tokens > WINDOW for request in witness.requests)
    assert rows["larger than the window"][1] == f"{over} calls"


def test_every_column_is_explained(demo: Ran) -> None:
    header = next(line for line in demo.output.splitlines() if line.split()[:2] == ["call", "step"])
    explained = {line.split()[0] for line in demo.output.splitlines() if line.split()}
    assert set(header.split()) - {"call", "step"} <= explained


def test_a_pack_that_is_not_what_was_written_gives_exit_code_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(PackStore):
        def parts(self, place: str) -> Any:
            raise ManifestError(f"{place} is damaged")

    monkeypatch.setattr(demonstration, "PackStore", Forgetful)
    spoiled = ran(tmp_path, WINDOW)
    assert spoiled.code == 1
    assert f"0 of {len(spoiled.manifests)} packs verify and replay" in spoiled.output
    assert f"{spoiled.manifests[0].pack_id}: " in spoiled.output


def test_a_live_model_without_a_key_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    result = CliRunner().invoke(main, ["demo", "--model", "gemini-2.5-flash", "--store", str(tmp_path)])
    assert result.exit_code == 2
    assert "GOOGLE_API_KEY" in result.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", ["../secret.py", "/etc/passwd", "link.py", "notes.txt", "none.py", "", "a\0.py"])
def test_the_tools_read_nothing_outside_their_folder(tmp_path: Path, path: str) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "secret.py").write_text("SECRET = 1\n")
    (inside / "notes.txt").write_text("SECRET\n")
    (inside / "link.py").symlink_to(tmp_path / "secret.py")
    folder = Folder(inside)
    assert "There is no file" in folder.read_file(path)
    assert "No line contains" in folder.search_text("SECRET")
    assert folder.list_files() == ""


def test_the_tools_read_lines_and_find_them(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("a = 1\nb = 2\nc = 3\n")
    folder = Folder(tmp_path)
    assert folder.list_files() == "one.py 3 18"
    assert folder.read_file("one.py", 2, 3) == "b = 2\nc = 3"
    assert folder.search_text("= 2") == "one.py:2: b = 2"
