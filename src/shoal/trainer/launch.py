"""Runs a trainer module, confined from its first import on: ``python -m shoal.trainer.launch PLAN MODULE ...``.

Standard library only: numpy starts threads, and a thread that already runs would keep the rights we give up.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import resource
import runpy
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from shoal.trainer.confine import Groups, Limits, Unconfined, confine

#: The exit code of a process that would have had too many rights. Its last line says why.
REFUSED_CODE = 77
#: Links to files that were opened for this process point here, with the number of the descriptor.
DOOR = "/dev/fd/"
#: Variables that set where PyTorch keeps compiled code. A process that compiled something passes its own folder on, and
#: a trainer must not write there: the folder's owner would run what a task left.
_CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchPlan:
    """The agent's decisions for one trainer."""

    limits: Limits
    #: The trainer's own folder.
    work: str
    #: Files that it must still be able to read.
    needs: tuple[str, ...] = ()
    #: Files that its user could not reach, each with the name under which it finds them.
    doors: tuple[tuple[str, str], ...] = ()
    groups: Groups = dataclasses.field(default_factory=Groups)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> LaunchPlan:
        plain = json.loads(text)
        return cls(
            limits=Limits(**plain["limits"]),
            work=plain["work"],
            needs=tuple(plain["needs"]),
            doors=tuple((file, name) for file, name in plain["doors"]),
            groups=Groups(**plain["groups"] | {"folders": tuple(plain["groups"]["folders"])}),
        )


def follow(plan: LaunchPlan) -> tuple[str, ...]:
    """Enter the sandbox that the agent made. Return a readable list of the limits in force."""
    # Each file is held twice: open as a door, and mapped.
    limits = dataclasses.replace(plan.limits, files_max=plan.limits.files_max and _room_for(plan))
    for file, name in plan.doors:
        _open_door(file, name)
    confined = confine(limits, (*plan.needs, plan.work), plan.groups)
    _work_in(plan.work)
    return confined


def _room_for(plan: LaunchPlan) -> int:
    wanted = plan.limits.files_max + 2 * len(plan.doors)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if plan.doors and soft != resource.RLIM_INFINITY:
        # Only a trainer that starts as root has doors, and root may raise the limit.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), max(hard, wanted)))
    return wanted


def _open_door(file: str, name: str) -> None:
    """Open a file for good, and give the open file a name. Does not change the file's own permissions."""
    os.symlink(f"{DOOR}{os.open(file, os.O_RDONLY)}", name)


def opened(path: Path) -> BinaryIO:
    """Open a file by its path, or by its door: then this process may not have the right to open it again."""
    if path.is_symlink() and (door := os.readlink(path)).startswith(DOOR):
        return os.fdopen(os.dup(int(door.removeprefix(DOOR))), "rb")
    return path.open("rb")


def _work_in(folder: str) -> None:
    """Make this the folder for files that the task writes without a path. It is removed after the trainer ends."""
    os.umask(0o077)
    for name in _CACHES:
        os.environ.pop(name, None)
    with contextlib.suppress(OSError):
        os.chdir(folder)
        os.environ["TMPDIR"] = folder
        # After a change of user, HOME is the agent's, and the new user has no right to it.
        if not os.access(os.environ.get("HOME", ""), os.W_OK | os.X_OK):
            os.environ["HOME"] = folder


def main() -> None:
    plan, module, *arguments = sys.argv[1:]
    try:
        confined = follow(LaunchPlan.from_json(Path(plan).read_text()))
    except Unconfined as error:
        print(error, file=sys.stderr, flush=True)
        sys.exit(REFUSED_CODE)
    sys.argv = [module, *arguments, "--confined", json.dumps(confined)]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
