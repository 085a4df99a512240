"""From values to HTML: templates, links and escaped texts.

Every value that a template writes is shown without hidden characters, and is then escaped for HTML.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode

from aether_context import __version__
from aether_context.canonical import hash_text, short
from aether_context.errors import MissingExtra
from aether_context.lab.reading import WHY
from aether_context.lab.reading.sessions import reads_told
from aether_context.pack import LAYERS
from aether_context.packing.payload import minute
from aether_context.text.decoding import escaped
from aether_context.usage import Totals

if TYPE_CHECKING:
    import jinja2

STYLE = files("aether_context.lab.viewer").joinpath("viewer.css").read_text(encoding="utf-8")
STYLE_SOURCE = f"'sha256-{base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()}'"
"""The style sheet as a content security policy names it."""


class Links(NamedTuple):
    """Makes the addresses of pages, below the path where the app is mounted.

    In a file there are only links to the packs that it holds, ``in_file``; None where pages are served.
    """

    base: str = ""
    in_file: frozenset[str] | None = None

    def to(self, path: str = "", owner: tuple[str, ...] = (), **query: object) -> str:
        """The address of ``session``, ``pack/{id}`` or ``raw/{id}`` of an owner (app, user, session), or of all."""
        if self.in_file is not None:
            return f"#{name}" if (name := path.partition("/")[2]) in self.in_file else "#main"
        query = {**dict(zip(("app", "user", "session"), owner, strict=False)), **query}
        parameters = urlencode({name: value for name, value in query.items() if value}, errors="replace")
        return f"{self.base}/{quote(path)}{parameters and '?' + parameters}"


def render_page(template: str, links: Links, **values: Any) -> str:
    """A page; with ``fragment`` only what it has inside ``main``."""
    return environment().get_template(template).render(links=links, **{"fragment": False, **values})


@cache
def environment() -> jinja2.Environment:
    """The templates; `MissingExtra` where Jinja2 is not installed."""
    try:
        import jinja2
        from markupsafe import Markup
    except ImportError as error:
        raise MissingExtra("viewer", "packs in a browser") from error

    def finalize(value: object) -> object:
        return value if isinstance(value, Markup) else escaped(str(value), kept="\n\t") if value is not None else ""

    jinja = jinja2.Environment(
        loader=jinja2.PackageLoader("aether_context.lab.viewer"),
        autoescape=True,
        finalize=finalize,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.filters |= {
        "n": _number,
        "cost": lambda call: Totals.of(call).cost_text,
        "when": minute,
        "reads": reads_told,
        "pct": lambda part, whole: f"{100 * part // whole}%" if whole > 0 else "",
        "words": lambda name: WHY.get(name, name.replace("_", " ")),
        "clip": lambda text, limit: (
            text if len(text) <= limit else f"{text[:limit]} … {len(text) - limit:,} more characters"
        ),
    }
    jinja.globals |= {"LAYERS": LAYERS, "STYLE": Markup(STYLE), "STYLE_SOURCE": STYLE_SOURCE, "version": __version__}
    # A row's id may hold any character.
    jinja.globals["anchor"] = lambda row: f"c-{short(hash_text(row))}"
    return jinja


def _number(value: float | None, sign: bool = False) -> str:
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, float) else f"{value:+,}" if sign and value else f"{value:,}"
