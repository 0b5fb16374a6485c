"""`shoal nodes --as-fleet`: the file is one that the simulator reads, and marks each figure that nobody measured."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from statuses import job, progress, worker

from shoal.cli import main
from shoal.cli.as_fleet import fleet_text, speeds_of
from shoal.cli.exits import Exit
from shoal.plan import Plan, Until
from shoal.sim.fleet_file import FleetFile, load_fleet
from shoal.sim.profiles import Fleet, builds
from shoal.sim.rates import Steady, mbit
from shoal.sim.rng import Rng
from shoal.wire.messages import Facts, JobView, NodeView

PLAN = Plan(batch_size=32, lease_batches=4, until=Until(epochs=1))


def node(name: str, **values: object) -> NodeView:
    usual = {"state": "alive", "facts": Facts(memory_mb=3900), "link_bytes_per_s": 2_512_345.0}
    return NodeView(node=name, **(usual | values))  # type: ignore[arg-type]


def measured(**values: object) -> JobView:
    workers = (worker(1, train_s=0.64), worker(2, train_s=1.2811), worker(3, train_s=1.2799), worker(4))
    return job(**({"plan": PLAN, "progress": progress(workers=workers)} | values))


def loaded(tmp_path: Path, text: str) -> FleetFile:
    (tmp_path / "fleet.toml").write_text(text)
    return load_fleet(tmp_path / "fleet.toml")


def test_what_is_measured_is_in_the_file(tmp_path: Path) -> None:
    # 32 x 4 examples of 0.005 GMAC in 0.64 s: 1 s/GMAC.
    speeds = speeds_of(measured(), 0.005)
    text = fleet_text([node("device-1"), node("device-2"), node("device-3")], speeds, cluster="attic")
    fleet = loaded(tmp_path, text)
    assert [(group.name, group.count) for group in fleet.groups] == [("device-1", 1), ("device-2", 2)]
    one, two, three = Fleet(fleet, 3, Rng(0))
    assert (one.seconds_per_gmac, two.seconds_per_gmac, three) == (1.0, 2.0, two)
    assert (one.line.down, one.line.up, one.memory_mb) == (Steady(mbit(20)), Steady(mbit(20)), 3900)
    assert "# Cluster attic, 3 devices." in text
    assert "# device-2, device-3\n[[group]]" in text
    assert "seconds_per_gmac = 1.0  # measured in mnist-3fa2" in text
    assert "down_mbps = 20  # measured\n" in text
    # The file must say so: nobody measures an uplink, and nobody knows when devices are there.
    assert "up_mbps = 20  # NOT MEASURED: the downlink" in text
    assert all(word in text for word in ("train_watts", "latency_s", "presence"))


def test_what_is_not_measured_is_assumed_and_marked(tmp_path: Path) -> None:
    speeds = speeds_of(measured(), 0.005)
    bare = node("device-4", facts=Facts(), link_bytes_per_s=0.0)
    text = fleet_text([bare, node("device-9", link_bytes_per_s=math.inf)], speeds, cluster="attic")
    fleet = loaded(tmp_path, text)
    (pi,) = builds("pi4-lan", 1, Rng(0))
    for build in Fleet(fleet, 2, Rng(0)):
        assert build.seconds_per_gmac == pytest.approx(pi.seconds_per_gmac, rel=0.02)
        assert build.line.down == build.line.up == Steady(mbit(100))
    assert len(re.findall("NOT MEASURED: a raspberry pi 4", text)) == 2
    assert len(re.findall("_mbps = 100  # NOT MEASURED", text)) == 4
    assert "# memory_mb is not known" in text


@pytest.mark.parametrize(
    "view",
    [
        job(plan=PLAN, progress=None),
        measured(plan=Plan(data="local", until=Until(epochs=1))),
        measured(plan=Plan(work="sized", budget_s=10.0, until=Until(epochs=1))),
    ],
    ids=["silent", "local", "sized"],
)
def test_leases_of_unknown_size_measure_nothing(view: JobView) -> None:
    assert speeds_of(view, 0.005) == {}


def test_a_task_of_unknown_cost_measures_nothing() -> None:
    assert speeds_of(measured(), 0.0) == {}


def test_devices_that_do_not_work_are_left_out(tmp_path: Path) -> None:
    others = [
        node("old", state="lost"),
        node("new", standing="pending"),
        node("hub", facts=Facts(is_hub=True)),
        node("asleep", state="dormant"),
    ]
    text = fleet_text([node("device-1"), *others], {}, cluster="attic")
    assert "# Left out: old (lost), new (pending), hub (a hub, which trains nothing)" in text
    assert loaded(tmp_path, text).devices == 2


def test_a_thousand_devices_that_are_alike_are_one_group(tmp_path: Path) -> None:
    text = fleet_text([node(f"pi-{number}") for number in range(1000)], {}, cluster="attic")
    assert len(text.splitlines()) < 20
    assert "pi-0, pi-1, pi-2, pi-3, pi-4, pi-5, pi-6, pi-7 and 992 more" in text
    assert loaded(tmp_path, text).devices == 1000


def test_it_is_not_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["nodes", "--as-fleet", "--json", "--home", str(tmp_path)]) == Exit.MISUSE
    assert "--as-fleet prints TOML" in capsys.readouterr().err
