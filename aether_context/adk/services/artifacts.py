"""An ADK artifact service on any fsspec URL."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qsl, urlsplit

from google.adk.artifacts import artifact_util
from google.adk.artifacts.base_artifact_service import ArtifactVersion, BaseArtifactService, ensure_part
from google.adk.errors.input_validation_error import InputValidationError
from google.genai import types
from typing_extensions import override

from aether_context.canonical import canonical_json, plain
from aether_context.errors import StoreError
from aether_context.store.artifacts import ArtifactFiles, Owner, Version
from aether_context.store.files import Files

SCHEME = "fsspec"
"""What a URI of such a service begins with, once `register_artifact_service` was called; ``fsspec+s3`` and so on."""

PROTOCOLS = ("file", "memory", "s3", "gs", "gcs", "az", "abfs", "sftp", "hdfs")
"""What `register_artifact_service` puts on offer behind ``fsspec+`` where it is told nothing else."""

_USER = "user:"
_MOST_REFERENCES = 5
_BINARY = "application/octet-stream"


class FsspecArtifactService(BaseArtifactService):
    """Keeps artifacts by app, user, session and name, each version for ever, on any fsspec URL.

    Of two that save at the same moment, in whatever process, each gets a version of its own; a version is there whole
    or not at all. Names may be anything: none leads out of its session's folder. Nothing blocks the event loop. A store
    that cannot be read or written is a `StoreError`.

    Args:
        uri: a folder or fsspec URL (``artifacts``, ``s3://bucket/artifacts``), or one as ADK gives it, with ``fsspec+``
            in front and storage options behind a question mark: ``fsspec+s3://bucket/artifacts?anon=false``.
        options: storage options of the protocol.
        agents_dir: where a relative path of ``fsspec+file://`` begins; ADK gives it.

    Raises:
        MissingExtra: the protocol needs a package that is not installed.
        StoreError: the protocol is unknown.
    """

    def __init__(
        self, uri: str | os.PathLike[str] = "artifacts", *, agents_dir: str | None = None, **options: Any
    ) -> None:
        self.url, in_uri = _parsed(os.fspath(uri), agents_dir)
        self._artifacts = ArtifactFiles(Files(self.url, {**in_uri, **options}))

    @override
    async def save_artifact(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        artifact: types.Part | dict[str, Any],
        session_id: str | None = None,
        custom_metadata: dict[str, Any] | None = None,
    ) -> int:
        """Saves a new version and gives its number, from 0.

        Raises:
            InputValidationError: a name is empty or reaches elsewhere, or the part holds nothing that can be kept.
        """
        owner, name = _locate(app_name, user_id, session_id, filename)
        part = ensure_part(artifact)
        if part.inline_data is not None:
            if part.inline_data.data is None:
                raise InputValidationError("artifact.inline_data.data is missing: give it bytes")
            kind, data = part.inline_data.mime_type or _BINARY, part.inline_data.data
            part = part.model_copy(update={"inline_data": part.inline_data.model_copy(update={"data": b""})})
        elif part.text is not None:
            kind, data = "text/plain", part.text.encode("utf-8", "surrogatepass")
            part = part.model_copy(update={"text": ""})
        elif part.file_data is not None and part.file_data.file_uri:
            kind, data = part.file_data.mime_type or "", b""
            if artifact_util.is_artifact_ref(part):
                target = artifact_util.parse_artifact_uri(part.file_data.file_uri)
                if target is None:
                    raise InputValidationError(f"Invalid artifact reference URI: {part.file_data.file_uri}")
                artifact_util.validate_artifact_reference_scope(
                    app_name=app_name, user_id=user_id, session_id=session_id, parsed_uri=target
                )
        else:
            raise InputValidationError("artifact holds neither inline_data, text nor file_data.file_uri: give it one")
        head = {
            "mime_type": kind or None,
            "part": part.model_dump(mode="json", exclude_none=True),
            "custom_metadata": plain(custom_metadata or {}),
            "create_time": time.time(),
        }
        return await asyncio.to_thread(self._artifacts.save, owner, name, head, data)

    @override
    async def load_artifact(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None, version: int | None = None
    ) -> types.Part | None:
        """A version, the last one where none is named; None where there is none, or a rewind took it back.

        Raises:
            InputValidationError: a name is empty or reaches elsewhere, or a reference does.
        """
        owner, name = _locate(app_name, user_id, session_id, filename)
        for remaining_hops in range(_MOST_REFERENCES, -1, -1):
            artifact = await asyncio.to_thread(self._artifacts.load, owner, name, version)
            if artifact is None:
                return None
            part = types.Part.model_validate_json(canonical_json(artifact.head.get("part") or {}))
            if artifact_util.is_artifact_ref(part):
                target = artifact_util.resolve_artifact_reference(
                    file_uri=cast("str", cast("types.FileData", part.file_data).file_uri),
                    app_name=app_name,
                    user_id=user_id,
                    session_id=session_id,
                    remaining_depth=remaining_hops,
                )
                owner, name = _locate(target.app_name, target.user_id, target.session_id, target.filename)
                version = target.version
                continue
            if (blob := part.inline_data) is not None:
                blob.data, blob.mime_type = artifact.data, blob.mime_type or _BINARY
                if not blob.data and blob.mime_type == _BINARY and blob.display_name is None:
                    return None  # ADK saves this in a rewind where an artifact is to be gone
            elif part.text is not None:
                part.text = artifact.data.decode("utf-8", "surrogatepass")
            return part
        raise AssertionError("resolve_artifact_reference ends every chain")

    @override
    async def list_artifact_keys(self, *, app_name: str, user_id: str, session_id: str | None = None) -> list[str]:
        """Names in a session, and behind ``user:`` those that its user has in all sessions; each loads as it is."""
        owner = _owner(app_name, user_id, None)
        keys = [f"{_USER}{name}" for name in await asyncio.to_thread(self._artifacts.names, owner)]
        if session_id is not None:
            keys += await asyncio.to_thread(self._artifacts.names, _owner(app_name, user_id, session_id))
        return sorted(keys)

    @override
    async def delete_artifact(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> None:
        """Deletes all versions of an artifact; one that is not there is passed over."""
        owner, name = _locate(app_name, user_id, session_id, filename)
        await asyncio.to_thread(self._artifacts.delete, owner, name)

    @override
    async def list_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[int]:
        """The numbers of an artifact's versions, ascending."""
        owner, name = _locate(app_name, user_id, session_id, filename)
        return await asyncio.to_thread(self._artifacts.versions, owner, name)

    @override
    async def list_artifact_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[ArtifactVersion]:
        """An artifact's versions with what is known of each, ascending; no payload is read."""
        owner, name = _locate(app_name, user_id, session_id, filename)
        descriptions = await asyncio.to_thread(self._artifacts.described, owner, name)
        return [_described(owner, name, version) for version in descriptions]

    @override
    async def get_artifact_version(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None, version: int | None = None
    ) -> ArtifactVersion | None:
        """Describes a version, the last one where none is named; None where there is none."""
        owner, name = _locate(app_name, user_id, session_id, filename)
        artifact = await asyncio.to_thread(self._artifacts.load, owner, name, version, with_data=False)
        return _described(owner, name, artifact) if artifact is not None else None


def register_artifact_service(*protocols: str) -> None:
    """Puts ``fsspec+s3://bucket/folder`` and the like on offer to ``adk web --artifact_service_uri``.

    To be called in ``services.py``, with protocols of fsspec; without any, `PROTOCOLS`.
    """
    from google.adk.cli.service_registry import get_service_registry  # loads ADK's command line

    def service(uri: str, **options: Any) -> FsspecArtifactService:  # ADK gives options of its own besides
        return FsspecArtifactService(uri, agents_dir=options.get("agents_dir"))

    for protocol in protocols or PROTOCOLS:
        get_service_registry().register_artifact_service(f"{SCHEME}+{protocol}", service)


def _parsed(uri: str, agents_dir: str | None) -> tuple[str, dict[str, Any]]:
    """The URL behind ``fsspec+``, and its options."""
    if not uri.startswith(f"{SCHEME}+"):
        return uri, {}
    url, _, query = uri.removeprefix(f"{SCHEME}+").partition("?")
    parts = urlsplit(url)
    if not parts.netloc and not parts.path:
        raise StoreError(f"artifact URI {uri!r} names no place: write it as {SCHEME}+s3://bucket/folder")
    if parts.scheme == "file" and parts.netloc:
        url = str(Path(agents_dir or "") / (parts.netloc + parts.path))
    words = {"true": True, "false": False}
    return url, {key: words.get(value.lower(), value) for key, value in parse_qsl(query)}


def _locate(app: str, user: str, session: str | None, filename: str) -> tuple[Owner, str]:
    """Finds the folder of an artifact, and its name there."""
    name = filename.removeprefix(_USER)
    if not name.strip():
        raise InputValidationError(f"filename = {filename!r} is empty: give the artifact a name")
    return _owner(app, user, None if name != filename else session), name


def _owner(app: str, user: str, session: str | None) -> Owner:
    names = {"app_name": app, "user_id": user, "session_id": session}
    owner = {field: name for field, name in names.items() if name is not None}
    for field, name in owner.items():
        artifact_util.validate_path_segment(name, field)
    return tuple(owner.values())


def _described(owner: Owner, name: str, version: Version) -> ArtifactVersion:
    app, user, *session = owner
    head: dict[str, Any] = {**version.head}
    return ArtifactVersion(
        version=version.number,
        canonical_uri=artifact_util.get_artifact_uri(app, user, name, version.number, *session),
        custom_metadata=head.get("custom_metadata") or {},
        create_time=head.get("create_time") or 0.0,
        mime_type=head.get("mime_type"),
    )
