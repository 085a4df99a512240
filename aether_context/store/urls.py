"""Reads URLs for agents, but only those below the prefixes that the app allows."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from aether_context.errors import KnowledgeError, PolicyError, StoreError
from aether_context.evidence.lines import is_text
from aether_context.store.files import Files

if TYPE_CHECKING:
    import httpx

_MOST_CHARACTERS = 2_000
_MOST_REDIRECTS = 5
_ODD = re.compile(r"[\x00-\x20\x7f\\]|::")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """The content of a URL, as text or bytes, and the media type that a web server gave, None where none did."""

    content: str | bytes
    media_type: str | None = None


class Allowed:
    """Reads URLs below prefixes: ``https://docs.example.org/``, ``s3://bucket/reports/``, ``file:///srv/manuals/``.

    A URL is allowed where it has the scheme, host and port of a prefix, and its path is the prefix's path or continues
    it by whole segments. Redirections are held to the same rule, and symbolic links must not lead out of the folder.

    A content longer than ``most_bytes`` is refused, and so is one that takes longer than ``timeout_seconds``. A prefix
    that is no URL is a `PolicyError`.
    """

    def __init__(self, prefixes: Sequence[str], *, most_bytes: int = 20_000_000, timeout_seconds: float = 15.0) -> None:
        for prefix in prefixes:
            parts = _split(prefix)
            is_file = parts is not None and parts.scheme == "file"
            if parts is None or not parts.scheme or not (parts.path.strip("/") if is_file else parts.netloc):
                raise PolicyError(f"urls: {prefix!r} begins no URL: write it as https://host/path/", field="urls")
        self.prefixes = tuple(prefixes)
        self.most_bytes = most_bytes
        self.timeout_seconds = timeout_seconds

    def read(self, url: str) -> Fetched:
        """The content of a URL; `KnowledgeError` where no prefix allows it, it cannot be read, or it is too long."""
        prefix = self._prefix_of(url)
        if urlsplit(url).scheme in ("http", "https"):
            return self._from_web(url)
        root = prefix.rstrip("/")
        try:
            files = Files(root, timeout_seconds=self.timeout_seconds)
            data = files.read(files.root + unquote(url.removeprefix(root)), 0, self.most_bytes + 1)
        except FileNotFoundError as error:
            raise _unread(url, "is not there") from error
        except StoreError as error:
            raise _unread(url, str(error)) from error
        self._check(url, len(data))
        return Fetched(content=data)

    def _prefix_of(self, url: str) -> str:
        """The prefix that allows a URL."""
        parts = _split(url)
        if parts is not None and "@" not in parts.netloc:
            for prefix in self.prefixes:
                allowed = urlsplit(prefix)
                is_same_host = (parts.scheme, parts.netloc.lower()) == (allowed.scheme, allowed.netloc.lower())
                if is_same_host and f"{parts.path}/".startswith(f"{allowed.path.rstrip('/')}/"):
                    return prefix
        raise _unread(url[:200], f"is not among what may be read: {', '.join(self.prefixes)}")

    def _from_web(self, url: str) -> Fetched:
        import httpx

        deadline = time.monotonic() + self.timeout_seconds
        try:
            with httpx.Client(timeout=self.timeout_seconds, follow_redirects=False) as client:
                for _ in range(_MOST_REDIRECTS):
                    with client.stream("GET", url) as response:
                        if not response.is_redirect:
                            return self._response_content(url, response, deadline)
                        url = urljoin(url, response.headers["location"])
                        self._prefix_of(url)
        except httpx.HTTPError as error:
            raise _unread(url, str(error) or type(error).__name__) from error
        raise _unread(url, f"leads on more than {_MOST_REDIRECTS} times")

    def _response_content(self, url: str, response: httpx.Response, deadline: float) -> Fetched:
        if response.status_code >= 400:
            raise _unread(url, f"was answered with status {response.status_code}")
        data = bytearray()
        for chunk in response.iter_bytes():
            data += chunk
            self._check(url, len(data))
            if time.monotonic() > deadline:
                raise _unread(url, f"took longer than {self.timeout_seconds:g} s")
        media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower() or None
        content: str | bytes = bytes(data)
        if media_type is not None and is_text(media_type) and response.charset_encoding is not None:
            with suppress(LookupError, UnicodeDecodeError):
                content = data.decode(response.charset_encoding)
        return Fetched(content=content, media_type=media_type)

    def _check(self, url: str, size: int) -> None:
        if size > self.most_bytes:
            raise _unread(url, f"is longer than {self.most_bytes} bytes")


def _split(url: str) -> SplitResult | None:
    """The parts of a URL; None where it could leave its prefix, by ``..``, a separator or an fsspec chain (``::``),
    plain or encoded."""
    decoded = url
    for _ in range(3):
        decoded = unquote(decoded, errors="replace")
    if len(url) > _MOST_CHARACTERS or _ODD.search(decoded):
        return None
    try:
        parts, plain = urlsplit(url), urlsplit(decoded)
    except ValueError:
        return None
    if any(segment in (".", "..") for segment in plain.path.split("/")) or plain.path.count("/") != parts.path.count(
        "/"
    ):
        return None
    return parts


def _unread(url: str, reason: str) -> KnowledgeError:
    return KnowledgeError(f"{url} {reason}", field="url")
