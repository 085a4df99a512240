"""The values that travel through the pipeline: frozen, pure, and without identity beyond their content.

Times are seconds since 1970-01-01 UTC. Quantities named ``tokens`` are model tokens as the pack's counter sees them.
A digest is a tagged hash (see `aether_context.canonical`).
"""

from aether_context.pack.epoch import *  # noqa: F403
from aether_context.pack.pack import *  # noqa: F403
from aether_context.pack.recorded import *  # noqa: F403
from aether_context.pack.request import *  # noqa: F403
from aether_context.pack.selection import *  # noqa: F403
