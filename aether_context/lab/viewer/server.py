"""The web app over a store: who may read it, its pages, and a session's pages in one file."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar
from urllib.parse import parse_qsl, urlencode

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aether_context.errors import AetherContextError, ChecksumMismatch, PackNotFound
from aether_context.lab.reading import difference, read_view, session_packs, why
from aether_context.lab.reading.packs import is_shortened
from aether_context.lab.reading.sessions import read_back
from aether_context.lab.viewer.calls import CallReader, SessionView, by_session, changed_lines, raw_of, spans, tool_rows
from aether_context.lab.viewer.pages import STYLE_SOURCE, Links, environment, render_page
from aether_context.store import Manifest, PackStore
from aether_context.store.replay import Replayer

logger = logging.getLogger(__name__)
_T = TypeVar("_T")
_Family: TypeAlias = tuple[Mapping[str, Sequence[int]], Mapping[str, tuple[Manifest | None, Manifest | None]]]
"""Before which calls addresses were read back; the calls before and after each pack, by its id."""

COOKIE = "aether_context_viewer"
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_MOST_SESSIONS, _MOST_CALLS, _MOST_IN_FILE, _MOST_RAW = 25, 200, 20, 200_000
"""Sessions and calls on a page, packs in a file, bytes of an artifact."""
_HEADERS = {
    "content-security-policy": (
        f"default-src 'none'; style-src {STYLE_SOURCE}; img-src data:; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


def create_app(
    store: PackStore | str | os.PathLike[str], *, token: str | None = None, hosts: Sequence[str] | None = None
) -> Starlette:
    """An app that shows a store's packs, alone or mounted in another one. It writes nothing.

    Args:
        store: a store, or its URL.
        token: the token that readers must send, as ``Authorization: Bearer`` or once as ``?token=``. Without one,
            whoever can reach the app can read every pack.
        hosts: host names that it answers to, without ports; None is any. With only those of `LOOPBACK`, a web site
            cannot read a viewer on this machine through a host name of its own (DNS rebinding).

    Raises:
        MissingExtra: Jinja2 is not installed.
        ValueError: the token is empty.
    """
    environment()
    if token is not None and not token:
        raise ValueError("the token is empty: give one, or None for none")
    viewer = _Viewer(store if isinstance(store, PackStore) else PackStore(store))
    pages = {"/": viewer.sessions, "/session": viewer.session, "/pack/{pack}": viewer.pack, "/raw/{pack}": viewer.raw}
    return Starlette(
        routes=[Route(path, viewer.route(page), methods=["GET"]) for path, page in pages.items()],
        middleware=[Middleware(_Guard, token=token, hosts=hosts)],
        exception_handlers={HTTPException: viewer.refused},
    )


def report(store: PackStore, app: str, user: str, session: str) -> str:
    """The HTML of a session: its calls, and the newest of its packs in full. It holds no script and loads nothing.

    Raises:
        PackNotFound: the session has no packs.
    """
    places, replayer = store.places(app, user, session), Replayer(store)
    if not places:
        raise PackNotFound(f"no packs of session {session!r} of app {app!r} and user {user!r} are in {store.url}")
    links = Links(in_file=frozenset(path.rpartition("/")[2] for path in places[-_MOST_IN_FILE:]))
    packs: list[tuple[str, str]] = []
    family = _family(store, (app, user, session))
    for path in places[-_MOST_IN_FILE:]:
        name, layout = path.rpartition("/")[2], {"fragment": True, "prefix": f"{len(packs)}-"}
        try:
            values = _of_pack(replayer, store.read(path), family)
            packs.append((name, render_page("pack.html", links, **layout, **values)))
        except Exception as error:  # whoever can write into the store can put anything into its files
            fault = {"title": name, "detail": f"This pack cannot be shown: {error or type(error).__name__}"}
            packs.append((name, render_page("base.html", links, **layout, **fault)))
    view = SessionView(CallReader(store).of(places))
    values = {"shown": view, "calls": [*enumerate(view.calls, 1)], "paging": (1, 1), "packs": packs, "answer": None}
    return render_page("session.html", links, title=session, tools=tool_rows(store, view.calls), **values)


def _of_pack(replayer: Replayer, manifest: Manifest, family: _Family, other: Manifest | None = None) -> dict[str, Any]:
    """The page of a pack, or what differs from another pack where that is given."""
    view, store, is_beside = read_view(replayer, manifest), replayer.store, other is not None
    compared = difference(read_view(replayer, other), view) if other is not None else None
    gaps = [*view.gaps]
    try:
        manifest.verify()
        if compared is None and manifest.call_before and manifest.prefix.broken_by:
            previous = store.read(f"{store.place(manifest).rpartition('/')[0]}/{manifest.call_before}")
            compared = difference(read_view(replayer, previous), view)
    except ChecksumMismatch as error:
        gaps.insert(0, str(error))
    except AetherContextError as error:
        gaps.append(f"where the common prefix ends is not shown: {error}")
    return {
        "title": manifest.pack_id,
        "view": view,
        "reads": family[0],
        "around": family[1].get(manifest.pack_id, (None, None)),
        "gaps": gaps,
        "messages": [(request_piece, [*spans(request_piece, view)]) for request_piece in view.request or ()],
        "is_beside": is_beside,
        "compared": compared,
        "lines": changed_lines,
        "is_shortened": is_shortened,
    }


def _family(store: PackStore, owner: tuple[str, str, str]) -> _Family:
    """What the calls of a session and of its tools' sessions tell; nothing where one of them cannot be read."""
    with suppress(AetherContextError, ValueError, LookupError):
        calls = session_packs(store, app=owner[0], user=owner[1], session=owner[2])
        sides = zip([None, *calls[:-1]], [*calls[1:], None], strict=True)
        return read_back(store, calls), dict(zip((call.pack_id for call in calls), sides, strict=True))
    return {}, {}


class _Guard:
    """Checks access to every page, and adds the security headers to every response."""

    def __init__(self, app: ASGIApp, token: str | None, hosts: Sequence[str] | None) -> None:
        self.app = app
        self.token = token
        self.hosts = None if hosts is None else frozenset(host.lower() for host in hosts)
        self.cookie = "" if token is None else hashlib.sha256(f"{COOKIE} {token}".encode()).hexdigest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message["headers"], *headers]
            await send(message)

        refusal = self._refusal(Request(scope))
        await (self.app if refusal is None else refusal)(scope, receive, answer)

    def _refusal(self, request: Request) -> Response | None:
        host = re.sub(r":\d+$", "", request.headers.get("host", "")).lower()
        if self.hosts is not None and host not in self.hosts:
            return PlainTextResponse("not under this name\n", status_code=421)
        if self.token is None:
            return None
        token = request.query_params.get("token")
        if token is not None and request.method == "GET":
            if not _same(token, self.token):
                return PlainTextResponse("wrong token\n", status_code=401)
            # The same page without the token in its address, which sets the cookie.
            parameters = [pair for pair in parse_qsl(request.url.query, keep_blank_values=True) if pair[0] != "token"]
            query = f"?{urlencode(parameters)}" if parameters else ""
            # One slash at the beginning: two would be the address of another host.
            answer = RedirectResponse("/" + request.url.path.lstrip("/\\") + query, status_code=303)
            is_secure, path = request.url.scheme == "https", request.scope.get("root_path") or "/"
            answer.set_cookie(COOKIE, self.cookie, httponly=True, samesite="lax", secure=is_secure, path=path)
            return answer
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _same(bearer.strip(), self.token):
            return None
        if _same(request.cookies.get(COOKIE, ""), self.cookie):
            return None
        headers = {"www-authenticate": "Bearer"}
        return PlainTextResponse("open it with ?token=… once\n", status_code=401, headers=headers)


def _same(first: str, second: str) -> bool:
    return hmac.compare_digest(first.encode("utf-8", "surrogateescape"), second.encode("utf-8", "surrogateescape"))


class _Viewer:
    """The pages. They are built one at a time, so that a viewer next to agents takes at most one thread's time."""

    def __init__(self, store: PackStore) -> None:
        self.store = store
        self.calls = CallReader(store)
        self._lock = threading.Lock()

    def route(self, page: Callable[[Request], Response]) -> Callable[[Request], Response]:
        """The route of a page, which Starlette runs in a thread. Errors of the store become error pages."""

        def route(request: Request) -> Response:
            try:
                with self._lock:
                    return page(request)
            except HTTPException:
                raise
            except AetherContextError as error:
                raise HTTPException(404 if isinstance(error, PackNotFound) else 502, str(error)) from error
            except Exception as error:  # whoever can write into the store can put anything into its files
                logger.exception("%s cannot be shown", request.url.path)
                what, verify = f"{type(error).__name__}: {str(error)[:300]}", self.store.command("verify")
                detail = f"This holds what no pack does ({what}): see what `{verify}` says of it."
                raise HTTPException(422, detail) from error

        return route

    async def refused(self, request: Request, error: Exception) -> Response:
        status, detail = (error.status_code, error.detail) if isinstance(error, HTTPException) else (500, "")
        title = "Not found" if status == 404 else "This cannot be shown"
        return self._page(request, "base.html", status=status, title=title, detail=_masked(detail))

    def _page(self, request: Request, template: str, **values: Any) -> Response:
        links = Links(str(request.scope.get("root_path", "")).rstrip("/"))
        text = render_page(template, links, store=_masked(self.store.url), **values)
        return Response(text, values.get("status", 200), media_type="text/html; charset=utf-8")

    def sessions(self, request: Request) -> Response:
        """The sessions, the newest first."""
        query = {name: request.query_params.get(name, "").strip()[:200] for name in ("words", "app", "user")}
        sessions = by_session(self.store.places(query["app"] or None, query["user"] or None))
        if words := query["words"].casefold().split():
            newest = self.calls.of(places[-1] for places in sessions)
            names = [" ".join(call.names).casefold() for call in newest]
            sessions = [places for places, text in zip(sessions, names, strict=True) if all(map(text.count, words))]
        page, paging = _paged(request, sessions, _MOST_SESSIONS, 1)
        values = {"given": query, "found": len(sessions), "paging": paging}
        shown_sessions = [SessionView(self.calls.of(places)) for places in page]
        return self._page(request, "sessions.html", title="Sessions", shown=shown_sessions, **values)

    def session(self, request: Request) -> Response:
        """The calls of a session, by default the newest of them, and what became of words that are looked for."""
        owner, words = _owner(request), request.query_params.get("words", "").strip()[:500]
        places = self.store.places(*owner) if all(owner) else []
        if not places:
            raise HTTPException(404, "no packs of this session are in the store")
        whole = shown_session = SessionView(self.calls.of(places))
        app, user, session = owner
        values: dict[str, Any] = {"title": whole.owner[2], "packs": (), "words": words, "answer": None, "fault": ""}
        call = request.query_params.get("call", "")[:9]
        values["call"] = number = int(call) if call.isdecimal() else None
        try:
            family = session_packs(self.store, app=app, user=user, session=session)
            shown_session = SessionView(self.calls.of(map(self.store.place, family)))
            shown_session.owner, shown_session.last = whole.owner, whole.last
            if words:
                values["answer"] = why(self.store, words, app=app, user=user, session=session, call=number)
        except (AetherContextError, ValueError) as error:
            values["fault"] = str(error)
        calls, paging = _paged(request, [*enumerate(shown_session.calls, 1)], _MOST_CALLS, 10**9)
        values["tools"] = tool_rows(self.store, (call for _, call in calls))
        return self._page(request, "session.html", shown=shown_session, calls=calls, paging=paging, **values)

    def pack(self, request: Request) -> Response:
        """A pack, or with ``beside`` what differs from that one."""
        manifest, other_name = self._manifest(request, request.path_params["pack"]), request.query_params.get("beside")
        other = self._manifest(request, other_name) if other_name else None
        values = _of_pack(Replayer(self.store), manifest, _family(self.store, manifest.session_key), other)
        return self._page(request, "pack.html", prefix="", **values)

    def raw(self, request: Request) -> Response:
        """The content of an address in a pack, as text whatever it is."""
        manifest, uri = self._manifest(request, request.path_params["pack"]), request.query_params.get("uri", "")
        rows = Replayer(self.store).resolve(manifest).rows.values()
        known_uris = {manifest.uri, *manifest.artifact_uris, *(row.uri for row in rows)}
        data = raw_of(self.store, manifest, uri) if uri and uri in known_uris else None
        if data is None:
            raise HTTPException(404, "the store does not hold what this address of the pack stands for")
        size = f"{len(data):,} bytes" + (f", the first {_MOST_RAW:,} of them" if len(data) > _MOST_RAW else "")
        text = data[:_MOST_RAW].decode("utf-8", "replace")
        return self._page(request, "base.html", title="Raw evidence", detail=f"{uri}: {size}", text=text)

    def _manifest(self, request: Request, name: str) -> Manifest:
        """The manifest of a pack of the session in the address, or else of any that `PackStore.find` finds."""
        owner = _owner(request)
        places = self.store.places(*owner) if all(owner) else []
        path = next((path for path in places if path.endswith(f"/{name}")), None)
        return self.store.read(path or self.store.find(name[:300]))


def _owner(request: Request) -> tuple[str, str, str]:
    """App, user and session in an address; empty where it does not name them."""
    return tuple(request.query_params.get(name, "") for name in ("app", "user", "session"))  # type: ignore[return-value]


def _paged(request: Request, items: Sequence[_T], max_items: int, default: int) -> tuple[Sequence[_T], tuple[int, int]]:
    """The items of the page that is asked for; its number and the number of pages."""
    text, pages = request.query_params.get("page", ""), max(1, -(-len(items) // max_items))
    page = max(1, min(int(text) if text.isdecimal() and len(text) < 9 else default, pages))
    return items[(page - 1) * max_items : page * max_items], (page, pages)


def _masked(text: str) -> str:
    """A text with the user names and passwords in URLs masked."""
    return re.sub(r"://[^/\s@]*@", "://…@", text)
