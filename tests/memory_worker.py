"""Writes memories into a file, one a transaction, and prints each number once it is written.

python memory_worker.py FILE USER FIRST LAST
"""

from __future__ import annotations

import sys

from aether_context.memory import Memories, Memory

if __name__ == "__main__":
    path, user, first, last = sys.argv[1:]
    memories = Memories(path)
    for number in range(int(first), int(last)):
        memories.add("app", user, [Memory(name=f"m{number}", text=f"The code of {user} is number{number}.")])
        if number % 10 == 0:
            memories.search("app", user, "code", 5)
        print(number, flush=True)
