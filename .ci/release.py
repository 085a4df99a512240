"""Builds what is uploaded, and checks it: `python .ci/release.py` in an environment with the packages build and twine.

It uploads nothing. With ``--check`` it only says what a person has still to fill in.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def missing(root: Path = ROOT) -> list[str]:
    """What keeps the tree from being released, a sentence each."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version, problems = project["version"], []
    if f'__version__ = "{version}"' not in (root / "aether_context/__init__.py").read_text(encoding="utf-8"):
        problems.append(f"aether_context/__init__.py: __version__ is not {version}")
    if not re.match(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)\n", section(root)):
        problems.append(f"docs/changelog.md: its first heading is not '{version} (YEAR-MONTH-DAY)'")
    names = [name for name, url in project["urls"].items() if ".example" in url]
    if names:
        problems.append(f"pyproject.toml: [project.urls] has no real address for {', '.join(names)}")
    return problems


def section(root: Path = ROOT) -> str:
    """The changelog's newest section, its heading first."""
    return (root / "docs/changelog.md").read_text(encoding="utf-8").split("\n## ")[1]


def main() -> int:
    if problems := missing():
        print(*problems, sep="\n")
        return 1
    if "--check" in sys.argv:
        return 0
    with tempfile.TemporaryDirectory() as folder:
        python = [sys.executable, "-m"]
        subprocess.run([*python, "build", "--outdir", folder, str(ROOT)], check=True)
        files = sorted(Path(folder).iterdir())
        subprocess.run([*python, "twine", "check", "--strict", *map(str, files)], check=True)
        venv.create(f"{folder}/venv", with_pip=True)
        (wheel,) = (file for file in files if file.suffix == ".whl")
        subprocess.run([f"{folder}/venv/bin/pip", "install", "-q", str(wheel)], check=True)
        subprocess.run([f"{folder}/venv/bin/aether-context", "demo"], check=True, cwd=folder, stdout=subprocess.DEVNULL)
        (ROOT / "dist").mkdir(exist_ok=True)
        for file in files:
            file.replace(ROOT / "dist" / file.name)
    print(f"dist/ holds {', '.join(file.name for file in files)}\n\n## {section()}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
