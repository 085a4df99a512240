"""A fixture of pytest that records what models answer, or plays it. It loads the package where a test asks for it."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from aether_context.adk import Cassette

_MOST_CHARACTERS = 100


def pytest_addoption(parser: pytest.Parser) -> None:
    modes = ("record", "play", "off")
    told = "what model_cassette does; by default what AETHER_CONTEXT_CASSETTES says, else play"
    parser.getgroup("aether-context").addoption("--cassettes", choices=modes, help=told)


@pytest.fixture
def model_cassette(request: pytest.FixtureRequest) -> Cassette:
    """The last plugin of an app whose models answer from ``cassettes/FILE/TEST.json`` beside the test's file."""
    from aether_context.adk import Cassette

    name = re.sub(r"[^\w.-]+", "-", request.node.nodeid.partition("::")[2]).strip("-")
    if len(name) > _MOST_CHARACTERS:
        name = f"{name[:_MOST_CHARACTERS]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    path = request.path.parent / "cassettes" / request.path.stem / f"{name}.json"
    return Cassette(path, mode=request.config.getoption("--cassettes"))
