"""Packs in a browser: sessions, their calls, each pack with its request and candidates, and two side by side.

Pages are made on the server, read what the store holds, and write nothing. ``aether-context serve`` shows a store
alone; ``app.mount("/context", create_app("artifacts"))`` puts it beside other pages,
and `report` makes one file of a session. Needs the extra ``viewer``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aether_context.viewer.server import create_app
    from aether_context.viewer.single_file import report

__all__ = ["create_app", "report"]


def __getattr__(name: str) -> Any:
    """Each is loaded when it is asked for: FastAPI takes a while."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{'server' if name == 'create_app' else 'single_file'}"), name)
