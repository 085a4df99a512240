"""The pages in docs/ are true: examples run and print what the page says, policies load, tables are those of the code.

A fence marked `python no-run` is compiled only. The fences of a page run in order in one namespace and in an empty
folder. A `text` fence right after a `python` fence is what that one prints.
"""

import contextlib
import inspect
import io
import re
import runpy
import struct
import tomllib
from pathlib import Path
from typing import NamedTuple

import click
import pytest
import yaml
from scripted import Chat

from aether_context import PackPolicy, adk
from aether_context.adk import ContextPackPlugin, context_pack_callbacks
from aether_context.lab.cli import main

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
WORDS = 23_000
"""Most words of docs/ and README.md together that somebody wrote; some room for ordinary changes is in it."""
_GENERATED = re.compile(r"<!-- generated: [\w-]+ -->\n.*?<!-- end -->", re.DOTALL)
_FENCE = re.compile(r"^```(?P<kind>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")


class Fence(NamedTuple):
    kind: str
    body: str
    line: int
    printed: str | None


def fences(path):
    """The fences of a page; `printed` is the text fence that follows a python one with nothing in between."""
    text = path.read_text(encoding="utf-8")
    found = list(_FENCE.finditer(text))
    for at, one in enumerate(found):
        after = found[at + 1] if at + 1 < len(found) else None
        follows = after is not None and after["kind"] == "text" and not text[one.end() : after.start()].strip()
        line = text.count("\n", 0, one.start()) + 2
        yield Fence(one["kind"].strip(), one["body"], line, after["body"] if follows else None)


def by_name(path):
    return path.name


def test_generated_parts_are_current():
    generator = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    assert [path.name for path in generator["stale"]()] == [], "run python docs/generate.py"


@pytest.mark.parametrize("path", PAGES, ids=by_name)
def test_python_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AETHER_CONTEXT_POLICY", raising=False)
    monkeypatch.delenv("AETHER_CONTEXT_STORE", raising=False)
    namespace = {"__name__": "__docs__"}
    for fence in fences(path):
        if fence.kind not in ("python", "python no-run"):
            continue
        # Blank lines put the fence's own line numbers into a traceback.
        code = compile("\n" * (fence.line - 1) + fence.body, str(path), "exec", dont_inherit=True)
        if fence.kind == "python no-run":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
        if fence.printed is not None:
            assert printed.getvalue() == fence.printed, f"{path.name}:{fence.line}"


@pytest.mark.parametrize("path", PAGES, ids=by_name)
def test_policies_load(path, tmp_path):
    for fence in fences(path):
        if fence.kind == "toml":
            policy = tmp_path / "policy.toml"
            policy.write_text(fence.body, encoding="utf-8")
            PackPolicy.load(policy)


@pytest.mark.parametrize("path", [ROOT / "README.md", *PAGES], ids=by_name)
def test_links_lead_somewhere(path):
    text = _FENCE.sub("", path.read_text(encoding="utf-8"))
    for link in _LINK.finditer(text):
        target, _, anchor = link["target"].partition("#")
        if "://" in target:
            continue
        page = (path.parent / target).resolve() if target else path
        assert page.exists(), f"{path.name} links to {target}"
        if anchor and page.suffix == ".md":
            assert anchor in anchors(page), f"{path.name} links to {link['target']}"


def test_every_page_is_on_the_site():
    def pages(nav):
        return [
            page
            for one in nav
            for value in one.values()
            for page in ([value] if isinstance(value, str) else pages(value))
        ]

    site = yaml.safe_load((ROOT / ".mkdocs.yml").read_text(encoding="utf-8"))
    assert sorted(pages(site["nav"])) == [path.name for path in PAGES]


@pytest.mark.parametrize("attached", [ContextPackPlugin, context_pack_callbacks])
def test_attach_lists_all_arguments(attached):
    page = (ROOT / "docs" / "attach.md").read_text(encoding="utf-8")
    table = page.split("| argument |")[1].split("\n\n")[0]
    listed = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    assert listed - {"name"} == set(inspect.signature(attached).parameters) - {"name"}


def test_the_command_line_page_tells_defaults_and_what_is_required():
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## `([\w-]+)`\n(.*?)(?=^## |<!-- end)", page, re.MULTILINE | re.DOTALL))
    assert sections.keys() == main.commands.keys()
    shared = re.findall(r"^- `.*", page.split("## `")[0], re.MULTILINE)
    for name, command in main.commands.items():
        rows = re.findall(r"^- `.*", sections[name], re.MULTILINE)
        for parameter in command.params:
            name = (
                parameter.opts[-1]
                if isinstance(parameter, click.Option)
                else parameter.human_readable_name.strip("[].")
            )
            row = next(
                row for row in (*rows, *shared) if re.search(rf"^- `[^`]*(?<![\w-]){re.escape(name)}\b[^`]*`", row)
            )
            value = parameter.default
            if parameter.required:
                assert "` (required): " in row, row
            elif isinstance(value, (int, float, str)) and value and not isinstance(value, bool):
                told = f"{value:g}" if isinstance(value, float) else f"{value}"
                assert f"` (`{told}`): " in row, row


def test_the_page_for_adks_catalogue_has_its_form_and_its_agent_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = ROOT / "docs" / "integration.md"
    _, front, body = path.read_text(encoding="utf-8").split("---\n", 2)
    fields = ["catalog_title", "catalog_description", "catalog_icon", "catalog_tags"]
    assert list(yaml.safe_load(front)) == fields
    headings = re.findall(r"^##? (.*)$", body, re.MULTILINE)
    sections = ["Use cases", "Prerequisites", "Installation", "Use with agent", "Available tools", "Configuration"]
    assert headings == ["Aether Context plugin for ADK", *sections, "Resources"]
    namespace = {"__name__": "agent"}
    (code,) = [fence.body for fence in fences(path) if fence.kind == "python"]
    exec(code, namespace)
    chat = Chat(["It jams."], agent=namespace["root_agent"], plugin=namespace["plugin"])
    namespace["root_agent"].model = chat.llm
    chat.say("What is ticket 7 about?")
    assert len(chat.manifests()) == 1
    assert (tmp_path / "artifacts").is_dir()
    named = set(re.findall(r"`(\w+)(?:\(\))?`", body.split("## Available tools")[1].split("\n## ")[0]))
    assert named == {"tools", "read_artifact", "search_artifact"} | {name for name in dir(adk) if name in named}


def test_the_logo_is_a_square_of_256_pixels():
    head = (ROOT / "docs" / "logo.png").read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", head[16:]) == (256, 256)


def test_a_release_says_what_is_still_to_fill_in(tmp_path):
    missing = runpy.run_path(str(ROOT / ".ci" / "release.py"))["missing"]
    for name in ("pyproject.toml", "aether_context/__init__.py", "docs/changelog.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text("utf-8"), "utf-8")

    def change(name, before, after):
        text = (tmp_path / name).read_text("utf-8")
        assert before in text
        (tmp_path / name).write_text(text.replace(before, after), "utf-8")

    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert [problem.partition(":")[0] for problem in missing(tmp_path)] == ["docs/changelog.md", "pyproject.toml"]
    change("docs/changelog.md", f"{version} (unreleased)", f"{version} (2026-12-01)")
    change("pyproject.toml", "aether-context-adk.example", "example.org")
    assert missing(tmp_path) == []
    change("aether_context/__init__.py", version, "9.9.9")
    assert [problem.partition(":")[0] for problem in missing(tmp_path)] == ["aether_context/__init__.py"]


def test_the_pages_together_are_short():
    texts = [_GENERATED.sub("", path.read_text(encoding="utf-8")) for path in (ROOT / "README.md", *PAGES)]
    words = sum(len(text.split()) for text in texts)
    assert words <= WORDS, f"{words:,} words"


def anchors(page):
    """The anchors of a page's headings, as hosts of Markdown make them."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
