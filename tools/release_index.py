"""A package index on loopback, and clean environments that install Shoal from it by name."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from pathlib import Path

from release_place import Failed, Place, free_port, strangers_environment

_START_S = 30.0
#: What each environment must and must not be able to import.
_WITHOUT = {"core": ("torch", "onnxruntime"), "onnx": ("torch",), "torch": ("onnxruntime",)}


def serve(place: Place) -> None:
    """Start an index of the archives that were built, and wait until it lists them."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/simple/"
    command = [str(place.python("tools").with_name("pypi-server")), "run", "-p", str(port), "-i", "127.0.0.1"]
    # Without a fallback: what it does not have is asked of the index that pip is configured with.
    command += ["--disable-fallback", "-a", ".", "-P", ".", str(place.dist)]
    with (place.scratch / "index.log").open("wb") as log:
        place.servers.append(subprocess.Popen(command, env=strangers_environment(), stdout=log, stderr=log))
    ends_s = time.monotonic() + _START_S
    while place.wheel.name not in _page(f"{url}shoal/"):
        if time.monotonic() > ends_s:
            raise Failed(f"the local index did not list the wheel within {_START_S:g} s")
        time.sleep(0.2)
    place.index_url = url


def install(place: Place, name: str, *, extra: str = "") -> None:
    """Install ``shoal[extra]`` by name into a clean environment, and check that this release came."""
    python = place.make_environment(name)
    wanted = f"shoal{f'[{extra}]' if extra else ''}=={place.version}"
    pip_install(place, python, wanted)
    place.run(python, "-m", "pip", "check")
    program = (
        "import importlib.util, json, shoal; print(json.dumps([shoal.__file__, "
        f"[each for each in {_WITHOUT[name]!r} if importlib.util.find_spec(each)]]))"
    )
    file, unwanted = json.loads(place.run(python, "-c", program))
    if not Path(file).is_relative_to(python.parents[1]):
        raise Failed(f"{wanted} imports {file}, which is not in its environment")
    if unwanted:
        raise Failed(f"{wanted} brought {', '.join(unwanted)} along")
    told = place.run(python.with_name("shoal"), "version").strip()
    if told != f"shoal {place.version}":
        raise Failed(f"`shoal version` of {wanted} says {told!r}")


def pip_install(place: Place, python: Path, *words: str) -> None:
    """Install with pip; fail unless Shoal itself came from the local index."""
    constraint, report = place.scratch / "constraint.txt", python.parents[1] / "report.json"
    constraint.write_text(f"{place.torch}\n", encoding="utf-8")
    # Compiled as pip does by default: a confined trainer may not write what it compiles, and would do it at each start.
    options = ("--extra-index-url", place.index_url, "-c", str(constraint), "--report", str(report))
    place.run(python, "-m", "pip", "install", "-qq", *options, *words)
    came = {
        package["metadata"]["name"]: package["download_info"]["url"]
        for package in json.loads(report.read_text(encoding="utf-8"))["install"]
    }
    if not came.get("shoal", "").startswith(place.index_url.removesuffix("simple/")):
        raise Failed(f"shoal came from {came.get('shoal')}, not from the local index")


def _page(url: str) -> str:
    try:
        # The address is of loopback and was made above.
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310
            return str(answer.read().decode())
    except OSError:
        return ""
