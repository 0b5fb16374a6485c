"""Attacks through what Shoal is installed from: an old gRPC that its floor allows, a package that was tampered with."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

from testbed.attacks.kit import ROOT, NotTried, Outcome, Site
from testbed.attacks.member import bombed

PIP_S = 120.0

#: Where a lock file may lie.
LOCKS = ("*.lock", "*.txt", "requirements/*.lock", "requirements/*.txt", ".ci/*.lock", ".ci/*.txt")


def dependencies() -> dict[str, str]:
    """What the core needs, by name, as ``pyproject.toml`` says."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted: dict[str, str] = {}
    for line in project["dependencies"]:
        name, bounds = re.fullmatch(r"([A-Za-z0-9._-]+)\s*(.*)", line).groups()  # type: ignore[union-attr]
        wanted[_plain(name)] = bounds
    return wanted


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def floor_of(name: str) -> str:
    """The oldest release that is allowed."""
    found = re.search(r">=\s*([0-9][0-9a-z.]*)", dependencies()[name])
    if found is None:
        raise ValueError(f"{name} has no floor in pyproject.toml")
    floor = found[1]
    return floor + ".0" * max(0, 2 - floor.count("."))


# 9: on the floor ----------------------------------------------------------------------------------------------


async def gzip_bomb_on_the_floor(folder: Path, scale: float) -> Outcome:
    """The compressed bomb against a manager that runs on the oldest gRPC that ``pyproject.toml`` allows.

    Harm: that gRPC unpacks first and looks at the size afterwards, so that who has no newer one can be killed.
    """
    floor = floor_of("grpcio")
    python, why_not = await asyncio.to_thread(_on_the_floor, folder / "floor", f"grpcio=={floor}")
    if why_not:
        raise NotTried(f"grpcio {floor} cannot be installed: {why_not}")
    async with Site(folder, manager_command=(str(python),)) as site:
        outcome = await bombed(site)
    return Outcome(outcome.held, f"grpcio {floor}: {outcome.told}")


def _on_the_floor(folder: Path, exact: str) -> tuple[Path, str]:
    """An environment with this release; all else is that of ours. And why not, if it cannot be."""
    made = subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", folder],
        capture_output=True,
        text=True,
        timeout=PIP_S,
        check=False,
    )
    python = folder / "bin" / "python"
    if made.returncode:
        return python, made.stderr.strip()[-200:]
    site = next((folder / "lib").glob("python*")) / "site-packages"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", "--target", str(site)]
    done = subprocess.run([*pip, exact], capture_output=True, text=True, timeout=PIP_S, check=False)
    if done.returncode:
        return python, (done.stderr.strip().splitlines() or ["pip failed"])[-1][:200]
    # After its own: what is there already is not looked for here.
    paths = [str(ROOT / "src"), *dict.fromkeys(path for path in sys.path if path.endswith("-packages"))]
    (site / "ours.pth").write_text("\n".join(paths) + "\n")
    code = "import grpc, shoal.runtime.manager_main; print(grpc.__version__)"
    tried = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    if tried.stdout.strip() != exact.partition("==")[2]:
        return python, f"it runs {tried.stdout.strip() or tried.stderr.strip()[-200:]}"
    return python, ""


# 15: a lock file -----------------------------------------------------------------------------------------------


async def tampered_package(folder: Path, scale: float) -> Outcome:
    """Someone changes a package on its way, or on the index that it is installed from.

    Harm: it is installed: there is no lock file, a line of it has no hash, or pip takes what does not match.
    """
    found = sorted({path for pattern in LOCKS for path in ROOT.glob(pattern) if path.is_file() and _is_lock(path)})
    if not found:
        return Outcome(False, "there is no lock file with hashes")
    told = []
    held = True
    for lock in found:
        pinned = requirements_in(lock.read_text())
        bare = [line for line, hashes in pinned.items() if not hashes]
        names = {_plain(line.partition("==")[0].partition("[")[0]) for line in pinned}
        missing = sorted(dependencies().keys() - names)
        said = f"{lock.relative_to(ROOT)} names {len(pinned)} packages"
        if bare or missing:
            held = False
            said += f", {len(bare)} without a hash, without {', '.join(missing) or 'nothing'} of the core"
        else:
            refused, words = await asyncio.to_thread(_tampered, folder, pinned)
            held = held and refused
            said += f", all with hashes; {words}"
        told.append(said)
    return Outcome(held, "; ".join(told))


def _is_lock(path: Path) -> bool:
    return path.stat().st_size < 8 << 20 and "--hash=sha256:" in path.read_text(errors="replace")


def requirements_in(text: str) -> dict[str, list[str]]:
    """Each pinned package of a file in pip's format, and its hashes."""
    whole = re.sub(r"\\\n", " ", text)
    pinned: dict[str, list[str]] = {}
    for line in whole.splitlines():
        line = re.sub(r"(^|\s)#.*", "", line).strip()
        if line and not line.startswith("-"):
            pinned[re.split(r"[\s;]", line)[0]] = re.findall(r"--hash=(sha256:[0-9a-f]{64})", line)
    return pinned


def _tampered(folder: Path, pinned: dict[str, list[str]]) -> tuple[bool, str]:
    """Offer pip a wheel that has the name and version of a pinned package and other content; whether it is refused."""
    line, hashes = next(
        (line, hashes) for line, hashes in pinned.items() if _plain(line).startswith(("rich==", "typer=="))
    )
    name, _, version = line.partition("==")
    wheels, target = folder / "wheels", folder / "target"
    wheels.mkdir(exist_ok=True)
    make_wheel(wheels, name, version)
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{line} {' '.join(f'--hash={each}' for each in hashes)}\n")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--find-links", str(wheels)]
    pip += ["--target", str(target), "--require-hashes", "-r", str(wanted)]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=PIP_S, check=False)
    if done.returncode == 0 or target.exists():
        return False, f"pip installed a tampered {line}"
    is_hash = "HASHES" in done.stderr.upper()
    why = "its hash does not match" if is_hash else done.stderr.strip()[-120:]
    return is_hash, f"pip refuses a tampered {line}: {why}"


def make_wheel(folder: Path, name: str, version: str) -> Path:
    """A package of this name that does nothing good, for any Python."""
    stem = f"{name.replace('-', '_')}-{version}"
    files = {
        f"{name.replace('-', '_')}/__init__.py": "print('tampered')\n",
        f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: none\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},sha256={_digest(text)},{len(text)}\n" for path, text in files.items())
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for each, text in {**files, f"{stem}.dist-info/RECORD": record}.items():
            archive.writestr(each, text)
    return path


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
