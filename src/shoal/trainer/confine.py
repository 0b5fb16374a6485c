"""What a trainer process takes away from itself before it loads a task. Standard library only; knows no task.

The system may refuse any of these steps. A device on which it does still trains, and the texts that ``confine`` returns
list what is in force, what is not, and why. One rule does not depend on the system: a task does not run as root unless
the device's owner allowed it, and never with root's capabilities.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import grp
import os
import pwd
import resource
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import Misuse
from shoal.trainer import mounts
from shoal.trainer.kernel import (
    CLONE_NEWNET,
    bound_capabilities,
    call,
    capabilities,
    drop_capabilities,
    refuse_new_privileges,
)
from shoal.trainer.processors import DEVICE_VARIABLE

USER_VARIABLE = "SHOAL_TRAINER_USER"
MEMORY_VARIABLE = "SHOAL_TRAINER_MEMORY_MB"
NETWORK_VARIABLE = "SHOAL_TRAINER_NETWORK"
ROOT_VARIABLE = "SHOAL_TRAINER_ROOT"

#: The part of the device's memory that a trainer may take. The rest is for the system, the agent and the file cache.
MEMORY_SHARE = 0.8
#: PyTorch with a small model maps about 300 MB itself: a lower default would refuse tasks that may well fit.
MEMORY_FLOOR_BYTES = 512 << 20
#: Kept back from the task, so that the process can still report its failure.
RESERVE_BYTES = 32 << 20

#: Where memory runs out, the kernel should take the trainer, not the agent that would start it again.
_OOM_SCORE_ADJUSTMENT = 500

#: Texts by which Python, numpy, PyTorch and the C++ library report that they got no memory.
_NO_MEMORY = ("MemoryError", "can't allocate memory", "Cannot allocate memory", "bad_alloc", "Unable to allocate")


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a trainer may use. A count of 0 sets no limit."""

    #: Private memory, in use or promised: memory shared with the agent and mapped files do not count.
    memory_bytes: int = 0
    #: Added to its niceness, so that a device's own work comes first.
    nice: int = 0
    files_max: int = 4096
    #: All processes and threads of the trainer's user. Applies only where that is not the agent's user.
    processes_max: int = 512
    file_max_bytes: int = 1 << 30
    #: Whether it may reach other machines, and this one by its addresses.
    network: bool = False
    #: The user that the trainer becomes if it starts as root. Empty if it stays root.
    user: str = "nobody"
    #: Whether a task may run as root, without capabilities, where it cannot become that user.
    root: bool = False

    def __post_init__(self) -> None:
        counts = (self.memory_bytes, self.nice, self.files_max, self.processes_max, self.file_max_bytes)
        if min(counts) < 0:
            raise Misuse(f"a trainer's limits are at least 0, not {min(counts)}")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], *, device_bytes: int) -> Limits:
        """Return what a device's owner chose, or else what suits a device with this much memory (0 if not known)."""
        memory_bytes = max(int(device_bytes * MEMORY_SHARE), MEMORY_FLOOR_BYTES) if device_bytes else 0
        if memory_mb := environment.get(MEMORY_VARIABLE):
            if not (memory_mb.isascii() and memory_mb.isdigit()):
                raise Misuse(f"{MEMORY_VARIABLE} is {memory_mb!r}: say a number of megabytes, or 0 for no limit")
            memory_bytes = int(memory_mb) * 1_000_000
        network = environment.get(NETWORK_VARIABLE, "off")
        if network not in ("on", "off"):
            raise Misuse(f"{NETWORK_VARIABLE} is {network!r}: say on or off")
        root = environment.get(ROOT_VARIABLE) or "no"
        if root not in ("yes", "no"):
            raise Misuse(f"{ROOT_VARIABLE} is {root!r}: say yes or no")
        user = environment.get(USER_VARIABLE) or "nobody"
        return cls(memory_bytes=memory_bytes, network=network == "on", user=user, root=root == "yes")

    def narrowed(self, *, memory_bytes: int, nice: int) -> Limits:
        """Return these limits with less memory and a higher niceness, where those are given."""
        if memory_bytes and self.memory_bytes:
            memory_bytes = min(memory_bytes, self.memory_bytes)
        return dataclasses.replace(self, memory_bytes=memory_bytes or self.memory_bytes, nice=nice or self.nice)

    def for_own_code(self) -> Limits:
        """Return the limits for a trainer that runs no task, so that the device's files need no protection from it."""
        return dataclasses.replace(self, network=True, user="")


class Unconfined(Misuse):
    """This trainer would have rights that a task must not have, so it does not start."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Groups:
    """The control groups that the agent made for one trainer, and which limits they hold for all its processes."""

    folders: tuple[str, ...] = ()
    memory: bool = False
    processes: bool = False
    #: Why no group limits memory, or anything.
    why_not: str = ""


def device_memory_bytes() -> int:
    """Return the memory of this device, or of the container we run in, or 0 if the system does not report it."""
    sizes: list[int] = []
    with contextlib.suppress(ValueError, OSError):
        sizes.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for file in _memory_files():
        # Without a limit, version 2 has "max" and version 1 a huge number.
        with contextlib.suppress(ValueError, OSError):
            sizes.append(int(file.read_text()))
    return min((size for size in sizes if size > 0), default=0)


def _memory_files() -> list[Path]:
    """Return the files that hold the memory limit of our control group: both versions, our own group and the
    outermost."""
    old, new = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    files = [old / "memory.limit_in_bytes", new / "memory.max"]
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, kinds, group = line.split(":", 2)
            if "memory" in kinds.split(","):
                files.append(old / group.lstrip("/") / "memory.limit_in_bytes")
            if not kinds:
                files.append(new / group.lstrip("/") / "memory.max")
    return files


def user_id(name: str) -> tuple[int, int] | None:
    """Return the user and group of a name or a number, or None if there is no such user."""
    try:
        entry = pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)
    except (KeyError, OverflowError):
        return None
    return entry.pw_uid, entry.pw_gid


def confine(limits: Limits, needs: Sequence[str] = (), groups: Groups = Groups()) -> tuple[str, ...]:  # noqa: B008
    """Apply what this system allows, for good. Return a readable list of what is in force.

    ``needs`` are files that this process must still be able to read.
    """
    # The order matters: groups, a private network and a private view need root's rights, and a new user may not raise
    # what was lowered.
    groups = _enter(groups)
    is_cut, network = _cut_network(limits)
    has_view, shared_memory = _look_alone(limits)
    _be_killed_first()
    if limits.nice:
        os.nice(limits.nice)
    lowered = [_limit_memory(limits.memory_bytes, groups), *_limit_files(limits)]
    privileges = _refuse_new_privileges()
    user, changed = _change_user(limits, needs, has_view=has_view)
    if is_cut and capabilities() != 0:
        network = "network cut, but root's capabilities lead back to it"
    processes = _limit_processes(limits.processes_max, groups, changed=changed)
    return (user, *lowered, network, processes, *shared_memory, privileges)


class Reserve:
    """Memory that is kept back from the task, so that a process whose task filled its own can still report that.

    It is set up beforehand, because a process that needs it has no memory left to do so.
    """

    def __init__(self) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        self._kept, self._opened = (soft, hard), (hard, hard)
        #: Memory that the task in this process may take, or 0 if nothing limits it.
        self.task_bytes = 0 if soft == resource.RLIM_INFINITY or sys.platform != "linux" else soft

    def open(self) -> None:
        self._set(self._opened)

    def shut(self) -> None:
        self._set(self._kept)

    def _set(self, limits: tuple[int, int]) -> None:
        try:
            resource.setrlimit(resource.RLIMIT_DATA, limits)
        except (ValueError, OSError):
            pass  # the task lowered it itself


def says_no_memory(text: str) -> bool:
    """Whether the text of an error is the system's refusal to give memory."""
    return any(words in text for words in _NO_MEMORY)


def too_much_memory(memory_bytes: int) -> str:
    return f"the task wanted more than the {megabytes(memory_bytes)} it may use"


def megabytes(count: int) -> str:
    return f"{count // 1_000_000:,} MB"


# One step each: take it, and return the outcome as text ------------------------------------------------


def _enter(groups: Groups) -> Groups:
    """Move this process, which has one thread and no children yet, into the groups that were made for it."""
    try:
        for folder in groups.folders:
            (Path(folder) / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as error:
        return Groups(why_not=f"its control group cannot be entered: {error.strerror}")
    return groups


def _cut_network(limits: Limits) -> tuple[bool, str]:
    if limits.network:
        return False, "network as the agent's"
    if refused := _why_not_alone():
        return False, f"network not cut ({refused})"
    refused = call("unshare", CLONE_NEWNET)
    return not refused, f"network not cut ({refused})" if refused else "no network"


def _look_alone(limits: Limits) -> tuple[bool, tuple[str, ...]]:
    """Enter a private view of the file system with its own /dev/shm. Shoal's own code stays in the agent's view."""
    if not limits.user:
        return False, ()
    if refused := _why_not_alone() or mounts.own_view():
        return False, (f"no private /dev/shm ({refused})",)
    refused = mounts.own_shared_memory(limits.memory_bytes)
    return True, (f"no private /dev/shm ({refused})" if refused else "private /dev/shm",)


def _why_not_alone() -> str:
    """Return why this process cannot have a private network or view, as far as we can tell beforehand, or ""."""
    if sys.platform != "linux":
        return "only Linux can"
    if os.geteuid() != 0:
        return "only root can"
    # Both hold for one thread and those it starts: threads that run already would be a way around it.
    return "threads run already" if len(os.listdir("/proc/self/task")) > 1 else ""


def _be_killed_first() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE_ADJUSTMENT))


def _limit_memory(memory_bytes: int, groups: Groups) -> str:
    if not memory_bytes:
        return "memory not limited"
    if sys.platform != "linux":
        return "memory not limited (only Linux can)"
    # Not RLIMIT_AS: it counts address space that PyTorch and CUDA reserve and never use.
    soft = _lower(resource.RLIMIT_DATA, memory_bytes, spare=RESERVE_BYTES)
    if groups.memory:
        return f"memory {megabytes(soft)}"
    why = f": {groups.why_not}" if groups.why_not else ""
    return f"memory {megabytes(soft)} per process (shared memory and files in memory do not count{why})"


def _limit_files(limits: Limits) -> Iterator[str]:
    _lower(resource.RLIMIT_CORE, 0)
    if limits.files_max:
        _lower(resource.RLIMIT_NOFILE, limits.files_max)
    if limits.file_max_bytes:
        yield f"files up to {megabytes(_lower(resource.RLIMIT_FSIZE, limits.file_max_bytes))}"


def _limit_processes(processes_max: int, groups: Groups, *, changed: bool) -> str:
    if changed and processes_max:
        # The system counts all of a user's processes, and those of the agent's user must not be limited.
        return f"{_lower(resource.RLIMIT_NPROC, processes_max):,} processes"
    return f"{processes_max:,} processes" if groups.processes and processes_max else "processes not limited"


def _refuse_new_privileges() -> str:
    """Let no program that this process starts, such as sudo, have more rights than the process itself."""
    if sys.platform != "linux":
        return "new privileges not refused (only Linux can)"
    refused = refuse_new_privileges()
    return f"new privileges not refused ({refused})" if refused else "no new privileges"


def _change_user(limits: Limits, needs: Sequence[str], *, has_view: bool) -> tuple[str, bool]:
    """Stop being root, if the other user can read what a trainer needs, and give up all capabilities."""
    now = _name_of(os.geteuid())
    if not limits.user:
        return f"user {now}", False
    if sys.platform == "linux":
        bound_capabilities()
    if os.geteuid() != 0:
        _give_up_capabilities()
        return f"user {now}", False
    wanted = user_id(limits.user)
    if wanted is None:
        why = f"there is no user {limits.user}"
    elif wanted[0] == 0:
        why = "the owner's choice"
    else:
        why = _become(limits.user, *wanted, needs=needs, has_view=has_view)
    if not why:
        _give_up_capabilities()
        return f"user {limits.user}", True
    if wanted is None or wanted[0] != 0:
        _demand_permission(limits, why)
    _give_up_capabilities()
    return (
        f"user {now} without capabilities ({why}): it can read and change root's files, this device's keys too",
        False,
    )


def _demand_permission(limits: Limits, why: str) -> None:
    if not limits.root:
        raise Unconfined(
            f"a task does not run as root, and {why}. Install Python and Shoal where {limits.user} can read them "
            f"(such as /opt), or name another user in {USER_VARIABLE}. {ROOT_VARIABLE}=yes lets tasks run as root "
            "without capabilities: they can then read and change root's files, this device's keys too"
        )


def _give_up_capabilities() -> None:
    if sys.platform != "linux":
        return
    drop_capabilities()
    if left := capabilities():
        raise Unconfined(
            f"this process's capabilities could not be given up ({left:#x} are left), so no task runs here"
        )


def _become(name: str, user: int, group: int, *, needs: Sequence[str], has_view: bool) -> str:
    """Become another user. Return why that failed, or ""."""
    before = os.getegid(), os.getgroups()
    # Checked as root: a file that is missing for everyone, such as an entry of sys.path, is not needed.
    needed = [path for path in (*sys.path, __file__, *needs) if os.path.exists(path)]
    try:
        hidden = _become_for_a_moment(user, group, needed)
        if hidden and has_view:
            libraries = os.environ.get("LD_LIBRARY_PATH", "").split(":")
            refused = mounts.open_way((*needed, sys.prefix, sys.base_prefix, *filter(None, libraries)))
            hidden = _become_for_a_moment(user, group, needed) or (refused and hidden)
        if not hidden:
            # Called by root, these change the real, the effective and the saved one.
            os.setgid(group)
            os.setuid(user)
            return ""
        why = f"{name} cannot read {hidden}"
    except OSError as error:
        why = f"becoming {name} failed: {os.strerror(error.errno or errno.EPERM)}"
    with contextlib.suppress(OSError):
        os.setegid(before[0])
        os.setgroups(before[1])
    return why


def _graphics_groups() -> list[int]:
    """Return the groups that may use a graphics processor, if the device has one and its owner did not choose the
    CPU."""
    has_one = any(os.path.exists(path) for path in ("/dev/dri", "/dev/kfd", "/dev/nvidia0"))
    if not has_one or os.environ.get(DEVICE_VARIABLE) == "cpu":
        return []
    return [group.gr_gid for group in grp.getgrall() if group.gr_name in ("video", "render")]


def _become_for_a_moment(user: int, group: int, paths: Sequence[str]) -> str:
    """Return the first of these paths that this user cannot read, or "". The kernel decides, as it has all rules."""
    os.setgroups(_graphics_groups())
    os.setegid(group)
    os.seteuid(user)
    try:
        return next((path for path in paths if not _is_readable(path)), "")
    finally:
        os.seteuid(0)


def _is_readable(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY))
        # The right to list a folder does not include the right to reach the files in it.
        return not os.path.isdir(path) or os.path.exists(os.path.join(path, "."))
    except OSError:
        return False


def _lower(kind: int, wanted: int, *, spare: int = 0) -> int:
    """Set a limit that can be raised by ``spare`` at most, but never above an existing one. Return it."""
    soft, hard = resource.getrlimit(kind)
    hard = wanted + spare if hard == resource.RLIM_INFINITY else min(wanted + spare, hard)
    soft = min(wanted, hard) if soft == resource.RLIM_INFINITY else min(wanted, soft, hard)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(kind, (soft, hard))
    return resource.getrlimit(kind)[0]


def _name_of(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
