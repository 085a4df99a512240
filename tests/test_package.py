"""The package as a whole: its public surface, what importing it costs, how its modules are named, its errors."""

import importlib
import inspect
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import aether_context
from aether_context import errors
from aether_context.errors import MissingExtra

ROOT = Path(__file__).parents[1]
HEAVY = ("google", "numpy", "torch", "genai_prices")
LATER = (
    "google.adk.agents.llm_agent", "google.adk.agents.loop_agent", "google.adk.tools.agent_tool",
    "google.adk.utils.instructions_utils", "opentelemetry", "fsspec", "numpy", "sqlite3", "tomllib",
    "aether_context.lab.preview", "aether_context.adk.services.artifacts", "aether_context.adk.tools",
    "aether_context.memory", "aether_context.retrieval.pool", "aether_context.store.manifest",
    "aether_context.tokens.estimate",
)  # fmt: skip
"""What the plugin loads where it is used, if at all."""


def loaded_by(code, after=""):
    """Modules that the code loads in a fresh interpreter, and their packages, beyond what ``after`` loads before."""
    script = f"import sys\n{after}\nknown = set(sys.modules)\n{code}\nprint(*set(sys.modules) - known)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    names = done.stdout.split()
    return {*names, *(name.partition(".")[0] for name in names)}


def test_public_names_are_sorted_and_all_there():
    assert aether_context.__all__ == sorted(aether_context.__all__)
    assert dir(aether_context) == aether_context.__all__
    for name in aether_context.__all__:
        assert getattr(aether_context, name).__name__ == name


def test_no_public_name_is_missing_from_all():
    code = (
        "import aether_context as package, types\n"
        "names = {name for name, value in vars(package).items()\n"
        "         if not name.startswith('_') and not isinstance(value, types.ModuleType)}\n"
        "assert not names - set(package.__all__) - {'annotations', 'TYPE_CHECKING', 'Any', 'import_module'}, names"
    )
    loaded_by(code)


@pytest.mark.parametrize("code", ["import aether_context", "from aether_context import PackPolicy"])
def test_importing_loads_nothing_heavy(code):
    assert sorted(loaded_by(code).intersection(HEAVY)) == [], "import it in the function that uses it"


def test_importing_the_plugin_loads_only_what_every_run_uses():
    adk = "import google.adk.agents, google.adk.apps, google.adk.plugins.base_plugin, google.adk.runners"
    loaded = loaded_by("from aether_context.adk import ContextPackPlugin", after=adk)
    assert "aether_context.adk.packer" in loaded
    assert sorted(loaded.intersection(LATER)) == [], "import it in the function that uses it"


def test_importing_the_command_line_loads_next_to_nothing():
    found = loaded_by("import aether_context.lab.cli")
    assert "click" in found
    assert sorted(found.intersection({*HEAVY, "pydantic", "fsspec"})) == []


@pytest.mark.parametrize("module", ["packs", "inspection", "stores"])
def test_commands_that_only_read_packs_load_neither_numpy_nor_what_plays_sessions(module):
    found = loaded_by(f"import aether_context.lab.cli.{module}")
    assert "aether_context.store.packs" in found
    assert sorted(found.intersection({"numpy", "aether_context.lab.tuning.simulation"})) == []


def public_names():
    generator = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    for package in generator["API"]:
        module = importlib.import_module(package)
        yield from ((f"{package}.{name}", getattr(module, name)) for name in module.__all__)


def test_every_public_name_says_what_it_is():
    silent, looked_at = [], 0
    for name, value in public_names():
        if not (inspect.isclass(value) or inspect.isfunction(value)):
            continue
        looked_at += 1
        if not value.__doc__ or value.__doc__.startswith(f"{value.__name__}("):
            silent.append(name)
        inherited = {attribute for parent in getattr(value, "__mro__", ())[1:] for attribute in vars(parent)}
        for attribute, member in [*vars(value).items()] if inspect.isclass(value) else ():
            function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            if attribute[0] == "_" or attribute in inherited or not inspect.isfunction(function):
                continue
            if not function.__doc__:
                silent.append(f"{name}.{attribute}")
    assert looked_at > 40
    assert silent == []


def test_every_install_hint_names_this_distribution():
    """``aether-context`` on the public index is another project with the same import package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == "aether-context-adk"
    assert project["scripts"] == {"aether-context": "aether_context.lab.cli:main"}
    assert {"Homepage", "Documentation", "Source", "Issues", "Changelog"} <= project["urls"].keys()
    found = [path for folder in ("aether_context", "docs", "samples") for path in (ROOT / folder).rglob("*")]
    files = [path for path in found if path.suffix in {".py", ".md", ".toml"}]
    extras = project["optional-dependencies"]
    for path in (ROOT / "README.md", ROOT / "pyproject.toml", *files):
        text = path.read_text(encoding="utf-8")
        for name, extra in re.findall(r"(aether[-_]context[-_a-z]*)\[([a-z0-9,-]+)\]", text):
            assert name == "aether-context-adk", path
            assert set(extra.split(",")) <= extras.keys(), path
        for name in re.findall(r"(?:pip install|upgrade) (?:-U )?[\"'`]?(aether[-_]context[-_a-z]*)", text):
            assert name == "aether-context-adk", path


@pytest.mark.parametrize(("extra", "purpose"), [("s3", "a store on s3://"), ("viewer", "packs in a browser")])
def test_a_missing_extra_says_what_to_install(extra, purpose):
    assert f'pip install "aether-context-adk[{extra}]"' in str(MissingExtra(extra, purpose))


def test_no_test_file_imports_another_one():
    files = sorted((ROOT / "tests").rglob("*.py"))
    assert len(files) > 90
    imports = re.compile(r"^\s*(?:from|import) test_\w+", re.MULTILINE)
    assert [path.name for path in files if imports.search(path.read_text(encoding="utf-8"))] == []


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes() -> None:
    drawn: dict[str, str | None] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"([│├└─ ]*)([A-Z]\w+)", line)
        if found is None or not found[2].endswith(
            ("Error", "Large", "Extra", "Found", "Mismatch", "Incomplete", "Unavailable")
        ):
            continue
        depth = len(found[1]) // 4
        path[depth:] = [found[2]]
        drawn[found[2]] = path[depth - 1] if depth else None
    real = {
        name: one.__base__.__name__ if one is not errors.AetherContextError else None
        for name, one in inspect.getmembers(errors, inspect.isclass)
        if issubclass(one, errors.AetherContextError)
    }
    assert drawn == real
