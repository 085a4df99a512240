"""Long-term memory: texts of users in one SQLite file or a PostgreSQL database, found by words and meaning.

memories = Memories("memories.sqlite")
memories.add("app", "ann", [Memory(name="m1", text="The keys are under the sofa.", author="Ann")])
memories.search("app", "ann", "where are the keys?", limit=10)
"""

from __future__ import annotations

from aether_context.memory.library import Memories
from aether_context.memory.records import Memory, Remembered

__all__ = ["Memories", "Memory", "Remembered"]
