"""The cache witness names nobody of the app where nothing was planted, whatever client of ADK's sends."""

from __future__ import annotations

import pytest

pytest.importorskip("anthropic")

from wire.sessions import NATIVE, SCENARIOS, breakers, run

pytestmark = pytest.mark.filterwarnings("ignore:The model .* is deprecated:DeprecationWarning")


@pytest.mark.parametrize("window", [8_000, 40_000])
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("client", NATIVE)
@pytest.mark.rows(2, slow=8)
def test_no_loss_is_called_the_apps(client: str, scenario: str, window: int) -> None:
    with run(client, SCENARIOS[scenario](), window=window) as done:
        assert len(done.chat.manifests()) > 5
        assert breakers(done.chat) <= ({"cut", "pack"} if window == 8_000 else set())
