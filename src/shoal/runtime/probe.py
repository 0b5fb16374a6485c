"""What this device is, how busy, and on what link, read from the system. Small: an idle agent imports it."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import platform
import socket
import struct
import sys
from importlib.util import find_spec
from pathlib import Path

from shoal.errors import Misuse
from shoal.identity.join_code import split_endpoint
from shoal.trainer.processors import ENGINE_VARIABLE
from shoal.version import __version__
from shoal.wire.limits import NAME_MAX_CHARS
from shoal.wire.messages import Facts

#: Says which air this device shares, where the system does not know: ``wifi``, a name of its own, or nothing at all.
MEDIUM_VARIABLE = "SHOAL_MEDIUM"

#: Where the system tells of its network interfaces, and of their addresses of the longer kind.
_INTERFACES = Path("/sys/class/net")
_IPV6_ADDRESSES = Path("/proc/net/if_inet6")

#: Asks for an interface's address of the shorter kind: Linux' number for it, and where it lies in the answer.
_ASK_ADDRESS = 0x8915
_ANSWER = slice(20, 24)


def facts() -> Facts:
    """What the device says about itself when it connects. An engine that its owner chose is the only one it has."""
    chosen = os.environ.get(ENGINE_VARIABLE, "")
    return Facts(
        host=socket.gethostname()[:120],
        arch=platform.machine(),
        cpus=os.cpu_count() or 0,
        memory_mb=_memory_mb("MemTotal"),
        python=platform.python_version(),
        torch=_version("torch") if chosen != "onnx" else "",
        shoal=__version__,
        onnx=_version("onnxruntime") if chosen != "torch" else "",
    )


def _version(package: str) -> str:
    """Read from the package's metadata: importing torch would cost 200 MB, and ``importlib.metadata`` 2 MB."""
    for folder in sys.path:
        for metadata in Path(folder).glob(f"{package}-*.dist-info/METADATA"):
            with metadata.open(encoding="utf-8", errors="replace") as lines:
                found = next((line for line in lines if line.startswith("Version:")), "")
            if found:
                return found.removeprefix("Version:").strip()
    # Other installers than pip keep it in other forms.
    return _version_elsewhere(package) if find_spec(package) is not None else ""


def _version_elsewhere(package: str) -> str:
    import importlib.metadata

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def load() -> float:
    """Processes that want to run, per CPU, over the last minute."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


def memory_free_mb() -> int:
    return _memory_mb("MemAvailable")


def _memory_mb(field: str) -> int:
    """A field of /proc/meminfo; 0 where there is none."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith(f"{field}:"):
                    return int(line.split()[1]) // 1024
    except OSError:
        pass
    return 0


def own_address() -> str:
    """The address of a network this device is on: for where no route leads anywhere else."""
    # Only where it is needed: an idle agent does without it.
    import psutil

    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    found = [
        ipaddress.IPv4Address(entry.address)
        for name, entries in psutil.net_if_addrs().items()
        if name in up
        for entry in entries
        if entry.family == socket.AF_INET
    ]
    usable = [address for address in found if not address.is_loopback]
    if not usable:
        raise Misuse("this device has no network: connect it, or name the address that others reach it at with --host")
    # An address that a device gave itself for want of DHCP is used where there is no other.
    return str(min(usable, key=lambda address: address.is_link_local))


def address_towards(endpoint: str) -> str:
    """The address from which this device reaches another: others of the cluster find it there. Sends nothing."""
    host, port = split_endpoint(endpoint)
    # As bytes: for a text Python loads its tables of international names.
    name = host.encode() if host.isascii() else host
    family, kind, number, _, address = socket.getaddrinfo(name, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, number) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def medium(endpoint: str) -> str:
    """The air that this device shares with others on its way there; empty: a link of its own, or not known.

    May look up a name, which takes time.
    """
    told = os.environ.get(MEDIUM_VARIABLE)
    if told is not None:
        return told[:NAME_MAX_CHARS] if told.isprintable() else ""
    try:
        name = _interface_of(address_towards(endpoint))
    except (OSError, ValueError):
        return ""
    return "wifi" if name and (_INTERFACES / name / "wireless").exists() else ""


def _interface_of(address: str) -> str:
    if ":" in address:
        wanted = socket.inet_pton(socket.AF_INET6, address.partition("%")[0]).hex()
        rows = [row.split() for row in _IPV6_ADDRESSES.read_text(encoding="ascii").splitlines()]
        return next((row[-1] for row in rows if row[0] == wanted), "")
    packed = socket.inet_aton(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asking.fileno(), _ASK_ADDRESS, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # it has none
            if answer[_ANSWER] == packed:
                return name
    return ""
