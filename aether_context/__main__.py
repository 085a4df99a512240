"""``python -m aether_context``: the command line."""

from aether_context.lab.cli import main

if __name__ == "__main__":
    main(prog_name="aether-context")
