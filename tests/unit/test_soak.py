"""What a soak of hours says of growth, how it goes on after a kill, and what comes next. Nothing is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.soak.growth import Growth, Sample, growth, growths, lives
from testbed.soak.journal import InUse, Journal, Leg, opened
from testbed.soak.result import result
from testbed.soak.run import next_leg


def _life(
    who: str, pid: int, rss_mb: list[float], *, from_s: float = 0.0, fds: list[int] | None = None, led: str = ""
) -> list[Sample]:
    """A sample every 10 s. ``led``: with an L for each in which it led."""
    open_files, leads = fds or [10] * len(rss_mb), led.ljust(len(rss_mb))
    return [
        Sample(at_s=from_s + 10 * number, who=who, pid=pid, rss_mb=mb, fds=files, leads=letter == "L")
        for number, (mb, files, letter) in enumerate(zip(rss_mb, open_files, leads, strict=True))
    ]


def _leg(number: int, managers: int, seconds: float, **fields: object) -> Leg:
    known = {
        "faults": {"stop": 2},
        "missed": 0,
        "applied": 95,
        "expected": 100.0,
        "lost": 0,
        "twice": 0,
        "jobs_finished": 1,
        "model_matches": True,
        "tracebacks": (),
        "load": (1.0,),
        "commit": "abc",
        **fields,
    }
    return Leg.of({"number": number, "managers": managers, "seconds": seconds, **known})


# Growth -------------------------------------------------------------------------------------------------


def test_growth_is_from_the_second_quarters_median_to_the_lasts() -> None:
    # Quarters of a life of 80 s: what is there before 20 s and from 40 to 60 s does not count.
    life = _life("manager", 1, [10, 20, 50, 50, 99, 99, 54, 55, 56], fds=[1, 2, 8, 8, 30, 30, 9, 10, 11])
    assert growth(life) == Growth(
        who="manager", led=False, lived_s=80, rss_mb=55, rss_percent=pytest.approx(10), fds=2.0
    )


def test_a_single_peak_is_no_growth() -> None:
    found = growth(_life("manager", 1, [50.0] * 14 + [500.0] + [50.0]))
    assert found is not None
    assert (found.rss_percent, found.fds) == (0.0, 0.0)


def test_a_process_that_was_started_again_counts_from_its_start() -> None:
    first, second = _life("a", 1, [80] * 9), _life("a", 2, [40] * 9, from_s=90)
    # Of both together it would be a loss of a half.
    assert [each.rss_percent for each in growths([*second, *first], at_least_s=0)] == [0.0, 0.0]
    assert sorted(life[0].pid for life in lives([*second, *first])) == [1, 2]


def test_who_leads_is_compared_with_when_it_led() -> None:
    # It leads at the end of the second quarter, and most of the last.
    files = [10, 10, 10, 10, 40, 40, 10, 10, 10, 10, 10, 10, 12, 41, 41, 41, 41]
    life = _life("a", 1, [50.0] * 17, fds=files, led="    LL       LLLL")
    assert [(each.led, each.fds) for each in growths(life, at_least_s=0)] == [(True, 1.0)]
    # All the same it is more than a quarter of the last, if the last is looked at alone.
    assert growth(life[:-2], led=False) is not None


def test_a_process_that_lived_too_short_is_left_out() -> None:
    samples = [*_life("a", 1, [50] * 9), *_life("b", 2, [10, 50, 90])]
    assert [each.who for each in growths(samples, at_least_s=60)] == ["a"]
    assert growth(_life("c", 3, [50.0])) is None


# The journal --------------------------------------------------------------------------------------------


def test_a_journal_keeps_the_last_line_about_each_leg_and_all_samples(tmp_path: Path) -> None:
    path = tmp_path / "soak.jsonl"
    with opened(path) as journal:
        journal.add_leg(_leg(0, 1, 60.0))
        journal.add_sample(0, _life("a", 1, [50])[0])
        journal.add_leg(_leg(0, 1, 120.0, tracebacks=("m.log",)))
        journal.add_leg(_leg(1, 2, 30.0))
    read = Journal(path)
    assert read.legs == {0: _leg(0, 1, 120.0, tracebacks=("m.log",)), 1: _leg(1, 2, 30.0)}
    assert read.samples == {0: _life("a", 1, [50])}
    assert (read.seconds(1), read.seconds(2), read.next_leg) == (120.0, 30.0, 2)


def test_half_a_line_is_what_a_kill_leaves(tmp_path: Path) -> None:
    path = tmp_path / "soak.jsonl"
    with opened(path) as journal:
        journal.add_leg(_leg(0, 1, 60.0))
    with path.open("a") as file:
        file.write('{"is": "leg", "leg": {"num')
    with opened(path) as journal:
        journal.add_leg(_leg(1, 2, 30.0))
    assert sorted(Journal(path).legs) == [0, 1]


def test_one_soak_at_a_time_writes_a_journal_and_a_new_one_puts_it_aside(tmp_path: Path) -> None:
    path = tmp_path / "soak.jsonl"
    with opened(path) as journal:
        journal.add_leg(_leg(0, 1, 60.0))
        with pytest.raises(InUse, match=r"another soak writes .*soak\.jsonl"), opened(path):
            pass
    with opened(path, anew=True) as journal:
        assert journal.legs == {}
    assert Journal(path.with_suffix(".before")).legs == {0: _leg(0, 1, 60.0)}


def test_it_goes_on_with_the_managers_that_had_less_of_the_time(tmp_path: Path) -> None:
    with opened(tmp_path / "soak.jsonl") as journal:
        assert next_leg(journal, 2.0) == (1, 3600.0)
        journal.add_leg(_leg(0, 1, 600.0))
        assert next_leg(journal, 2.0) == (2, 3600.0)
        journal.add_leg(_leg(1, 2, 3600.0))
        assert next_leg(journal, 2.0) == (1, 3000.0)
        journal.add_leg(_leg(2, 1, 3000.0))
        assert next_leg(journal, 2.0)[1] == 0.0
        # A longer one adds to it.
        assert next_leg(journal, 3.0) == (1, 1800.0)


# The result ---------------------------------------------------------------------------------------------


def test_a_result_adds_up_all_legs_and_names_what_grew_most(tmp_path: Path) -> None:
    with opened(tmp_path / "soak.jsonl") as journal:
        journal.add_leg(_leg(0, 1, 1800.0, lost=1, tracebacks=("b.log",)))
        journal.add_leg(_leg(1, 2, 1800.0, applied=190, expected=200.0, twice=2, faults={"stop": 1, "churn": 4}))
        for sample in _life("manager", 7, [50.0] * 60 + [51.0] * 30, fds=[9] * 90):
            journal.add_sample(0, sample)
        for sample in _life("device-1", 8, [40.0] * 90, fds=[9] * 60 + [12] * 30):
            journal.add_sample(1, sample)
        found = result(journal)
    assert (found["hours"], found["hours_with_two_managers"], found["faults"]) == (1.0, 0.5, 7)
    assert (found["lost"], found["twice"], found["tracebacks"]) == (1, 2, ["b.log"])
    assert found["goodput"] == pytest.approx(285 / 300)
    assert (found["rss_growth_percent"], found["fds_growth"]) == (pytest.approx(2.0), 3.0)
    assert [found["grew_most"][what]["who"] for what in ("rss", "fds")] == ["manager", "device-1"]
    assert found["faults_by_kind"] == {"churn": 4, "stop": 3}


def test_nothing_is_said_of_growth_where_nobody_lived_long_enough(tmp_path: Path) -> None:
    with opened(tmp_path / "soak.jsonl") as journal:
        journal.add_leg(_leg(0, 1, 3600.0))
        for sample in _life("manager", 7, [50.0] * 59):
            journal.add_sample(0, sample)
        found = result(journal)
    assert (found["rss_growth_percent"], found["fds_growth"], found["processes_compared"]) == (None, None, 0)
