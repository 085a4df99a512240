"""The command line: `aether-context`, or ``python -m aether_context``."""

from aether_context.lab.cli.commands import main

__all__ = ["main"]
