"""A home that an earlier Shoal made goes on with this release: members, ended jobs and models are still there.

There was no release before 0.1.0; ``EARLIER`` is a commit that people ran. From 0.2.0 on it is the release before.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from release_index import pip_install
from release_place import ROOT, Failed, Place, free_port, strangers_environment

EARLIER = "4290269c"
DEVICE = "attic"
_WAIT_S = 90.0
#: Small, so that the earlier Shoal trains it within seconds.
_TASK = """
import numpy as np
import shoal
from torch import nn


class Clouds(shoal.Task):
    plan = shoal.Plan(batch_size=100, until=shoal.epochs(2))

    def model(self):
        return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))

    def examples(self, split):
        rng = np.random.default_rng(0 if split == "train" else 1)
        label = rng.integers(0, 2, 600)
        return (rng.normal(size=(600, 2)) + 2.0 * label[:, None]).astype(np.float32), label

    loss = staticmethod(nn.functional.cross_entropy)
"""


def upgrade(place: Place) -> dict[str, object]:
    """Train with the earlier wheel, install this release over it, and train on in the same homes."""
    python = place.python("torch")
    pip_replace(place, python, earlier_wheel(place))
    homes = place.scratch / "homes"
    homes.mkdir()
    task = homes / "clouds.py"
    task.write_text(_TASK, encoding="utf-8")
    port = free_port()
    with _cluster(place, python, homes, port, joins=True):
        _shoal(place, python, homes, "train", task, "--json", "--name", "before")
        before = _pulled(place, python, homes, "before")
    # The version may be the same as that of the commit: force says to take the files of this release all the same.
    pip_install(place, python, "--force-reinstall", "--no-deps", f"shoal=={place.version}")
    with _cluster(place, python, homes, port, joins=False):
        if _pulled(place, python, homes, "before") != before:
            raise Failed(f"the model that {EARLIER} trained has other bytes after the upgrade")
        _shoal(place, python, homes, "train", task, "--json", "--name", "after")
        _pulled(place, python, homes, "after")
    return {"upgraded_from": EARLIER}


def earlier_wheel(place: Place) -> Path:
    """Build the wheel of the earlier commit, from the history of this clone."""
    source, target = place.scratch / "earlier", place.scratch / "earlier-dist"
    source.mkdir()
    try:
        packed = ("git", "archive", EARLIER)
        archive = subprocess.run(packed, cwd=ROOT, capture_output=True, check=True).stdout
    except subprocess.CalledProcessError:
        raise Failed(f"{EARLIER} is not in this clone: fetch its whole history (git fetch --unshallow)") from None
    unpacked = ("tar", "-x", "-C", str(source))
    subprocess.run(unpacked, input=archive, check=True)
    command = (place.python("tools"), "-m", "hatchling", "build", "-t", "wheel", "-d", target)
    place.run(*command, cwd=source, more=place.build_environment())
    (wheel,) = target.glob("*.whl")
    return wheel


def pip_replace(place: Place, python: Path, wheel: Path) -> None:
    """Install a wheel over whatever Shoal is there."""
    place.run(python, "-m", "pip", "install", "-qq", "--no-deps", "--force-reinstall", wheel)


@contextmanager
def _cluster(place: Place, python: Path, homes: Path, port: int, *, joins: bool) -> Iterator[None]:
    """Run a manager and one device in their homes, until the device is alive; end both."""
    shoal, running = str(python.with_name("shoal")), list[subprocess.Popen[bytes]]()

    def start(name: str, *words: str) -> None:
        environment = strangers_environment() | {"SHOAL_HOME": str(homes / name)}
        with (homes / f"{name}.log").open("ab") as log:
            running.append(subprocess.Popen([shoal, *words], cwd=homes, env=environment, stdout=log, stderr=log))

    try:
        up = ("up", "--host", "127.0.0.1", "--advertise", f"127.0.0.1:{port}", "--port", str(port), "--no-token")
        start("manager", *up)
        _until(place, python, homes, "the manager answers", lambda told: True)
        line = _shoal(place, python, homes, "token", "create").split() if joins else []
        found = [word for word in line if word.startswith("shoal://")]
        start("device", "join", *found[:1], "--name", DEVICE)
        _until(
            place,
            python,
            homes,
            f"{DEVICE} is alive",
            lambda told: any(node["node"] == DEVICE and node["state"] == "alive" for node in told),
        )
        yield
    finally:
        for process in reversed(running):
            process.terminate()
        for process in running:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _until(place: Place, python: Path, homes: Path, what: str, is_so: Any) -> None:
    ends_s, last = time.monotonic() + _WAIT_S, ""
    while time.monotonic() < ends_s:
        try:
            last = _shoal(place, python, homes, "nodes", "--json")
            told = json.loads(last)
            if is_so(told["nodes"] if isinstance(told, dict) else told):
                return
        except Failed as error:
            last = str(error)
        time.sleep(0.5)
    logs = "".join(path.read_text(errors="replace")[-1000:] for path in sorted(homes.glob("*.log")))
    raise Failed(f"not within {_WAIT_S:g} s: {what}; last: {last[-600:]}\n{logs}")


def _shoal(place: Place, python: Path, homes: Path, *words: str | Path) -> str:
    environment = {"SHOAL_HOME": str(homes / "manager")}
    return place.run(python.with_name("shoal"), *words, cwd=homes, more=environment)


def _pulled(place: Place, python: Path, homes: Path, job: str) -> str:
    """Return the hash of a job's model."""
    target = homes / f"{job}.safetensors"
    target.unlink(missing_ok=True)
    _shoal(place, python, homes, "model", "pull", job, "-o", target)
    return hashlib.sha256(target.read_bytes()).hexdigest()
