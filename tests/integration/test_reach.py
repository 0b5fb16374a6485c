"""Where devices find their manager: on a network without a way out, by a name, and after its address changed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from kit import WAIT_S

from shoal.identity.enrolment import Enrolled
from shoal.identity.join_code import JoinCode
from testbed.commands import ip
from testbed.namespaces import Network, why_no_namespaces

PORT = 7070
BOSS = "boss.shoal-test"
BOSS_IPV6, PI_IPV6 = "fd77::1", "fd77::2"

#: A proxy that nobody runs, in every variable that programs read it from.
PROXY = "http://198.18.255.9:3128"
PROXIED = {name: PROXY for low in ("http", "https", "all", "grpc") for name in (f"{low}_proxy", f"{low}_proxy".upper())}


@pytest.fixture
def network() -> Iterator[Network]:
    """Two devices on a bridge. Neither has a default route, and neither has a way to any other network."""
    if why_not := why_no_namespaces():
        pytest.skip(why_not)
    with Network(["boss", "pi"]) as network:
        yield network


@contextlib.contextmanager
def _shoal(
    network: Network, device: str, *words: str, log: Path, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A command of Shoal on a device, ended with the block."""
    command = [*network.enter(device), sys.executable, "-m", "shoal.cli.main", *words]
    with log.open("a") as file:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=file, text=True, env={**os.environ, **(env or {})}
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _ready(process: subprocess.Popen[str], log: Path) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, log.read_text()
    told: dict[str, Any] = json.loads(line)
    return told


def _until(what: str, condition: Callable[[], bool], log: Path) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {WAIT_S:g} s: {what}\n{log.read_text()}"
        time.sleep(0.1)


def test_without_a_default_route_the_line_carries_the_interfaces_address(network: Network, tmp_path: Path) -> None:
    log, home = tmp_path / "log", tmp_path / "pi"
    with _shoal(network, "boss", "up", "--home", str(tmp_path / "boss"), "--json", log=log) as boss:
        ready = _ready(boss, log)
        assert ready["endpoint"] == f"{network.address_of('boss')}:{PORT}"
        assert ready["warning"] == ""
        with _shoal(network, "pi", "join", ready["join_line"], "--home", str(home), log=log):
            _until("the device is connected", lambda: "connected to" in log.read_text(), log)
    assert Enrolled.load(home / "node").manager_endpoint == ready["endpoint"]


def test_a_device_that_joined_by_name_finds_the_manager_after_its_address_changed(
    network: Network, tmp_path: Path
) -> None:
    log, home, boss_home = tmp_path / "log", tmp_path / "pi", tmp_path / "boss"
    # `ip netns exec` lays the files of this folder over those of /etc.
    etc = Path("/etc/netns") / network.namespace_of("pi")
    made = not etc.parent.exists()
    etc.mkdir(parents=True)
    hosts = etc / "hosts"
    up = ("up", "--home", str(boss_home), "--advertise", BOSS, "--json")
    try:
        hosts.write_text(f"{network.address_of('boss')} {BOSS}\n")
        with contextlib.ExitStack() as device:
            with _shoal(network, "boss", *up, log=log) as boss:
                ready = _ready(boss, log)
                line = ready["join_line"]
                assert JoinCode.parse(line).endpoint == f"{BOSS}:{PORT + 1}"
                # The manager's own machine does not know the name, and says so.
                assert BOSS in ready["warning"]
                device.enter_context(_shoal(network, "pi", "join", line, "--home", str(home), log=log))
                _until("the device is connected", lambda: f"connected to {BOSS}:{PORT} as" in log.read_text(), log)
            assert Enrolled.load(home / "node").manager_endpoint == f"{BOSS}:{PORT}"
            moved = network.address_of("boss").rpartition(".")[0] + ".200"
            inside = ("-n", network.namespace_of("boss"))
            ip(*inside, "addr", "flush", "dev", "eth0")
            ip(*inside, "addr", "add", f"{moved}/24", "dev", "eth0")
            # In place: the device sees this very file.
            hosts.write_text(f"{moved} {BOSS}\n")
            with _shoal(network, "boss", *up, log=log) as boss:
                # A device has joined: no further secret is made and printed.
                assert _ready(boss, log)["join_line"] == ""
                _until("it is back", lambda: log.read_text().count(f"connected to {BOSS}:{PORT} as") == 2, log)
    finally:
        shutil.rmtree(etc)
        if made:
            etc.parent.rmdir()


def test_an_advertised_ipv6_address_can_be_joined(network: Network, tmp_path: Path) -> None:
    log, home = tmp_path / "log", tmp_path / "pi"
    for device, address in (("boss", BOSS_IPV6), ("pi", PI_IPV6)):
        # Without the wait in which the kernel looks for another of this address.
        ip("-n", network.namespace_of(device), "addr", "add", f"{address}/64", "dev", "eth0", "nodad")
    up = ("up", "--home", str(tmp_path / "boss"), "--advertise", BOSS_IPV6, "--json")
    with _shoal(network, "boss", *up, log=log) as boss:
        ready = _ready(boss, log)
        assert ready["endpoint"] == f"[{BOSS_IPV6}]:{PORT}"
        assert ready["warning"] == ""
        with _shoal(network, "pi", "join", ready["join_line"], "--home", str(home), log=log):
            _until("the device is connected", lambda: f"connected to [{BOSS_IPV6}]:{PORT} as" in log.read_text(), log)


def test_a_cluster_works_where_proxies_are_set(network: Network, tmp_path: Path) -> None:
    log, boss_home = tmp_path / "log", tmp_path / "boss"
    with _shoal(network, "boss", "up", "--home", str(boss_home), "--json", log=log, env=PROXIED) as boss:
        line = _ready(boss, log)["join_line"]
        with _shoal(network, "pi", "join", line, "--home", str(tmp_path / "pi"), "--name", "pi", log=log, env=PROXIED):
            _until("the device is connected", lambda: "connected to" in log.read_text(), log)
            asked = subprocess.run(
                [*network.enter("boss"), sys.executable, "-m", "shoal.cli.main", "nodes", "--home", str(boss_home)],
                env={**os.environ, **PROXIED},
                capture_output=True,
                text=True,
                timeout=WAIT_S,
                check=False,
            )
    assert asked.returncode == 0, asked.stderr
    assert "pi" in asked.stdout
