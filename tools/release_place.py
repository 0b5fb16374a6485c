"""Where a rehearsal of a release works: folders, environments and how its commands run. Does not know the steps."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: A step's longest command installs PyTorch, or trains for a minute on a busy machine.
LONGEST_S = 900
#: The end of what a failed command printed.
_TOLD_CHARS = 2_000
#: A rehearsal that is not told where the repository is needs some address to make links with; this domain is reserved.
REPOSITORY_VARIABLE, SOME_REPOSITORY = "SHOAL_REPOSITORY", "https://forge.example/maintainers/shoal"
#: What a shell of this checkout sets, and what a stranger's shell does not.
_NOT_A_STRANGERS = ("PYTHONPATH", "VIRTUAL_ENV", "SHOAL_HOME", "SHOAL_LOCAL_DATA", "SHOAL_PART")


class Failed(Exception):
    """A step of the rehearsal found something that would break the release."""


class ByHand(Exception):
    """This machine cannot do the step: its text says what a person has to do instead."""


@dataclass(kw_only=True, slots=True)
class Place:
    """A scratch folder with the source, the archives and the environments of one rehearsal."""

    scratch: Path
    version: str
    torch: str
    repository: str
    epoch_s: int
    #: Whether this is the commit of a tag, whose changelog is closed.
    is_tagged: bool = False
    #: Where the local index answers, once its step has started it.
    index_url: str = ""
    servers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def source(self) -> Path:
        return self.scratch / "source"

    @property
    def dist(self) -> Path:
        return self.scratch / "dist"

    @property
    def wheel(self) -> Path:
        return self.dist / f"shoal-{self.version}-py3-none-any.whl"

    @property
    def sdist(self) -> Path:
        return self.dist / f"shoal-{self.version}.tar.gz"

    def python(self, name: str) -> Path:
        """Return the interpreter of an environment; ``tools`` has what releases are checked with."""
        return self.scratch / "environments" / name / "bin" / "python"

    def make_environment(self, name: str) -> Path:
        """Make a clean environment and return its interpreter."""
        self.run(sys.executable, "-m", "venv", str(self.python(name).parents[1]))
        return self.python(name)

    def build_environment(self) -> dict[str, str]:
        """Return what makes two builds of one commit the same: its time, and where the repository is."""
        return {"SOURCE_DATE_EPOCH": str(self.epoch_s), REPOSITORY_VARIABLE: self.repository}

    def run(
        self,
        *command: str | Path,
        cwd: Path | None = None,
        more: Mapping[str, str] | None = None,
        limit_s: float = LONGEST_S,
    ) -> str:
        """Run a command as a stranger would, and return what it printed; raise ``Failed`` with its last words."""
        words = [str(word) for word in command]
        try:
            done = subprocess.run(
                words,
                cwd=cwd or self.scratch,
                env=strangers_environment() | dict(more or {}),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=limit_s,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"{shlex.join(words)} did not end within {limit_s:g} s") from None
        if done.returncode != 0:
            told = f"{done.stdout}\n{done.stderr}".strip()[-_TOLD_CHARS:]
            raise Failed(f"{shlex.join(words)} ended with {done.returncode}:\n{told}")
        return done.stdout

    def close(self) -> None:
        """End the servers that steps started."""
        for server in self.servers:
            server.terminate()
        for server in self.servers:
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
        self.servers.clear()


def strangers_environment() -> dict[str, str]:
    """Return this process's environment without what only a checkout of Shoal sets."""
    kept = {name: value for name, value in os.environ.items() if name not in _NOT_A_STRANGERS}
    return kept | {"PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
