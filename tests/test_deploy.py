"""The container and the service of docs/deploy.md say what an instance needs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml
from google.adk.cli.cli_tools_click import cli_api_server
from terminal import run
from wording import SPOOL_FOLDER

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
VARIABLES = {"SESSIONS_URI", "MEMORY_URI", "ARTIFACTS_URI", "AETHER_CONTEXT_STORE"}


def fences(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


(DOCKERFILE,) = fences("dockerfile")
SPOOL = re.search(rf"{SPOOL_FOLDER}=(\S+)", DOCKERFILE)[1]


def test_the_image_installs_extras_that_there_are_and_runs_as_nobody_special() -> None:
    named = re.search(r"aether-context-adk\[([\w,-]+)\]", DOCKERFILE)[1].split(",")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(named) <= project["optional-dependencies"].keys()
    user = re.search(r"^USER (\d+)$", DOCKERFILE, re.MULTILINE)[1]
    assert int(user) > 0
    assert f"-o {user} -g {user} -m 700 {SPOOL}" in DOCKERFILE
    assert DOCKERFILE.index("USER") > DOCKERFILE.index("RUN pip")


def test_the_images_command_is_one_that_adk_has() -> None:
    (command,) = yaml.safe_load(re.search(r"^CMD (.*)$", DOCKERFILE, re.MULTILINE)[1])[2:]
    assert command.startswith("exec adk api_server ")
    known = {name for one in cli_api_server.params for name in one.opts}
    assert set(re.findall(r"--\w+", command)) <= known
    assert set(re.findall(r'"\$(\w+)"', command)) == VARIABLES - {"AETHER_CONTEXT_STORE"}


def test_instances_have_what_they_write_to_and_the_variables_of_the_page() -> None:
    spec = yaml.safe_load(fences("yaml")[0])["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    volumes = {one["name"]: one for one in spec["volumes"]}
    mounted = {one["mountPath"]: volumes[one["name"]] for one in container["volumeMounts"]}
    assert {one["name"] for one in container["env"]} == VARIABLES
    assert int(mounted[SPOOL]["emptyDir"]["sizeLimit"].removesuffix("Mi")) > 256, "the spool leaves so many MB free"


def test_the_job_runs_a_command_that_there_is() -> None:
    (command,) = (text.split() for text in fences("shell") if " forget " in text)
    assert command[0] == "aether-context"
    run(*command[1:], "--help")
    user = re.search(r"^USER (\d+)$", DOCKERFILE, re.MULTILINE)[1]
    assert f"user, group and `fsGroup` {user}" in PAGE
