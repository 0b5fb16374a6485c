"""Fleet files: what is read from them, what is refused with the words that mend it, and that large ones stay small."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import shoal
from shoal.cli import main
from shoal.cli.exits import Exit
from shoal.errors import Misuse
from shoal.learning.layout import Layout
from shoal.plan import Plan, Until
from shoal.sim.devices import Build
from shoal.sim.fleet_file import FleetFile, load_fleet, presences_of
from shoal.sim.jobs import system_job
from shoal.sim.profiles import Fleet, builds, home_line
from shoal.sim.rates import Steady, mbit
from shoal.sim.rng import Rng
from shoal.sim.study import Study, simulate

sys.path.insert(0, str(Path(__file__).parent))

PIS = """
[[group]]
name = "pis"
count = 3
seconds_per_gmac = 0.5
seconds_per_batch = 0.01
up_mbps = 8
down_mbps = 16.0
latency_s = 0.02
memory_mb = 2048
train_watts = 6.0
idle_watts = 2.0
"""

PHONES = """
[[group]]
name = "phones"
count = 40
profile = "wifi-phones"
up_mbps = 1
presence = "nights.csv"
presence_period_s = 86400
"""

NIGHTS = "device,from_s,to_s\na,0,3600\nb,7200,9000\na,80000,86400\n"


def written(folder: Path, text: str, nights: str = NIGHTS) -> Path:
    (folder / "nights.csv").write_text(nights)
    path = folder / "fleet.toml"
    path.write_text(text)
    return path


def devices_of(fleet: FleetFile, seed: int = 0) -> list[Build]:
    return list(Fleet(fleet, fleet.devices, Rng(seed)))


# What is read -----------------------------------------------------------------------------------------


def test_a_group_is_what_it_says(tmp_path: Path) -> None:
    fleet = load_fleet(written(tmp_path, PIS))
    assert (fleet.devices, str(fleet)) == (3, "fleet.toml")
    first, *others = devices_of(fleet)
    assert others == [first, first]
    assert (first.kind, first.seconds_per_gmac, first.seconds_per_batch, first.memory_mb) == ("pis", 0.5, 0.01, 2048)
    assert (first.train_watts, first.idle_watts, first.battery_wh, first.presence) == (6.0, 2.0, 0.0, None)
    assert (first.line.up, first.line.down) == (Steady(mbit(8)), Steady(mbit(16)))
    assert first.line.latency_s == 0.02


def test_groups_follow_one_another_and_override_their_profile(tmp_path: Path) -> None:
    fleet = load_fleet(written(tmp_path, PIS + PHONES))
    made, plain = devices_of(fleet, seed=3), builds("wifi-phones", 43, Rng(3))
    assert [build.kind for build in made] == ["pis"] * 3 + ["phones"] * 40
    for build, drawn in zip(made[3:], plain[3:], strict=True):
        assert (build.seconds_per_gmac, build.memory_mb) == (drawn.seconds_per_gmac, drawn.memory_mb)
        assert build.line.up == Steady(mbit(1))
        assert build.line.down == drawn.line.down


@pytest.mark.parametrize("profile", ["pi4-lan", "pi4-wifi", "idle-phones", "mixed"])
def test_one_group_of_a_profile_is_that_profile(tmp_path: Path, profile: str) -> None:
    fleet = load_fleet(written(tmp_path, f'[[group]]\nname = "all"\ncount = 30\nprofile = "{profile}"\n'))
    for build, drawn in zip(devices_of(fleet, seed=5), builds(profile, 30, Rng(5)), strict=True):
        medium = drawn.line.medium and f"all {drawn.line.medium}"
        assert build == replace(drawn, kind="all", line=replace(drawn.line, medium=medium))
    assert fleet.home_line == home_line("pi4-lan" if profile.startswith("pi4") else profile)


def test_two_groups_do_not_share_an_access_point(tmp_path: Path) -> None:
    group = '[[group]]\nname = "{}"\ncount = 12\nprofile = "pi4-wifi"\n'
    fleet = load_fleet(written(tmp_path, group.format("attic") + group.format("barn")))
    assert [build.line.medium for build in devices_of(fleet)] == ["attic ap-0"] * 12 + ["barn ap-0"] * 12


def test_devices_take_the_spans_of_a_trace_in_turn(tmp_path: Path) -> None:
    fleet = load_fleet(written(tmp_path, PIS + PHONES))
    one, two, three = [build.presence for build in devices_of(fleet)[3:6]]
    assert one is not None
    assert two is not None
    assert one.spans == ((True, 3600), (False, 76400), (True, 6400))
    assert two.spans == ((False, 7200), (True, 1800), (False, 77400))
    assert three == one
    assert [one.is_present(at_s) for at_s in (0, 3599, 3600, 79_999, 80_000, 86_400 + 10)] == [1, 1, 0, 0, 1, 1]


def test_a_trace_repeats_after_its_last_second_unless_it_says_when() -> None:
    (one,) = presences_of("device,from_s,to_s\nx,10,20\nx,20,30\n")
    assert one.spans == ((False, 10), (True, 10), (True, 10))
    assert (one.is_present(29.5), one.is_present(30.0), one.is_present(41.0)) == (True, False, True)
    (always,) = presences_of("device,from_s,to_s\nx,0,30\n")
    assert always.next_change_s(0.0) is None


def test_the_manager_has_a_link(tmp_path: Path) -> None:
    assert load_fleet(written(tmp_path, PIS)).home_line == home_line("wifi-phones")
    slow = load_fleet(written(tmp_path, "[manager]\nup_mbps = 20\nlatency_s = 0\n" + PIS)).home_line
    assert (slow.up, slow.down, slow.latency_s) == (Steady(mbit(20)), home_line("wifi-phones").down, 0)


# What is refused --------------------------------------------------------------------------------------

GROUP = '[[group]]\nname = "pis"\n'
WHOLE = GROUP + "count = 2\nseconds_per_gmac = 1\nup_mbps = 1\ndown_mbps = 1\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has 0 groups: write 1 to"),
        ("[[group", "is not TOML"),
        ("x = " + "[" * 5000, "is not TOML"),
        ("x = " + "9" * 5000, "is not TOML"),
        ("[group]\n", r"as a table \[\[group\]\]"),
        (WHOLE + "[[machines]]\n", "no key 'machines'"),
        ('[[group]]\nname = ""\n', "group 1: name is ''; write a text, such as name = \"pis\""),
        ("[[group]]\nname = 7\n", "group 1: name is 7; write a text"),
        (GROUP, "group 'pis': count is missing; write the number of its devices"),
        (GROUP + "count = -3\n", "group 'pis': count is -3; write the number of its devices, 1 or more"),
        (GROUP + "count = 2.0\n", "count is 2.0; write the number"),
        (GROUP + "count = true\n", "count is True; write the number"),
        (GROUP + "count = 2\n", "write seconds_per_gmac = 0.43, up_mbps = 10, down_mbps = 50, or take the devices of"),
        (GROUP + 'count = 2\nprofile = "pi5"\n', "there is no profile 'pi5'; write one of even, pi4-lan"),
        (WHOLE + "up = 3\n", "'up'; did you mean up_mbps[?]"),
        (WHOLE + "watts = 3\n", "did you mean train_watts or idle_watts"),
        (WHOLE + "memory = 3\n", "did you mean memory_mb[?]"),
        (
            WHOLE + "idle_watts = 'low'\n",
            "idle_watts is 'low'; write a number of 0 to 1000000000, such as idle_w",
        ),
        (WHOLE + "memory_mb = 1.5\n", "memory_mb is 1.5; write a whole number of 1 to"),
        (WHOLE + "latency_s = inf\n", "latency_s is inf; write a number of 0 to"),
        (WHOLE + f"latency_s = {'9' * 400}\n", "latency_s is 9+; write a number of 0 to 1000000000"),
        (WHOLE + "train_watts = 1\nidle_watts = 2\n", "training cannot draw less than idling"),
        (WHOLE.replace("up_mbps = 1", "up_mbps = 0"), "up_mbps is 0; write a number above 0, such as up_mbps = 10"),
        (GROUP + 'count = 20\nprofile = "mixed"\ntrain_watts = 3.0\n', "training cannot draw less than idling"),
        (WHOLE + WHOLE, "two groups are called 'pis'"),
        (WHOLE + 'presence = "no.csv"\n', r"group 'pis': its presence file .*no.csv cannot be read: No such file"),
        (WHOLE + "presence = 7\n", 'presence is 7; write a text, such as presence = "trace.csv"'),
        (WHOLE + "presence_period_s = 60\n", "write presence = FILE, too"),
        (WHOLE + 'presence = "nights.csv"\npresence_period_s = 1.5\n', "presence_period_s is 1.5; write whole seconds"),
        (WHOLE + 'presence = "nights.csv"\npresence_period_s = 60\n', "write presence_period_s = 86400 or more"),
        (WHOLE + "[manager]\nmbps = 5\n", r"fleet.toml, \[manager\]: there is no key 'mbps'; did you mean up_mbps or"),
        (WHOLE + "[manager]\nup_mbps = -5\n", "up_mbps is -5; write a number above 0"),
        ("manager = 3\n" + WHOLE, r"write it as a table \[manager\]"),
    ],
)
def test_what_is_wrong_is_refused_with_what_to_write(tmp_path: Path, text: str, says: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(Misuse, match=says) as refused:
        load_fleet(path)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    ("nights", "says"),
    [
        ("", ":1: write device,from_s,to_s as its first line"),
        ("a,0,3600\n", ":1: write device,from_s,to_s as its first line"),
        ("device,from_s,to_s\n", "has no span"),
        ("device,from_s,to_s\na,0\n", ":2: write a device and two whole seconds"),
        ("device,from_s,to_s\na,0,1,2\n", ":2: write a device and two whole seconds"),
        ("device,from_s,to_s\na,0,60\na,90,80\n", ":3: write a device and two whole seconds, the second one later"),
        ("device,from_s,to_s\na,0.5,60\n", ":2: write a device and two whole seconds"),
        ("device,from_s,to_s\n,0,60\n", ":2: write a device"),
        ("device,from_s,to_s\na,-1,60\n", ":2: write a device"),
        (f"device,from_s,to_s\na,0,{10**12}\n", ":2: write a device"),
        (
            "device,from_s,to_s\na,50,90\na,0,60\n",
            ":2: a is there from 50 to 90, and until 60 by another line: write spans that do not overlap",
        ),
    ],
)
def test_a_wrong_trace_is_refused_with_its_line(tmp_path: Path, nights: str, says: str) -> None:
    path = written(tmp_path, PHONES, nights)
    with pytest.raises(Misuse) as refused:
        load_fleet(path)
    assert f"{path}, group 'phones': its presence file {tmp_path / 'nights.csv'}" in str(refused.value)
    assert says in str(refused.value)


def test_a_file_that_is_not_there_or_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="cannot be read: No such file"):
        load_fleet(tmp_path / "nowhere.toml")
    with pytest.raises(Misuse, match="describe devices that are alike once"):
        load_fleet(written(tmp_path, "#" * (1 << 20) + "\n" + PIS))


def test_a_fleet_has_the_devices_that_are_simulated(tmp_path: Path) -> None:
    fleet = load_fleet(written(tmp_path, PIS))
    with pytest.raises(Misuse, match=r"fleet\.toml has 3 devices, and 4 are to be simulated"):
        Fleet(fleet, 4, Rng(0))


# Simulations ------------------------------------------------------------------------------------------


def job(epochs: int = 1, batches: int = 24, **plan: object):  # type: ignore[no-untyped-def]
    layout = Layout.of([("weight", (10, 100), "parameter")])
    values = {"workers_min": 1, "batch_size": 4, "until": Until(epochs=epochs), **plan}
    return system_job(Plan(**values), layout, examples=4 * batches, gmacs_per_example=0.5)  # type: ignore[arg-type]


def test_a_fleet_is_simulated(tmp_path: Path) -> None:
    fleet = load_fleet(written(tmp_path, PIS))
    outcome = simulate(Study(job=job(), devices=3, profile=fleet))
    assert (outcome.state, len(outcome.devices)) == ("finished", 3)
    assert {device.kind for device in outcome.devices} == {"pis"}
    # 24 leases of 4 examples of 0.5 GMAC at 0.5 s/GMAC, and 10 ms for each batch.
    assert sum(device.busy_s for device in outcome.devices) == pytest.approx(24 * (4 * 0.5 * 0.5 + 0.01), rel=0.01)


def test_devices_work_only_while_they_are_there(tmp_path: Path) -> None:
    nights = "device,from_s,to_s\na,100,4000\n"
    text = PIS + 'presence = "nights.csv"\npresence_period_s = 86400\n'
    outcome = simulate(Study(job=job(), devices=3, profile=load_fleet(written(tmp_path, text, nights))))
    assert outcome.state == "finished"
    assert 100 < outcome.seconds < 200


def test_rows_of_a_cohort_come_from_a_fleet_too(tmp_path: Path) -> None:
    fleet = load_fleet(written(tmp_path, PIS.replace("count = 3", "count = 100") + PHONES))
    outcome = simulate(Study(job=job(cohort=2), devices=140, profile=fleet, cohort_from=100))
    assert outcome.state == "finished"
    assert outcome.rows > 50


def test_a_hundred_thousand_devices_are_read_as_groups(tmp_path: Path) -> None:
    import tracemalloc

    path = written(tmp_path, PIS.replace("count = 3", "count = 60_000") + PHONES.replace("= 40", "= 40_000"))
    tracemalloc.start()
    fleet = load_fleet(path)
    made = Fleet(fleet, fleet.devices, Rng(0))
    kinds = [made[number].kind for number in (0, 59_999, 60_000, 99_999)]
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (len(made), kinds) == (100_000, ["pis", "pis", "phones", "phones"])
    assert most_bytes < 2_000_000


# From Python and the command line ------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


TASK = Path(__file__).with_name("experiments_task.py")
PAGE = Path(__file__).parents[2] / "docs" / "plan-a-fleet.md"


@pytest.mark.timeout(240)
def test_the_page_is_true(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = PAGE.read_text()
    blocks = {kind: re.findall(rf"^```{kind}\n(.*?)^```", text, re.M | re.S) for kind in ("toml", "csv", "sh", "text")}
    (toml,), (nights,) = blocks["toml"], blocks["csv"]
    fleet = load_fleet(written(home, toml, nights))
    made = devices_of(fleet)
    assert [build.kind for build in (made[11], made[12], made[41])] == ["boards", "phones", "phones"]
    assert made[12].presence == made[14].presence != made[13].presence
    with pytest.raises(Misuse) as refused:
        load_fleet(written(home, toml.replace("count = 12", "count = -3"), nights))
    assert str(refused.value).removeprefix(f"{home}/") == blocks["text"][0].strip()
    written(home, toml, nights)
    command = next(line for block in blocks["sh"] for line in block.splitlines() if "--fleet" in line)
    words = command.replace("examples/mnist", str(TASK)).split()[1:]
    assert main.run(words) == Exit.OK
    assert "42 devices of fleet.toml" in " ".join(capsys.readouterr().out.split())


def test_a_fleet_and_devices_exclude_one_another(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from experiments_task import Blobs

    path = written(home, PIS)
    with pytest.raises(Misuse, match="leave out a number of devices, or the fleet file"):
        shoal.simulate(Blobs(), fleet=path, devices=3, progress=False)
    assert main.run(["simulate", str(TASK), "--fleet", str(path), "--profile", "even"]) == Exit.MISUSE
    assert "leave out a profile, or the fleet file" in capsys.readouterr().err
    path.write_text(PIS.replace("count = 3", "count = 0"))
    assert main.run(["simulate", str(TASK), "--fleet", str(path)]) == Exit.MISUSE
    assert "group 'pis': count is 0" in capsys.readouterr().err


@pytest.mark.timeout(240)
def test_a_series_of_a_fleet_is_named_by_what_the_file_holds(home: Path) -> None:
    from experiments_task import Blobs

    path = written(home, PIS)
    plan = Plan(workers_min=1, until=shoal.epochs(1))
    plain = shoal.simulate(Blobs(), fleet=path, plan=plan, progress=False).to_plain()
    (home / "other").mkdir()
    assert (plain["devices"], plain["profile"]) == (3, load_fleet(written(home / "other", PIS)).sha256)
    assert load_fleet(written(home, PIS.replace("up_mbps = 8", "up_mbps = 4"))).sha256 != plain["profile"]
    with_trace = load_fleet(written(home, PHONES)).sha256
    assert load_fleet(written(home, PHONES, NIGHTS.replace("a,0,", "a,1,"))).sha256 != with_trace


@pytest.mark.full
@pytest.mark.timeout(240)
def test_a_trace_of_a_fleet_plays_again_unless_the_fleet_changed(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(home, PIS)
    words = ["simulate", str(TASK), "--fleet", "fleet.toml", "--epochs", "1", "--system-only"]
    assert main.run([*words, "--trace", "run.jsonl"]) == Exit.OK
    assert "3 devices of fleet.toml" in " ".join(capsys.readouterr().out.split())
    header = json.loads((home / "run.jsonl").read_text().splitlines()[0])
    assert header["simulate"]["profile"]["fleet"] == "fleet.toml"
    assert main.run(["simulate", "--replay", "run.jsonl"]) == Exit.OK
    assert "Identical" in capsys.readouterr().out
    path.write_text(PIS.replace("up_mbps = 8", "up_mbps = 4"))
    assert main.run(["simulate", "--replay", "run.jsonl"]) == Exit.MISUSE
    assert "is not what it was when this was simulated" in capsys.readouterr().err


# What limits it, and what it costs --------------------------------------------------------------------------

PRICES = '[prices]\nprice_per_kwh = 0.4\nprice_per_gb = 50.0\ncurrency = "EUR"\n'


def test_prices_are_of_energy_and_of_traffic(tmp_path: Path) -> None:
    fleet = load_fleet(written(tmp_path, PRICES + PIS))
    outcome = simulate(Study(job=job(), devices=3, profile=fleet))
    cost = fleet.cost(outcome)
    assert cost["energy"] == pytest.approx(outcome.energy_wh * 0.4 / 1000)
    assert cost["traffic"] == pytest.approx((outcome.bytes_up + outcome.bytes_down) * 50.0 / 1e9)
    # 3 boards idle at 2 W and train at 6 W for 24 leases of 1.01 s.
    assert outcome.energy_wh * 3600 > 24 * 1.01 * 6.0
    only = load_fleet(written(tmp_path, "[prices]\nprice_per_gb = 1\n" + PIS))
    assert set(only.cost(outcome)) == {"traffic"}
    assert load_fleet(written(tmp_path, PIS)).cost(outcome) == {}


@pytest.mark.parametrize(
    ("prices", "says"),
    [
        ("price_per_kw = 1", "did you mean price_per_kwh"),
        (
            "price_per_kwh = -0.1",
            "price_per_kwh is -0.1; write a number of 0 to 1000000000, such as price",
        ),
        ("currency = 3", 'currency is 3; write a text, such as currency = "EUR"'),
        ('currency = "pieces of eight"', "currency has more than 10 characters"),
    ],
)
def test_wrong_prices_are_refused(tmp_path: Path, prices: str, says: str) -> None:
    with pytest.raises(Misuse, match=says) as refused:
        load_fleet(written(tmp_path, f"[prices]\n{prices}\n{PIS}"))
    assert "fleet.toml, [prices]: " in str(refused.value)


def test_rows_of_a_cohort_use_energy(tmp_path: Path) -> None:
    # Half of them never come, and use none.
    nights = "device,from_s,to_s\na,0,500000\nb,499999,500000\n"
    text = PIS.replace("count = 3", "count = 100") + 'presence = "nights.csv"\n'
    fleet = load_fleet(written(tmp_path, text, nights))
    rows = simulate(Study(job=job(cohort=2), devices=100, profile=fleet, cohort_from=100))
    full = simulate(Study(job=job(cohort=2), devices=100, profile=fleet))
    assert (rows.rows > 50, full.rows) == (True, 0)
    assert full.rows_energy_wh == 0.0
    # The two kinds of device come at the same times and share the same work; which of them train differs.
    assert rows.energy_wh / rows.seconds == pytest.approx(full.energy_wh / full.seconds, rel=0.25)
    assert rows.energy_wh > 10 * sum(device.energy_wh for device in rows.devices) / len(rows.devices)


@pytest.mark.full
@pytest.mark.timeout(240)
def test_what_limits_a_plan_is_told_and_is_in_json(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = PIS.replace("up_mbps = 8", "up_mbps = 0.001").replace("count = 3", "count = 2")
    written(home, PRICES + slow)
    words = ["simulate", str(TASK), "--fleet", "fleet.toml", "--epochs", "1", "--system-only"]
    assert main.run(words) == Exit.OK
    told = capsys.readouterr().out
    assert "EUR: " in told
    assert "of energy" in told
    assert "longest for their update on its way" in told
    assert main.run([*words, "--json"]) == Exit.OK
    (plan,) = json.loads(capsys.readouterr().out.splitlines()[-1])["plans"]
    assert plan["waited"][0]["for"] == "update"
    assert plan["waited"][0]["devices"] == 2
    assert plan["cost"]["currency"] == "EUR"
    assert main.run([*words, "--out", "study.json"]) == Exit.OK
    (limits,) = json.loads((home / "study.json").read_text())["series"][0]["limits"]
    assert limits["waited"] == plan["waited"]
    assert limits["cost"] == plan["cost"]
