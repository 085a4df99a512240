"""The kinds of a store's files, by path alone. Whatever does not have a name of ours is somebody else's.

The names are those that `PackStore`, `ArtifactFiles` and `retention` give. A folder of a store is often used for other
things, too: `artifacts` in a working directory.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, TypeAlias

from aether_context.store.files import File
from aether_context.store.pack_file import GZIP_ENDING, LOG, MANIFEST, SEGMENT
from aether_context.text.entities import SCHEME
from aether_context.text.patterns import pattern

Kind: TypeAlias = Literal[
    "pack", "segment", "turns", "message", "record", "forgotten", "evidence", "summary", "calibration", "artifact",
    "name", "index",
]  # fmt: skip
"""What a file is: ``pack`` is a manifest, ``segment`` a part of a session's log,
``turns`` hold what an agent was shown, ``record`` says what is known of a piece of ``evidence``, ``forgotten`` which
packs of a session were deleted for their age, ``name`` which name a folder stands for, ``index`` copies of the
manifests of many packs."""

FORGOTTEN = "forgotten.json"
_STUB = "[a-z0-9-]{0,40}~[0-9a-f]{16}"
_NAME = f"(?:[a-z0-9][a-z0-9._-]{{0,63}}|{_STUB})"
_SESSION = f"{_NAME}/{_NAME}/{_NAME}"
_USER = f"{_NAME}/{_NAME}"
_TIME = r"\d{8}T\d{6}\.\d{6}Z"
_WORDS = r"(_[A-Za-z0-9-]{1,24}){0,2}"
_PACK_ID = rf"pack_{_TIME}{_WORDS}_[0-9a-f]{{8}}(-\d+)?"
_PACK = rf"{_SESSION}/packs/{_PACK_ID}"
_ID = pattern(_PACK_ID)
_ADDRESS = pattern(rf"packs/({_PACK_ID})/{re.escape(MANIFEST)}")
_FORMS: dict[Kind, re.Pattern[str]] = {
    "pack": pattern(rf"{_PACK}/{re.escape(MANIFEST)}"),
    "segment": pattern(rf"{_SESSION}/{LOG}/{SEGMENT.pattern}"),
    "turns": pattern(
        rf"{_SESSION}/turns/[0-9a-f]{{16}}/\d{{6,}}(-\d{{8,}}){{2}}-[0-9a-f]{{8}}{re.escape(GZIP_ENDING)}"
    ),
    "message": pattern(rf"{_SESSION}/messages/[0-9a-f]{{16}}\.txt"),
    "record": pattern(rf"{_SESSION}/evidence/[0-9a-f]{{16}}\.json"),
    "forgotten": pattern(rf"{_SESSION}/{re.escape(FORGOTTEN)}"),
    "evidence": pattern(rf"{_USER}/evidence/([0-9a-f])/\1[0-9a-f]{{63}}\.bin"),
    "summary": pattern(rf"{_USER}/summaries/([0-9a-f])/\1[0-9a-f]{{63}}\.txt"),
    "calibration": pattern(rf"{_USER}/calibration/{_NAME}-[0-9a-f]{{8}}\.json"),
    "index": pattern(rf"{_USER}/index/{_TIME}-{_TIME}-[0-9a-f]{{8}}{re.escape(GZIP_ENDING)}"),
    "artifact": pattern(rf"{_USER}/({_NAME}/)?artifacts/{_NAME}/(0|[1-9]\d{{0,17}})"),
    "name": pattern(rf"(?:{_NAME}/){{0,2}}{_STUB}/name\.json|{_USER}/(?:{_NAME}/)?artifacts/{_STUB}/name\.json"),
}


class StoreEntry(NamedTuple):
    """A file of ours. ``owner`` is the user's folder below the base, ``session`` that of the session, empty for a file
    that all sessions of the user share."""

    kind: Kind
    file: File
    owner: str
    session: str

    @property
    def stem(self) -> str:
        """The name without its ending; of a manifest the pack's id."""
        if self.kind == "pack":
            return self.place.rsplit("/", 1)[-1]
        return self.file.name.split(".", 1)[0]

    @property
    def place(self) -> str:
        """The path of its folder."""
        return self.file.path.rsplit("/", 1)[0]


def entry_of(file: File, root: str) -> StoreEntry | None:
    """Reads the path of a file below the base of a store; None where its name is none of ours."""
    path = file.path.removeprefix(f"{root}/")
    kind = next((kind for kind, form in _FORMS.items() if form.fullmatch(path)), None)
    if kind is None:
        return None
    names = path.split("/")
    shared = kind in ("evidence", "summary", "calibration", "index") or names[2] in ("artifacts", "name.json")
    return StoreEntry(kind, file, "/".join(names[:2]), "" if shared else "/".join(names[:3]))


def manifest_uri(pack_id: str) -> str:
    """The address of a pack's manifest within its session."""
    return f"{SCHEME}packs/{pack_id}/{MANIFEST}"


def pack_at(name: str) -> str | None:
    """The id of the pack whose manifest an address within a session stands for; None where it is another one."""
    match = _ADDRESS.fullmatch(name)
    return None if match is None else match[1]


def is_pack_folder(path: str) -> bool:
    """Tells whether a folder of a session's packs is called as one of a pack is."""
    return _ID.fullmatch(path.rpartition("/")[2]) is not None


def is_segment(folder: str) -> bool:
    """Tells whether a name could lead to a folder that is called so."""
    return re.fullmatch(_NAME, folder) is not None
