"""The container and the manifests of docs/deploy.md say what an instance needs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from google.adk.cli.cli_tools_click import cli_api_server

from aether_context.cli import main
from aether_context.store.spool import FOLDER

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
VARIABLES = {"SESSIONS_URI", "MEMORY_URI", "ARTIFACTS_URI", "AETHER_CONTEXT_STORE"}


def fences(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


(DOCKERFILE,) = fences("dockerfile")
SPOOL = re.search(rf"{FOLDER}=(\S+)", DOCKERFILE)[1]
MANIFESTS = {one["kind"]: one for text in fences("yaml") for one in yaml.safe_load_all(text)}


def pod(kind: str) -> dict[str, Any]:
    return MANIFESTS[kind]["spec"]["template"]["spec"]


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


@pytest.mark.parametrize("kind", ["Deployment", "Service"])
def test_instances_have_what_they_write_to_and_the_variables_of_the_page(kind: str) -> None:
    spec = pod(kind) if kind == "Deployment" else yaml.safe_load(fences("yaml")[0])["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    volumes = {one["name"]: one for one in spec["volumes"]}
    mounted = {one["mountPath"]: volumes[one["name"]] for one in container["volumeMounts"]}
    assert all("emptyDir" in volume for volume in mounted.values())
    assert SPOOL in mounted
    if kind == "Deployment":
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert "/tmp" in mounted, "ADK's command line asks for a temporary folder"
        assert spec["securityContext"]["runAsUser"] == int(re.search(r"^USER (\d+)$", DOCKERFILE, re.MULTILINE)[1])
        assert set(re.findall(r"--from-literal=(\w+)=", PAGE)) | {one["name"] for one in container["env"]} == VARIABLES
    else:
        assert {one["name"] for one in container["env"]} == VARIABLES
        assert int(mounted[SPOOL]["emptyDir"]["sizeLimit"].removesuffix("Mi")) > 256, "the spool leaves so many MB free"


def test_the_job_runs_a_command_that_there_is() -> None:
    (container,) = MANIFESTS["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    program, name, *options = container["command"]
    assert program == "aether-context"
    assert CliRunner().invoke(main, [name, *options, "--help"]).exit_code == 0
