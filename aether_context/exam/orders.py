"""Standing orders in a user's words: sentences of which a reader would say that they hold from now on.

Orders, prohibitions, preferences and corrections are such. The words that make them are in orders.toml, in English. A
task ends once it is done, and is none, nor is what the user tells, asks or quotes. An order that is overlooked here is
one question less, and a sentence that is none a wrong question: in doubt a sentence is none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path


def own_words(text: str) -> str:
    """A message without what its writer pasted into it."""
    return _patterns()["pasted"].sub("", text)


def is_standing_order(sentence: str) -> bool:
    """Tells whether a user's sentence is to hold from now on."""
    patterns = _patterns()
    sentence = patterns["quoted"].sub("x", sentence).strip(" .!*_\t")
    if patterns["told"].search(sentence) or (sentence.endswith("?") and not patterns["request"].search(sentence)):
        return False
    return any(patterns[use].search(sentence) for use in ("binds", "at_start", "at_clause", "behind_task"))


@cache
def _patterns() -> Mapping[str, re.Pattern[str]]:
    import tomllib

    words = tomllib.loads(Path(__file__).with_name("orders.toml").read_text(encoding="utf-8"))
    texts = {
        use: text if isinstance(text, str) else "|".join(map("(?:{})".format, text)) for use, text in words.items()
    }
    for name in ("TASK", "NEVER", "THING"):
        texts = {use: text.replace(name, texts[name]) for use, text in texts.items()}
    opening, bids = texts["opening"], texts["bids"]
    texts["at_start"] = rf"^\W*(?:\d+[.)] +)?{opening}(?:{bids})"
    texts["at_clause"] = rf"[,;:(–—]\W{{0,3}}{opening}(?:{bids})"
    # "Fix the parser and do not touch its tests", while "the workers start and do not stop" tells.
    texts["behind_task"] = rf"^\W*{opening}{texts['TASK']}.* (?:and|but|or) (?:please )?(?:{bids})"
    return {use: re.compile(text, re.IGNORECASE | re.MULTILINE) for use, text in texts.items()}
