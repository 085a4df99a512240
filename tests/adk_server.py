"""`adk api_server` on a free port, for as long as a test needs it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest

ADK = [sys.executable, "-m", "google.adk.cli"]


@contextlib.contextmanager
def api_server(
    agents: Path, *options: str, folder: Path, env: Mapping[str, str] | None = None, command: str = "api_server"
) -> Iterator[httpx.Client]:
    """The agents behind ADK's own server, working in ``folder``."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = folder / "log.txt"
    with log.open("w") as written:
        process = subprocess.Popen(
            [*ADK, command, f"--port={port}", *options, str(agents)],
            env=dict(os.environ if env is None else env),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False) as client:
            wait_for(client, process, log)
            yield client
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=10)


def wait_for(client: httpx.Client, process: subprocess.Popen[bytes], log: Path, seconds: float = 45) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            if client.get("/list-apps").is_success:
                return
        time.sleep(0.2)
    pytest.fail(f"the server does not answer:\n{log.read_text()}")
