"""What may be deleted from a store: packs, evidence and caches by age, size and reference, or all files of a user.

Agents may write to the store meanwhile. Nothing younger than a grace period is deleted. Packs that were written since
the plan was made are looked for before each deletion and after it, and a text that one of them names is put back.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain

from aether_context.canonical import JSON
from aether_context.errors import ManifestError, StoreError
from aether_context.store.files import File
from aether_context.store.pack_file import BASE, ENDING, SCHEMA_VERSION, parsed, read_lines
from aether_context.store.packs import HOUR_ENTRY, PackStore
from aether_context.store.spool import Spool, spool_of
from aether_context.usage.calibration import TokenRatio

DAY_SECONDS = 86_400.0
_BATCH_BYTES = 64 * 2**20
_OF_USER = frozenset({"blobs", "evidence", "summaries", "vectors", "calibration"})
_CALIBRATION = {field.name for field in fields(TokenRatio)}
_WAITING = "SELECT data FROM waiting WHERE path = ?1 UNION ALL SELECT data FROM aside WHERE path = ?1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How long packs, evidence and caches are kept.

    Nothing is deleted within ``grace_seconds`` after it was written. ``most_bytes`` is the most that one user's packs
    may take, None any amount.
    """

    packs_seconds: float = 30 * DAY_SECONDS
    evidence_seconds: float = 14 * DAY_SECONDS
    caches_seconds: float = 7 * DAY_SECONDS
    most_bytes: int | None = None
    grace_seconds: float = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What a pack refers to: the place of the pack that it extends, if any, and the hashes of its blobs.

    ``base`` is the place of the first pack of its chain, without which its manifest cannot be read. ``caller`` is the
    folder of the session whose tool its session ran in; None where it is that of the base. A pack that is not readable
    may refer to more; so may a foreign one, which has a schema version that this version does not know.
    """

    parent: str = ""
    base: str = ""
    blobs: frozenset[str] = frozenset()
    caller: str | None = ""
    is_readable: bool = True
    is_foreign: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What would be deleted of one user, whose folder is ``owner``."""

    owner: str
    packs: Mapping[str, File]
    """The files of packs, by place; a pack comes before those that it extends."""
    blobs: tuple[File, ...]
    evidence: tuple[File, ...]
    caches: tuple[File, ...]
    unreadable: tuple[str, ...]
    """Manifests that could not be read. Which texts they need is unknown, so no text of the user is deleted."""
    kept_bytes: int
    strays: int
    """How many files in the folder are not of this package; they are left."""
    links: Mapping[str, Link]
    """What each pack referred to when the plan was made, by place."""

    @property
    def files(self) -> tuple[File, ...]:
        """All files that would be deleted."""
        return (*self.packs.values(), *self.blobs, *self.evidence, *self.caches)

    @property
    def size(self) -> int:
        """Bytes that would be freed."""
        return sum(file.size for file in self.files)


def plan(store: PackStore, owner: str, rules: Rules, now: float) -> Plan:
    """What the rules would delete of one user.

    A pack is kept while it is young or a kept pack extends it, a blob while a kept pack names it. A pack whose schema
    version is unknown is kept whatever its age, with the packs that it extends.

    Args:
        owner: the user's folder.
        now: seconds since 1970 UTC.
    """
    packs, kinds = _by_kind(store, _below(store, owner))
    links = _links(store, packs)

    def age(file: File) -> float:
        return now - (file.modified if file.modified is not None else now)

    def is_old(file: File, seconds: float) -> bool:
        return age(file) >= max(seconds, rules.grace_seconds)

    records = [file for file in kinds["evidence"] if is_old(file, rules.evidence_seconds)]
    proven = _evidence_of(store, set(kinds["evidence"]) - set(records))
    raw = [file for file in kinds["raw"] if is_old(file, rules.evidence_seconds) and _digest(file) not in proven]
    caches = [file for file in (*kinds["caches"], *kinds["calibration"]) if is_old(file, rules.caches_seconds)]
    others = chain(*(kinds[kind] for kind in ("evidence", "raw", "caches", "calibration")))
    kept_bytes = sum(file.size for file in {*others} - {*records, *raw, *caches})

    ages = {pack: age(file) for pack, file in packs.items()}
    sizes = {pack: file.size for pack, file in packs.items()}
    limit = max(rules.packs_seconds, rules.grace_seconds)
    kept = _with_ancestors((pack for pack in packs if links[pack].is_foreign or ages[pack] < limit), links)
    unreadable = tuple(sorted(pack for pack in kept if not links[pack].is_readable))
    if rules.most_bytes is not None and not unreadable:
        blob_sizes = {_digest(file): file.size for file in kinds["blobs"]}
        links_kept = {pack: links[pack] for pack in kept}
        kept = _within(rules.most_bytes - kept_bytes, rules.grace_seconds, ages, sizes | blob_sizes, links_kept)
    needed_blobs = {digest for pack in kept for digest in links[pack].blobs}
    blobs = [
        file for file in kinds["blobs"] if not unreadable and _digest(file) not in needed_blobs and is_old(file, 0.0)
    ]
    kept_bytes += sum(sizes[pack] for pack in kept)
    kept_bytes += sum(file.size for file in set(kinds["blobs"]) - set(blobs))
    return Plan(
        owner=owner,
        packs={pack: file for pack, file in sorted(packs.items(), reverse=True) if pack not in kept},
        blobs=tuple(blobs),
        evidence=(*records, *raw),
        caches=tuple(caches),
        unreadable=unreadable,
        kept_bytes=kept_bytes,
        strays=len(kinds["strays"]),
        links=links,
    )


def carry_out(store: PackStore, planned: Plan, deleted: Callable[[File], None] = lambda _: None) -> Plan:
    """Deletes the files of a plan that no pack needs by now, and calls ``deleted`` with each.

    Returns the plan without the files that packs written meanwhile need.
    """
    planned = _without_needed(store, planned)
    for file in (*planned.packs.values(), *planned.evidence, *planned.caches):
        store.files.delete(file.path)
        deleted(file)
    # Blobs go in batches. After each, those that a pack written in the same moment names are put back.
    contents: dict[str, bytes] = {}
    size = 0
    for count, file in enumerate(planned.blobs, 1):
        data = store.files.get(file.path)
        if data is not None:
            contents[file.path] = data
            size += len(data)
            store.files.delete(file.path)
            deleted(file)
        if count == len(planned.blobs) or size > _BATCH_BYTES:
            for path in sorted(contents.keys() - {blob.path for blob in _without_needed(store, planned).blobs}):
                store.files.create(path, contents[path])
            contents, size = {}, 0
    _forget_hours(store, planned.packs)
    return planned


def forget(store: PackStore, app: str, user: str, session: str | None = None) -> tuple[File, ...]:
    """All files of a user or of one session that this package wrote: packs, texts, evidence, caches, artifacts, names.

    Those that wait on this machine to be written are among them. With a session go those of the user that ran only as
    tools of it, or of one that goes. A session's texts that other sessions of the user name are not among them. The
    user's summaries and vectors are, since nobody knows which session they came from.
    """
    owner = store.files.place(app, user)
    folders = {owner if session is None else store.files.place(app, user, session)}
    depth = 3 if session is None else 4
    packs, kinds = _by_kind(store, store.files.below(owner))
    kinds.pop("strays", None)
    files = [*packs.values(), *chain(*kinds.values())]
    files += _by_kind(store, store.files.below(f"{store.files.root}/hours"))[1]["hours"]
    spool, listed = spool_of(store.files), {file.path for file in files}
    waiting = spool.paths().items() if spool is not None else ()
    files += [File(path=path, size=size, modified=None) for path, size in waiting if path not in listed]

    def is_theirs(path: str) -> bool:
        names = re.sub(r"^/hours/\d+/\d+/", "/", path.removeprefix(store.files.root)).split("/")
        return store.files.root + "/".join(names[:depth]) in folders

    if session is None:
        return tuple(file for file in files if is_theirs(file.path))
    of_owner = [file.path for file in files if file.path.startswith(f"{owner}/")]
    links = _links(store, [path.removesuffix(ENDING) for path in of_owner if store.kind(path) == "packs"], spool)
    _add_called(folders, links)
    others = {pack: link for pack, link in links.items() if not is_theirs(pack)}
    if not all(others[pack].is_readable for pack in others.keys() & packs.keys()):
        raise StoreError(
            f"{owner} holds manifests that cannot be read, so nobody knows whose texts are: "
            f"`{store.command('verify')}` names them"
        )
    digests = {digest for pack in links.keys() - others.keys() for digest in links[pack].blobs}
    digests |= _evidence_of(store, [file for file in kinds["evidence"] if is_theirs(file.path)])
    digests -= {digest for link in others.values() for digest in link.blobs}
    digests -= _evidence_of(store, [file for file in kinds["evidence"] if not is_theirs(file.path)])
    texts = {file for file in (*kinds["blobs"], *kinds["raw"]) if _digest(file) in digests} | {*kinds["caches"]}
    return tuple(file for file in files if is_theirs(file.path) or file in texts)


def strays(store: PackStore) -> list[str]:
    """The files in the folders of this package that it did not write: of users, of their apps, and of hours."""
    files = store.files.below(f"{store.files.root}/hours")
    owners = {owner: inside for owner in store.owners() if _by_kind(store, inside := _below(store, owner))[0]}
    files += [*chain(*owners.values())]
    files += [*chain(*map(store.files.files, sorted({owner.rpartition("/")[0] for owner in owners})))]
    return [file.path for file in _by_kind(store, files)[1]["strays"]]


def carry_out_forgetting(
    store: PackStore, files: Sequence[File], deleted: Callable[[File], None] = lambda _: None
) -> None:
    """Deletes the files that `forget` returned, and the writes to their paths that wait in this machine's spool."""
    spool = spool_of(store.files)
    newest_first = sorted(files, key=lambda file: file.path, reverse=True)  # a pack goes before those that it extends
    for file in sorted(newest_first, key=lambda file: file.name == "name.json"):
        if spool is not None:
            spool.drop(file.path)
        store.files.delete(file.path)
        deleted(file)


def _below(store: PackStore, owner: str) -> list[File]:
    """All files of a user; none where no folder is one of this package's, so that other programs' are not read."""
    folders = store.files.folders(owner)
    is_ours = any(folder.rsplit("/", 1)[-1] in _OF_USER for folder in folders) or any(map(store.pack_files, folders))
    return store.files.below(owner) if is_ours else []


def _by_kind(store: PackStore, files: Iterable[File]) -> tuple[dict[str, File], dict[str, list[File]]]:
    """The files of packs by place, and the other files by kind: those of `PackStore.kind`, or ``strays``."""
    packs: dict[str, File] = {}
    kinds: dict[str, list[File]] = defaultdict(list)
    for file in files:
        kind = store.kind(file.path)
        is_another = kind == "hours" and file.size != len(HOUR_ENTRY)
        if is_another or (kind == "calibration" and _fields(store, file.path).keys() != _CALIBRATION):
            kind = ""  # names without a hash could be anybody's
        if kind == "packs":
            packs[file.path.removesuffix(ENDING)] = file
        else:
            kinds[kind or "strays"].append(file)
    return packs, kinds


def _fields(store: PackStore, path: str) -> dict[str, JSON]:
    """The fields in a JSON file; none where it cannot be read as that."""
    try:
        value = json.loads(store.files.read(path))
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _add_called(folders: set[str], links: Mapping[str, Link]) -> None:
    """Adds to a session's folder those of sessions all of whose packs ran in tools of it, or of one that is added."""
    callers: dict[str, set[str | None]] = defaultdict(set)
    for pack, link in links.items():
        caller = link.caller if link.caller is not None else links.get(link.base, Link()).caller
        callers[pack.rsplit("/", 2)[0]].add(caller)
    while called := {session for session in callers.keys() - folders if callers[session] <= folders}:
        folders |= called


def _digest(file: File) -> str:
    return file.name.split(".", 1)[0]


def _evidence_of(store: PackStore, files: Iterable[File]) -> set[str]:
    """The hashes of the bytes that records of evidence name."""

    def named_in(path: str) -> str:
        return str(_fields(store, path).get("digest", "")).rsplit(":", 1)[-1]

    paths = sorted(file.path for file in files if file.path.endswith(".json"))
    return set(store.files.at_once(named_in, paths)) - {""}


def _links(store: PackStore, packs: Iterable[str], spool: Spool | None = None) -> dict[str, Link]:
    """What packs refer to, by place, those that wait in a spool, too. A pack may leave out what its base then names."""

    def link(pack: str) -> Link:
        try:
            data = store.files.get(f"{pack}{ENDING}")
            if data is None and spool is not None:
                data = next((held for (held,) in spool.ask(_WAITING, f"{pack}{ENDING}")), None)
            if data is None:  # a deletion was interrupted here
                return Link()
            value = parsed(read_lines(data)[0])
            parent, base, version = value.get("parent"), value.get(BASE), value.get("schema_version")
            is_foreign = type(version) is not int or not 1 <= version <= SCHEMA_VERSION
            required = (
                [] if is_foreign else [name for name in ("policy", "setting") if name in value or BASE not in value]
            )
            digests = [*(value[name] for name in required), *(() if is_foreign else value.get("texts") or ())]
            is_of_base = BASE in value and "caller" not in value
            caller = None if is_of_base else store.files.place(*(value.get("caller") or ()))
            names = frozenset(str(digest).rsplit(":", 1)[-1] for digest in digests)
        except (ManifestError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return Link(is_readable=False)
        places = [f"{pack.rsplit('/', 1)[0]}/{name}" if isinstance(name, str) else "" for name in (parent, base)]
        return Link(
            parent=places[0],
            base=places[1],
            blobs=names,
            caller=caller,
            is_readable=not is_foreign,
            is_foreign=is_foreign,
        )

    packs = list(packs)
    return dict(zip(packs, store.files.at_once(link, packs), strict=True))


def _with_ancestors(packs: Iterable[str], links: Mapping[str, Link]) -> set[str]:
    """Packs, and those that they extend, directly or not."""
    kept: set[str] = set()
    waiting = list(packs)
    while waiting:
        pack = waiting.pop()
        if pack in links and pack not in kept:
            kept.add(pack)
            waiting += (links[pack].parent, links[pack].base)
    return kept


def _within(
    bytes_left: int,
    grace_seconds: float,
    ages: Mapping[str, float],
    sizes: Mapping[str, int],
    links: Mapping[str, Link],
) -> set[str]:
    """The packs that fit into ``bytes_left``: the chains that were written to last, and those too young to go."""
    chains: dict[str, list[str]] = defaultdict(list)
    for pack in sorted(links):
        root = links[pack].base if links[pack].base in links else pack
        while (parent := links[root].parent) in links:
            root = parent
        chains[root].append(pack)
    age = {root: min(ages[pack] for pack in packs) for root, packs in chains.items()}
    kept: set[str] = set()
    for root in sorted(chains, key=lambda root: (age[root], root)):
        added = {name for pack in chains[root] for name in (pack, *links[pack].blobs)} - kept
        bytes_left -= sum(sizes.get(name, 0) for name in added)
        if bytes_left < 0 and age[root] >= grace_seconds:
            break
        kept |= added
    return kept & links.keys()


def _without_needed(store: PackStore, planned: Plan) -> Plan:
    """The plan without what packs need that were written since the plan was made."""
    pack_files, _ = _by_kind(store, store.files.below(planned.owner))
    links = {**planned.links, **_links(store, [pack for pack in pack_files if pack not in planned.links])}
    needed = _with_ancestors(links.keys() - planned.links.keys(), links)
    unreadable = sorted(pack for pack in needed if not links[pack].is_readable)
    needed_blobs = {digest for pack in needed for digest in links[pack].blobs}
    return replace(
        planned,
        packs={pack: file for pack, file in planned.packs.items() if pack not in needed},
        blobs=() if unreadable else tuple(file for file in planned.blobs if _digest(file) not in needed_blobs),
        unreadable=(*planned.unreadable, *unreadable),
    )


def _forget_hours(store: PackStore, packs: Iterable[str]) -> None:
    """Deletes the hours' entries of sessions without packs of that hour, and the names of sessions without files."""
    sessions: dict[str, list[str]] = defaultdict(list)
    for pack in packs:
        sessions[pack.rsplit("/", 2)[0]].append(pack)
    for session, deleted_packs in sessions.items():
        files = store.files.below(session)
        hours_left = {store.hour_of(pack) for pack in _by_kind(store, files)[0]}
        for hour in sorted({store.hour_of(pack) for pack in deleted_packs} - hours_left):
            store.files.delete(hour + session.removeprefix(store.files.root))
        if all(file.path == f"{session}/name.json" for file in files):
            store.files.delete(f"{session}/name.json")
