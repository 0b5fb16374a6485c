"""Run a trainer module, confined from its first import on. Run as ``python -m shoal.trainer.launch PLAN MODULE ...``.

Standard library only: numpy starts threads, and a thread that was there before would keep the rights we give up.
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

#: How the process ends that would have had too many rights; its last line says why.
REFUSED_CODE = 77
#: A file that was opened for us is found behind a link to this, with the number of its descriptor.
DOOR = "/dev/fd/"
#: Where PyTorch keeps compiled code, if the environment says so. A process that compiled something passes its own
#: folder on, which a trainer must not write to: its owner would run what a task left there.
_CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchPlan:
    """What the agent decided for one trainer."""

    limits: Limits
    #: A folder of the trainer's own.
    work: str
    #: What it must still be able to read.
    needs: tuple[str, ...] = ()
    #: Files its user could not walk to, each with the name under which it finds them.
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
    """Take up the place that was made for us; what is in force, in words."""
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
        # Only root has doors, and root may raise it.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), max(hard, wanted)))
    return wanted


def _open_door(file: str, name: str) -> None:
    """Open a file for good, and give the open file a name. Who may open it by its own name stays as it is."""
    os.symlink(f"{DOOR}{os.open(file, os.O_RDONLY)}", name)


def opened(path: Path) -> BinaryIO:
    """A file by its path, or the open file behind a door, which this process may not have the right to open again."""
    if path.is_symlink() and (door := os.readlink(path)).startswith(DOOR):
        return os.fdopen(os.dup(int(door.removeprefix(DOOR))), "rb")
    return path.open("rb")


def _work_in(folder: str) -> None:
    """What the task writes without saying where goes to a folder that is removed after it."""
    os.umask(0o077)
    for name in _CACHES:
        os.environ.pop(name, None)
    with contextlib.suppress(OSError):
        os.chdir(folder)
        os.environ["TMPDIR"] = folder
        # A user that was changed to may have no home, and has no right to the agent's.
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
