"""Packs in a browser: sessions, their calls, each pack with its request and candidates, and two side by side.

Pages are rendered on the server and only read the store. ``aether-context serve`` serves a store on its own;
``app.mount("/context", create_app("artifacts"))`` adds it to another app, and `report` writes a session into one HTML
file. Needs the extra ``viewer``.
"""

from __future__ import annotations

from aether_context.lab.viewer.server import create_app, report

__all__ = ["create_app", "report"]
