"""Tools over a folder of Python files: they read, and reach nothing outside it."""

from __future__ import annotations

from pathlib import Path

_MOST_HITS = 40
_LONGEST_LINE = 160


class Folder:
    """A folder of Python files. Its methods' docstrings are what the model reads of them.

    Args:
        without: a folder in it that is not shown.
    """

    def __init__(self, root: Path, *, without: str = "") -> None:
        self._root = root.resolve()
        self._without = without

    def list_files(self) -> str:
        """Lists the Python files, a line each: path, number of lines, number of characters."""
        return "\n".join(f"{path} {text.count(chr(10))} {len(text)}" for path, text in self._texts())

    def read_file(self, path: str, first_line: int = 1, last_line: int = 0) -> str:
        """Reads a file, or its lines from first_line to last_line. A last_line of 0 is the end."""
        lines = self._lines(path)
        if lines is None:
            return f"There is no file {path!r}: list_files shows what is there."
        return "\n".join(lines[max(0, first_line - 1) : last_line or None])

    def search_text(self, text: str) -> str:
        """Finds the lines that contain a text, at most 40 of them, each as path:line: content."""
        hits = [
            f"{path}:{number}: {line.strip()[:_LONGEST_LINE]}"
            for path, held in self._texts()
            for number, line in enumerate(held.splitlines(), start=1)
            if text and text in line
        ]
        return "\n".join(hits[:_MOST_HITS]) or f"No line contains {text!r}."

    def _lines(self, path: str) -> list[str] | None:
        try:
            wanted = (self._root / path).resolve()
            inside = wanted.is_relative_to(self._root) and wanted.suffix == ".py"
            return wanted.read_text(encoding="utf-8").splitlines() if inside else None
        except (OSError, ValueError):
            return None

    def _texts(self) -> list[tuple[str, str]]:
        """Path and text of each file, in the order of their paths."""
        found = [path.relative_to(self._root) for path in self._root.rglob("*.py")]
        names = sorted(path.as_posix() for path in found if path.parts[0] != self._without)
        return [(name, "\n".join(lines) + "\n") for name in names if (lines := self._lines(name)) is not None]
