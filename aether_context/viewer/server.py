"""The web app over a store: routes, access, and the values of each page."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode

from cachetools import LRUCache
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aether_context.errors import (
    AetherContextError,
    ContextOptimizationError,
    PackNotFound,
    PolicyError,
    ReplayError,
)
from aether_context.store import Manifest, PackStore
from aether_context.store.replay import Replayer
from aether_context.viewer.differences import POLICIES, policy_of, side_by_side, what_if
from aether_context.viewer.evidence import raw_of
from aether_context.viewer.packs import PackPage, pack_page
from aether_context.viewer.pages import STATIC, Links, environment, render, static
from aether_context.viewer.rows import PackRows, policies_of
from aether_context.viewer.sessions import Wanted, session_list
from aether_context.viewer.timeline import COMPARED, compared, timeline

logger = logging.getLogger(__name__)

COOKIE = "aether_context_viewer"
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_SAFE = re.compile(r"[a-z0-9~][a-z0-9._~-]{0,80}")
_PACK = re.compile(r"pack_[A-Za-z0-9._-]{1,200}")
_MOST_RAW = 200_000
_SECONDS = 0.25
"""How long a page of many packs reads new files; the next request reads the rest."""
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


def create_app(
    store: PackStore | str | os.PathLike[str], *, token: str | None = None, hosts: Sequence[str] | None = None
) -> FastAPI:
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
    app = FastAPI(title="aether-context", openapi_url=None, docs_url=None, redoc_url=None)
    app.state.rows, app.state.replayers = viewer.rows, viewer.replayers
    for path, page in {
        "/": viewer.sessions,
        "/s/{app}/{user}/{session}": viewer.session,
        "/s/{app}/{user}/{session}/{pack}": viewer.pack,
        "/s/{app}/{user}/{session}/{pack}/raw": viewer.raw,
        "/s/{app}/{user}/{session}/{pack}/what-if": viewer.what_if,
        "/diff": viewer.diff,
        "/p/{pack}": viewer.find,
        "/static/{name}": viewer.static,
    }.items():
        app.add_route(path, viewer.guarded(page), methods=["GET"])
    app.add_exception_handler(HTTPException, viewer.refused)
    app.add_middleware(_Guard, token=token, hosts=hosts)
    return app


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
                present = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(pair for pair in headers if pair[0] not in present)]
            await send(message)

        request = Request(scope)
        refusal = self._refusal(request)
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
            return self._signed_in(request)
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _same(bearer.strip(), self.token):
            return None
        if _same(request.cookies.get(COOKIE, ""), self.cookie):
            return None
        headers = {"www-authenticate": "Bearer"}
        return PlainTextResponse("open it with ?token=… once\n", status_code=401, headers=headers)

    def _signed_in(self, request: Request) -> Response:
        """A redirection to the same page without the token in its address, which sets the cookie."""
        parameters = [pair for pair in parse_qsl(request.url.query, keep_blank_values=True) if pair[0] != "token"]
        query = f"?{urlencode(parameters)}" if parameters else ""
        # One slash at the beginning: two would be the address of another host.
        answer = RedirectResponse("/" + request.url.path.lstrip("/\\") + query, status_code=303)
        answer.set_cookie(
            COOKIE,
            self.cookie,
            httponly=True,
            samesite="lax",
            secure=request.url.scheme == "https",
            path=request.scope.get("root_path") or "/",
        )
        return answer


def _same(first: str, second: str) -> bool:
    return hmac.compare_digest(first.encode("utf-8", "surrogateescape"), second.encode("utf-8", "surrogateescape"))


class _Viewer:
    """The pages. They are built one at a time, so that a viewer next to agents takes at most one thread's time."""

    def __init__(self, store: PackStore) -> None:
        self.store = store
        self.rows = PackRows(store)
        self._lock = threading.Lock()
        self.replayers: LRUCache[str, Replayer] = LRUCache(2)
        self._policy_of = policies_of(store)

    def guarded(self, page: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
        """The route of a page. Errors of the store become error pages."""
        from starlette.concurrency import run_in_threadpool

        def answer(request: Request) -> Response:
            try:
                with self._lock:
                    return page(request)
            except PackNotFound as error:
                raise HTTPException(404, str(error)) from error
            except AetherContextError as error:
                raise HTTPException(502, str(error)) from error
            except HTTPException:
                raise
            except Exception as error:  # whoever can write into the store can put anything into its files
                logger.exception("%s cannot be shown", request.url.path)
                raise HTTPException(422, self._not_a_pack(request, error)) from error

        async def route(request: Request) -> Response:
            return await run_in_threadpool(answer, request)

        return route

    def _not_a_pack(self, request: Request, error: Exception) -> str:
        """The message where a page fails: its pack's fields have the right types, but impossible values."""
        parameters = {**request.path_params, **{name: request.query_params.get(name) for name in ("a", "b")}}
        names = [parameters[name] for name in ("pack", "a", "b") if parameters.get(name)] or [
            parameters.get("session", "a pack")
        ]
        name, verify = " or ".join(names), self.store.command("verify")
        return (
            f"{name} holds what no pack does ({type(error).__name__}: {str(error)[:300]}): it was changed since it was "
            f"written, or another version wrote it. See what `{verify}` says of it."
        )

    async def refused(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        detail = _masked(error.detail) if isinstance(error, HTTPException) else ""
        return self._page(request, "error.html", status=status, title=str(status), detail=detail, code=status)

    def _page(self, request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
        links = Links(str(request.scope.get("root_path", "")).rstrip("/"))
        text = render(template, links, **{"store": _masked(self.store.url), "follows": False, **values})
        tag = f'"{hashlib.sha256(text.encode()).hexdigest()[:32]}"'
        if status == 200 and request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"etag": tag})
        return Response(text, status, {"etag": tag}, media_type="text/html; charset=utf-8")

    # pages

    def sessions(self, request: Request) -> Response:
        rows = self.rows.all(most_seconds=_SECONDS)
        query = dict(request.query_params)
        shown = session_list(rows, Wanted.of(query), _whole(query.get("page")) or 1)
        response = self._page(request, "sessions.html", title="Sessions", shown=shown, rows=self.rows, follows=True)
        if self.rows.unread:
            response.headers["refresh"] = "1"
        return response

    def session(self, request: Request) -> Response:
        place = self._session_place(request)
        rows, unread = self.rows.of_session(place, most_seconds=_SECONDS)
        if not rows:
            raise HTTPException(404, "no packs of this session are in the store")
        agent = request.query_params.get("agent", "")
        selected = [row for row in reversed(rows) if not agent or row.agent == agent]
        if not selected:
            raise HTTPException(404, "no packs of this agent are in the session")
        is_compared = "compare" in request.query_params or len(selected) <= COMPARED
        comparison = compared(self.store, selected) if is_compared and not unread else None
        shown = timeline(selected, self._policy_of, _whole(request.query_params.get("page")))
        agents = sorted({row.agent for row in rows})
        response = self._page(
            request, "session.html", title=rows[0].session, shown=shown, agents=agents, agent=agent, place=place,
            unread=unread, sides=comparison, follows=True,
        )  # fmt: skip
        if unread:
            response.headers["refresh"] = "1"
        return response

    def pack(self, request: Request) -> Response:
        place = self._pack_place(request)
        manifest = self._manifest(place)
        whole = "all" in request.query_params
        shown = self.page_of(manifest, place)
        return self._page(
            request, "pack.html", title=manifest.pack_id, shown=shown, place=place, whole=whole, prefix="",
        )  # fmt: skip

    def raw(self, request: Request) -> Response:
        """The content of an address in a pack, as plain text whatever it is."""
        place = self._pack_place(request)
        manifest = self._manifest(place)
        uri = request.query_params.get("uri", "")
        known = {*manifest.artifact_uris, *(row.uri for row in Replayer(self.store).resolve(manifest).rows.values())}
        data = raw_of(self.store, manifest, uri) if uri and uri in known else None
        if data is None:
            raise HTTPException(404, "the store does not hold what this address of the pack stands for")
        text = data[:_MOST_RAW].decode("utf-8", "replace")
        return self._page(
            request, "raw.html", title="Evidence", uri=uri, text=text, size=len(data), most=_MOST_RAW, place=place,
            manifest=manifest,
        )  # fmt: skip

    def diff(self, request: Request) -> Response:
        places = [self._place_named(request.query_params.get(name, "")) for name in ("a", "b")]
        before, after = map(self._manifest, places)
        shown = side_by_side(self._replayer(places[1]), before, after)
        names = ("the first", "the second")
        return self._page(request, "diff.html", title="Side by side", shown=shown, places=places, names=names)

    def what_if(self, request: Request) -> Response:
        place = self._pack_place(request)
        manifest = self._manifest(place)
        given = {name: request.query_params.get(name, "") for name in ("policy", "window", "toml")}
        shown, problem = None, ""
        if any(given.values()):
            replayer = self._replayer(place)
            try:
                window = _whole(given["window"])
                if given["window"] and not window:
                    raise PolicyError("the window is a number of tokens", field="window")
                policy = policy_of(replayer.policy(manifest), name=given["policy"], toml=given["toml"], window=window)
                shown = what_if(replayer, manifest, policy)
            except (PolicyError, ReplayError, ContextOptimizationError) as error:
                problem = str(error)
        return self._page(
            request, "what_if.html", title="What if", shown=shown, problem=problem, given=given, manifest=manifest,
            place=place, policies=POLICIES, names=("as recorded", "instead"),
        )  # fmt: skip

    def find(self, request: Request) -> Response:
        """A redirection to a pack by its id, the beginning of it, or the hash at its end."""
        place = self._place_named(request.path_params["pack"])
        links = Links(str(request.scope.get("root_path", "")).rstrip("/"))
        return RedirectResponse(links.pack_at(place), status_code=303)

    def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in STATIC:
            raise HTTPException(404, "there is no such file")
        headers = {"cache-control": "public, max-age=31536000, immutable"}
        return Response(static(name), 200, headers, media_type=STATIC[name])

    # values of pages

    def page_of(self, manifest: Manifest, place: str) -> PackPage:
        """The values of a pack's page."""
        rows, _ = self.rows.of_session(place.split("/packs/")[0], most_seconds=_SECONDS / 2)
        line = [row for row in reversed(rows) if (row.agent, row.branch) == (manifest.agent, manifest.branch)]
        return pack_page(self._replayer(place), manifest, line)

    def _replayer(self, place: str) -> Replayer:
        """The replayer of a pack's session, kept for the sessions viewed last."""
        session = place.split("/packs/")[0]
        if session not in self.replayers:
            self.replayers[session] = Replayer(self.store)
        return self.replayers[session]

    def _place_named(self, text: str) -> str:
        """The place of a pack by its address, or by what `PackStore.find` takes."""
        *names, pack = text.split("/")
        if len(names) == 3 and all(map(_SAFE.fullmatch, names)) and _PACK.fullmatch(pack):
            return f"{'/'.join(names)}/packs/{pack}"
        return self.store.find(text[:300]).removeprefix(f"{self.store.files.root}/")

    def _manifest(self, place: str) -> Manifest:
        return self.store.read(f"{self.store.files.root}/{place}")

    def _session_place(self, request: Request) -> str:
        names = [request.path_params[name] for name in ("app", "user", "session")]
        if not all(_SAFE.fullmatch(name) for name in names):
            raise HTTPException(404, "there is no such session")
        return "/".join(names)

    def _pack_place(self, request: Request) -> str:
        name = request.path_params["pack"]
        if not _PACK.fullmatch(name):
            raise HTTPException(404, "there is no such pack")
        return f"{self._session_place(request)}/packs/{name}"


def _masked(text: str) -> str:
    """A text with the user names and passwords in URLs masked."""
    return re.sub(r"://[^/\s@]*@", "://…@", text)


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) < 9 else None
