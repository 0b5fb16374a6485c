"""The fault language: what a line means, what is refused and in which words, and what schedules are drawn."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from pathlib import Path

import pytest

from dst.fault_draw import CLUSTER_S, ENDS_WITHIN_S, draw
from shoal.errors import Misuse
from shoal.sim.fault_text import parse, write
from shoal.sim.faults import (
    ALL,
    HOME,
    KINDS,
    LEADER,
    NOT_OF_HOME,
    AllWorkers,
    Apart,
    AtEpoch,
    AtRound,
    AtSecond,
    Crash,
    CutFault,
    Deaf,
    Delay,
    Duplicate,
    Fail,
    Fault,
    FullDisk,
    Hang,
    LeaveFault,
    Lose,
    Mute,
    NodeKind,
    PartitionFault,
    Restart,
    SaveFate,
    Skew,
    Slow,
    SlowLink,
    Stop,
    TransferFault,
    Who,
    WorkerShare,
    kind_of,
    resolve,
    worker,
)
from shoal.sim.rng import Rng

ROOT = Path(__file__).resolve().parents[2]

LINES: list[tuple[str, Fault]] = [
    ("crash(leader, at=round(7))", Crash(who=LEADER, at=AtRound(7), restart_s=2.0, disk=SaveFate.SAFE)),
    ("crash(w3, at=12.5, restart_s=never)", Crash(who=worker(3), at=AtSecond(12.5), restart_s=math.inf)),
    ("crash(home, at=epoch(2), disk=torn)", Crash(who=HOME, at=AtEpoch(2), disk=SaveFate.TORN)),
    ("restart(w3, at=40)", Restart(who=worker(3), at=AtSecond(40))),
    ("leave(w2, at=30, back_s=10)", LeaveFault(who=worker(2), at=AtSecond(30), back_s=10)),
    ("stop(w4, at=10, for_s=15)", Stop(who=worker(4), at=AtSecond(10), for_s=15)),
    ("cut(w1, at=8)", CutFault(who=worker(1), at=AtSecond(8))),
    (
        "apart({home, leader}, at=9, for_s=5)",
        Apart(who=Who((NodeKind.HOME, NodeKind.LEADER)), at=AtSecond(9), for_s=5),
    ),
    ("mute(home, at=9, for_s=90)", Mute(who=HOME, at=AtSecond(9), for_s=90)),
    ("deaf(w1, at=9)", Deaf(who=worker(1), at=AtSecond(9))),
    ("transfer(w2, at=round(3))", TransferFault(who=worker(2), at=AtRound(3))),
    ("transfer(leader, at=4)", TransferFault(who=LEADER, at=AtSecond(4))),
    (
        "partition({w1, w2}, at=20, for_s=20)",
        PartitionFault(who=Who((AllWorkers(1, 1), AllWorkers(2, 2))), at=AtSecond(20), for_s=20),
    ),
    ("slow(w3, 4x, at=0, for_s=60)", Slow(who=worker(3), factor=4, for_s=60)),
    ("slow_link(w3, 10x, at=5, for_s=60)", SlowLink(who=worker(3), factor=10, at=AtSecond(5), for_s=60)),
    ("delay(w1, 0.5, at=5, for_s=60)", Delay(who=worker(1), extra_s=0.5, at=AtSecond(5), for_s=60)),
    ("lose(w1, 5%, at=0)", Lose(who=worker(1), share=0.05, for_s=math.inf)),
    ("duplicate(w1, 20%, at=0, for_s=60)", Duplicate(who=worker(1), share=0.2, for_s=60)),
    ("skew(w4, +90, at=0)", Skew(who=worker(4), ahead_s=90)),
    ("skew(w4, -3, at=0)", Skew(who=worker(4), ahead_s=-3)),
    ("fail(w2, at=round(3))", Fail(who=worker(2), at=AtRound(3))),
    ("hang(w2, at=round(3))", Hang(who=worker(2), at=AtRound(3))),
    ("full_disk(home, at=15, for_s=10)", FullDisk(who=HOME, at=AtSecond(15), for_s=10)),
    (
        "stop({w1, w5..w7, home, 30%}, at=0)",
        Stop(who=Who((AllWorkers(1, 1), AllWorkers(5, 7), NodeKind.HOME, WorkerShare(0.3)))),
    ),
    ("cut(all, at=0)", CutFault(who=ALL)),
]


# Text --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("line", "fault"), LINES, ids=[line for line, _ in LINES])
def test_a_line_means_one_fault_and_is_written_the_same(line: str, fault: Fault) -> None:
    assert parse(line) == (fault,)
    assert write([fault]) == f"{line}\n"


def test_every_kind_has_a_line_here() -> None:
    assert {kind_of(fault) for _, fault in LINES} == set(KINDS)


def test_comments_blanks_and_spaces_say_nothing() -> None:
    text = "# a bad day\n\n  crash( w1 ,at = 3 )  # first\r\n\t\ncut(w2)"
    assert parse(text) == (Crash(who=worker(1), at=AtSecond(3)), CutFault(who=worker(2)))
    assert parse("") == parse("# nothing") == ()
    assert write([]) == ""


def test_what_may_be_left_out() -> None:
    assert parse("leave(w1)") == (LeaveFault(who=worker(1), at=AtSecond(0), back_s=math.inf),)
    assert parse("stop(w1)") == parse("stop({w1}, for_s=forever)") == (Stop(who=worker(1)),)
    assert parse("slow(100%, 2x)") == parse("slow(all, 2x, at=0)")


def test_a_share_is_read_to_the_last_digit() -> None:
    # 0.07 * 100 is 7.000000000000001.
    assert parse("lose(w1, 7%)") == (Lose(who=worker(1), share=0.07),)
    assert write([Lose(who=worker(1), share=0.07)]) == "lose(w1, 7%, at=0)\n"
    assert write([Delay(who=worker(1), extra_s=1e-5)]) == "delay(w1, 0.00001, at=0)\n"


CRASH = "crash(w1, at=..., restart_s=..., disk=...)"
SLOW = "slow(w1, 4x, at=..., for_s=...)"
NODES = "there is: home, leader, all, w1, w2 and so on, w1..w8, 30%"

REFUSED = [
    # names
    ("crsh(w1)", "there is no fault 'crsh'; did you mean crash?"),
    ("Crash(w1)", "there is no fault 'Crash'; did you mean crash?"),
    ("slowlink(w1, 4x)", "there is no fault 'slowlink'; did you mean slow_link?"),
    ("zzz(w1)", f"there is no fault 'zzz'; there is: {', '.join(KINDS)}"),
    ("crash(w1, restart=3)", "crash has no 'restart'; did you mean restart_s?"),
    ("crash(w1, zzz=3)", "crash has no 'zzz'; there is: at, restart_s, disk"),
    ("crash(w1, at=1, at=2)", "at is given twice"),
    ("crash(hom)", "there is no node 'hom'; did you mean home?"),
    ("crash(pi3)", f"there is no node 'pi3'; {NODES}"),
    ("crash(w0)", f"there is no node 'w0'; {NODES}"),
    ("crash(w3..w1)", "a range counts up: w1..w3"),
    ("crash(w3..home)", "a range goes from worker to worker, like w1..w8, not to home"),
    ("crash({})", "a set names at least one node, like {w1, w2}"),
    ("crash(0%)", "a share of the workers is above 0% and at most 100%, not 0%"),
    ("crash(130%)", "a share of the workers is above 0% and at most 100%, not 130%"),
    ("crash(30)", "a share of the workers is written 30%, not 30"),
    # shape
    ("crash", f"the line ends too soon; next comes '(' after crash, as in {CRASH}"),
    ("crash w1", f"column 7: 'w1' is not expected here; next comes '(' after crash, as in {CRASH}"),
    ("crash()", f"crash needs to know who it strikes: {CRASH}"),
    ("crash(at=3)", f"crash needs to know who it strikes: {CRASH}"),
    ("full_disk(at=3)", "full_disk needs to know who it strikes: full_disk(home, at=..., for_s=...)"),
    ("crash(w1 at=3)", "column 10: 'at' is not expected here; next comes ',' or ')'"),
    ("crash(w1, 4x)", f"column 11: '4x' is not expected here; next comes a name: {CRASH}"),
    ("crash(w1, at 3)", "column 14: '3' is not expected here; next comes '=' after at"),
    ("crash(w1", "the line ends too soon; next comes ',' or ')'"),
    ("crash({w1, w2)", "column 14: ')' is not expected here; next comes ',' or '}'"),
    ("crash({w1, {w2}})", "column 12: '{' is not expected here; next comes a node"),
    ("cut(w1) cut(w2)", "column 9: 'cut' is not expected here; next comes the end of the line: one fault a line"),
    ("crash(w1, at=.5)", "column 14: '.' has no meaning here"),
    ("7(w1)", "column 1: '7' is not expected here; next comes the name of a fault"),
    ("slow(w1)", f"slow needs to know how much: {SLOW}"),
    ("slow(w1, at=3)", f"slow needs to know how much: {SLOW}"),
    # values
    ("slow(w1, 4)", "how many times slower is written 4x, not 4"),
    ("slow(w1, 0.5x)", "slower is 1x or more, not 0.5x"),
    ("slow_link(w1, 0.5x)", "slower is 1x or more, not 0.5x"),
    ("slow(w1, 4x, for_s=0)", "for_s is a number of seconds above 0, or forever, not 0"),
    ("slow(w1, 4x, for_s=never)", "for_s is a number of seconds or forever, not never"),
    ("crash(w1, restart_s=forever)", "restart_s is a number of seconds or never, not forever"),
    ("crash(w1, restart_s=-1)", "restart_s is a number of seconds from 0, or never, not -1"),
    ("leave(w1, back_s=-1)", "back_s is a number of seconds from 0, or never, not -1"),
    ("lose(w1, 0.05)", "a share is written 5%, not 0.05"),
    ("lose(w1, 100%)", "packet loss is from 0% to below 100%, not 100%; for all of it say partition"),
    ("duplicate(w1, 120%)", "a share of messages is from 0% to 100%, not 120%"),
    ("delay(w1, -1)", "a delay is a number of seconds from 0, not -1"),
    ("delay(w1, 5%)", "a delay is in seconds, like 0.5, not 5%"),
    ("skew(w1, 4x)", "how far a clock is ahead is in seconds, like +90, not 4x"),
    ("crash(w1, at=20s)", "'20s' is not a number; seconds are written 20 or 0.5, times 4x, shares 5%"),
    ("crash(w1, at=1e3)", "'1e3' is not a number; seconds are written 20 or 0.5, times 4x, shares 5%"),
    ("crash(w1, at=-1)", "at is a number of seconds from 0, not -1"),
    (f"crash(w1, at={'9' * 400})", "at is a number of seconds from 0, not inf"),
    ("crash(w1, at=soon)", "at is a number of seconds, round(7) or epoch(2), not soon"),
    ("crash(w1, at=rund(3))", "at is a number of seconds, round(7) or epoch(2), not rund; did you mean round?"),
    ("crash(w1, at=round(1.5))", "round takes a whole number, like round(7)"),
    ("crash(w1, at=round(0))", "the first version that is made is round(1): there is no round(0)"),
    ("crash(w1, at=epoch(0))", "the first epoch is epoch(1): there is no epoch(0)"),
    (f"crash(w1, at=round({'9' * 5000}))", "round(999999999...) is further than any run goes"),
    ("crash(home, disk=trn)", "disk is safe, lost, torn, not trn; did you mean torn?"),
    # sense
    (
        "crash(w1, disk=torn)",
        "disk=torn is what becomes of a save under way, and only home saves; crash home, or leave disk out",
    ),
    (
        "skew(w1, -3, at=5)",
        "a monotonic clock does not go back, so skew -3 needs at=0; later it may only jump ahead",
    ),
    (
        "partition({home, all})",
        "partition of home and all workers has nobody on the other side; name one side only, like partition(all)",
    ),
    ("full_disk(w1)", "full_disk is for home: workers save nothing; say full_disk(home)"),
    ("full_disk(all)", "full_disk is for home: workers save nothing; say full_disk(home)"),
    (
        "leave(home)",
        "leave is not for home or the leader: it is always on, and there is nobody it could say goodbye to; "
        "say crash or stop",
    ),
    (
        "cut(leader)",
        "cut is not for home or the leader: it has a connection to every worker; "
        "say whose breaks, like cut(w1) or cut(all)",
    ),
    (
        "duplicate(home, 5%)",
        "duplicate is not for home or the leader: what is copied is what workers send to it; name workers",
    ),
    ("fail({w1, home})", "fail is not for home or the leader: no user code runs there; name workers"),
    ("hang(leader)", "hang is not for home or the leader: no user code runs there; name workers"),
]


@pytest.mark.parametrize(("line", "told"), REFUSED, ids=[line[:40] for line, _ in REFUSED])
def test_a_line_that_cannot_be_is_refused_with_its_place_and_a_way_out(line: str, told: str) -> None:
    with pytest.raises(Misuse) as refused:
        parse(f"# chaos\n\n{line}\n", source="chaos.txt")
    assert str(refused.value) == f"chaos.txt:3: {told}"


def test_a_skew_at_a_round_is_in_the_middle_of_a_run_too() -> None:
    with pytest.raises(Misuse, match="does not go back"):
        Skew(who=worker(1), ahead_s=-1, at=AtRound(1))
    assert Skew(who=worker(1), ahead_s=1, at=AtRound(1)).ahead_s == 1


def test_what_is_not_a_number_is_refused() -> None:
    for make in (
        lambda: AtSecond(math.nan),
        lambda: Stop(who=ALL, for_s=math.nan),
        lambda: Crash(who=ALL, restart_s=math.nan),
        lambda: Slow(who=ALL, factor=math.nan),
        lambda: Slow(who=ALL, factor=math.inf),
        lambda: Delay(who=ALL, extra_s=math.inf),
        lambda: Lose(who=ALL, share=math.nan),
        lambda: Duplicate(who=ALL, share=math.nan),
        lambda: Skew(who=ALL, ahead_s=math.inf),
        lambda: WorkerShare(math.nan),
    ):
        with pytest.raises(Misuse):
            make()


def test_home_may_be_on_either_side_of_a_partition() -> None:
    assert PartitionFault(who=HOME).who == HOME
    assert parse("partition({home, w1}, at=3)")[0].who.has_home


def test_the_examples_of_the_page_are_faults() -> None:
    page = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        assert parse(block)
    rows = re.findall(r"^\| `(\w+\(.*?\))` \|", page, flags=re.MULTILINE)
    assert {kind_of(parse(row)[0]) for row in rows} == set(KINDS)


# Who ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("who", "names"),
    [
        (HOME, ("home",)),
        (LEADER, ("home",)),
        (worker(10), ("w10",)),
        (ALL, tuple(f"w{number}" for number in range(1, 11))),
        (Who((AllWorkers(2, 4),)), ("w2", "w3", "w4")),
        # ceil(0.25 * 10) = 3
        (Who((WorkerShare(0.25),)), ("w1", "w2", "w3")),
        (Who((WorkerShare(0.001),)), ("w1",)),
        # By number, not by letter; each once.
        (
            Who((AllWorkers(10, 10), AllWorkers(9, 10), AllWorkers(2, 2), NodeKind.LEADER, NodeKind.HOME)),
            ("home", "w2", "w9", "w10"),
        ),
    ],
)
def test_names_come_in_order_and_once(who: Who, names: tuple[str, ...]) -> None:
    assert resolve(who, workers=10) == names


def test_a_share_is_exact() -> None:
    # In floats 0.07 * 100 is a little above 7, and its ceiling 8.
    assert len(resolve(Who((WorkerShare(0.07),)), workers=100)) == 7


def test_the_leader_may_be_a_worker() -> None:
    assert resolve(LEADER, workers=3, leader="w2") == ("w2",)
    assert resolve(Who((NodeKind.HOME, NodeKind.LEADER)), workers=3, leader="w2") == ("home", "w2")
    for wrong in ("w4", "pi"):
        with pytest.raises(Misuse, match=f"'{wrong}' cannot lead: this run has home and 3 workers, w1 to w3"):
            resolve(LEADER, workers=3, leader=wrong)


def test_a_worker_that_does_not_exist_is_named() -> None:
    with pytest.raises(Misuse, match="there is no w9: this run has 8 workers, w1 to w8"):
        resolve(worker(9), workers=8)
    with pytest.raises(Misuse, match="there is no w9999999: this run has one worker, w1"):
        resolve(Who((AllWorkers(1, 9_999_999),)), workers=1)
    with pytest.raises(Misuse, match="at least one worker, not 0"):
        resolve(HOME, workers=0)


# Draws -------------------------------------------------------------------------------------------------

SEEDS = range(300)


def drawn(seed: int) -> tuple[Fault, ...]:
    return draw(Rng(seed).stream("faults"), workers=5, until_s=30.0, count=8)


def seconds(faults: tuple[Fault, ...]) -> list[float]:
    return [fault.at.s for fault in faults if isinstance(fault.at, AtSecond)]


def test_schedules_see_everything_there_is() -> None:
    schedules = [drawn(seed) for seed in SEEDS]
    faults = [fault for schedule in schedules for fault in schedule]
    assert {kind_of(fault) for fault in faults} == set(KINDS) - {"mute", "deaf"}, "cuts are drawn by themselves"
    assert {type(fault.at) for fault in faults} == {AtSecond, AtRound, AtEpoch}
    crashes = [fault for fault in faults if isinstance(fault, Crash)]
    assert {fault.disk for fault in crashes if fault.who in (HOME, LEADER)} == set(SaveFate)
    assert any(not fault.who.has_home for fault in crashes)
    assert any(isinstance(fault, Skew) and fault.ahead_s < 0 for fault in faults)
    assert any(isinstance(fault, Skew) and fault.at not in (AtSecond(0.0),) for fault in faults)
    assert {type(part) for fault in faults for part in fault.who.parts} == {NodeKind, AllWorkers, WorkerShare}


def test_some_schedules_are_of_many_kinds_and_others_of_few() -> None:
    counts = [len({kind_of(fault) for fault in drawn(seed)}) for seed in SEEDS]
    assert sum(count <= 2 for count in counts) > len(SEEDS) / 3
    assert sum(count >= 4 for count in counts) > len(SEEDS) / 3


def test_about_half_of_the_schedules_come_in_clusters() -> None:
    def gaps(seed: int) -> list[float]:
        times = seconds(draw(Rng(seed).stream("faults"), workers=5, until_s=3000.0, count=8, kinds=["crash"]))
        return [later - earlier for earlier, later in pairwise(times)]

    # Over 3000 s, faults apart from one another come within two seconds about once in 60 schedules.
    clustered = sum(any(gap <= CLUSTER_S for gap in gaps(seed)) for seed in SEEDS)
    assert 0.4 * len(SEEDS) < clustered < 0.6 * len(SEEDS)


def test_faults_of_a_cluster_often_strike_the_same_node_again() -> None:
    # Over 3000 s, neighbours within two seconds are of one cluster. If each fault chose anew, 4 in 100 would be alike.
    same = []
    for seed in SEEDS:
        stops = draw(Rng(seed).stream("faults"), workers=1000, until_s=3000.0, count=8, kinds=["stop"])
        timed = [(fault.at.s, fault.who) for fault in stops if isinstance(fault.at, AtSecond)]
        same += [
            first == second
            for (earlier_s, first), (later_s, second) in pairwise(timed)
            if later_s - earlier_s <= CLUSTER_S
        ]
    assert sum(same) > 0.25 * len(same)


def test_no_fault_is_rounded_past_the_end() -> None:
    assert max(seconds(draw(Rng(0).stream("faults"), workers=1, until_s=0.006, count=50, kinds=["cut"]))) <= 0.006


def test_failures_stay_below_what_fails_a_job() -> None:
    for seed in SEEDS:
        faults = [fault for fault in drawn(seed) if isinstance(fault, Fail | Hang)]
        assert len(faults) <= 3
        assert all(len(resolve(fault.who, workers=5)) == 1 for fault in faults)
    asked = draw(Rng(0).stream("faults"), workers=5, until_s=30.0, count=8, kinds=["fail"])
    assert [kind_of(fault) for fault in asked] == ["fail"] * 8


def test_only_the_kinds_asked_for_are_drawn() -> None:
    faults = draw(Rng(1).stream("faults"), workers=2, until_s=10.0, count=50, kinds=["cut", "full_disk"])
    assert {kind_of(fault) for fault in faults} == {"cut", "full_disk"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_be_drawn_for_a_single_worker_and_no_time(kind: str) -> None:
    faults = draw(Rng(2).stream("faults"), workers=1, until_s=0.0, count=40, kinds=[kind])
    assert len(faults) == 40
    assert set(seconds(faults)) == {0.0}
    for fault in faults:
        assert resolve(fault.who, workers=1)
        assert kind not in NOT_OF_HOME or not fault.who.has_home


def test_a_partition_that_is_drawn_has_two_sides() -> None:
    for workers in (1, 2, 5):
        for fault in draw(Rng(workers).stream("faults"), workers=workers, until_s=9.0, count=200, kinds=["partition"]):
            assert len(resolve(fault.who, workers=workers)) < workers + 1


def test_a_schedule_that_cannot_be_drawn_is_refused() -> None:
    stream = Rng(0).stream("faults")
    with pytest.raises(Misuse, match="there is no fault 'crsh'; did you mean crash"):
        draw(stream, workers=1, until_s=1.0, count=1, kinds=["crsh"])
    with pytest.raises(Misuse, match="at least one kind"):
        draw(stream, workers=1, until_s=1.0, count=1, kinds=[])
    for wrong in ({"workers": 0}, {"count": -1}, {"until_s": math.inf}, {"until_s": math.nan}):
        with pytest.raises(Misuse, match="no faults can be drawn"):
            draw(stream, **({"workers": 1, "until_s": 1.0, "count": 1} | wrong))  # type: ignore[arg-type]


def test_what_is_drawn_ends_by_itself() -> None:
    for seed in SEEDS:
        for fault in drawn(seed):
            spans = [getattr(fault, name, 0.0) for name in ("for_s", "restart_s", "back_s")]
            assert max(spans) <= ENDS_WITHIN_S
