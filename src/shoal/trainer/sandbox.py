"""A folder for one trainer: where it works, and access to its code and data for a user who may see nothing else.

The agent's home may be closed to all but root, which protects its keys. So the code is copied out of it, and each file
of the data is opened before the trainer gives up its rights. No permissions change, and a trainer can read only the
data of its own job. The folder comes with the control groups that limit the trainer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import shutil
import stat
import tempfile
import weakref
from pathlib import Path

from shoal.errors import Misuse
from shoal.trainer import cgroups
from shoal.trainer.confine import Limits, user_id
from shoal.trainer.launch import LaunchPlan
from shoal.trainer.protocol import TrainerSettings
from shoal.wire.limits import BUNDLE_FILES_MAX, BUNDLE_UNPACKED_MAX_BYTES

_PREFIX = "shoal-trainer-"
_PLAN = "plan.json"
#: Attempts to make a folder. A sweeper can take a new folder only in the moment before it is locked.
_MAKE_ATTEMPTS = 20


class Room:
    """Made before a trainer starts, closed when it has ended. Locked meanwhile, and the lock dies with the agent."""

    def __init__(self, settings: TrainerSettings, limits: Limits, rooms: Path | None = None) -> None:
        other = user_id(limits.user) if os.geteuid() == 0 and limits.user else None
        # Among the agent's own files if possible: there, what a killed agent leaves disturbs nobody.
        parent = (_parent_open_to_all() if other else rooms or Path(tempfile.gettempdir())).absolute()
        parent.mkdir(parents=True, exist_ok=True)
        _sweep(parent)
        folder, lock = _locked_folder(parent)
        # Also runs when the room is garbage-collected, and when the agent ends without closing it.
        self._close = weakref.finalize(self, _give_up, folder, lock)
        self.limits = limits
        #: The settings for the trainer, with the new paths of its code and data.
        self.settings = settings
        #: The file that says how ``shoal.trainer.launch`` confines it.
        self.plan = folder / _PLAN
        work = folder / "work"
        work.mkdir(mode=0o700)
        doors = self._let_in(folder, work, *other) if other else ()
        needs = filter(None, (self.settings.bundle_dir, self.settings.local_folder))
        self.groups = cgroups.make(folder.name, limits)
        plan = LaunchPlan(limits=limits, work=str(work), needs=tuple(needs), doors=doors, groups=self.groups)
        self.plan.write_text(plan.to_json())

    def close(self) -> None:
        """Remove everything; safe to call twice. What cannot be removed now is swept later."""
        self._close()

    def _let_in(self, folder: Path, work: Path, user: int, group: int) -> tuple[tuple[str, str], ...]:
        """Give another user what it needs: a folder, the task's code, and one door for each file of the data."""
        folder.chmod(0o711)
        os.chown(work, user, group)
        bundle = Path(self.settings.bundle_dir)
        if not _is_open_to_all(bundle) and _is_small(bundle):
            bundle = _copied(bundle, folder / "bundle")
        data = folder / "data"
        data.mkdir()
        data.chmod(0o711)
        single = filter(None, (self.settings.graphs, self.settings.initial))
        files = dict.fromkeys((*self.settings.train, *self.settings.test, *self.settings.base, *single))
        doors = {file: str(data / f"{number}-{Path(file).name}") for number, file in enumerate(files)}
        self.settings = dataclasses.replace(
            self.settings,
            bundle_dir=str(bundle),
            train=tuple(doors[file] for file in self.settings.train),
            test=tuple(doors[file] for file in self.settings.test),
            base=tuple(doors[file] for file in self.settings.base),
            graphs=doors.get(self.settings.graphs, ""),
            initial=doors.get(self.settings.initial, ""),
        )
        return tuple(doors.items())


def _copied(bundle: Path, copy: Path) -> Path:
    shutil.copytree(bundle, copy, copy_function=shutil.copyfile, symlinks=True)
    for path in (copy, *copy.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)
    return copy


def _is_open_to_all(folder: Path) -> bool:
    """Whether any user can list this folder and walk to it."""
    with contextlib.suppress(OSError):
        folder = folder.resolve()
        walkable = all(parent.stat().st_mode & stat.S_IXOTH for parent in (folder, *folder.parents))
        return walkable and bool(folder.stat().st_mode & stat.S_IROTH)
    return False


def _is_small(bundle: Path) -> bool:
    """Whether this folder is no larger than a bundle may be, so that a wrong path does not copy a disk."""
    files, size_bytes = 0, 0
    for folder, _, names in os.walk(bundle):
        for name in names:
            files += 1
            size_bytes += os.lstat(os.path.join(folder, name)).st_size
            # Twice as many: each file may have its bytecode next to it.
            if files > 2 * BUNDLE_FILES_MAX or size_bytes > 2 * BUNDLE_UNPACKED_MAX_BYTES:
                return False
    return True


def _parent_open_to_all() -> Path:
    usual = Path(tempfile.gettempdir())
    return next((path for path in (usual, Path("/var/tmp"), Path("/tmp")) if _is_open_to_all(path)), usual)  # noqa: S108


def _locked_folder(parent: Path) -> tuple[Path, int]:
    for _ in range(_MAKE_ATTEMPTS):
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        lock = _lock(folder)
        if lock is not None and folder.exists():
            return folder, lock
        if lock is not None:
            os.close(lock)
    raise Misuse(f"no folder for a trainer could be kept in {parent}: something removes it at once")


def _lock(folder: Path) -> int | None:
    """Lock a folder of ours. Return None if it is not ours, was removed, or a live agent holds it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        if os.fstat(descriptor).st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


def _sweep(parent: Path) -> None:
    """Remove the folders that killed agents left."""
    for folder in sorted(parent.glob(f"{_PREFIX}*")):
        if (lock := _lock(folder)) is not None:
            _give_up(folder, lock)


def _give_up(folder: Path, lock: int) -> None:
    # If a group cannot be removed, its folder stays too: it names the group, so that the next sweep can try again.
    if cgroups.remove(_groups_of(folder)):
        _remove(folder)
    os.close(lock)


def _groups_of(folder: Path) -> tuple[str, ...]:
    """Return the groups that belong to a folder of ours and have its name, if its plan was written."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        found = LaunchPlan.from_json((folder / _PLAN).read_text()).groups.folders
        return tuple(group for group in found if Path(group).name == folder.name)
    return ()


def _remove(folder: Path) -> None:
    # A task may nest folders deeper than Python recurses, and the agent must not fail because of it.
    with contextlib.suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
