"""Regular expressions that cost nothing until they are used: compiling all of them takes a quarter of the import."""

from __future__ import annotations

import re
from typing import Any, cast


def pattern(source: str, flags: int = 0) -> re.Pattern[str]:
    """A regular expression, which is compiled where it is first used."""
    return cast("re.Pattern[str]", _Pattern(source, flags))


class _Pattern:
    def __init__(self, source: str, flags: int) -> None:
        self.pattern, self._flags = source, flags

    def __getattr__(self, name: str) -> Any:
        self.__dict__[name] = attribute = getattr(re.compile(self.pattern, self._flags), name)
        return attribute
