"""Which tests notice sixty faults that are put into the package, one by one.

    python tests/sabotage.py --map [--file FILE] [-- PYTEST ARGUMENTS]     first: what each test enters
    python tests/sabotage.py [NAME ...] [--jobs 2] [--minutes 4] [--file FILE]

The map is made by one run of the default and the slow tests, in which the functions that breaks are in note that they
are entered. Then each break of `breaks.py` is written into a copy of this tree, and the tests that enter its function
run there until one fails: those of the default suite, of these first what shares most words with it, then the slow
ones. A row says which test noticed it; the last line counts. The command fails where no test notices a break, and where
a break does not fit the code any more.

Everything runs in copies below a temporary folder, so the tree can be worked on meanwhile. This module is also the
plugin by which pytest records there what a test enters, and runs the tests that are named to it.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from breaks import BREAKS, Break

ROOT = Path(__file__).parent.parent
PACKAGE = "aether_context"
MAP = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aether-context" / "sabotage.json"
_PLAN, _NOTES = "SABOTAGE_PLAN", "SABOTAGE_NOTES"
"""Environment variables: the file that says which tests run, and the folder for what each process records."""
_NOTED = "__entered__"
"""The module that a copy of the package has while the map is made: a set of the functions that were entered."""
_MARKS = "not soak and not integration"
_UNCOPIED = (".git", ".hypothesis", ".pytest_cache", ".mypy_cache", ".ruff_cache")
_CHUNKS = (40, 400)
"""Tests of the first run of pytest and of the second: a few notice most breaks, and files take time to be collected."""


# ---- Breaks --------------------------------------------------------------------------------------------------------


class Gone(Exception):
    """A break does not fit the code any more."""


def broken(item: Break, source: str) -> str:
    """The module's source with the fault in it."""
    start, function, end = around(item, source)
    return start + function.replace(item.old, item.new) + end


def around(item: Break, source: str) -> tuple[str, str, str]:
    """The module's source in three: up to the function, the function, and the rest."""
    node = _function(item, source)
    lines = source.splitlines(keepends=True)
    start, stop = node.lineno - 1, node.end_lineno
    function = "".join(lines[start:stop])
    if (times := function.count(item.old)) != 1:
        raise Gone(f"{item.function} holds its text {times} times")
    return "".join(lines[:start]), function, "".join(lines[stop:])


def noting(breaks: Sequence[Break], source: str) -> str:
    """The source of a module in which the functions of its breaks note that they are entered."""
    lines = source.splitlines(keepends=True)
    for item in breaks:
        body = _function(item, source).body
        first = body[1 if len(body) > 1 else 0]  # behind the text that says what it is for
        note = f"from {PACKAGE} import {_NOTED}; {_NOTED}.entered.add({entry(item)!r})"
        lines[first.lineno - 1] = f"{' ' * first.col_offset}{note}\n{lines[first.lineno - 1]}"
    return "".join(lines)


def entry(item: Break) -> str:
    """The function of a break, as the map names it."""
    return f"{item.path}:{item.function}"


def _function(item: Break, source: str) -> Any:
    scope: Any = _parsed(source)
    for name in item.function.split("."):
        scope = next((node for node in scope.body if getattr(node, "name", None) == name), None)
        if scope is None:
            raise Gone(f"there is no {item.function}")
    return scope


_parsed = lru_cache(maxsize=1)(ast.parse)


def room_of(path: str) -> str:
    """The room of a module: its folder below the package, or itself where it stands at the top."""
    folder, _, name = path.rpartition("/")
    return folder or name.removesuffix(".py")


# ---- The plugin ----------------------------------------------------------------------------------------------------


class _Recorder:
    """Records which functions that breaks are in each test enters, those of its fixtures included, and its seconds.

    A fixture of several tests is set up once, so what it enters counts for each test that has it.
    """

    def __init__(self, folder: Path) -> None:
        self._file, self._noted = folder / f"{os.getpid()}.jsonl", importlib.import_module(f"{PACKAGE}.{_NOTED}")
        self._fixtures: dict[int, set[str]] = {}
        self._failed: set[str] = set()

    def _entered(self) -> set[str]:
        entered: set[str] = self._noted.entered
        self._noted.entered = set()
        return entered

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        outer = self._entered()
        try:
            return (yield)
        finally:
            self._fixtures[id(fixturedef)] = inner = self._entered()
            self._noted.entered = outer | inner

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._entered()
        begin = sum(os.times()[:4])
        result = yield
        seconds, enters = sum(os.times()[:4]) - begin, self._entered()
        for definitions in item._fixtureinfo.name2fixturedefs.values():
            enters.update(*(self._fixtures.get(id(definition), ()) for definition in definitions))
        test = {"slow": item.get_closest_marker("slow") is not None, "seconds": seconds, "enters": sorted(enters)}
        if item.nodeid not in self._failed:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps({item.nodeid: test}) + "\n")
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self._failed.add(report.nodeid)


class _Selection:
    """Runs the tests of a plan in its order, and records how many ran and which failed."""

    def __init__(self, plan: Path) -> None:
        self._plan, self._result = plan, dict[str, Any](ran=0, failed="", crash="")
        values = json.loads(plan.read_text(encoding="utf-8"))
        self._order = {name: at for at, name in enumerate(values["tests"])}
        try:
            importlib.import_module(values["module"])
        except Exception as error:
            self._result["crash"] = f"{type(error).__name__}: {error}"

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if item.nodeid in self._order and not self._result["crash"]]
        items[:] = sorted(chosen, key=lambda item: self._order[item.nodeid])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._result["failed"] = self._result["failed"] or report.nodeid

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._result["ran"] += report.when == "call"
        if report.failed:
            self._result["failed"] = self._result["failed"] or report.nodeid
        self._write()

    def pytest_sessionfinish(self) -> None:
        self._write()

    def _write(self) -> None:
        self._plan.with_suffix(".result").write_text(json.dumps(self._result), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    if plan := os.environ.get(_PLAN):
        config.pluginmanager.register(_Selection(Path(plan)))
    elif notes := os.environ.get(_NOTES):
        config.pluginmanager.register(_Recorder(Path(notes)))


# ---- Runs ----------------------------------------------------------------------------------------------------------


class Found(NamedTuple):
    """The result of a break: ``verdict`` names the suite that noticed it, or says why none did."""

    name: str
    verdict: str
    test: str = ""
    tests: int = 0
    seconds: float = 0.0


_running: set[subprocess.Popen[str]] = set()
_stopping = threading.Event()


def _end(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _stop(*_: object) -> None:
    """Ends what runs, which has sessions of its own and would go on."""
    _stopping.set()
    for process in list(_running):
        _end(process)
    raise SystemExit("stopped")


class Tree:
    """A copy of this tree, in which tests run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "tree"
        shutil.copytree(ROOT, self.folder, ignore=shutil.ignore_patterns(*_UNCOPIED), symlinks=True)

    def pytest(self, arguments: Sequence[str], seconds: float | None = None, **variables: str) -> subprocess.Popen[str]:
        """A run of pytest with this module as its plugin; what lasts longer is ended, with all that it began."""
        folders = [self.folder, self.folder / "tests", *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | variables | {"PYTHONPATH": os.pathsep.join(map(str, folders))}
        output = None if _NOTES in variables else subprocess.DEVNULL
        command = [sys.executable, "-m", "pytest", "-p", "sabotage", "-m", _MARKS, *arguments]
        if _stopping.is_set():
            raise SystemExit("stopped")
        process = subprocess.Popen(
            command, cwd=self.folder, env=environment, stdout=output, stderr=output, text=True, start_new_session=True
        )
        _running.add(process)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            _end(process)
            process.wait()
        finally:
            _running.discard(process)
        return process

    def write(self, path: Path, source: str) -> None:
        """Writes a module, and removes what was compiled of it: it may be of the same second and size."""
        path.write_text(source, encoding="utf-8")
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
            compiled.unlink(missing_ok=True)


class _Runs:
    """The runs of one break."""

    def __init__(self, tree: Tree, item: Break, seconds: float) -> None:
        self._tree, self._item = tree, item
        self._module = f"{PACKAGE}.{item.path.removesuffix('.py').removesuffix('/__init__').replace('/', '.')}"
        self._begin, self._seconds = time.monotonic(), seconds
        self.tests = 0

    def notice(self, suites: dict[str, list[str]]) -> Found:
        for suite, names in suites.items():
            for chunk in _chunks(names):
                result = self._run(chunk)
                self.tests += result["ran"]
                if result["crash"]:
                    return self._found(f"crashes at import: {result['crash']}")
                if result["failed"]:
                    return self._found(suite, result["failed"])
                if self._remaining <= 0:
                    return self._found("UNNOTICED in time")
        return self._found("UNNOTICED" if any(suites.values()) else "UNNOTICED: no test enters it")

    @property
    def _remaining(self) -> float:
        return self._begin + self._seconds - time.monotonic()

    def _run(self, names: Sequence[str]) -> dict[str, Any]:
        plan = self._tree.folder.with_name("plan.json")
        plan.write_text(json.dumps({"module": self._module, "tests": names}), encoding="utf-8")
        plan.with_suffix(".result").unlink(missing_ok=True)
        files = dict.fromkeys(name.partition("::")[0] for name in names)
        arguments = ["-x", "-n", "0", "-p", "no:cacheprovider", *files]
        process = self._tree.pytest(arguments, max(1.0, self._remaining), **{_PLAN: str(plan)})
        try:
            result: dict[str, Any] = json.loads(plan.with_suffix(".result").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {"ran": 0, "failed": "", "crash": f"pytest ended with {process.returncode}"}
        return result

    def _found(self, verdict: str, test: str = "") -> Found:
        return Found(self._item.name, verdict, test, self.tests, time.monotonic() - self._begin)


def _chunks(names: Sequence[str]) -> Iterator[Sequence[str]]:
    start = 0
    for size in (*_CHUNKS, len(names)):
        if chunk := names[start : start + size]:
            yield chunk
        start += size


def _words(text: str) -> set[str]:
    """The words of a name, without an s at their ends."""
    return {word.rstrip("s") for word in re.findall("[a-z]{3,}", text.lower())} - {"test", "the"}


def try_break(item: Break, tests: dict[str, Any], tree: Tree, minutes: float) -> Found:
    """Runs the tests that enter the function of a break with the fault in it, until one fails."""
    path = tree.folder / PACKAGE / item.path
    try:
        source = path.read_text(encoding="utf-8")
        fault = broken(item, source)
    except (Gone, FileNotFoundError) as error:
        return Found(item.name, f"gone: {error}")
    entered, suites = entry(item), dict[str, list[str]](default=[], slow=[])
    for name, test in tests.items():
        if entered in test["enters"]:
            suites["slow" if test["slow"] else "default"].append(name)
    about = _words(f"{item.name} {item.path} {item.function}")
    for names in suites.values():
        names.sort(key=lambda name: (-len(about & _words(name.partition("[")[0])), tests[name]["seconds"], name))
    tree.write(path, fault)
    try:
        return _Runs(tree, item, 60 * minutes).notice(suites)
    finally:
        tree.write(path, source)


def make_map(file: Path, arguments: Sequence[str]) -> int:
    """Runs the default and the slow tests, and writes which functions of breaks each test that passes enters."""
    with tempfile.TemporaryDirectory(prefix="sabotage-") as folder:
        notes = Path(folder) / "notes"
        notes.mkdir()
        tree = Tree(Path(folder))
        package = tree.folder / PACKAGE
        (package / f"{_NOTED}.py").write_text("entered = set()\n", encoding="utf-8")
        for name in {item.path for item in BREAKS}:
            source = (package / name).read_text(encoding="utf-8")
            tree.write(package / name, noting([item for item in BREAKS if item.path == name], source))
        code = tree.pytest(arguments, **{_NOTES: str(notes)}).returncode
        tests: dict[str, Any] = {}
        for part in notes.glob("*.jsonl"):
            for line in part.read_text(encoding="utf-8").splitlines():
                tests |= json.loads(line)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(tests), encoding="utf-8")
    print(f"{len(tests):,} tests: {file}")
    return 0 if tests and code in (0, 1) else 1


def try_breaks(breaks: Sequence[Break], tests: dict[str, Any], jobs: int, minutes: float) -> int:
    """Prints a row for each break, and how many were noticed; fails where one was not."""
    results: list[Found] = []
    with tempfile.TemporaryDirectory(prefix="sabotage-") as folder, ThreadPoolExecutor(jobs) as pool:
        trees: queue.SimpleQueue[Tree] = queue.SimpleQueue()
        for number in range(min(jobs, len(breaks))):
            trees.put(Tree(Path(folder) / str(number)))

        def run(item: Break) -> Found:
            tree = trees.get()
            try:
                return try_break(item, tests, tree, minutes)
            finally:
                trees.put(tree)

        for found in pool.map(run, breaks):
            results.append(found)
            verdict = f"{found.verdict}: {found.test}" if found.test else found.verdict
            print(f"{found.name:45} {verdict}  ({found.tests:,} tests, {found.seconds:.0f} s)", flush=True)
    by_default, by_slow = (sum(found.verdict == suite for found in results) for suite in ("default", "slow"))
    others = len(results) - by_default - by_slow
    print(f"{len(results)} breaks: {by_default} noticed by default, {by_slow} by slow tests only, {others} by none")
    return 1 if others else 0


def _chosen(names: Collection[str]) -> list[Break]:
    if unknown := set(names).difference(item.name for item in BREAKS):
        raise SystemExit(f"no such breaks: {', '.join(sorted(unknown))}")
    return [item for item in BREAKS if not names or item.name in names]


def main(words: Sequence[str]) -> int:
    at = words.index("--") if "--" in words else len(words)
    summary = textwrap.dedent(__doc__ or "")
    parser = argparse.ArgumentParser(description=summary, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="breaks; all by default")
    parser.add_argument("--map", action="store_true", help="make the map; what follows -- goes to pytest")
    parser.add_argument("--file", type=Path, default=MAP, help="the map's place (%(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="breaks at once (%(default)s)")
    parser.add_argument("--minutes", type=float, default=4.0, help="the most for one break (%(default)s)")
    options = parser.parse_args(words[:at])
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    if options.map:
        return make_map(options.file, words[at + 1 :])
    if not options.file.exists():
        raise SystemExit(f"no map at {options.file}: make one with --map")
    return try_breaks(
        _chosen(options.names), json.loads(options.file.read_text(encoding="utf-8")), options.jobs, options.minutes
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
