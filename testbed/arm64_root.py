"""An arm64 Debian root folder with Python, PyTorch and what Shoal needs. Made once, and kept; knows no cluster.

Debian's packages are downloaded and verified by debootstrap and unpacked by this machine's own dpkg. Their scripts do
not run: they take very long under emulation, and Python needs none of them. Wheels are downloaded by pip for a platform
that this machine is not.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

from testbed.commands import NoNamespaces
from testbed.emulator import INSTALL

REPOSITORY = Path(__file__).resolve().parent.parent

SUITE = "bookworm"
MIRROR = "http://deb.debian.org/debian"
#: Beside what debootstrap takes for a minimal system. PyTorch brings its own OpenMP; numpy and grpcio need libstdc++.
DEBIAN_PACKAGES = ("python3", "libstdc++6", "libgomp1")
#: The Python of that suite.
PYTHON = "311"
#: Newest first: wheels say which C library they were built against, and Debian 12 has 2.36.
PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_27_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")

#: The last release whose aarch64 wheel on PyPI needs no CUDA libraries; those of later ones take gigabytes.
TORCH = "2.10.0"
#: What PyTorch imports, without what it names for CUDA.
TORCH_NEEDS = ("filelock", "fsspec", "jinja2", "networkx", "sympy", "typing-extensions")

#: Where the root folder has the wheels' content and, while something runs in it, this checkout and a home.
LIBRARIES = "/opt/libraries"
CHECKOUT = "/opt/checkout"
HOME = "/var/lib/shoal"

#: Downloads of hundreds of megabytes over a thin line.
_STEP_TIMEOUT_S = 3600.0
_TAIL_CHARS = 1_500

Tell = Callable[[str], None]


def default_folder() -> Path:
    """In the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shoal" / "arm64"


def core_requirements(pyproject: Path = REPOSITORY / "pyproject.toml") -> tuple[str, ...]:
    """What Shoal's core needs, as its project file says."""
    return tuple(tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]["dependencies"])


# The commands -----------------------------------------------------------------------------------------------


def debian_command(folder: Path, *, mirror: str) -> list[str]:
    """Download Debian's packages to a folder, their signatures verified."""
    include = f"--include={','.join(DEBIAN_PACKAGES)}"
    options = ("--arch=arm64", "--download-only", "--variant=minbase", include)
    return ["debootstrap", *options, SUITE, str(folder), mirror]


def download_commands(wheels: Path, requirements: Sequence[str], *, torch: str) -> list[list[str]]:
    """Download wheels for aarch64. PyTorch's comes alone: some releases name CUDA packages."""
    download = [*_pip(), "download", "--dest", str(wheels), *_foreign()]
    return [[*download, "--no-deps", f"torch=={torch}"], [*download, *requirements, *TORCH_NEEDS]]


def install_command(wheels: Sequence[Path], into: Path) -> list[str]:
    """Unpack wheels. pip compiles them for this Python: of the same version it saves the emulator that work."""
    return [*_pip(), "install", "--no-index", "--no-deps", "--target", str(into), *_foreign(), *map(str, wheels)]


def inside(root: Path, *command: str, checkout: Path = REPOSITORY / "src") -> list[str]:
    """The words that run a command in the root folder. What is mounted for it is gone when it ends, and its processes.

    The process keeps the id it was started with. Its home in the root folder is in memory, and empty at each start.
    """
    mounts = (
        # The folder as a mount of its own: in a chroot to a plain folder nothing could be mounted over / again.
        'mount --bind "$1" "$1"',
        'mount -t proc proc "$1/proc"',
        'mount --rbind /sys "$1/sys"',
        'mount --rbind /dev "$1/dev"',
        f'mount -t tmpfs -o mode=755 tmpfs "$1{HOME}"',
        'mount -t tmpfs -o mode=1777 tmpfs "$1/tmp"',
        f'mount --bind -o ro "$2" "$1{CHECKOUT}"',
    )
    script = " && ".join((*mounts, 'root=$1 && shift 2 && exec chroot "$root" "$@"'))
    unshare = ["unshare", "--mount", "--propagation", "private"]
    return [*unshare, "sh", "-c", script, "sh", str(root), str(checkout), *command]


def environment() -> dict[str, str]:
    """What a command in the root folder finds."""
    return {
        "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": HOME,
        "LANG": "C.UTF-8",
        "PYTHONPATH": f"{CHECKOUT}:{LIBRARIES}",
        "PYTHONUNBUFFERED": "1",
        # This checkout's folder is bound in, and is not to be written to.
        "PYTHONDONTWRITEBYTECODE": "1",
        # Every instruction the emulator knows: PyTorch 2.10.0 uses some that the first ARMv8 processors do not have.
        "QEMU_CPU": os.environ.get("QEMU_CPU", "max"),
    }


def _pip() -> list[str]:
    return [sys.executable, "-m", "pip", "--disable-pip-version-check"]


def _foreign() -> list[str]:
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    abis = [word for name in (f"cp{PYTHON}", "abi3", "none") for word in ("--abi", name)]
    return ["--only-binary=:all:", *platforms, "--python-version", PYTHON, "--implementation", "cp", *abis]


# Made -----------------------------------------------------------------------------------------------------


def root_name(requirements: Sequence[str], *, torch: str) -> str:
    """A root folder is used again by runs that want the same in it."""
    wanted = (SUITE, *DEBIAN_PACKAGES, PYTHON, *PLATFORMS, *requirements, torch, *TORCH_NEEDS)
    return f"root-torch-{torch}-{hashlib.sha256(' '.join(wanted).encode()).hexdigest()[:8]}"


def made_root(folder: Path, *, torch: str = TORCH, mirror: str = MIRROR, tell: Tell) -> Path:
    """The root folder in this folder, made if it is not there. Half of one is never taken for a whole."""
    requirements = core_requirements()
    root = folder / root_name(requirements, torch=torch)
    if root.exists():
        tell(f"the root folder is there: {root}")
        return root
    _check_tools()
    making, packages = root.with_suffix(".making"), folder / "packages"
    wheels = folder / f"wheels-torch-{torch}"
    for unfinished in (making, packages):
        if unfinished.exists():
            shutil.rmtree(unfinished)
        unfinished.mkdir(parents=True)
    tell(f"downloading Debian {SUITE} for arm64 from {mirror}")
    _do(debian_command(packages, mirror=mirror))
    archives = sorted((packages / "var/cache/apt/archives").glob("*.deb"))
    tell(f"unpacking {len(archives)} packages")
    _unpack(archives, making)
    tell(f"downloading wheels for aarch64: torch {torch} and {len(requirements)} that Shoal's core needs")
    for command in download_commands(wheels, requirements, torch=torch):
        _do(command)
    found = sorted(wheels.glob("*.whl"))
    tell(f"unpacking {len(found)} wheels")
    _do(install_command(found, making / LIBRARIES.lstrip("/")))
    shutil.rmtree(packages)
    making.rename(root)
    return root


def size_mb(root: Path) -> int:
    """What the files of a root folder take, links followed nowhere."""
    total = sum(os.lstat(Path(at) / name).st_size for at, _, names in os.walk(root) for name in names)
    return total // 1_000_000


def _check_tools() -> None:
    tools = ("debootstrap", "dpkg-deb", "tar", "chroot", "unshare", "mount")
    if missing := [tool for tool in tools if shutil.which(tool) is None]:
        raise NoNamespaces(f"there is no {', '.join(missing)} on this machine: {INSTALL}")
    if subprocess.run([*_pip(), "--version"], capture_output=True, check=False).returncode:
        raise NoNamespaces(f"this Python has no pip: run {sys.executable} -m ensurepip")
    if platform.python_version_tuple()[:2] != ("3", "11"):
        # It works, and takes longer.
        print("note: with Python 3.11 here, what is imported there would be compiled beforehand", file=sys.stderr)


def _unpack(archives: Sequence[Path], root: Path) -> None:
    for name in ("bin", "sbin", "lib"):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    for archive in archives:
        # Not dpkg-deb --extract: it puts a folder where /lib is a link.
        read = ["dpkg-deb", "--fsys-tarfile", str(archive)]
        with subprocess.Popen(read, stdout=subprocess.PIPE) as reading:
            words = ["tar", "--extract", "--keep-directory-symlink", "--directory", str(root)]
            unpacked = subprocess.run(words, stdin=reading.stdout, capture_output=True, text=True, check=False)
        if reading.returncode or unpacked.returncode:
            raise NoNamespaces(f"{archive.name} cannot be unpacked: {unpacked.stderr[-_TAIL_CHARS:]}")
    # What the scripts of base-passwd do: a trainer becomes nobody, who must be known.
    for name in ("passwd", "group"):
        shutil.copyfile(root / f"usr/share/base-passwd/{name}.master", root / "etc" / name)
    for place in (CHECKOUT, HOME, LIBRARIES):
        (root / place.lstrip("/")).mkdir(parents=True)


def _do(command: Sequence[str]) -> None:
    """One long step, whose output counts only if it fails."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_STEP_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoNamespaces(f"{' '.join(command)}: {error}") from None
    if done.returncode:
        raise NoNamespaces(f"{' '.join(command)}: ended with code {done.returncode}: {done.stdout[-_TAIL_CHARS:]}")
