"""From page values to HTML: templates, links and escaped texts.

Every value that a template writes goes through `visible` and is then escaped.
"""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from aether_context import __version__
from aether_context.canonical import hash_text, short
from aether_context.errors import MissingExtra
from aether_context.pack import LAYERS
from aether_context.packing.payload import minute
from aether_context.viewer.packs import MOST_CHARACTERS, REASONS
from aether_context.viewer.rows import FLAGS, Row

if TYPE_CHECKING:
    import jinja2

_PLAIN = re.compile(r"[ -~\n\t]*")
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


class _Visible(dict[int, str | int]):
    """Maps a character's code point to itself, or to an escape where the character is invisible."""

    def __missing__(self, code: int) -> str | int:
        character = chr(code)
        unseen = character not in "\n\t" and unicodedata.category(character) in _UNSEEN
        self[code] = ascii(character)[1:-1] if unseen else code
        return self[code]


_VISIBLE = _Visible()

STATIC: Mapping[str, str] = {"viewer.css": "text/css", "viewer.js": "text/javascript"}
"""The static files of the pages, with their media types."""


@lru_cache(maxsize=8)
def static(name: str) -> bytes:
    """A file of `STATIC`."""
    return files("aether_context.viewer").joinpath("static", name).read_bytes()


@dataclass(frozen=True, slots=True)
class Links:
    """Addresses of pages below a base, the path where the app is mounted."""

    base: str = ""
    in_file: bool = False

    def sessions(self, **query: Any) -> str:
        return f"{self.base}/{_query(query)}"

    def session(self, place: str, **query: Any) -> str:
        return f"{self.base}/s/{quote(place)}{_query(query)}"

    def pack(self, row: Row, part: str = "") -> str:
        return self.pack_at(row.place, part)

    def pack_at(self, place: str, part: str = "", **query: Any) -> str:
        session, pack_id = place.split("/packs/")
        return f"{self.base}/s/{quote(session)}/{quote(pack_id)}{_query(query)}{part and '#' + part}"

    def raw(self, place: str, uri: str) -> str:
        session, pack_id = place.split("/packs/")
        return f"{self.base}/s/{quote(session)}/{quote(pack_id)}/raw{_query({'uri': uri})}"

    def what_if(self, place: str) -> str:
        session, pack_id = place.split("/packs/")
        return f"{self.base}/s/{quote(session)}/{quote(pack_id)}/what-if"

    def diff(self, before: str, after: str) -> str:
        return f"{self.base}/diff{_query({'a': before.replace('/packs/', '/'), 'b': after.replace('/packs/', '/')})}"

    def static(self, name: str) -> str:
        return f"{self.base}/static/{name}?v={hashlib.sha256(static(name)).hexdigest()[:12]}"


def _query(query: Mapping[str, Any]) -> str:
    parameters = {name: value for name, value in query.items() if value not in (None, "")}
    return f"?{urlencode(parameters, errors='replace')}" if parameters else ""


def anchor(name: str, prefix: str = "") -> str:
    """The HTML id of a row: a hash, since the row's id may hold any character."""
    return f"{prefix}c-{short(hash_text(name))}"


def visible(text: str) -> str:
    """A text with escapes for characters that are invisible or that change the direction of others."""
    return text if _PLAIN.fullmatch(text) else text.translate(_VISIBLE)


def clipped(text: str, limit: int | None = MOST_CHARACTERS) -> tuple[str, int, str]:
    """A text's beginning, the number of characters left out, and its end."""
    if limit is None or len(text) <= limit:
        return text, 0, ""
    half = limit // 2
    return text[:half], len(text) - 2 * half, text[len(text) - half :]


def render(template: str, links: Links, **values: Any) -> str:
    """A page."""
    return environment().get_template(template).render(links=links, **values)


@lru_cache(maxsize=1)
def environment() -> jinja2.Environment:
    try:
        import jinja2
    except ImportError as error:
        raise MissingExtra("viewer", "packs in a browser") from error
    from markupsafe import Markup

    def finalize(value: object) -> object:
        return value if isinstance(value, Markup) else visible(str(value)) if value is not None else ""

    jinja_environment = jinja2.Environment(
        loader=jinja2.PackageLoader("aether_context.viewer"),
        autoescape=True,
        finalize=finalize,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja_environment.filters |= {
        "n": number,
        "pct": percent,
        "when": when,
        "clock": clock,
        "usd": dollars,
        "clipped": clipped,
    }
    jinja_environment.globals |= {
        "LAYERS": LAYERS,
        "FLAGS": FLAGS,
        "REASONS": REASONS,
        "anchor": anchor,
        "version": __version__,
    }
    return jinja_environment


def when(time: float, length: int = 16) -> str:
    """A time to the minute, or the first characters of that."""
    return minute(time)[:length]


def clock(time: float) -> str:
    """The time of day to the second."""
    seconds = int(time) % 86_400 if math.isfinite(time) else 0
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def number(value: int | float | None, sign: bool = False) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.3g}"
    return f"{value:+,}" if sign and value else f"{value:,}"


def percent(share: float | None, digits: int = 0) -> str:
    return "–" if share is None else f"{100 * share:.{digits}f}%"


def dollars(value: Decimal | None) -> str:
    return "–" if value is None else f"${value:,.4f}" if value < 10 else f"${value:,.2f}"
