"""Whatever a store holds and whatever a command is given, it ends with one of its exit codes and no traceback.

``HYPOTHESIS_PROFILE=long`` takes thirty times as many examples, at random.
"""

from __future__ import annotations

import gzip
import io
import itertools
import json
import os
import tempfile
import time
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import packs
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from aether_context import PackStore
from aether_context.canonical import canonical_json, readable_json
from aether_context.lab.cli import main
from aether_context.lab.viewer import create_app

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
MOST_SECONDS = 5.0
_numbers = itertools.count()


def fuzz(examples: int) -> Any:
    return settings(
        max_examples=examples * 30 if LONG else examples,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )


def recorded() -> dict[str, bytes]:
    """The files of a store, by their paths below it."""
    store = PackStore(f"memory://cli-fuzz-{next(_numbers)}")
    packs.chain(store, 3)
    packs.talk(store, 4)
    for manifest in store.manifests():
        store.write_all([], [(manifest, {"input_tokens": 900, "output_tokens": 12, "cached_tokens": 400})])
    store.write_summary("shop", "ada", "sha256:" + "1" * 64, "short")
    return {
        file.path.removeprefix(f"{store.files.root}/"): store.files.read(file.path)
        for file in store.files.below(store.files.root)
    }


FILES = recorded()
PACKS = [path for path in FILES if "/packs/" in path]
NAMES = sorted({path.split("/")[-2] for path in PACKS})

ODD_VALUES = st.sampled_from([
    None, True, -1, 0, 10**18, 10**90, 0.5, 1e300, "", "x" * 3_000, "\ud800", "\x00\x1b[2J", "../../etc", "[b]",
    [], {}, [None], {"a": {}}, ["a", "b"], {"number": -1}, [[1, 2]], [[5, 1]], "sha256:" + "0" * 64, NAMES[0],
])  # fmt: skip
RAW_VALUES = st.sampled_from(
    ["NaN", "1e999", "9" * 5_000, "[" * 3_000 + "]" * 3_000, '{"a":1,"a":2}', '"\\ud800"', "tru"]
)
JUNK = st.sampled_from(
    [b"", b"\0", b"{}", b"[]\n\n", b"null", b"\xff\xfe{\0}\0", b"hello", b"\x1f\x8b", b"[" * 9_000]
) | (st.binary(max_size=60))


class Damaged(dict[str, bytes]):
    """The files of a store; shown are those that are not as they were written."""

    def __repr__(self) -> str:
        changed = {path: self.get(path) for path in {**FILES, **self} if self.get(path) != FILES.get(path)}
        return f"Damaged({dict(list(changed.items())[:3])!r:.5000})"


@st.composite
def damages(draw: st.DrawFn) -> Damaged:
    """The files of a store, up to three of which are damaged, gone, or of another form."""
    files = Damaged(FILES)
    for _ in range(draw(st.integers(0, 3))):
        path = draw(st.sampled_from(PACKS if draw(st.booleans()) else sorted(FILES)))
        data = FILES[path]
        way = draw(st.sampled_from(["field", "inner", "raw", "cut", "flip", "junk", "line", "gone", "moved", "stray"]))
        if way == "gone":
            files.pop(path, None)
        elif way == "moved":
            files[draw(st.sampled_from(sorted(FILES)))] = data
        elif way == "stray":
            name = draw(
                st.sampled_from([".DS_Store", "x.json.gz", "0", "pack_1.json.gz", f"{path.rsplit('/', 1)[1]}~"])
            )
            files[f"{path.rpartition('/')[0]}/{name}"] = draw(JUNK)
        elif way == "cut":
            files[path] = data[: draw(st.integers(0, len(data)))]
        elif way == "flip":
            at = draw(st.integers(0, len(data) - 1)) if data else 0
            files[path] = data[:at] + bytes([draw(st.integers(0, 255))]) + data[at + 1 :]
        elif way == "junk" or path not in PACKS:
            files[path] = draw(JUNK)
        else:
            files[path] = _changed(draw, path, data, way)
    return files


def _changed(draw: st.DrawFn, path: str, data: bytes, way: str) -> bytes:
    """A file of a pack with another value for a field, or with other text."""
    is_replay = path.endswith(".gz")
    if way == "line":
        changed = draw(JUNK)
    else:
        fields = json.loads(gzip.decompress(data) if is_replay else data)
        name = draw(st.sampled_from(sorted(fields)))
        inner = fields[name]
        if way == "inner" and isinstance(inner, dict) and inner:
            inner = {**inner, draw(st.sampled_from(sorted(inner))): draw(ODD_VALUES)}
        elif way == "inner" and isinstance(inner, list) and inner and isinstance(inner[0], dict):
            key = draw(st.sampled_from(sorted(inner[0])))
            inner = [{**inner[0], key: draw(ODD_VALUES)}, *inner[1:]]
        else:
            inner = draw(ODD_VALUES)
        text = (canonical_json if is_replay else readable_json)({**fields, name: inner})
        if way == "raw":
            before = canonical_json({name: inner})[1:-1]
            text = canonical_json({**fields, name: inner}).replace(before, f"{json.dumps(name)}:{draw(RAW_VALUES)}", 1)
        changed = text.encode("utf-8", "surrogatepass")
    return gzip.compress(changed) if is_replay else changed


ODD_WORDS = st.sampled_from([
    "", " ", "-", "--", "../..", "/", "\ud800", "\x1b[2J", "pack_", "x" * 5_000, "ä/ö", "~nobody/x", "a\x00b", "-1",
    "latest", "0", "shop", "ada", "s1", "memory://", "nothing://x", "s3:/", "/dev/null", "C:\\x", "[bold]", "9" * 5_000,
    *NAMES[:2], NAMES[0][:20], NAMES[-1].rsplit("_", 1)[-1],
])  # fmt: skip
OPTIONS = {
    "list": ["--app", "--user", "--session", "--limit", "--json!"],
    "inspect": ["*", "--all!", "--json!"],
    "diff": ["*", "*", "--all!", "--json!"],
    "replay": ["*", "--policy", "--all!", "--json!"],
    "verify": ["*", "--replay!"],
    "usage": ["--app", "--user", "--session", "--by", "--json!"],
    "forget": ["--app", "--user", "--session", "--older-than", "--yes!", "--json!"],
}


@st.composite
def commands(draw: st.DrawFn) -> list[str]:
    command = draw(st.sampled_from(sorted(OPTIONS)))
    words = [command]
    if command == "forget" and draw(st.booleans()):
        words += ["--app", "shop", "--user", "ada", "--session", "s1"]
    for option in OPTIONS[command]:
        if option == "*" and (command in ("replay",) or draw(st.booleans())):
            words.append(draw(st.sampled_from(["latest", *NAMES, "s1"]) if draw(st.booleans()) else ODD_WORDS))
        elif option.endswith("!") and draw(st.booleans()):
            words.append(option[:-1])
        elif option.startswith("--") and not option.endswith("!") and draw(st.integers(0, 4)) == 0:
            words += [option, draw(ODD_WORDS)]
    return words


def run(*words: str) -> str:
    """Runs a command; what it printed."""
    began = time.perf_counter()
    errors = io.StringIO()
    with redirect_stderr(errors):
        result = CliRunner().invoke(main, [*words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise AssertionError(f"{words} ended in {result.exception!r}") from result.exception
    assert result.exit_code in (0, 1, 2, 3), words
    assert "Traceback" not in result.output + errors.getvalue()
    assert time.perf_counter() - began < MOST_SECONDS, words
    return result.output


@fuzz(60)
@given(files=damages(), words=st.lists(commands(), min_size=1, max_size=3))
def test_no_command_ends_in_a_traceback(files: Damaged, words: list[list[str]]) -> None:
    store = PackStore(f"memory://cli-fuzz-{next(_numbers)}")
    for path, data in files.items():
        store.files.replace(f"{store.files.root}/{path}", data)
    try:
        for command in words:
            run(*command, "--store", store.url)
    finally:
        store.files.fs.store.clear()


@fuzz(25)
@given(files=damages())
def test_no_page_of_the_viewer_does(files: Damaged) -> None:
    store = PackStore(f"memory://cli-fuzz-{next(_numbers)}")
    for path, data in files.items():
        store.files.replace(f"{store.files.root}/{path}", data)
    try:
        with TestClient(create_app(store, hosts=["testserver"])) as client:
            for page in ("/", "/session?app=shop&user=ada&session=s1"):
                assert client.get(page).status_code in (200, 404), page
            for name in NAMES[-2:]:  # a page of its own says of a damaged pack what is wrong with it
                page = f"/pack/{name}?app=shop&user=ada&session=s1"
                assert client.get(page).status_code in (200, 404, 422, 502), name
    finally:
        store.files.fs.store.clear()


SESSION = {"id": "s1", "app_name": "shop", "user_id": "ada", "state": {}, "events": [], "last_update_time": 1.0}
DEEP = st.sampled_from([
    "[" * 9_000, '{"a":' * 5_000 + "1" + "}" * 5_000, '{"id":"s","id":"t"}', '{"id":NaN}', "\ufeff{}", "null", "",
    '{"id":' + "9" * 5_000 + "}", "[table", "a = " + "[" * 5_000 + "]" * 5_000, ".".join("a" * 3_000) + " = 1",
    "max_input_tokens = 1e400", "max_input_tokens = " + "9" * 30, 'redact = ["((((("]',
    'redact = ["' + "(" * 5_000 + ")" * 5_000 + '"]', "profile = 1", "max_input_tokens.x = -1",
])  # fmt: skip


@st.composite
def sessions(draw: st.DrawFn) -> str:
    """An exported session with odd values in it."""
    name = draw(st.sampled_from([*SESSION, "state", "events"]))
    event = {"author": "user", "content": {"role": "user", "parts": [{"text": "hello"}]}, "id": "e1", "timestamp": 1.0}
    event[draw(st.sampled_from([*event, "content"]))] = draw(ODD_VALUES)
    value: object = draw(ODD_VALUES)
    if name == "events":
        value = [event]
    elif name == "state":
        key = draw(st.sampled_from(["plan", "aether:anchors", "aether:epochs", "notes", "tools", "evidence"]))
        value = {key: draw(ODD_VALUES)}
    return json.dumps({**SESSION, name: value})


@fuzz(60)
@given(text=DEEP | sessions(), as_policy=st.booleans())
def test_no_session_and_no_policy_does(text: str, as_policy: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        given_file, session = Path(folder, "given.toml"), Path(folder, "session.json")
        given_file.write_bytes(text.encode("utf-8", "surrogatepass"))
        session.write_text(json.dumps(SESSION))
        if as_policy:
            run("preview", str(session), "--policy", str(given_file))
        else:
            run("preview", str(given_file), "--message", "go on")
