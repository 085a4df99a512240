"""Writes memories into a file or a database, one a transaction, and prints each number once it is written.

python memory_worker.py URI USER FIRST LAST
"""

from __future__ import annotations

import sys

from aether_context.memory import Memories, Memory

if __name__ == "__main__":
    uri, user, first, last = sys.argv[1:]
    memories = Memories(uri)
    for number in range(int(first), int(last)):
        memories.add("app", user, [Memory(name=f"m{number}", text=f"The code of {user} is number{number}.")])
        if number % 10 == 0:
            memories.search("app", user, "code", 5)
        print(number, flush=True)
