"""Profiles: draws replay, do not shift when there are more of them, and are like the devices they stand for."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from shoal.errors import Misuse
from shoal.sim.devices import Build, ComputeJob, Device
from shoal.sim.profiles import PROFILES, builds, home_line
from shoal.sim.rates import TransferRate
from shoal.sim.rng import Rng

ROOT = Path(__file__).resolve().parents[2]
COMMITTED = ROOT / "src" / "shoal" / "sim" / "profiles.json"

DAY_S = 86_400


@pytest.fixture
def build_profiles() -> Iterator[ModuleType]:
    """The tool, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("build_profiles", ROOT / "tools" / "build_profiles.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def mean_mbit(rate: TransferRate) -> float:
    """Over long enough to see many rounds of a trace."""
    size_bytes = 1e12
    return size_bytes * 8 / 1e6 / rate.finish_s(size_bytes, 0.0)


def trained_s(build: Build, work: ComputeJob) -> float:
    """The median of a few, since each is drawn."""
    times_s = []
    for seed in range(9):
        times_s.append(Device(build, Rng(seed).stream("device")).seconds_for(work, 0.0))
    return sorted(times_s)[4]


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[int(share * len(values))]


# Draws ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", PROFILES)
def test_the_same_seed_draws_the_same(profile: str) -> None:
    assert builds(profile, 40, Rng(3)) == builds(profile, 40, Rng(3))


@pytest.mark.parametrize("profile", PROFILES)
def test_more_devices_do_not_change_the_first(profile: str) -> None:
    assert builds(profile, 100, Rng(3))[:10] == builds(profile, 10, Rng(3))


@pytest.mark.parametrize("profile", ["wifi-phones", "idle-phones", "3g-phones", "laptops", "mixed"])
def test_another_seed_draws_others(profile: str) -> None:
    assert builds(profile, 40, Rng(3)) != builds(profile, 40, Rng(4))


def test_profiles_differ() -> None:
    drawn = {profile: builds(profile, 30, Rng(3)) for profile in PROFILES}
    names = list(drawn)
    for at, one in enumerate(names):
        for other in names[at + 1 :]:
            assert drawn[one] != drawn[other], (one, other)


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_is_sane(profile: str) -> None:
    assert "\n" not in PROFILES[profile]
    assert 10 < len(PROFILES[profile]) < 100
    home = home_line(profile)
    assert mean_mbit(home.up) > 500
    assert home.medium == ""
    for build in builds(profile, 200, Rng(5)):
        assert build.kind == build.kind.strip() != ""
        assert 0.005 < build.seconds_per_gmac < 20
        assert 0 < build.seconds_per_batch < 0.2
        assert 0 <= build.jitter < 0.3
        assert 128 <= build.memory_mb <= 16_384
        assert 0 <= build.battery_wh <= 20
        assert 0 < build.idle_watts < build.train_watts < 50
        assert 0.2 < mean_mbit(build.line.up) < 1000
        assert 0.5 < mean_mbit(build.line.down) < 1000
        assert 0 <= build.line.latency_s < 0.2


def test_none_may_be_asked_for_but_not_fewer() -> None:
    assert builds("even", 0, Rng(1)) == []
    with pytest.raises(Misuse, match="0 or more"):
        builds("even", -1, Rng(1))


@pytest.mark.parametrize("ask", [lambda name: builds(name, 1, Rng(1)), home_line])
def test_an_unknown_name_lists_the_known(ask: object) -> None:
    assert callable(ask)
    with pytest.raises(Misuse, match=r"no profile 'pi5'.*pi4-lan.*wifi-phones.*mixed"):
        ask("pi5")


def test_many_share_what_is_large() -> None:
    drawn = builds("idle-phones", 3000, Rng(1))
    presences = [build.presence for build in drawn if build.presence is not None]
    assert len(presences) == 3000
    assert len({id(presence.spans) for presence in presences}) <= 48
    # 19 links, 24 traces, 8 places: however many devices there are.
    assert len({id(build.line) for build in drawn}) < 2500
    assert len({id(build.line) for build in builds("3g-phones", 3000, Rng(1))}) <= 24 * 8


# Likeness ---------------------------------------------------------------------------------------------


def test_a_pi_trains_resnet18_as_measured() -> None:
    # 1.8 GMAC, batches of 16: 10.92 s each in the benchmark.
    work = ComputeJob(gmacs_per_example=1.8, examples=16, batches=1)
    (pi,) = builds("pi4-lan", 1, Rng(1))
    assert 10.92 / 1.5 < trained_s(pi, work) < 10.92 * 1.5


def test_phones_train_femnist_as_measured() -> None:
    # 0.0172 GMAC by tens: 179 ms on the fastest phone that was measured, 1642 ms on the slowest.
    work = ComputeJob(gmacs_per_example=0.017211904, examples=10, batches=1)
    times_s = [trained_s(build, work) for build in builds("wifi-phones", 400, Rng(1))]
    assert min(times_s) == pytest.approx(0.179, rel=0.05)
    assert max(times_s) == pytest.approx(1.642, rel=0.08)
    assert 0.4 < quantile(times_s, 0.5) < 0.9


def test_even_devices_have_no_chance_in_them() -> None:
    drawn = builds("even", 20, Rng(1))
    work = ComputeJob(gmacs_per_example=0.5, examples=8, batches=2)
    assert {Device(build, Rng(at).stream("x")).seconds_for(work, 0.0) for at, build in enumerate(drawn)} == {0.042}
    assert drawn[0].line.jitter_s == drawn[0].line.loss == 0.0


def test_twelve_boards_share_an_access_point() -> None:
    media = [build.line.medium for build in builds("pi4-wifi", 30, Rng(1))]
    assert media == ["ap-0"] * 12 + ["ap-1"] * 12 + ["ap-2"] * 6
    assert {build.line.medium for build in builds("pi4-lan", 30, Rng(1))} == {""}
    # Fifteen of fifty mixed devices are boards.
    mixed = [build.line.medium for build in builds("mixed", 50, Rng(1))]
    assert (mixed.count("ap-0"), mixed.count("ap-1")) == (12, 3)


def test_the_mixed_are_mixed() -> None:
    kinds = [build.kind for build in builds("mixed", 10, Rng(1))]
    assert kinds.count("raspberry pi 4") == 3
    assert kinds.count("laptop") == 2


def test_links_rank_as_networks_do() -> None:
    medians = {
        profile: quantile([mean_mbit(build.line.up) for build in builds(profile, 200, Rng(1))], 0.5)
        for profile in ("pi4-lan", "pi4-wifi", "wifi-phones", "laptops", "3g-phones")
    }
    assert medians["pi4-lan"] > medians["pi4-wifi"] > medians["wifi-phones"] > medians["laptops"] > medians["3g-phones"]


def test_phones_on_wifi_have_the_links_that_were_measured() -> None:
    measured = [[kbit / 1000 for kbit in link] for link in json.loads(COMMITTED.read_text())["links_up_down_kbit"]]
    assert len(measured) == 19
    for build in builds("wifi-phones", 50, Rng(1)):
        rates = [mean_mbit(build.line.up), mean_mbit(build.line.down)]
        assert any(rates == pytest.approx(link, rel=0.01) for link in measured)


def test_batteries_are_where_there_is_no_charger() -> None:
    for profile in ("wifi-phones", "3g-phones"):
        charges_wh = [build.battery_wh for build in builds(profile, 100, Rng(1))]
        assert 6.0 <= min(charges_wh) < max(charges_wh) <= 12.0
    for profile in ("pi4-lan", "pi4-wifi", "idle-phones", "laptops", "even"):
        assert {build.battery_wh for build in builds(profile, 100, Rng(1))} == {0.0}


def test_idle_phones_are_there_as_seldom_as_recorded() -> None:
    drawn = [build.presence for build in builds("idle-phones", 2000, Rng(1))]
    hours = [sum(p.is_present(h * 3600.0) for p in drawn if p is not None) / len(drawn) for h in range(120)]
    # 8.1 % in the record.
    assert sum(hours) / len(hours) == pytest.approx(0.081, abs=0.012)
    # People sleep: some hours see twice as many phones as others.
    assert max(hours) > 2 * min(hours)
    for presence in drawn[:20]:
        assert presence is not None
        assert sum(seconds for _, seconds in presence.spans) == 5 * DAY_S


def test_a_pi_throttles_under_steady_work_and_recovers() -> None:
    (build,) = builds("pi4-lan", 1, Rng(1))
    pi, now_s, was_hot = Device(build, Rng(1).stream("device")), 0.0, []
    for _ in range(200):
        now_s += pi.seconds_for(ComputeJob(gmacs_per_example=1.8, examples=16, batches=1), now_s)
        was_hot.append(pi.is_hot)
    assert not any(was_hot[:10])
    assert any(was_hot)
    first = was_hot.index(True)
    assert not all(was_hot[first:])
    assert pi.temperature_c(now_s) < 87


# The file ---------------------------------------------------------------------------------------------


def test_the_file_is_small_and_names_its_sources() -> None:
    assert COMMITTED.stat().st_size < 60_000
    sources = json.loads(COMMITTED.read_text())["sources"]
    assert {source["licence"] for source in sources.values()} == {"BSD-2-Clause", "Apache-2.0", "MIT"}
    assert all(source["from"].startswith("https://") for source in sources.values())


@pytest.mark.needs_data
def test_the_file_is_what_the_data_gives(build_profiles: ModuleType, real_data: Path) -> None:
    assert build_profiles.build(real_data) == COMMITTED.read_text()


def test_rows_of_a_trace_become_steps(build_profiles: ModuleType) -> None:
    # 1 Mbit/s for 5 s, then 3 until 20 s: means 2 and 3; what is left of a step at the end is dropped.
    assert build_profiles.resample(b"0 9\n5 1\n20 3\n24 7\n") == [2000, 3000]


def test_states_become_run_lengths(build_profiles: ModuleType) -> None:
    assert build_profiles.runs([1, 1, 0]) == [0, 2, 1]
    assert build_profiles.runs([0, 0, 0, 1]) == [3, 1]


def test_what_is_kept_lies_evenly(build_profiles: ModuleType) -> None:
    assert build_profiles.evenly(list(range(10)), 5) == [1, 3, 5, 7, 9]
    assert build_profiles.evenly([1, 2, 3], 3) == [1, 2, 3]


def test_scores_between_two_phones(build_profiles: ModuleType) -> None:
    knots = [(100.0, 8.0), (10_000.0, 2.0)]
    # Half way on a logarithmic scale; and flat where nothing was measured.
    assert build_profiles.between(1000.0, knots) == pytest.approx(4.0)
    assert build_profiles.between(1.0, knots) == pytest.approx(8.0)
    assert build_profiles.between(1e6, knots) == pytest.approx(2.0)
