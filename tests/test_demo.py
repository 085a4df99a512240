"""The demo runs a real ADK runner offline, overflows its window, and leaves packs that verify and replay."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from browsing import Browser
from google.adk.models.registry import LLMRegistry
from scripted import Scripted, call
from terminal import run

from aether_context import Manifest, PackStore
from aether_context.pack import Row

WINDOW = 16_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    code: int
    output: str
    store: PackStore
    manifests: tuple[Manifest, ...]


def ran(folder: Path, window: int) -> Ran:
    result = run("demo", "--store", folder, "--window", window, code=None)
    store = PackStore(folder)
    return Ran(code=result.exit_code, output=result.stdout, store=store, manifests=tuple(store.manifests()))


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return ran(tmp_path_factory.mktemp("demo"), WINDOW)


def rows(manifests: typing.Iterable[Manifest]) -> Iterator[Row]:
    for one in manifests:
        yield from one.rows


def test_every_call_of_both_questions_leaves_a_pack(demo: Ran) -> None:
    assert demo.code == 0
    calls = [one.call for one in demo.manifests]
    assert len({one.invocation for one in demo.manifests}) == 2
    first = calls.index(1, 1)
    assert calls == [*range(1, first + 1), *range(1, len(calls) - first + 1)]
    assert {one.step_id for one in demo.manifests} == {"survey", "reasons", "proof", "report"}
    assert all(one.validity == "valid" and one.window == WINDOW for one in demo.manifests)


def test_the_page_leads_with_the_result(demo: Ran) -> None:
    lines = demo.output.splitlines()
    ratios = r"(\d\.\d) × fewer tokens, (\d\.\d) × cheaper"
    result = re.fullmatch(rf"(\d+) calls in a window of 16,000 tokens: {ratios}; (\d+) would not have fitted", lines[1])
    assert result is not None
    assert int(result[1]) == len(demo.manifests)
    assert float(result[2]) > 3.5
    assert float(result[3]) > 1.6
    assert int(result[4]) >= len(demo.manifests) - 4, "the first calls have read little"
    assert len(lines) - len(demo.manifests) < 19, "little stands beside the calls"


@pytest.mark.parametrize("command", ["inspect {0}", "replay {0}", "why settings", "verify"])
def test_the_page_ends_with_commands_that_run(demo: Ran, command: str) -> None:
    example = next(one for one in demo.manifests if one.truncation_events)
    words = [*command.format(example.number).split(), "--store", demo.store.url]
    assert f"aether-context {' '.join(words)}" in demo.output
    run(*words)


def test_the_readme_tells_what_the_demo_shows(demo: Ran) -> None:
    readme = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    calls, fewer, over = re.search(
        r"Its (\d+) calls read\s+about ([\d.]+) times fewer tokens .* cost about half; (\d+) of them", readme
    ).groups()
    result = r"(\d+) calls .*: ([\d.]+) × fewer tokens, ([\d.]+) × cheaper; (\d+) would"
    shown = re.search(result, demo.output).groups()
    assert (calls, over) == (shown[0], shown[3])
    # The package's source is what the agent reads, so that the figures move a little with each change of it.
    assert abs(float(fewer) - float(shown[1])) < 0.5
    assert 1.8 < float(shown[2]) < 2.5


def compared(output: str) -> dict[str, list[str]]:
    """The rows of the comparison with no plugin, by their names: with it, without it."""
    lines = output.splitlines()
    start = next(at for at, line in enumerate(lines) if "without, estimated" in line)
    rows = (re.split(r"\s{2,}", line.strip()) for line in lines[start + 1 : start + 7])
    return {name: cells for name, *cells in rows}


def test_the_demo_compares_itself_with_no_plugin(demo: Ran) -> None:
    rows = compared(demo.output)
    packed, plain = (int(cell.replace(",", "")) for cell in rows["input tokens"])
    assert packed < plain / 3.5
    largest = [int(cell.replace(",", "")) for cell in rows["largest request"]]
    assert largest[0] <= WINDOW < largest[1]
    over = [int(cell.split()[0]) for cell in rows["larger than the window"]]
    assert over[0] == 0
    assert over[1] >= len(demo.manifests) - 4
    assert all(cell.endswith("%") for cell in rows["same beginning as the call before"])
    costs = [float(re.fullmatch(r"\$([\d.]+) estimated", cell)[1]) for cell in rows["cost"]]
    assert 0 < costs[0] < costs[1] / 1.6


def test_usage_says_what_the_demo_said(demo: Ran) -> None:
    usage = run("usage", store=demo.store).stdout
    assert f"{compared(demo.output)['cost'][0]}\n" in usage, "in the row of all"
    assert compared(usage)["input tokens"] == compared(demo.output)["input tokens"]


def test_requests_larger_than_the_window_fail_wherever_packs_are_verified(tmp_path: Path) -> None:
    demo = ran(tmp_path, 700)
    large = next(one for one in demo.manifests if one.over_window)
    fault = f"{large.pack_id}: the request passes the window by {large.over_window:,} tokens"
    assert demo.code == 1
    assert f"{fault}\n" in demo.output
    assert "choose a larger --window" in demo.output
    for words in (["verify"], ["verify", large.pack_id], ["verify", "--replay", large.pack_id]):
        assert f"failed  {fault}\n" in run(*words, store=demo.store, code=1).output
    run("replay", large.pack_id, store=demo.store)
    assert "over the window" in Browser(demo.store).open("/").text


def test_a_live_model_without_a_key_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    for model, key in {"gemini-flash-latest": "GOOGLE_API_KEY", "openai/gpt-4o": "OPENAI_API_KEY"}.items():
        assert key in run("demo", "--model", model, "--store", tmp_path, code=2).stdout
    assert not list(tmp_path.iterdir())


OUTSIDE = ["../tests/test_demo.py", str(Path(__file__)), "/etc/passwd", "py.typed", "none.py", "", "a\0.py"]
"""What a model may ask for that is no Python file of the package."""


class Reading(Scripted):
    """Stands for a live model that reads what it should not."""

    script: list[typing.Any] = [
        *(call("read_file", path=path) for path in OUTSIDE),
        call("search_text", text="Stands for a live model"),
        call("read_file", path="errors.py", first_line=1, last_line=1),
    ]
    seen: typing.ClassVar[list[typing.Any]] = []

    @classmethod
    def supported_models(cls) -> list[str]:
        return ["stand-in"]

    def see(self, llm_request: typing.Any) -> None:
        super().see(llm_request)
        self.seen[:] = [self.sent[-1]]


def test_the_tools_read_nothing_outside_their_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    LLMRegistry.register(Reading)
    monkeypatch.setenv("GOOGLE_API_KEY", "none")
    run("demo", "--model", "stand-in", "--store", tmp_path, "--window", 100_000, code=None)
    *refused, found, read = [answer["result"] for answer in Reading.seen[0].answers()]
    assert len(refused) == len(OUTSIDE)
    assert all(text.startswith("There is no file") for text in refused)
    assert found.startswith("No line contains")
    assert read.startswith('"""Every error this package raises')
