"""axe-core in a page: what an accessibility checker finds. For tests and benchmarks; never part of the wheel."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from testbed.browsers.chromium import Page

VERSION = "4.14.0"
SHA256 = "20c09fe157a8a34a30e241aaa1fcdade657734f08ab379ecfbeb7d45cc46e878"

#: A file of this release, for machines that reach no registry.
VARIABLE = "SHOAL_AXE"
NPM_S = 120


def script() -> Path | None:
    """axe.min.js of the pinned release, by npm if it is not here yet; None: neither is on this machine."""
    kept = Path(os.environ.get(VARIABLE) or Path(tempfile.gettempdir()) / f"shoal-axe-{VERSION}.min.js")
    if not kept.exists() and not _fetch(kept):
        return None
    found = hashlib.sha256(kept.read_bytes()).hexdigest()
    if found != SHA256:
        raise ValueError(f"{kept} is not axe-core {VERSION}: remove it, and npm fetches that release again")
    return kept


def _fetch(to: Path) -> bool:
    if shutil.which("npm") is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", f"axe-core@{VERSION}"]
        try:
            subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=NPM_S)
        except (subprocess.SubprocessError, OSError):
            return False
        with tarfile.open(Path(folder) / f"axe-core-{VERSION}.tgz") as package:
            member = package.extractfile("package/axe.min.js")
            assert member is not None
            # Whole or absent: another run may look at the same time.
            half = to.with_suffix(f".{os.getpid()}")
            half.write_bytes(member.read())
            half.rename(to)
    return True


def violations(page: Page, source: str) -> list[dict[str, Any]]:
    """What axe holds against a page, each with the elements it means."""
    page.evaluate(source)
    found = page.evaluate(
        "axe.run(document, {resultTypes: ['violations']}).then((told) => told.violations.map((each) => "
        "({id: each.id, help: each.help, nodes: each.nodes.slice(0, 5).map((node) => node.html.slice(0, 200) + ' | ' + "
        "node.any.concat(node.all, node.none).map((one) => one.message).join('; '))})))"
    )
    return list(found)
