"""Machines on which the pages of docs/operations are typed as they stand. Linux and root.

Each machine has its own network, host name, /etc, /home, /mnt, /opt, /run, /srv and /var/lib. All know each other by
the names that the pages use. Four programs are stand-ins: `sudo -u USER` becomes that user by `runuser`, `scp` and
`ssh` act on these machines' homes, and `systemctl` starts what a unit names (``town_systemctl``). All else is real.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

import pytest
from kit import HERE, WAIT_S
from town_systemctl import runs

from testbed.namespaces import Network, why_no_namespaces

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import site_pages  # noqa: E402

Page = list[site_pages.Block]

#: Folders that each machine has for itself.
_OWN = ("etc", "home", "mnt", "opt", "run", "srv", "var/lib")
HOME = "/home/operator"
#: The longest that one block may take on a busy machine.
_TYPED_WITHIN_S = 300.0
_ENDS_WITHIN_S = 30.0
#: All machines' folders, for `scp`.
_ALL = "/media"

_ENTER = """\
set -e
mount --bind {town} {all}
{open}
for each in {own}; do mount --bind {all}/{name}/$each /$each; done
hostname {name}
cd {home}
exec "$@"
"""

#: Lets other users through a folder that is closed to them, in this machine's view of the file system only.
_OPEN = """\
# Not prose: a program. plain: ok
mkdir -p {hold}
mount --rbind {closed} {hold}
mount -t tmpfs -o mode=755 tmpfs {closed}
for path in {hold}/* {hold}/.[!.]*; do
    to={closed}/${{path##*/}}
    if [ -L "$path" ]; then cp -P "$path" "$to"
    elif [ -d "$path" ]; then mkdir "$to"; mount --rbind "$path" "$to"
    elif [ -e "$path" ]; then : > "$to"; mount --bind "$path" "$to"
    fi
done
"""

_SUDO = """\
#!/bin/sh
if [ "$1" = -u ]; then user=$2; shift 2; exec runuser -u "$user" -- "$@"; fi
exec "$@"
"""

#: HOST:PATH is below the home of that machine.
_SCP = f"""\
#!/bin/sh
place() {{ case "$1" in *:*) echo "{_ALL}/${{1%%:*}}{HOME}/${{1#*:}}" ;; *) echo "$1" ;; esac; }}
exec cp -r "$(place "$2")" "$(place "$3")"
"""

_SSH = f"""\
#!/bin/sh
cd "{_ALL}/$1{HOME}" && shift && exec "$@"
"""


class Staying:
    """What somebody typed that does not return, with its output in a file."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def text(self) -> str:
        return self._log.read_text(errors="replace")

    def until(self, pattern: str) -> str:
        """Wait until it printed this. Return the text that matched."""

        def found() -> str:
            match = re.search(pattern, self.text)
            assert match or self.process.poll() is None, f"it ended before {pattern!r}:\n{self.text[-3000:]}"
            return match[0] if match else ""

        until(f"it prints {pattern!r}", found, lambda: self.text)
        return found()

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it, with every process that it started, and wait until all are gone."""
        for sent in (number, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, sent)
            give_up_s = time.monotonic() + _ENDS_WITHIN_S
            while runs(self.process.pid) and time.monotonic() < give_up_s:
                time.sleep(0.05)
        self.process.wait(_ENDS_WITHIN_S)


class Machine:
    """A machine of the town."""

    def __init__(self, town: Town, name: str) -> None:
        self.name = name
        self._town = town
        self.folder = town.folder / name
        #: What this person has exported on it.
        self.environment: dict[str, str] = {}
        for each in _OWN:
            (self.folder / each).mkdir(parents=True)
        shutil.copytree("/etc", self.folder / "etc", symlinks=True, dirs_exist_ok=True)
        shutil.rmtree(self.folder / "etc" / "netns", ignore_errors=True)
        (self.folder / "run" / "systemd" / "system").mkdir(parents=True)
        self.home.mkdir(parents=True)
        self._install_programs()
        closed = [
            # Not by the town's own path, which may be below the folder that is covered.
            _OPEN.format(hold=shlex.quote(f"{_ALL}/{name}/hold-{number}"), closed=shlex.quote(str(path)))
            for number, path in enumerate(_closed())
        ]
        (self.folder / "enter").write_text(
            _ENTER.format(
                open="".join(closed), town=town.folder, all=_ALL, own=" ".join(_OWN), name=name, home=HOME
            )
        )  # fmt: skip

    @property
    def home(self) -> Path:
        """Its operator's home folder, as this process sees it."""
        return self.folder / HOME[1:]

    def know(self, addresses: Mapping[str, str]) -> None:
        """Name machines for this one: its /etc/hosts."""
        lines = [f"{address} {name}\n" for name, address in addresses.items()]
        (self.folder / "etc" / "hosts").write_text("127.0.0.1 localhost\n" + "".join(lines))

    def type(self, text: str | site_pages.Block, **names: str) -> str:
        """Run what a page says, with these names in place of the page's. Return what it printed."""
        done = subprocess.run(
            self._command(words := self._words(text, names)),
            env=self._variables(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TYPED_WITHIN_S,
            check=False,
        )
        assert done.returncode == 0, f"{words}\nended with {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def stay(self, text: str | site_pages.Block, **names: str) -> Staying:
        """Run what a page says and does not return from, until the town ends."""
        log = self.folder / f"{self.name}-{time.monotonic_ns()}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                self._command(self._words(text, names)),
                env=self._variables(),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        staying = Staying(process, log)
        self._town.staying.append(staying)
        return staying

    def _words(self, text: str | site_pages.Block, names: Mapping[str, str]) -> str:
        if isinstance(text, site_pages.Block):
            self._town.typed.add((text.page, text.line))
            text = text.commands
        for wanted, given in names.items():
            assert wanted in text, f"{wanted} is not in {text}"
            text = text.replace(wanted, given)
        return text

    def _command(self, text: str) -> list[str]:
        own = ("unshare", "--uts", "sh", f"{self.folder}/enter")
        return [*self._town.network.enter(self.name), *own, "sh", "-ec", text]

    def _variables(self) -> dict[str, str]:
        path = f"/opt/shoal/bin:/opt/town:{os.environ['PATH']}:/usr/sbin:/sbin"
        python = os.pathsep.join((str(ROOT / "src"), str(HERE)))
        base = {"HOME": HOME, "PATH": path, "PYTHONPATH": python, "COLUMNS": "200", "TERM": "dumb"}
        return {**base, **self.environment}

    def _install_programs(self) -> None:
        programs = {
            "shoal/bin/shoal": f'#!/bin/sh\nexec {sys.executable} -m shoal.cli.main "$@"\n',
            "town/sudo": _SUDO,
            "town/scp": _SCP,
            "town/ssh": _SSH,
            "town/systemctl": f'#!/bin/sh\nexec {sys.executable} {HERE / "town_systemctl.py"} "$@"\n',
        }
        for name, text in programs.items():
            path = self.folder / "opt" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o755)


class Town:
    """Machines that know each other by name, and nobody else. ``also``: further names, of one of them."""

    def __init__(self, folder: Path, names: Sequence[str], *, also: Mapping[str, str] | None = None) -> None:
        if why := why_no_namespaces():
            pytest.skip(why)
        self.folder = folder
        self.network = Network(names)
        self.staying: list[Staying] = []
        self.typed: set[tuple[str, int]] = set()
        self._names = names
        self._also = dict(also or {})
        self._machines: dict[str, Machine] = {}

    def __enter__(self) -> Self:
        self.network.__enter__()
        try:
            self._machines = {name: Machine(self, name) for name in self._names}
            self.meet()
        except BaseException:
            self.network.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for staying in reversed(self.staying):
            staying.end()
        # Ends what `systemctl` started, too.
        self.network.close()

    def __getitem__(self, name: str) -> Machine:
        return self._machines[name]

    def meet(self, **moved: str) -> None:
        """Tell all machines where each name is. ``moved``: names that are another machine's from now on."""
        self._also |= moved
        at = {name: self.network.address_of(name) for name in self._names}
        at |= {name: at.get(to, self.network.address) for name, to in self._also.items()}
        for machine in self._machines.values():
            machine.know(at)


def until(what: str, holds: object, log: object = str) -> None:
    """Wait until this returns something true."""
    assert callable(holds)
    assert callable(log)
    give_up_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < give_up_s, f"not within {WAIT_S:g} s: {what}\n{log()[-3000:]}"
        time.sleep(0.1)


def blocks_of(test: str, file: str) -> Page:
    """Return the blocks that the pages of operations mark as run by this test, by page and line."""
    mark = f"run by tests/integration/{Path(file).name}::{test}"
    pages = sorted((ROOT / "docs" / "operations").glob("*.md"))
    return [block for page in pages for block in site_pages.blocks(ROOT, page) if block.mark == mark]


@contextlib.contextmanager
def all_typed(town: Town, blocks: Sequence[site_pages.Block]) -> Iterator[None]:
    """Fail at the end unless each of these blocks was typed on a machine of the town."""
    yield
    assert [f"{b.page}:{b.line}" for b in blocks if (b.page, b.line) not in town.typed] == []


def _closed() -> list[Path]:
    """Folders around Python and this checkout that other users cannot walk through, the outer ones first."""
    found = {
        folder
        for path in (Path(sys.executable), ROOT / "src")
        for way in (path.absolute(), path.resolve())
        for folder in way.parents
        if not folder.stat().st_mode & stat.S_IXOTH
    }
    return sorted(found, key=lambda folder: len(folder.parts))
