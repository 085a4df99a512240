"""Observing changes no byte of what ADK's own clients send."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("anthropic")

from wire.sessions import NATIVE, SCENARIOS, run

pytestmark = pytest.mark.filterwarnings("ignore:The model .* is deprecated:DeprecationWarning")


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("client", NATIVE)
@pytest.mark.rows(5, slow=6)
def test_no_byte_changes(client: str, scenario: str) -> None:
    bodies = []
    for way in ("alone", "observe"):
        with run(client, SCENARIOS[scenario](), way=way) as done:
            bodies.append([json.dumps(request.body) for request in done.server.requests])
            if way == "observe":
                manifests = list(done.chat.store.manifests())
    assert bodies[0] == bodies[1]
    assert len(manifests) >= len(bodies[1]) > 0
    assert {manifest.arm for manifest in manifests} == {"observe"}
