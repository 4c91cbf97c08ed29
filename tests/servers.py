"""Real servers for tests, each a process of its own on a free port."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
import redis


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def need(binary: str) -> str:
    """The binary's path; without it the test is skipped on a laptop and fails in CI."""
    path = shutil.which(binary) or shutil.which(binary, path="/usr/sbin:/usr/local/sbin")
    if path is None:
        message = f"{binary} is not installed"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return path


class RedisServer:
    """A Redis of our own; ``appendonly`` keeps data over :meth:`stop` and :meth:`start`."""

    def __init__(self, folder: Path, *options: str, appendonly: bool = False) -> None:
        self.binary = need("redis-server")
        self.folder = folder
        self.port = free_port()
        self.options = options
        self.appendonly = appendonly
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url)

    def start(self) -> None:
        aof = ["--appendonly", "yes" if self.appendonly else "no", "--appendfsync", "always"]
        self.process = subprocess.Popen(
            [self.binary, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", *aof,
             "--dir", str(self.folder), *self.options],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with self.client as client:
                try:
                    client.ping()
                except redis.ConnectionError:
                    time.sleep(0.02)
                else:
                    return
        raise AssertionError("redis-server did not start")

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            self.process.wait(10)
            self.process = None
