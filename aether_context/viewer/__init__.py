"""Packs in a browser: sessions, their calls, each pack with its request and candidates, and two side by side.

Pages are rendered on the server and only read the store. ``aether-context serve`` serves a store on its own;
``app.mount("/context", create_app("artifacts"))`` adds it to another app, and `report` writes a session into one HTML
file. Needs the extra ``viewer``.
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
