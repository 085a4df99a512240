"""The cache witness names nobody of the app where nothing was planted, whatever client of ADK's sends."""

from __future__ import annotations

import pytest

pytest.importorskip("anthropic")

from wire.sessions import NATIVE, SCENARIOS, run

from aether_context.lab.reading.cache import CacheWitness

pytestmark = pytest.mark.filterwarnings("ignore:The model .* is deprecated:DeprecationWarning")


@pytest.mark.parametrize("window", [8_000, 40_000])
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("client", NATIVE)
@pytest.mark.rows(2)
def test_no_loss_is_called_the_apps(client: str, scenario: str, window: int) -> None:
    witness = CacheWitness()
    with run(client, SCENARIOS[scenario](), window=window) as done:
        store = done.chat.store
        losses = [witness.add(one, one.usage(store.outcome(one))) for one in store.manifests()]
    assert len(losses) > 5
    assert {loss.breaker for loss in losses if loss is not None} <= {"cut", "pack"}
    assert window == 8_000 or not any(losses)
