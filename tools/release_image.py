"""The image: the Dockerfile built by buildah, and `shoal version` in it.

The base comes from a registry. Where none answers, a Debian of the same release that debootstrap made stands in for it:
the Dockerfile's own steps are then run as they are, on Debian's Python 3.11.
"""

from __future__ import annotations

import os
import re
import shutil
import tarfile
from pathlib import Path

from release_place import ByHand, Failed, Place

TAG = "localhost/shoal:rehearsal"
_PACKAGES = "ca-certificates,python3,python3-pip,python3-venv,python-is-python3"
_DEBIAN = "bookworm"
_MIRROR = "http://deb.debian.org/debian"
#: Debian's pip refuses to install beside apt's packages unless it is told that nothing else lives there.
_IN_DEBIAN = {
    "PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "PIP_BREAK_SYSTEM_PACKAGES": "1",
    "PIP_ROOT_USER_ACTION": "ignore",
}
#: Settings of pip and the trusted authorities of this machine, which a step needs where an index is reached by them.
_OF_THIS_MACHINE = ("/etc/pip.conf", "/etc/ssl/certs", "/etc/hosts", "/etc/resolv.conf")


def build_image(place: Place) -> dict[str, object]:
    """Build the manager's image, which has no PyTorch, and run it once; say on which base."""
    buildah = shutil.which("buildah")
    if buildah is None or os.geteuid() != 0:
        raise ByHand(
            "build the image with `docker build .` and run `shoal version` in it: no buildah, or not root here"
        )
    base, name = _base_of(place.source / "Dockerfile"), "registry"
    storage = ("--root", str(place.scratch / "images"), "--runroot", str(place.scratch / "images-run"))
    driver = (buildah, *storage, "--storage-driver", "vfs")
    try:
        place.run(*driver, "pull", base, limit_s=300)
    except Failed:
        name = "debootstrap"
        _make_base(place, driver, base)
    volumes = [word for path in _OF_THIS_MACHINE if Path(path).exists() for word in ("-v", f"{path}:{path}:ro")]
    isolated = ("--isolation", "chroot", "--network", "host")
    built = ("--pull-never", "--format", "docker", "-t", TAG, "--build-arg", "EXTRA=", *volumes, str(place.source))
    place.run(*driver, "build", *isolated, *built)
    container = place.run(*driver, "from", "--pull-never", TAG).strip()
    told = place.run(*driver, "run", "--isolation", "chroot", container, "--", "shoal", "version").strip()
    user = place.run(*driver, "run", "--isolation", "chroot", container, "--", "id", "-un").strip()
    if told != f"shoal {place.version}" or user != "shoal":
        raise Failed(f"the image says {told!r} as {user!r}, not shoal {place.version} as the user shoal")
    return {"image_base": name}


def _base_of(dockerfile: Path) -> str:
    (base,) = re.findall(r"^FROM (\S+)$", dockerfile.read_text(encoding="utf-8"), re.MULTILINE)
    return f"docker.io/library/{base}"


def _make_base(place: Place, driver: tuple[str, ...], base: str) -> None:
    """Make an image of the base's name out of a Debian of its release."""
    debootstrap = shutil.which("debootstrap")
    if debootstrap is None:
        raise ByHand("build the image with `docker build .` and run `shoal version` in it: no registry answers here")
    root = Path(os.environ.get("SHOAL_RELEASE_BASE") or place.scratch / "base")
    if not root.exists():
        place.run(debootstrap, "--variant=minbase", f"--include={_PACKAGES}", _DEBIAN, root, _MIRROR)
    packed = place.scratch / "base.tar"
    with tarfile.open(packed, "w") as tar:
        for path in sorted(root.iterdir()):
            if path.name not in ("proc", "sys", "dev", "run"):
                tar.add(path, path.name)
    container = place.run(*driver, "from", "scratch").strip()
    place.run(*driver, "add", container, packed, "/")
    # Set in the base: `buildah build --env` only says what the image has at the end, and no step of it sees that.
    for name, value in _IN_DEBIAN.items():
        place.run(*driver, "config", "--env", f"{name}={value}", container)
    place.run(*driver, "commit", "--rm", container, base)
    packed.unlink()
