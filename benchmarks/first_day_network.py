"""A first day with two machines: join lines, proxies, IPv6, names, and a board that is asked what its manager knows."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

from benchmarks.first_day_kit import (
    ROOT,
    Case,
    NotHeld,
    command,
    expect,
    expect_words,
    join_line,
    line_of,
    manager,
    read_only,
    run,
    running,
)
from testbed.commands import ip
from testbed.namespaces import Network, why_no_namespaces

#: A proxy that nobody runs, in every variable that programs read it from.
_PROXY = "http://198.18.255.9:3128"
PROXIED = {name: _PROXY for kind in ("http", "https", "all") for name in (f"{kind}_proxy", f"{kind}_proxy".upper())}

BOSS_IPV6, BOARD_IPV6 = "fd77::1", "fd77::2"


def _network() -> Network:
    if why_not := why_no_namespaces():
        raise NotHeld(why_not)
    return Network(["boss", "board"])


def joins_where_proxies_are_set(folder: Path) -> str:
    """Manager, device and operator all have proxy variables; the device connects and `shoal nodes` lists it."""
    boss_home = str(folder / "boss")
    with _network() as network:
        at_boss, at_board = network.enter("boss"), network.enter("board")
        with running("up", "--home", boss_home, cwd=folder, log="up.log", env=PROXIED, before=at_boss) as up:
            line = join_line(up.wait_for("Ctrl-C here stops the manager"))
            words = ("join", line, "--name", "board", "--home", str(folder / "board"))
            with running(*words, cwd=folder, log="join.log", env=PROXIED, before=at_board) as board:
                told = line_of(board.wait_for("connected to"), "connected to")
                asked = command("nodes", "--json", "--home", boss_home)
                seen = run(*asked, cwd=folder, env=PROXIED, program=at_boss)
    expect(seen.code == 0, seen.text)
    expect([node["node"] for node in json.loads(seen.out) if node["state"] == "alive"] == ["board"], seen.out)
    return told


def joins_over_ipv6(folder: Path) -> str:
    """`shoal up --advertise fd77::1` prints a line that works."""
    with _network() as network:
        for device, address in (("boss", BOSS_IPV6), ("board", BOARD_IPV6)):
            ip("-n", network.namespace_of(device), "addr", "add", f"{address}/64", "dev", "eth0", "nodad")
        up_words = ("up", "--advertise", BOSS_IPV6, "--home", str(folder / "boss"))
        with running(*up_words, cwd=folder, log="up.log", before=network.enter("boss")) as up:
            line = join_line(up.wait_for("Ctrl-C here stops the manager"))
            expect("Warning" not in up.text, up.text)
            words = ("join", line, "--home", str(folder / "board"))
            with running(*words, cwd=folder, log="join.log", before=network.enter("board")) as board:
                board.wait_for(f"connected to [{BOSS_IPV6}]")
                return line_of(board.text, "connected to")


def advertises_a_family_that_is_not_listened_on(folder: Path) -> str:
    """`--host` of one family and `--advertise` of the other is told with what to do."""
    words = ("up", "--host", "127.0.0.1", "--port", "0", "--advertise", BOSS_IPV6, "--home", str(folder / "boss"))
    with running(*words, cwd=folder, log="up.log") as up:
        text = up.wait_for("Ctrl-C here stops the manager")
    expect_words(text, "Warning:", "takes no IPv6 connections", "without --host")
    return line_of(text, "Warning:")


def writes_a_line_to_a_file(folder: Path) -> str:
    """`shoal token create > line.txt`, then `shoal join --line-file line.txt`, as docs/operations/boot.md says."""
    with manager(folder):
        made = run("token", "create", "--home", str(folder / "boss"), cwd=folder)
        expect(made.code == 0, made.text)
        (folder / "line.txt").write_text(made.out)
        expect(made.out.startswith("shoal://") and made.out.count("\n") == 1, f"more than the line: {made.out!r}")
        expect_words(made.err, "For 1 device, for 24 hours")
        words = ("join", "--line-file", "line.txt", "--name", "board", "--home", str(folder / "board"))
        with running(*words, cwd=folder, log="join.log") as board:
            return line_of(board.wait_for("connected to"), "connected to")


def joins_with_a_read_only_home(folder: Path) -> str:
    """It is refused before the line, which is good for one device, is used up."""
    with manager(folder, "--devices", "1") as line:
        with read_only(folder / "disk") as disk:
            seen = run("join", line, "--home", str(disk / "home"), cwd=folder)
        expect(seen.code == 2, f"exit code {seen.code}: {seen.text}")
        expect_words(seen.err, "cannot write in", "--home DIR")
        with running("join", line, "--home", str(folder / "board"), cwd=folder, log="join.log") as board:
            board.wait_for("connected to")
    return seen.err


def asks_a_board_that_joined(folder: Path) -> str:
    """`shoal status` and `shoal train` on a device name its cluster and its manager, and do not advise a second one."""
    with manager(folder) as line:
        words = ("join", line, "--name", "board", "--home", str(folder / "board"))
        with running(*words, cwd=folder, log="join.log") as board:
            board.wait_for("connected to")
        for asked in (("status",), ("train", str(ROOT / "examples" / "mnist"))):
            seen = run(*asked, "--home", str(folder / "board"), cwd=folder)
            expect(seen.code == 3, f"exit code {seen.code}: {seen.text}")
            expect("`shoal up`" not in seen.err, f"it is advised to make another cluster: {seen.err}")
            expect_words(seen.err, "board in cluster attic", "its manager is, at 127.0.0.1:", "Run the command there")
    return seen.err


def joins_under_a_taken_name(folder: Path) -> str:
    """Two boards of one host name: the second is told how to choose its own."""
    with manager(folder) as line:
        told = []
        for home in ("one", "two"):
            with running("join", line, "--home", str(folder / home), cwd=folder, log=f"{home}.log") as board:
                told.append(board.wait_for("connected to"))
    expect("is taken" not in told[0], told[0])
    expect_words(told[1], "is taken: this device is", "--name NAME")
    return line_of(told[1], "is taken")


def serves_metrics_at_a_port(folder: Path) -> str:
    """`shoal metrics --port`, as `up` and `console` have it."""
    with manager(folder):
        words = ("metrics", "--port", "0", "--home", str(folder / "boss"))
        with running(*words, cwd=folder, log="metrics.log") as metrics:
            told = line_of(metrics.wait_for("Metrics are at"), "Metrics are at")
            url = next(word for word in told.split() if word.startswith("http://127.0.0.1:")).rstrip(";")
            # Not by a proxy of the machine that this runs on.
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=60) as answer:
                expect(b"shoal_nodes" in answer.read(), "the page has no metric of Shoal")
    return told


CASES = (
    Case(name="writes_a_line_to_a_file", run=writes_a_line_to_a_file),
    Case(name="asks_a_board_that_joined", run=asks_a_board_that_joined),
    Case(name="joins_under_a_taken_name", run=joins_under_a_taken_name, slow=True),
    Case(name="joins_with_a_read_only_home", run=joins_with_a_read_only_home, slow=True),
    Case(name="serves_metrics_at_a_port", run=serves_metrics_at_a_port, slow=True),
    Case(name="advertises_a_family_that_is_not_listened_on", run=advertises_a_family_that_is_not_listened_on),
    Case(name="joins_where_proxies_are_set", run=joins_where_proxies_are_set, slow=True),
    Case(name="joins_over_ipv6", run=joins_over_ipv6, slow=True),
)
