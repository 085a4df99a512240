"""Packs in a browser: sessions, their calls, and each pack with its request and its candidates.

Pages are made on the server, read what the store holds, and write nothing. ``aether-context serve`` shows a store
alone; ``app.mount("/context", create_app("artifacts"))`` puts it beside other pages. Needs the extra ``viewer``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aether_context.viewer.server import create_app

__all__ = ["create_app"]


def __getattr__(name: str) -> Any:
    """It is loaded when it is asked for: FastAPI takes a while."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.server"), name)
