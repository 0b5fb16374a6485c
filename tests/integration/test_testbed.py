"""Devices made of this machine: they have the rates, shares and lines they were given, and leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from kit import HERE

from shoal.runtime.operator import Operator
from shoal.sim.rng import Rng
from shoal.trainer.protocol import TrainerSettings
from shoal.trainer.shared import SharedVectors
from shoal.wire.messages import WorkerView
from testbed import owners, paced
from testbed.cluster import Cluster
from testbed.commands import ip, listed
from testbed.devices import Board, Testbed, boards, clean
from testbed.devices import left_of as all_left_of
from testbed.echo_job import echo_job
from testbed.measure import transfer
from testbed.namespaces import Network, NoNamespaces, left_of, remove_stale, why_no_namespaces
from testbed.proxy import SEGMENT_BYTES, Line, Proxy, lateness_s
from testbed.quota import groups
from testbed.rates import bucket
from testbed.sockets import listener_in

#: The testbed is a tool for measuring: no promise of Shoal rests on it.
pytestmark = pytest.mark.nightly

DEVICES = ["one", "two"]
LIMIT_S = 150.0
ROOT = HERE.parent.parent

_SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=float(sys.argv[4])) as peer:
    peer.sendall(bytes(int(sys.argv[3])))
    peer.shutdown(socket.SHUT_WR)
    print(peer.recv(1).decode(), peer.getsockname()[0])
"""


@pytest.fixture
def network() -> Iterator[Network]:
    if why_not := why_no_namespaces():
        pytest.skip(why_not)
    with Network(DEVICES) as network:
        yield network


class _Sink:
    """Takes in all that a connection brings, then says one letter."""

    def __init__(self, host: str, *, namespace: str = "") -> None:
        self._socket = listener_in(namespace, host) if namespace else socket.create_server((host, 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> int:
        self._thread.start()
        return int(self._socket.getsockname()[1])

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(LIMIT_S)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            with peer:
                while peer.recv(1 << 16):
                    pass
                peer.sendall(b"k")


def _send(network: Network, device: str, port: int, *, size: int = 1, timeout_s: float = LIMIT_S, to: str = "") -> str:
    options = (to or network.address, str(port), str(size), str(timeout_s))
    words = (*network.enter(device), sys.executable, "-c", _SEND, *options)
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def test_a_device_reaches_this_machine_under_its_own_address_until_it_is_cut_off(network: Network) -> None:
    with _Sink(network.address) as port:
        for device in DEVICES:
            assert _send(network, device, port) == f"k {network.address_of(device)}"
        network.cut("one")
        assert "Error" in _send(network, "one", port, timeout_s=1.0)
        assert _send(network, "two", port) == f"k {network.address_of('two')}"
        network.mend("one")
        assert _send(network, "one", port) == f"k {network.address_of('one')}"


def test_a_split_network_is_two_networks_until_it_is_one_again() -> None:
    if why_not := why_no_namespaces():
        pytest.skip(why_not)

    with contextlib.ExitStack() as stack:
        network = stack.enter_context(Network(["one", "two", "three"]))
        sinks = {"": stack.enter_context(_Sink(network.address))}
        for name in ("one", "three"):
            sink = _Sink(network.address_of(name), namespace=network.namespace_of(name))
            sinks[name] = stack.enter_context(sink)

        def reached_by(device: str) -> list[str]:
            """Which of device one, device three and this machine it reaches."""
            ends = {name: network.address_of(name) if name else network.address for name in sinks}
            answers = {name: _send(network, device, sinks[name], to=ends[name], timeout_s=2.0) for name in ends}
            return [name for name, answer in answers.items() if answer.startswith("k ")]

        network.split(["one", "two"])
        assert reached_by("two") == ["one"]
        network.rejoin()
        deadline_s = time.monotonic() + LIMIT_S
        # Until the kernel asks again where a neighbour is that did not answer.
        while (reached := reached_by("two")) != ["", "one", "three"]:
            assert time.monotonic() < deadline_s, reached
        network.split(["two"])
        assert reached_by("two") == []
    assert left_of(os.getpid()) == []


def test_a_limit_holds_for_one_device_and_can_be_taken_away(network: Network) -> None:
    size = 1_000_000

    def took_s(device: str) -> float:
        began_s = time.monotonic()
        assert _send(network, device, port, size=size).startswith("k")
        return time.monotonic() - began_s

    with _Sink(network.address) as port:
        network.limit("one", down_mbps=4.0, up_mbps=4.0)
        # 8 Mbit at 4 Mbit/s, less what may pass at once.
        assert took_s("one") > 1.7
        assert took_s("two") < 1.7
        network.unlimit("one")
        assert took_s("one") < 1.7


def test_nothing_is_left_and_a_process_on_a_device_is_ended(network: Network) -> None:
    words = (*network.enter("one"), sys.executable, "-c", "import time; time.sleep(60)")
    with subprocess.Popen(words) as process:
        while "python" not in os.readlink(f"/proc/{process.pid}/exe"):
            time.sleep(0.01)
        assert left_of(os.getpid())
        network.close()
        assert process.wait(LIMIT_S) < 0
    assert left_of(os.getpid()) == []


def test_two_networks_of_one_process_are_apart(network: Network) -> None:
    with Network(DEVICES) as other:
        assert other.address != network.address
        with _Sink(other.address) as port:
            assert _send(other, "one", port) == f"k {other.address_of('one')}"
    with _Sink(network.address) as port:
        assert _send(network, "one", port) == f"k {network.address_of('one')}"


def test_what_a_killed_process_left_is_removed_by_the_next() -> None:
    if why_not := why_no_namespaces():
        pytest.skip(why_not)
    made = (
        "import os, signal; from testbed.namespaces import Network; Network(['a']).__enter__(); os.kill(os.getpid(), 9)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", made], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ) as maker:
        maker.wait(LIMIT_S)
    assert left_of(maker.pid)
    remove_stale()
    assert left_of(maker.pid) == []


@pytest.mark.parametrize("numbered", [False, True])
def test_a_link_that_no_testbed_wrote_down_is_left_alone(numbered: bool) -> None:
    """A bridge of somebody else, called as ours are: it was removed as if its owner were a process that is gone."""
    if why_not := why_no_namespaces():
        pytest.skip(why_not)
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait(LIMIT_S)
    name = f"{owners.BRIDGE}{gone.pid}{'-1' if numbered else ''}"
    ip("link", "add", name, "type", "bridge")
    try:
        remove_stale()
        assert name not in clean().removed
        assert name in [link["ifname"] for link in listed("link")]
    finally:
        ip("link", "del", name)


def test_two_devices_of_one_name_are_refused() -> None:
    with pytest.raises(NoNamespaces, match="different names"):
        Network(["a", "a"])


# Rates ---------------------------------------------------------------------------------------------------


@pytest.fixture
def takes_root() -> None:
    if why_not := why_no_namespaces():
        pytest.skip(why_not)


@pytest.fixture
def takes_quotas(takes_root: None) -> None:
    try:
        groups()
    except NoNamespaces as error:
        pytest.skip(str(error))


def _elsewhere(story: Callable[..., Any], *arguments: str) -> Any:
    """What a story of this file tells from a process of its own: a test itself may connect to loopback alone."""
    words = f"import json, sys, test_testbed; print(json.dumps(test_testbed.{story.__name__}(*sys.argv[1:])))"
    with _started("-c", words, *arguments) as process:
        said, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    assert all_left_of(process.pid) == []
    return json.loads(said.splitlines()[-1])


def _mbps(network: Network, *pairs: tuple[str, str]) -> float:
    return sum(flow.mbps for flow in transfer(network, pairs, seconds=1.0))


def _reach(wanted: Sequence[float], measure: Callable[[], Sequence[float]]) -> None:
    """A rate is a limit, which no measurement passes. A busy machine may not fill it: one in twelve has to."""
    best = [0.0] * len(wanted)
    for _ in range(12):
        best = [max(pair) for pair in zip(best, measure(), strict=True)]
        assert all(found < 1.15 * rate for found, rate in zip(best, wanted, strict=True)), best
        if all(found > 0.9 * rate for found, rate in zip(best, wanted, strict=True)):
            return
    raise AssertionError(f"measured {best} of {wanted}")


def rates_of_two() -> list[float]:
    wanted = [Board(name="one", up_mbps=8, down_mbps=40), Board(name="two", up_mbps=100, down_mbps=16)]
    with Testbed(wanted) as bed:
        return [_mbps(bed.network, ("one", "two")), _mbps(bed.network, ("two", "one"))]


@pytest.mark.usefixtures("takes_root")
def test_between_two_devices_the_up_rate_of_one_and_the_down_rate_of_the_other_hold() -> None:
    _reach((8, 40), partial(_elsewhere, rates_of_two))


_TAKE_AND_SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=60) as peer:
    left = int(sys.argv[3])
    while left:
        left -= len(peer.recv(min(left, 1 << 16)))
    peer.sendall(b"k" + bytes(int(sys.argv[4])))
    peer.recv(1)
"""


def _both_rates_mbps() -> tuple[float, float]:
    """What a device on a link of 20 Mb/s down and 8 Mb/s up took from this machine, and sent to it."""
    down_bytes, up_bytes = 7_500_000, 3_000_000
    wanted = [Board(name="one", up_mbps=8, down_mbps=20)]
    with Testbed(wanted) as bed, socket.create_server((bed.address, 0)) as listener:
        listener.settimeout(LIMIT_S)
        told = (bed.address, str(listener.getsockname()[1]), str(down_bytes), str(up_bytes))
        with subprocess.Popen(bed["one"].exec(sys.executable, "-c", _TAKE_AND_SEND, *told)) as process:
            peer, _ = listener.accept()
            with peer:
                began_s = time.monotonic()
                peer.sendall(bytes(down_bytes))
                assert peer.recv(1) == b"k"
                taken_s, left = time.monotonic(), up_bytes
                while left:
                    left -= len(peer.recv(1 << 16))
                sent_s = time.monotonic()
            assert process.wait(LIMIT_S) == 0
    return 8e-6 * down_bytes / (taken_s - began_s), 8e-6 * up_bytes / (sent_s - taken_s)


@pytest.mark.usefixtures("takes_root")
def test_between_this_machine_and_a_device_both_rates_hold() -> None:
    # Three seconds a way, so that the start of a transfer weighs little.
    _reach((20, 8), _both_rates_mbps)


@pytest.mark.usefixtures("takes_root")
def test_sixteen_devices_at_100_mbps_are_limited_by_one_link_however_many_use_it() -> None:
    keys = ("one_to_one", "and_back", "one_to_many", "many_to_one")

    def measure() -> list[float]:
        with _started("-m", "testbed", "measure", "--json", "--seconds", "0.8") as process:
            said, error = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, error
        found = json.loads(said)
        assert {found[key]["asked_mbps"] for key in keys} == {100}
        # Fifteen flows share the link: if a few of them stood still, another would have more than this.
        assert found["one_to_many"]["most_flow_mbps"] < 50
        assert found["ring"]["asked_mbps"] == 1600
        return [found[key]["measured_mbps"] for key in keys]

    _reach([100] * len(keys), measure)


def rates_on_the_air() -> list[float]:
    with Testbed(boards(4, up_mbps=20), shared_mbps=30) as bed:
        names = bed.network.devices
        ring = list(zip(names, (*names[1:], names[0]), strict=True))
        return [_mbps(bed.network, *ring), _mbps(bed.network, ring[0])]


@pytest.mark.usefixtures("takes_root")
def test_on_a_shared_medium_all_devices_together_have_one_rate() -> None:
    # Alone on the air, a device still has no more than its own rate.
    _reach((30, 20), partial(_elsewhere, rates_on_the_air))


@pytest.mark.usefixtures("takes_root")
def test_a_link_made_slower_while_it_is_full_goes_on() -> None:
    with Testbed(boards(2, up_mbps=200, down_mbps=200)) as bed, bed["device-2"].listener() as listener:
        words = bed["device-1"].exec(sys.executable, "-c", _SEND, bed["device-2"].address)
        with subprocess.Popen([*words, str(listener.getsockname()[1]), str(100_000_000), "20"]) as sender:
            peer, _ = listener.accept()
            with peer:
                peer.settimeout(5.0)
                # Read on meanwhile, or the sender's queue is empty when it is made smaller.
                slower = threading.Timer(0.5, lambda: [each.limit(up_mbps=5, down_mbps=5) for each in bed])
                slower.start()
                assert _read_for(peer, seconds=1.0) > 5_000_000
                slower.join(LIMIT_S)
                # What waited there is lost with the old limit, and TCP takes a moment to notice.
                assert 1 < 8e-6 * _read_for(peer, seconds=2.0) / 2.0 < 10
            sender.kill()


def _read_for(peer: socket.socket, *, seconds: float) -> int:
    until_s, arrived = time.monotonic() + seconds, 0
    while time.monotonic() < until_s:
        arrived += len(peer.recv(1 << 20))
    return arrived


def test_rates_that_no_link_has_are_refused() -> None:
    for mbps in (0.0, -1.0, 1e6):
        with pytest.raises(NoNamespaces, match=r"a link carries 0\.1 to 10000 Mb/s"):
            bucket(mbps)


# Processor time ------------------------------------------------------------------------------------------

_BUSY = """
import time
began_s, used_s = time.monotonic(), time.process_time()
while time.monotonic() < began_s + 2.0:
    pass
print((time.process_time() - used_s) / (time.monotonic() - began_s))
"""


@pytest.mark.usefixtures("takes_quotas")
def test_a_busy_device_has_its_share_of_the_processor() -> None:
    shares = {"small": 0.2, "other": 0.4}
    with Testbed([Board(name=name, cores=cores) for name, cores in shares.items()]) as bed:

        def measure() -> list[float]:
            words = (sys.executable, "-S", "-c", _BUSY)
            running = [subprocess.Popen(bed[name].exec(*words), stdout=subprocess.PIPE, text=True) for name in shares]
            return [float(process.communicate(timeout=LIMIT_S)[0]) for process in running]

        _reach(list(shares.values()), measure)
    assert all_left_of(os.getpid()) == []


# What is left --------------------------------------------------------------------------------------------


def _started(*words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, *words], env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


_UP = ("-m", "testbed", "up", "--devices", "3", "--up-mbps", "10", "--down-mbps", "50", "--cores", "0.5")


@pytest.mark.usefixtures("takes_quotas")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_the_command_takes_its_devices_down_when_told_to_end(number: signal.Signals) -> None:
    with _started(*_UP) as process:
        assert process.stdout is not None
        lines = list(itertools.takewhile(lambda line: "Ctrl-C" not in line, process.stdout))
        assert len(lines) == 1 + 2 * 3
        # Namespace, link and group of each device, and the bridge.
        assert len(all_left_of(process.pid)) == 3 * 3 + 1
        process.send_signal(number)
        # Told twice, it still finishes.
        process.send_signal(number)
        assert process.wait(LIMIT_S) == 128 + number
    assert all_left_of(process.pid) == []


@pytest.mark.usefixtures("takes_quotas")
@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.06])
def test_interrupted_while_it_makes_devices_it_leaves_nothing(after_s: float) -> None:
    with _started(*_UP) as process:
        _until(lambda: bool(all_left_of(process.pid)))
        time.sleep(after_s)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 128 + signal.SIGTERM
    assert all_left_of(process.pid) == []


_HOLD = """
import subprocess, sys, time
from testbed.devices import Testbed, boards
from testbed.homes import temporary_home
with Testbed(boards(2, up_mbps=10, cores=0.5)) as bed, temporary_home():
    busy = subprocess.Popen(bed["device-1"].exec(sys.executable, "-c", "import time; time.sleep(60)"))
    print(bed.address, busy.pid)
    time.sleep(60)
"""


@pytest.mark.usefixtures("takes_quotas")
def test_clean_removes_what_a_killed_testbed_left_and_leaves_a_living_one_alone() -> None:
    with _started("-c", _HOLD) as killed, _started("-c", _HOLD) as living:
        try:
            assert killed.stdout is not None
            assert living.stdout is not None
            address, busy = killed.stdout.readline().split()
            other_address, other_busy = living.stdout.readline().split()
            assert address != other_address
            before = all_left_of(living.pid)
            killed.kill()
            killed.wait(LIMIT_S)
            left = all_left_of(killed.pid)
            # Namespace, link and group of each device, the bridge, the directory.
            assert len(left) == len(before) == 3 * 2 + 2

            with _started("-m", "testbed", "clean") as cleaning:
                said, _ = cleaning.communicate(timeout=LIMIT_S)

            assert all_left_of(killed.pid) == []
            assert all(f"removed {name}\n" in said for name in left)
            assert all(f"in use: {name}\n" in said for name in before)
            assert all_left_of(living.pid) == before
            assert not _runs(int(busy))
            assert _runs(int(other_busy))
        finally:
            killed.kill()
            living.kill()
    clean()
    assert all_left_of(living.pid) == []


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.usefixtures("takes_root")
def test_a_process_that_got_the_id_of_a_dead_owner_owns_nothing() -> None:
    with _started("-c", "import time; time.sleep(60)") as stranger:
        try:
            assert owners.is_alive(stranger.pid)
            owners.RECORDS.mkdir(mode=0o700, exist_ok=True)
            (owners.RECORDS / str(stranger.pid)).write_text("1")
            assert not owners.is_alive(stranger.pid)
        finally:
            owners.forget(stranger.pid)
            stranger.kill()


@pytest.mark.usefixtures("takes_root")
def test_names_of_others_are_nobodys() -> None:
    for name in ("eth0", "shoal-", "shoal-x-1", "shv", "docker0", "shoal-1-2-3", "br-shb1", "shb0", "shv7", "shoal-1"):
        assert owners.owner_of(name) is None
    assert owners.owner_of("shv4194304-9999") == 4194304


@pytest.mark.usefixtures("takes_root")
def test_run_runs_a_command_on_a_device_and_passes_its_code_on() -> None:
    asks = "import json, os, sys; print(sorted(json.loads(os.environ['SHOAL_TESTBED']))); sys.exit(7)"
    options = ("--devices", "2", "--on", "device-2")
    with _started("-m", "testbed", "run", *options, "--", sys.executable, "-c", asks) as process:
        said, _ = process.communicate(timeout=LIMIT_S)
    assert (said, process.returncode) == ("['device-1', 'device-2']\n", 7)
    assert all_left_of(process.pid) == []


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ("os.setuid(65534)", "testbed: network namespaces take root\n"),
        ("os.environ['PATH'] = ''", "testbed: network namespaces take the commands ip and tc: install iproute2\n"),
    ],
)
@pytest.mark.usefixtures("takes_root")
def test_a_machine_or_user_that_cannot_is_told_so_in_one_sentence(before: str, said: str) -> None:
    words = f"import os, sys; from testbed.__main__ import main; {before}; sys.exit(main(['up']))"
    with _started("-c", words) as process:
        _, error = process.communicate(timeout=LIMIT_S)
    assert (error, process.returncode) == (said, 2)


# A bad line ------------------------------------------------------------------------------------------------


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while piece := await reader.read(1 << 16):
            writer.write(piece)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def _round_trips_s(line: Line | None, *, count: int = 10) -> list[float]:
    """How long single bytes take to an echo and back, over a line or without one."""
    async with await asyncio.start_server(_echo, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        if line is None:
            return await _asked_s(port, count)
        async with Proxy(line, to=("127.0.0.1", port)) as proxy:
            return await _asked_s(proxy.port, count)


async def _asked_s(port: int, count: int) -> list[float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    took_s = []
    for _ in range(count):
        began_s = time.monotonic()
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        took_s.append(time.monotonic() - began_s)
    writer.close()
    await writer.wait_closed()
    return took_s


def test_a_line_adds_its_delay_in_each_direction() -> None:
    async def story() -> None:
        # The quickest of ten: a busy machine makes single bytes late.
        over_s = await _round_trips_s(Line(delay_ms=40))
        assert 0.08 <= min(over_s) < 0.1
        jittered_s = await _round_trips_s(Line(delay_ms=10, jitter_ms=40))
        assert min(jittered_s) >= 0.02
        # Two draws of 0 to 40 ms: 40 ms on average, and never all the same.
        assert 0.04 < median(jittered_s) < 0.12
        assert max(jittered_s) - min(jittered_s) > 0.01

    asyncio.run(asyncio.wait_for(story(), LIMIT_S))


def test_a_delay_takes_no_rate_away_and_order_stays() -> None:
    sent = b"".join(number.to_bytes(4, "big") for number in range(2_000_000))

    async def story() -> None:
        async with (
            await asyncio.start_server(_echo, "127.0.0.1", 0) as server,
            Proxy(Line(delay_ms=50, jitter_ms=20), to=server.sockets[0].getsockname()) as proxy,
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            began_s = time.monotonic()
            writer.write(sent)
            writer.write_eof()
            assert await reader.read(-1) == sent
            # 8 MB: a line that let one piece of 64 kB through at a time would take 6 s each way.
            assert time.monotonic() - began_s < 6.0
            writer.close()
            await writer.wait_closed()

    asyncio.run(asyncio.wait_for(story(), LIMIT_S))


def test_a_lost_segment_is_a_stall_of_one_timeout() -> None:
    line = Line(loss=0.1, rto_ms=200)
    chance = Rng(1).stream("loss")
    lost_s = [lateness_s(line, SEGMENT_BYTES, chance)[1] for _ in range(10_000)]
    assert set(lost_s) == {0.0, 0.2}
    assert lost_s.count(0.2) == pytest.approx(1_000, rel=0.1)
    # Of ten segments, none is lost with a chance of 0.9 to the tenth.
    lost_s = [lateness_s(line, 10 * SEGMENT_BYTES, chance)[1] for _ in range(10_000)]
    assert lost_s.count(0.0) == pytest.approx(10_000 * 0.9**10, rel=0.1)
    took_s = asyncio.run(_round_trips_s(Line(loss=0.2, rto_ms=100, seed=3), count=20))
    stalls = sum(round(each_s / 0.1) for each_s in took_s)
    assert 2 <= stalls <= 16


def test_a_line_that_breaks_resets_its_connections() -> None:
    async def story() -> None:
        async with (
            await asyncio.start_server(_echo, "127.0.0.1", 0) as server,
            Proxy(Line(breaks_after_s=0.05), to=server.sockets[0].getsockname()) as proxy,
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            with pytest.raises(ConnectionResetError):
                await asyncio.wait_for(reader.readexactly(1), LIMIT_S)
            writer.close()

    asyncio.run(asyncio.wait_for(story(), LIMIT_S))


# A cluster -------------------------------------------------------------------------------------------------


async def _worked(operator: Operator, job: str) -> dict[str, WorkerView]:
    """What the leader saw of its workers, once the job is over."""
    seen: dict[str, WorkerView] = {}
    while True:
        view = (await operator.status(job)).jobs[0]
        if view.progress is not None:
            seen |= {worker.node: worker for worker in view.progress.workers if worker.batches}
        assert view.state in ("queued", "running", "finished"), f"{view.state}: {view.reason}"
        if view.state == "finished":
            return seen
        await asyncio.sleep(0.05)


def cluster_over_links(folder: str) -> dict[str, float]:
    async def story() -> dict[str, WorkerView]:
        wanted = [
            Board(name="near"),
            Board(name="narrow", up_mbps=8, down_mbps=16),
            Board(name="far", line=Line(delay_ms=150)),
        ]
        async with Cluster(Path(folder) / "home", wanted, child_module="shoal.trainer.echo") as cluster:
            await cluster.connected()
            async with Operator.open(cluster.home) as operator:
                ready = echo_job(Path(folder), values=250_000, batches=6)
                plan = {"workers_min": 3, "workers_max": 3, "until": {"epochs": 1}, "momentum": 0.0}
                return await _worked(operator, await operator.submit(ready, plan=plan))

    return {name: worker.lease_s for name, worker in asyncio.run(story()).items()}


@pytest.mark.usefixtures("takes_root")
def test_in_a_cluster_a_model_takes_its_time_over_each_link(tmp_path: Path) -> None:
    leases_s = _elsewhere(cluster_over_links, str(tmp_path))
    # 1 MB with its headers: 0.52 s down and 1.05 s up.
    assert 1.4 < leases_s["narrow"] < 3.0
    assert 0.3 <= leases_s["far"] < leases_s["narrow"]
    assert leases_s["near"] < leases_s["far"]


_TASK = """
from torch import nn
from shoal.task import Task

class Sample(Task):
    def model(self):
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
"""


def test_a_paced_trainer_gives_what_the_real_one_does_at_its_own_time(
    make_job: Callable[..., TrainerSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not above: stories of this file are told by processes that need no torch, which takes seconds to import.
    import torch

    from shoal.trainer.steps import TorchTrainer

    chance = np.random.default_rng(0)
    data = chance.normal(size=(64, 4)).astype(np.float32), chance.integers(0, 3, 64)
    monkeypatch.setenv(paced.DEVICE_VARIABLE, str(tmp_path))
    settings = dataclasses.replace(make_job(_TASK, data), pace_s=0.1, torch_threads=torch.get_num_threads())
    shared = SharedVectors.create(settings.layout.size)
    try:
        shared.model[:] = chance.normal(size=settings.layout.size)
        real = TorchTrainer(settings, shared).train(0, [2, 5])
        update = shared.update.copy()
        shared.update[:] = 0
        trainer = paced.build(settings, shared)
        assert trainer.loaded().engine.endswith(", paced")

        result = trainer.train(0, [2, 5])

        np.testing.assert_array_equal(shared.update, update)
        assert (result.examples, result.loss_sum, result.finite) == (real.examples, real.loss_sum, True)
        # Two batches of the agent's pace; then of that in the device's directory, which may change at any time.
        assert 0.2 <= result.seconds < 0.6
        paced.set_pace(tmp_path, 0.15)
        assert 0.15 <= trainer.train(0, [1]).seconds < 0.45
    finally:
        del update
        shared.close()
