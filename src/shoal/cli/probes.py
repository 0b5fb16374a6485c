"""What this device is like, asked of the system itself: the facts that `checks` reads. Every wait has an end."""

from __future__ import annotations

import contextlib
import errno
import importlib
import importlib.metadata
import math
import os
import platform
import pwd
import re
import resource
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shoal.cli.checks import (
    ClockFacts,
    CpuFacts,
    DiskFacts,
    Listen,
    OwnDataFacts,
    PrivacyFacts,
    Reach,
    RunFacts,
    SharedMemoryFacts,
    TorchFacts,
)
from shoal.errors import ShoalError
from shoal.identity import listening
from shoal.net.open_files import CONNECTIONS_A_DEVICE, attainable, connections_max

CONNECT_TIMEOUT_S = 3.0
TORCH_TIMEOUT_S = 120.0
_TEST_BYTES = 64 << 10
_SHARED_TEST_NUMBERS = 4 << 20
_TORCH_FILE_MAX_BYTES = 1 << 16
#: So many files of a device's own examples are looked at.
_OWN_FILES_MAX = 1000

_PACKAGES = ("cryptography", "google.protobuf", "grpc", "numpy")

_MULTIPLY = (
    "import torch; from shoal.trainer.device import choose; a = torch.ones(64, 64, device=choose('{device}')); "
    "print(a.device.type); raise SystemExit(0 if float((a @ a)[0, 0]) == 64 else 9)"
)

#: OpenSSL's numbers for what it dislikes about a certificate.
_NOT_YET_VALID, _EXPIRED = 9, 10


def bits() -> int:
    return 64 if sys.maxsize > 1 << 32 else 32


def missing_packages() -> dict[str, str]:
    missing: dict[str, str] = {}
    for name in _PACKAGES:
        try:
            importlib.import_module(name)
        except Exception as error:  # a broken wheel fails in ways of its own
            missing[name] = f"{type(error).__name__}: {error}"
    return missing


def torch_facts() -> TorchFacts:
    """Read from files: where PyTorch dies with SIGILL, importing it would take us along."""
    try:
        installed = importlib.metadata.distribution("torch")
    except importlib.metadata.PackageNotFoundError:
        return TorchFacts(version="")
    cuda = ""
    try:
        with open(str(installed.locate_file("torch/version.py")), encoding="utf-8") as file:
            found = re.search(r"^cuda\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", file.read(_TORCH_FILE_MAX_BYTES), re.MULTILINE)
            cuda = found[1] if found else ""
    except OSError:
        pass
    return TorchFacts(version=installed.version, cuda=cuda, has_gpu=_has_nvidia_gpu())


def _has_nvidia_gpu() -> bool:
    return any(Path(path).exists() for path in ("/dev/nvidia0", "/dev/nvhost-gpu", "/dev/nvgpu", "/proc/driver/nvidia"))


def chosen_device(home: Path) -> str:
    """The processor that an agent of this home would train on."""
    from shoal.runtime.own_processor import choice_of
    from shoal.runtime.paths import Paths
    from shoal.trainer.processors import DEVICE_VARIABLE

    return choice_of(Paths(home)).get(DEVICE_VARIABLE, "auto")


def run_torch(code: str = "", *, device: str = "cpu", timeout_s: float = TORCH_TIMEOUT_S) -> RunFacts:
    """Import and use PyTorch in a process of its own, whatever becomes of that process."""
    code = code or _MULTIPLY.format(device=device)
    began_s = time.monotonic()
    try:
        ended = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return RunFacts(exit_code=None, seconds=time.monotonic() - began_s)
    words = ended.stderr.strip().splitlines()
    return RunFacts(
        exit_code=ended.returncode,
        seconds=time.monotonic() - began_s,
        # An error of our own is told without its class.
        last_words=words[-1].removeprefix("shoal.errors.Misuse: ") if words else "",
        device=ended.stdout.strip(),
    )


def cpu_facts() -> CpuFacts:
    features: frozenset[str] = frozenset()
    try:
        features = cpu_features(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        pass
    return CpuFacts(arch=platform.machine(), features=features, cores=os.cpu_count() or 1)


def cpu_features(cpuinfo: str) -> frozenset[str]:
    """What every core has: on big.LITTLE boards a thread may land on any of them."""
    lists = re.findall(r"^(?:flags|Features)\s*:(.*)$", cpuinfo, re.MULTILINE)
    return frozenset.intersection(*(frozenset(words.split()) for words in lists)) if lists else frozenset()


# The network --------------------------------------------------------------------------------------------------


def listen(host: str, port: int) -> Listen:
    try:
        listening.listen(host, port).close()
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM):
            return "forbidden"
        return "busy" if error.errno == errno.EADDRINUSE else "no-address"
    return "free"


def proxy_variables() -> list[str]:
    """Return the variables of the environment that name a proxy."""
    known = {f"{kind}_proxy" for kind in ("http", "https", "all", "grpc")}
    return sorted(name for name, value in os.environ.items() if name.lower() in known and value)


def reach(host: str, port: int, *, timeout_s: float = CONNECT_TIMEOUT_S) -> tuple[Reach, float]:
    """Try to connect; say how it went and after how long."""
    began_s = time.monotonic()
    try:
        socket.create_connection((host, port), timeout=timeout_s).close()
        outcome: Reach = "open"
    except OSError as error:
        outcome = reach_of(error)
    return outcome, time.monotonic() - began_s


def reach_of(error: OSError) -> Reach:
    """A refusal comes from the host, a silence from whatever drops packets on the way: they mean different things."""
    if isinstance(error, socket.gaierror):
        return "unknown-host"
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    return "no-route" if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN) else "error"


def manager_runs(home: Path) -> bool:
    """Whether a manager of this home runs now: it holds a lock for as long as it does."""
    import fcntl

    try:
        with (home / "cluster" / "lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def cluster_at(host: str, port: int, *, timeout_s: float = CONNECT_TIMEOUT_S) -> str:
    """The cluster whose manager serves there, by what its certificate says of itself; empty: there is none."""
    from shoal.identity.certificates import issued

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is believed or sent: it is only named to a person
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host, port), timeout=timeout_s) as plain,
            context.wrap_socket(plain) as secure,
        ):
            shown = secure.getpeercert(binary_form=True) or b""
        peer = issued(ssl.DER_cert_to_PEM_cert(shown).encode("ascii")).peer
    except (OSError, ValueError, ShoalError):
        return ""
    return peer.cluster if peer.role == "manager" else ""


# Time ----------------------------------------------------------------------------------------------------------


def newest_file_s(home: Path) -> float:
    """When the youngest of Shoal's own files was written: by a clock that may have been right then."""
    files = [Path(__file__), *(home / "node").glob("*.json"), *(home / "operator").glob("*.json")]
    return max((file.stat().st_mtime for file in files if file.is_file()), default=0.0)


def clock_facts(home: Path, *, manager: tuple[str, int] | None = None, ca_pem: str = "") -> ClockFacts:
    """The clock, and what the manager's certificate says of it if one answers there."""
    now_s, newest_s = time.time(), newest_file_s(home)
    if manager is None or not ca_pem:
        return ClockFacts(now_s=now_s, newest_file_s=newest_s)
    try:
        begins_s, ends_s = manager_validity(*manager, ca_pem=ca_pem)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == _NOT_YET_VALID:
            return ClockFacts(now_s=now_s, newest_file_s=newest_s, refused="not-yet-valid")
        if error.verify_code == _EXPIRED:
            return ClockFacts(now_s=now_s, newest_file_s=newest_s, refused="expired")
        return ClockFacts(now_s=now_s, newest_file_s=newest_s)
    except (OSError, ValueError, KeyError):
        return ClockFacts(now_s=now_s, newest_file_s=newest_s)
    return ClockFacts(now_s=now_s, newest_file_s=newest_s, not_before_s=begins_s, not_after_s=ends_s)


def manager_validity(host: str, port: int, *, ca_pem: str, timeout_s: float = CONNECT_TIMEOUT_S) -> tuple[float, float]:
    """When the certificate of that server begins and ends, once its authority is verified."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # members are known by name, not by address; here only the dates matter
    context.load_verify_locations(cadata=ca_pem)
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((host, port), timeout=timeout_s) as plain,
        context.wrap_socket(plain, server_hostname=host) as secure,
    ):
        told = secure.getpeercert() or {}
    return ssl.cert_time_to_seconds(str(told["notBefore"])), ssl.cert_time_to_seconds(str(told["notAfter"]))


def authority_of(host: str, port: int, *, timeout_s: float = CONNECT_TIMEOUT_S) -> bytes:
    """The authority's certificate (DER) that an enrolment server presents first. Believe it only if a line pins it."""
    from shoal.identity.enrolment import greeted
    from shoal.wire.limits import ENROL_AUTHORITY_MAX_BYTES

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection((host, port), timeout=timeout_s) as plain,
        context.wrap_socket(plain) as secure,
        secure.makefile("rb") as stream,
    ):
        size = int.from_bytes(stream.read(4), "big")
        if not 0 < size <= ENROL_AUTHORITY_MAX_BYTES:
            raise ValueError("this is not a Shoal manager's join port")
        return greeted(stream.read(size))[0]


# Room ----------------------------------------------------------------------------------------------------------


def disk_facts(name: str, path: Path) -> DiskFacts:
    """Free space, and one small durable write, in ``path`` or the nearest directory above it that exists."""
    folder = path
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    try:
        free_bytes = shutil.disk_usage(folder).free
        began_s = time.monotonic()
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0" * _TEST_BYTES)
            file.flush()
            os.fsync(file.fileno())
        fsync_s = time.monotonic() - began_s
    except OSError as error:
        return DiskFacts(name=name, path=str(folder), error=error.strerror or str(error))
    return DiskFacts(name=name, path=str(folder), free_bytes=free_bytes, fsync_s=fsync_s)


def memory_bytes() -> tuple[int, int]:
    import psutil

    memory = psutil.virtual_memory()
    return int(memory.total), int(memory.available)


def shared_memory_facts() -> SharedMemoryFacts:
    """Take and give back what an agent takes for a model of four million numbers, by the agent's own means."""
    shm = Path("/dev/shm")
    free_bytes = shutil.disk_usage(shm).free if shm.is_dir() else None
    error = ""
    try:
        from shoal.trainer.shared import SharedVectors

        SharedVectors.create(_SHARED_TEST_NUMBERS).close()
    except (ShoalError, OSError, ImportError, ValueError) as problem:
        error = str(problem)
    return SharedMemoryFacts(error=error, has_memfd=hasattr(os, "memfd_create"), shm_free_bytes=free_bytes)


def open_files_limit() -> int:
    """As a manager or an agent has it: both raise it when they start."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return -1 if soft == resource.RLIM_INFINITY else attainable(soft, hard)


def devices_max() -> int:
    """How many devices a manager on this machine could serve at once."""
    files = open_files_limit()
    return connections_max(resource.RLIM_INFINITY if files < 0 else files) // CONNECTIONS_A_DEVICE


# A device's own examples -------------------------------------------------------------------------------------


def own_data_facts(home: Path) -> OwnDataFacts | None:
    """What the trainer of an agent that we would start can read of its examples; None where it has no folder."""
    from shoal.runtime.own_data import folder_of
    from shoal.runtime.paths import Paths
    from shoal.trainer.confine import Limits, user_id

    folder = folder_of(Paths(home))
    if folder is None:
        return None
    now = _user_name(os.geteuid())
    user = Limits.from_environment(os.environ, device_bytes=0).user
    ids = user_id(user) if os.geteuid() == 0 and user != now else None
    if ids is None:
        return readable_in(folder, user=now)
    with _acting_as(*ids):
        return readable_in(folder, user=user, changes_user=True)


def privacy_facts(home: Path) -> PrivacyFacts | None:
    """What private jobs have spent here; None where there was none, and no limit."""
    from shoal.runtime.paths import Paths
    from shoal.runtime.privacy_accounts import accounts, limit_of

    try:
        found, limit = accounts(Paths(home).node), limit_of(Paths(home).node)
    except ShoalError as error:
        return PrivacyFacts(problem=str(error))
    if not found and limit == math.inf:
        return None
    epsilon, delta = (sum(getattr(each, name) for each in found) for name in ("epsilon", "delta"))
    return PrivacyFacts(jobs=len(found), epsilon=epsilon, delta=delta, limit=limit)


def readable_in(
    folder: Path, *, user: str, changes_user: bool = False, files_max: int = _OWN_FILES_MAX
) -> OwnDataFacts:
    """Which part of a folder the present user can read. Asks the kernel itself, which knows all rules."""
    facts: dict[str, Any] = {"folder": str(folder), "user": user, "changes_user": changes_user}
    for step in (*reversed(folder.absolute().parents), folder):
        # All above it let us through, so this is seen as it is.
        if not os.path.isdir(step):
            return OwnDataFacts(**facts, is_folder=False)
        # To go through a folder is one right, to list what is in it another.
        if not os.access(step, os.X_OK | (os.R_OK if step is folder else 0), effective_ids=True):
            return OwnDataFacts(**facts, closed=str(step))
    seen = 0
    for path in _inside(folder):
        if seen == files_max:
            return OwnDataFacts(**facts, files=seen, all_seen=False)
        is_folder = os.path.isdir(path)
        may = os.access(path, os.R_OK | (os.X_OK if is_folder else 0), effective_ids=True)
        # One that is gone by now was moved or removed by its owner.
        if not may and os.path.lexists(path):
            return OwnDataFacts(**facts, files=seen, unreadable=str(path))
        seen += may and not is_folder
    return OwnDataFacts(**facts, files=seen)


def _inside(folder: Path) -> Iterator[Path]:
    """Files and folders below, each folder before what is in it."""
    for parent, folders, files in os.walk(folder):
        folders.sort()
        for name in (*folders, *sorted(files)):
            yield Path(parent, name)


@contextlib.contextmanager
def _acting_as(user: int, group: int) -> Iterator[None]:
    """As root, with only another user's rights, for as long as the block runs."""
    before = os.getegid(), os.getgroups()
    os.setgroups([])
    os.setegid(group)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(before[0])
        os.setgroups(before[1])


def _user_name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
