"""What all tests share: how many processes they take, and places to keep packs and artifacts in.

Object stores are among those with ``-m integration``. ``pytest --processor 1`` lists the tests that take a second of
the processor or more, processes that they start included.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import certifi
import hypothesis
import object_stores
import postgres_server
import pytest
import trust_table
from matrix import spread

# The same examples in every run, so that a change is judged by itself; `long` draws new ones.
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True)
hypothesis.settings.register_profile("long", deadline=None)
hypothesis.settings.load_profile("long" if os.environ.get("HYPOTHESIS_PROFILE") == "long" else "repeatable")

_numbers = itertools.count(1)
_BEGAN = pytest.StashKey[float]()

BACKENDS = [
    "local",
    "memory",
    pytest.param("s3", marks=pytest.mark.integration),
    pytest.param("gcs", marks=pytest.mark.integration),
]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """A process for each core, and only this one where files are named: most take less time than workers to start."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    if all(Path(named.partition("::")[0]).is_file() for named in config.args):
        return 0
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


@pytest.fixture(scope="session", autouse=True)
def _spools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test leaves anything in the user's own folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AETHER_CONTEXT_SPOOL", str(tmp_path_factory.mktemp("spool")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _certificates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One authority in place of all: clients of models, which read them anew, take .1 s for each of three copies."""
    first, end, _ = Path(certifi.where()).read_text(encoding="utf-8").partition("-----END CERTIFICATE-----\n")
    file = tmp_path_factory.mktemp("certificates") / "one.pem"
    file.write_text(first + end, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(file))
        yield


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object_stores.Server]:
    with object_stores.running(object_stores.Seaweed(tmp_path_factory.mktemp("s3"))) as server:
        yield server


@pytest.fixture(scope="session")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object_stores.Server]:
    with object_stores.running(object_stores.FakeGcs(tmp_path_factory.mktemp("gcs"))) as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[postgres_server.Server]:
    with postgres_server.postgres_server() as server:
        yield server


@pytest.fixture(params=BACKENDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, Any]]:
    """The URL of an empty place on each backend, and its storage options."""
    name = f"place-{next(_numbers)}"
    if request.param == "local":
        return str(tmp_path / "place"), {}
    if request.param == "memory":
        return f"memory://{name}", {}
    if request.param == "s3":
        return f"s3://bucket/{name}", request.getfixturevalue("s3").options
    return f"gs://bucket/{name}", request.getfixturevalue("gcs").options


@pytest.fixture(scope="session")
def _traces() -> Any:
    """Made once: a provider cannot be set again."""
    from traces import Traces

    return Traces()


@pytest.fixture
def traces(_traces: Any) -> Iterator[Any]:
    _traces.clear()
    _traces.switch.on = True
    yield _traces
    _traces.switch.on, _traces.switch.fails_at = False, ""
    _traces.clear()


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[str, float], None]:
    """Adds a value to a row of the table that stands in docs/deploy.md: ``figure("lost", 0)``."""
    return lambda row, value: trust_table.take(request.node, row, value)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processor", type=float, metavar="SECONDS", help="list the tests that take so long, or longer")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the rows of a matrix that its test's mark ``rows`` leaves to the slow tests, and to the soaks."""
    matrices: dict[str, list[pytest.Item]] = {}
    for item in items:
        if not any(map(item.get_closest_marker, ("slow", "soak", "integration"))):
            matrices.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for rows in matrices.values():
        if mark := rows[0].get_closest_marker("rows"):
            by_default = spread(rows, mark.args[0])
            others = [item for item in rows if item not in by_default]
            slow = spread(others, mark.kwargs.get("slow", len(others)))
            for item in others:
                item.add_marker("slow" if item in slow else "soak")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    item.stash[_BEGAN] = sum(os.times()[:4])
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Any:
    report = yield
    if report.when == "teardown":
        report.user_properties.append(("processor", sum(os.times()[:4]) - item.stash[_BEGAN]))
    return report


def _dearest(terminalreporter: pytest.TerminalReporter, least: float) -> Iterator[str]:
    """The tests that take at least so many seconds of the processor, the dearest first, and what all take."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    seconds = {
        report.nodeid: dict(report.user_properties)["processor"]
        for report in reports
        if getattr(report, "when", "") == "teardown"
    }
    for test, taken in sorted(seconds.items(), key=lambda item: -item[1]):
        if taken >= least:
            yield f"{taken:6.2f} s  {test}"
    yield f"{sum(seconds.values()):6.0f} s of the processor in {len(seconds):,} tests"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if (least := terminalreporter.config.getoption("--processor")) is not None:
        for line in _dearest(terminalreporter, least):
            terminalreporter.write_line(line)
    for line in trust_table.table(report for reports in terminalreporter.stats.values() for report in reports):
        terminalreporter.write_line(line)
