"""What a store may forget: packs, evidence and caches by age, size and reference, and all that is kept of somebody.

Agents may write to the store meanwhile. Nothing younger than a grace period is deleted; what was written since the plan
was made is looked at again before each deletion and after it, and a text that a new manifest names is put back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from aether_context.errors import StoreError
from aether_context.store.files import File, segment
from aether_context.store.manifest import SCHEMA_VERSION
from aether_context.store.packs import PackStore
from aether_context.store.spool import spool_of

DAY_SECONDS = 86_400.0
_EVIDENCE = ("messages", "evidence")
_CACHES = ("summaries", "vectors", "calibration")
_OF_TEXTS = ("summaries", "vectors")
"""Caches that were made from the texts of any session."""
_BATCH_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How long what is kept, in seconds. ``most_bytes`` is the most that one user's packs may take, None any amount.

    ``grace_seconds`` is how long nothing is touched after it was written.
    """

    packs_seconds: float = 30 * DAY_SECONDS
    evidence_seconds: float = 14 * DAY_SECONDS
    caches_seconds: float = 7 * DAY_SECONDS
    most_bytes: int | None = None
    grace_seconds: float = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What would be deleted of one user.

    Attributes:
        owner: the user's folder.
        packs: folders of packs, each with its files, those that extend others first.
        blobs, evidence, caches: files.
        unreadable: manifests that could not be read; what they name is unknown, so no text of the user is deleted.
        kept_bytes: what stays.
        known: folders of all packs when the plan was made.
    """

    owner: str
    packs: Mapping[str, tuple[File, ...]]
    blobs: tuple[File, ...]
    evidence: tuple[File, ...]
    caches: tuple[File, ...]
    unreadable: tuple[str, ...]
    kept_bytes: int
    known: frozenset[str]

    @property
    def files(self) -> tuple[File, ...]:
        """All files that would go."""
        of_packs = tuple(file for files in self.packs.values() for file in files)
        return (*of_packs, *self.blobs, *self.evidence, *self.caches)

    @property
    def size(self) -> int:
        """Bytes that would be free."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Link:
    """What a manifest names: the pack it extends, as a folder, and its blobs, by hash.

    ``is_foreign`` says that its schema version is not known here, and so neither what else it stands on.
    """

    parent: str | None
    blobs: frozenset[str]
    is_foreign: bool = False


@dataclass(slots=True)
class _Holdings:
    """A user's files by what they are; ``raw`` are the bytes of evidence, ``evidence`` what sessions say of them."""

    packs: dict[str, list[File]] = field(default_factory=dict)
    blobs: list[File] = field(default_factory=list)
    raw: list[File] = field(default_factory=list)
    evidence: list[File] = field(default_factory=list)
    caches: list[File] = field(default_factory=list)


def plan(store: PackStore, owner: str, rules: Rules, now: float) -> Plan:
    """What the rules would delete of one user.

    A pack stays while it is young or a pack that stays extends it, a blob while a pack that stays names it. A pack
    whose schema version is not known here stays, with the packs that it extends.

    Args:
        owner: the user's folder.
        now: seconds since 1970 UTC.

    Raises:
        StoreError: the store could not be read.
    """
    held = _holdings(store, owner)
    old = _older(rules, now)
    evidence = _old_evidence(store, held, rules, old)
    caches = tuple(file for file in held.caches if old(file, rules.caches_seconds))
    beside = {*held.evidence, *held.raw, *held.caches} - {*evidence, *caches}
    spared = sum(file.size for file in beside)
    kept, named, unreadable = _kept(store, held, rules, now, spared)
    blobs = tuple(file for file in held.blobs if not unreadable and _digest(file) not in named and old(file, 0.0))
    swept = set(blobs)
    stay = [
        *(file for pack in kept for file in held.packs[pack]),
        *(file for file in held.blobs if file not in swept),
    ]
    return Plan(
        owner=owner,
        packs={pack: tuple(files) for pack, files in sorted(held.packs.items(), reverse=True) if pack not in kept},
        blobs=blobs,
        evidence=evidence,
        caches=caches,
        unreadable=unreadable,
        kept_bytes=spared + sum(file.size for file in stay),
        known=frozenset(held.packs),
    )


def carry_out(store: PackStore, found: Plan, deleted: Callable[[File], None] = lambda _: None) -> Plan:
    """Deletes what a plan names and still nobody needs.

    Args:
        deleted: is told each file.

    Returns:
        The plan without what was spared since packs were written meanwhile.

    Raises:
        StoreError: the store could not be read or written.
    """
    found = _spare(store, found)
    for files in found.packs.values():
        for file in sorted(files, key=lambda one: one.path.endswith("/manifest.json")):
            _delete(store, file, deleted)
    for file in (*found.evidence, *found.caches):
        _delete(store, file, deleted)
    for batch in _batches(found.blobs):
        _delete_blobs(store, found, batch, deleted)
    _forget_hours(store, found.packs)
    return found


def forget(store: PackStore, app: str, user: str, session: str | None = None) -> tuple[File, ...]:
    """All files that a store keeps of a user or of one session: packs, texts, evidence, caches, artifacts and names.

    Of a session's texts those that other sessions of the user name stay; summaries and vectors, which are a user's, go.

    Raises:
        StoreError: the store could not be read.
    """
    owner = f"{store.files.root}/{segment(app)}/{segment(user)}"
    if session is None:
        return (*store.files.below(owner), *_hours_of(store, owner))
    folder = f"{owner}/{segment(session)}"
    mine, others = _Holdings(), _Holdings()
    for file in store.files.below(owner):
        _sort_in(mine if file.path.startswith(f"{folder}/") else others, owner, file)
    named: list[set[str]] = []
    for held in (mine, others):
        links: dict[str, _Link] = {}
        if _follow(store, list(held.packs), held.packs, links) and held is others:
            raise StoreError(
                f"{owner} holds manifests that cannot be read, so nobody knows whose texts are: "
                f"`{store.command('verify')}` names them"
            )
        named.append({digest for link in links.values() for digest in link.blobs})
        named[-1] |= _evidence_of(store, held.evidence)
    texts = [file for file in (*others.blobs, *others.raw) if _digest(file) in named[0] - named[1]]
    made = [file for file in others.caches if file.path.removeprefix(f"{owner}/").split("/", 1)[0] in _OF_TEXTS]
    return (*store.files.below(folder), *texts, *made, *_hours_of(store, folder))


def carry_out_forgetting(
    store: PackStore, files: Sequence[File], deleted: Callable[[File], None] = lambda _: None
) -> None:
    """Deletes the files that `forget` found, what waits for their places on this machine, and then their folders.

    Raises:
        StoreError: a file could not be deleted.
    """
    spool = spool_of(store.files)
    for file in sorted(files, key=lambda one: one.path.endswith("/name.json")):
        _delete(store, file, deleted)
        if spool is not None:
            spool.drop(file.path)


def _holdings(store: PackStore, owner: str) -> _Holdings:
    held = _Holdings()
    for file in store.files.below(owner):
        _sort_in(held, owner, file)
    return held


def _sort_in(held: _Holdings, owner: str, file: File) -> None:
    pieces = file.path.removeprefix(f"{owner}/").split("/")
    if pieces[0] == "blobs":
        held.blobs.append(file)
    elif pieces[0] == "evidence":
        held.raw.append(file)
    elif pieces[0] in _CACHES:
        held.caches.append(file)
    elif len(pieces) == 4 and pieces[1] == "packs":
        held.packs.setdefault(file.path.rsplit("/", 1)[0], []).append(file)
    elif len(pieces) > 2 and pieces[1] in _EVIDENCE:
        held.evidence.append(file)


def _age(files: Iterable[File], now: float) -> float:
    """Seconds since a pack was written; 0 where nobody knows."""
    return min((now - (file.modified if file.modified is not None else now) for file in files), default=0.0)


def _older(rules: Rules, now: float) -> Callable[[File, float], bool]:
    def old(file: File, seconds: float) -> bool:
        return _age([file], now) >= max(seconds, rules.grace_seconds)

    return old


def _digest(file: File) -> str:
    return file.path.rsplit("/", 1)[-1].split(".", 1)[0]


def _evidence_of(store: PackStore, said: Sequence[File]) -> set[str]:
    """The hashes of the bytes that records of evidence name."""
    paths = [file.path for file in said if file.path.endswith(".json")]
    return {digest for digest in store.files.at_once(lambda path: _named_in(store, path), paths) if digest}


def _named_in(store: PackStore, path: str) -> str:
    try:
        return str(json.loads(store.files.read(path))["digest"]).rsplit(":", 1)[-1]
    except (FileNotFoundError, ValueError, LookupError, TypeError):
        return ""


def _follow(store: PackStore, packs: Sequence[str], known: Iterable[str], links: dict[str, _Link]) -> list[str]:
    """Reads what packs and their ancestors name into ``links``; those that could not be read."""
    known, waiting, unreadable = set(known), list(packs), []
    while waiting:
        read = store.files.at_once(lambda pack: _link(store, pack), waiting)
        for pack, link in zip(waiting, read, strict=True):
            if link is None or link.is_foreign:
                unreadable.append(pack)
            if link is not None:
                links[pack] = link
        parents = {link.parent for link in read if link is not None and link.parent is not None}
        waiting = sorted(parents & known - set(links) - set(unreadable))
    return unreadable


def _link(store: PackStore, pack: str) -> _Link | None:
    try:
        value = json.loads(store.files.read(f"{pack}/manifest.json"))
        parent, version = value.get("parent"), value.get("schema_version")
        is_foreign = type(version) is not int or not 1 <= version <= SCHEMA_VERSION
        digests = [] if is_foreign else [value["policy"], value["setting"], *value.get("texts", ())]
        names = frozenset(str(digest).rsplit(":", 1)[-1] for digest in digests)
    except FileNotFoundError:  # what a deletion that was cut short left behind
        return _Link(parent=None, blobs=frozenset())
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    folder = f"{pack.rsplit('/', 1)[0]}/{parent}" if isinstance(parent, str) else None
    return _Link(parent=folder, blobs=names, is_foreign=is_foreign)


def _kept(
    store: PackStore, held: _Holdings, rules: Rules, now: float, spared: int
) -> tuple[set[str], set[str], tuple[str, ...]]:
    """The packs that stay, the blobs that they name, and those of them that could not be read.

    What is old is read as well: a pack of a schema version that is not known here stays whatever its age.
    """
    limit = max(rules.packs_seconds, rules.grace_seconds)
    links: dict[str, _Link] = {}
    young = [pack for pack, files in held.packs.items() if _age(files, now) < limit]
    old = sorted(held.packs.keys() - young)
    read = zip(old, store.files.at_once(lambda pack: _link(store, pack), old), strict=True)
    foreign = [pack for pack, link in read if link is not None and link.is_foreign]
    unreadable = _follow(store, [*young, *foreign], held.packs, links)
    kept = {*links, *unreadable}
    if rules.most_bytes is not None and not unreadable:
        kept = _within(rules, now, held, links, spared)
    return kept, {digest for pack in kept if pack in links for digest in links[pack].blobs}, tuple(unreadable)


def _old_evidence(
    store: PackStore, held: _Holdings, rules: Rules, old: Callable[[File, float], bool]
) -> tuple[File, ...]:
    """What sessions say of old evidence, and the bytes that nothing younger speaks of."""
    gone = [file for file in held.evidence if old(file, rules.evidence_seconds)]
    old_ones = set(gone)
    named = _evidence_of(store, [file for file in held.evidence if file not in old_ones])
    raw = [file for file in held.raw if old(file, rules.evidence_seconds) and _digest(file) not in named]
    return (*gone, *raw)


def _within(rules: Rules, now: float, held: _Holdings, links: Mapping[str, _Link], spared: int) -> set[str]:
    """The packs that stay within the quota: the chains that were written to last."""
    chains: dict[str, list[str]] = {}
    for pack in sorted(links):
        chains.setdefault(_root(pack, links), []).append(pack)
    sizes = {_digest(file): file.size for file in held.blobs}

    def age(root: str) -> tuple[float, str]:
        return min(_age(held.packs[pack], now) for pack in chains[root]), root

    kept: set[str] = set()
    named: set[str] = set()
    left = (rules.most_bytes or 0) - spared
    for root in sorted(chains, key=age):
        blobs = {digest for pack in chains[root] for digest in links[pack].blobs} - named
        left -= sum(sizes.get(digest, 0) for digest in blobs)
        left -= sum(file.size for pack in chains[root] for file in held.packs[pack])
        if left < 0 and age(root)[0] >= rules.grace_seconds:
            break
        kept.update(chains[root])
        named |= blobs
    return kept


def _root(pack: str, links: Mapping[str, _Link]) -> str:
    while (link := links.get(pack)) is not None and link.parent is not None and link.parent in links:
        pack = link.parent
    return pack


def _spare(store: PackStore, found: Plan) -> Plan:
    """The plan without what packs need that were written since it was made."""
    links: dict[str, _Link] = {}
    there = _holdings(store, found.owner).packs
    new = [pack for pack in there if pack not in found.known]
    unreadable = _follow(store, new, found.packs, links)
    named = {digest for link in links.values() for digest in link.blobs}
    return Plan(
        owner=found.owner,
        packs={pack: files for pack, files in found.packs.items() if pack not in links},
        blobs=() if unreadable else tuple(file for file in found.blobs if _digest(file) not in named),
        evidence=found.evidence,
        caches=found.caches,
        unreadable=(*found.unreadable, *unreadable),
        kept_bytes=found.kept_bytes,
        known=found.known,
    )


def _batches(files: Sequence[File]) -> list[list[File]]:
    batches: list[list[File]] = []
    size = 0
    for file in files:
        if not batches or size + file.size > _BATCH_BYTES:
            batches.append([])
            size = 0
        batches[-1].append(file)
        size += file.size
    return batches


def _delete_blobs(store: PackStore, found: Plan, batch: Sequence[File], deleted: Callable[[File], None]) -> None:
    """Deletes blobs, and puts back those that a pack names which was written in the same moment."""
    contents: dict[str, bytes] = {}
    for file in batch:
        try:
            contents[file.path] = store.files.read(file.path)
        except FileNotFoundError:
            continue
        _delete(store, file, deleted)
    spared = {file.path for file in batch} - {file.path for file in _spare(store, found).blobs}
    for path in sorted(spared & set(contents)):
        store.files.create(path, contents[path])


def _delete(store: PackStore, file: File, deleted: Callable[[File], None]) -> None:
    store.files.delete(file.path)
    deleted(file)


def _forget_hours(store: PackStore, packs: Iterable[str]) -> None:
    """Deletes what the hours say of sessions that have no packs of them any more."""
    for session, gone in _by_session(packs).items():
        there = store.files.below(f"{session}/packs")
        left = {store.hour_of(file.path.rsplit("/", 1)[0]) for file in there if file.path.endswith("/manifest.json")}
        for hour in sorted({store.hour_of(pack) for pack in gone} - left):
            store.files.delete(f"{hour}/{session.removeprefix(store.files.root + '/')}")
        if not [file for file in store.files.below(session) if not file.path.endswith(f"{session}/name.json")]:
            store.files.delete(f"{session}/name.json")


def _by_session(packs: Iterable[str]) -> dict[str, list[str]]:
    sessions: dict[str, list[str]] = {}
    for pack in packs:
        sessions.setdefault(pack.rsplit("/", 2)[0], []).append(pack)
    return sessions


def _hours_of(store: PackStore, folder: str) -> list[File]:
    """What the hours say of a user or session."""
    name = folder.removeprefix(f"{store.files.root}/")
    hours = f"{store.files.root}/hours/"
    found = store.files.below(hours.rstrip("/"))
    return [file for file in found if f"{file.path.removeprefix(hours).split('/', 2)[-1]}/".startswith(f"{name}/")]
