"""The pages in docs/ are true: examples run and print what the page says, policies load, tables are those of the code.

A fence marked `python no-run` is compiled only. The fences of a page run in order in one namespace and in an empty
folder. A `text` fence right after a `python` fence is what that one prints.
"""

import contextlib
import inspect
import io
import re
import runpy
from pathlib import Path
from typing import NamedTuple

import click
import pytest
import yaml

from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin, context_pack_callbacks
from aether_context.lab.cli import main

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
WORDS = 20_200
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


def test_the_pages_together_are_short():
    texts = [_GENERATED.sub("", path.read_text(encoding="utf-8")) for path in (ROOT / "README.md", *PAGES)]
    words = sum(len(text.split()) for text in texts)
    assert words <= WORDS, f"{words:,} words"


def anchors(page):
    """The anchors of a page's headings, as hosts of Markdown make them."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
