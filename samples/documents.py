"""Tools over a folder of text files: list, read and search. Their docstrings are what the model reads of them."""

from __future__ import annotations

import re
from pathlib import Path

_MOST_HITS = 8
_SHORTEST_WORD = 4


class Documents:
    """The files of one folder. Nothing outside it can be reached, since files go by the names that are listed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def lines(self, document: str) -> list[str]:
        """A document's lines; none where there is no such document."""
        path = self._paths().get(document)
        return path.read_text(encoding="utf-8").splitlines() if path else []

    def list_documents(self) -> str:
        """Lists the documents, a line each: name and number of lines."""
        return "\n".join(f"{name} {len(self.lines(name))}" for name in self._paths())

    def read_document(self, document: str) -> str:
        """Reads a document from beginning to end."""
        return "\n".join(self.lines(document)) or f"There is no document {document!r}: list_documents shows all."

    def search_documents(self, words: str) -> str:
        """Finds the lines with most of the given words, the best first, each as document:line: text."""
        wanted = {word for word in re.findall(r"\w+", words.lower()) if len(word) >= _SHORTEST_WORD}
        hits = [
            (-sum(word in line.lower() for word in wanted), name, number, line.strip())
            for name in self._paths()
            for number, line in enumerate(self.lines(name), start=1)
        ]
        found = [f"{name}:{number}: {line}" for score, name, number, line in sorted(hits)[:_MOST_HITS] if score]
        return "\n".join(found) or "No line contains any of these words."

    def _paths(self) -> dict[str, Path]:
        return {path.name: path for path in sorted(self._folder.iterdir()) if path.is_file()}
