"""`shoal plan explain`: a job's shape and its reasons, and the planner's answer for a fleet that is not there yet."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from statuses import JOB, job, progress, worker

from shoal.cli import main
from shoal.cli.exits import Exit
from shoal.cli.render.explained import advice, job_lines, job_plain, model_bytes, sketch_plain
from shoal.cli.render.trusted import trust_facts
from shoal.cli.sketch import DEVICES_MAX, Sketch
from shoal.errors import Misuse
from shoal.plan import Plan, epochs
from shoal.states import JobState
from shoal.topology import predict
from shoal.wire.messages import JobView, TopologyView

SIXTEEN = ["plan", "explain", "--devices", "16", "--mbps", "100", "--model-mb", "2.9", "--train-s", "1"]
CHOICES = (
    TopologyView(topology="star", batch_s=7.73, detail="16 models over one link"),
    TopologyView(topology="tree", batch_s=4.11, detail="1-4-16"),
    TopologyView(topology="shard", batch_s=1.45, detail="16 of 16 nodes lead 6.2 %", chosen=True),
)


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SHOAL_DEBUG", "0")
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "dumb")


def sketch(**values: Any) -> Sketch:
    usual = {
        "devices": 16,
        "link_bytes_per_s": 12.5e6,
        "leader_bytes_per_s": 12.5e6,
        "model_bytes": 2.9e6,
        "train_s": 1.0,
    }
    return Sketch(**(usual | values))


def shaped(plan: Plan, model_size: int = 725_000, **values: Any) -> JobView:
    workers = tuple(worker(number, lease_s=1.5, train_s=1.0) for number in range(3))
    usual: dict[str, Any] = {"topology": "star", "pace": "sync", "workers": workers}
    return job(plan=plan, model_size=model_size, progress=progress(**(usual | values)))


def said(view: JobView) -> str:
    console = Console(file=io.StringIO(), width=200, color_system=None)
    for part in job_lines(view):
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


# A job -------------------------------------------------------------------------------------------------------


def test_a_job_that_has_chosen_says_what_there_was_and_how_it_goes() -> None:
    view = shaped(
        Plan(topology="auto"),
        topology="shard over 16 of 16 workers",
        topology_reason="shard: 1.45 s a batch, where a star takes 7.73 s",
        predicted_s=1.45,
        round_s=1.479,
        sync_s=0.47,
        alternatives=CHOICES,
        saturation="gains",
        saturation_reason="16 workers: one more gains 5.9 % ± 0.4 %",
    )
    text = said(view)
    for part in (
        f"{JOB} (mnist): shard over 16 of 16 workers, 1.48 s per batch (1.45 s predicted)",
        "7.73 s   5.3x as long   16 models over one link",
        "4.11 s   2.8x as long   1-4-16",
        "topology auto, pace sync",
        "where a star takes 7.73 s",
        "1.48 s a batch, 470 ms of it not training; 2 % more than predicted (1.45 s)",
        "workers    16 workers: one more gains 5.9 % ± 0.4 %",
    ):
        assert part in text, part
    (chosen,) = [line for line in text.splitlines() if line.startswith("▸")]
    assert "shard" in chosen
    assert "chosen" in chosen
    assert "next" not in text
    # Of a shard, a lease is not a whole model there and back.
    assert "links" not in text


def test_a_robust_plan_says_what_it_costs_and_what_it_does_not_stop() -> None:
    text = said(shaped(Plan(trust="robust")))
    for part in (
        "robust: of 3 devices in a version 1 may lie",
        "of a core more a version at the leader",
        "no bytes more; its leader keeps 8.7 MB of updates, on disk",
        "the leader sees every update",
        "a backdoor in updates of the usual length",
    ):
        assert part in text, part
    assert "warning" not in text
    assert "leases of 8 examples" in said(shaped(Plan(trust="robust", batch_size=8)))
    assert "leases of 32 examples" in said(shaped(Plan(trust="robust", batch_size=32, worker_momentum=0.0)))
    nearest = job_plain(shaped(Plan(trust="robust")))["trust"]
    assert nearest["stops not"].endswith("robust is for broken devices and crude lies")
    clipped = job_plain(shaped(Plan(trust="robust(clip)")))["trust"]
    assert clipped["stops not"].startswith("a lie that is no longer than an honest update, nor a backdoor")
    assert clipped["stops not"].endswith("and no backdoor of the usual length")
    assert "disk" not in clipped["costs"]
    text = said(shaped(Plan(trust="robust", topology="shard"), topology="shard over 3 of 3 workers"))
    for part in (
        "of a core more a version on each of 3 aggregators",
        # 3 aggregators tell 6 products each.
        "one more question and answer before each sum, 144 B a version to the leader from all of them",
        "each aggregator sees its part of every update",
        "an aggregator that lies about what it sums up",
    ):
        assert part in text, part
    text = said(shaped(Plan(trust="robust(clip)", topology="tree"), topology="tree 1-2-3"))
    # The square root of three devices, and twice the model's 2.9 MB.
    assert "on each of 2 aggregators" in text
    assert "up to 5.8 MB more a version from the leader, for the last mean" in text
    assert "each aggregator sees every update of its group" in text
    assert "trust" not in said(shaped(Plan()))
    assert "trust" not in job_plain(shaped(Plan()))


def private(**plan: Any) -> Plan:
    given = {"trust": "private(8, 1e-4)", "data": "local", "cohort": 49, "workers_min": 539, "epoch_leases": 539}
    return Plan(**{**given, "until": epochs(8), "clip_update": 0.3, **plan})


def test_a_private_plan_says_what_it_promises_costs_and_shows() -> None:
    text = said(shaped(private(), model_size=4978))
    for part in (
        "private(8, 1e-4): the model tells little of any one person",
        "epsilon 8, delta 0.0001 at the plan's end, for all that one device ever sends: 8 updates at most, 11 versions",
        "in 88 versions of 49 devices",
        "with the first update of a device",
        "a deviation of 0.023 in each value of a version's mean",
        "of a core more a version at the leader",
        "no bytes more",
        "the leader sees every update before noise is added",
        "3 devices are here, and a sum is divided by 49",
    ):
        assert part in text, part
    assert "twenty devices" not in text
    assert "twenty devices and privacy do not go together" in said(shaped(private(cohort=20)))
    assert "noise moves the model as far as learning" in said(shaped(private()))


@pytest.mark.parametrize(
    ("topology", "part"),
    [
        ("tree", "each aggregator sees every update of its group before noise is added, and the leader sums of them"),
        ("shard", "each aggregator sees its part of every update before noise is added"),
        ("auto", "in a shard its part of every update before noise is added"),
    ],
)
def test_a_private_plan_says_what_its_aggregators_see(topology: str, part: str) -> None:
    facts = dict(trust_facts(private(topology=topology), devices=539, model_bytes=4 * 4978))
    assert part in facts["learns"]
    assert "name topology = 'star' or trust = 'sealed + private(...)'" in facts["learns"]
    assert "the leader cuts a sum" in facts["bears not"]
    assert ("sends each version once" in facts["costs"]) == (topology != "tree")
    assert "meet" not in facts
    buffered = private(topology="tree", pace="buffered", cohort=0, buffer=49)
    assert "more devices than buffer" in dict(trust_facts(buffered, devices=539, model_bytes=4))["meet"]


def test_a_shape_that_is_not_in_force_yet_is_not_judged_by_what_is() -> None:
    view = shaped(Plan(topology="auto"), predicted_s=1.45, round_s=7.7, alternatives=CHOICES)
    text = said(view)
    assert "a shard was chosen and does not hold" in text
    assert f"shoal jobs show {JOB}" in text
    assert "predicted (" not in text


def test_rounds_that_differ_from_the_prediction_are_said_to_be_a_reason() -> None:
    told = {"topology": "shard over 3 of 3 workers", "predicted_s": 1.45, "alternatives": CHOICES}
    assert "off by more than 15 %" in "".join(advice(shaped(Plan(topology="auto"), round_s=1.8, **told)))
    assert list(advice(shaped(Plan(topology="auto"), round_s=1.6, **told))) == []


def test_a_job_that_measured_nothing_says_so_and_what_to_do() -> None:
    queued = job(state=JobState.QUEUED, progress=None)
    assert "nothing is known of its updates yet" in said(queued)
    assert f"shoal status {JOB}" in said(queued)
    early = said(shaped(Plan(topology="auto")))
    assert "auto begins with a star and chooses after 3 rounds" in early
    assert "measured   nothing yet" in early
    over = job(state=JobState.FINISHED, plan=Plan(topology="auto"), progress=progress(topology="star"))
    assert list(advice(over)) == []


def test_a_plan_that_names_its_shape_is_told_how_to_compare() -> None:
    text = said(shaped(Plan(topology="star"), round_s=1.6, sync_s=0.5))
    assert "`--topology auto` measures and chooses" in text
    assert "shoal plan explain --devices 3 --mbps MBPS --model-mb 2.9 --train-s 1" in text
    # 2 x 2.9 MB in the half second that a lease took beyond its training.
    assert "takes 500 ms in the median, so a link carries at least 11.6 MB/s" in text


def test_a_model_whose_size_is_not_told_is_as_large_as_an_update_of_a_star() -> None:
    senders = tuple(worker(number, batches=20, bytes_up=29_000_000) for number in range(3))
    assert model_bytes(shaped(Plan(lease_batches=2), model_size=0, workers=senders)) == pytest.approx(2.9e6)
    assert model_bytes(shaped(Plan(lease_batches=2), workers=senders)) == pytest.approx(2.9e6)
    assert model_bytes(shaped(Plan(), model_size=0, workers=senders, topology="shard over 3 of 3 workers")) == 0
    assert model_bytes(shaped(Plan(), model_size=0, workers=(worker(1, batches=0),))) == 0
    assert "--model-mb MB" in said(shaped(Plan(), model_size=0, workers=(worker(1, batches=0),)))


def test_json_says_the_same() -> None:
    view = shaped(Plan(topology="auto"), predicted_s=7.0, round_s=7.7, sync_s=6.0, alternatives=())
    plain = json.loads(json.dumps(job_plain(view), allow_nan=False))
    assert plain["asked_for"] == {"topology": "auto", "pace": "sync", "aggregators": 0}
    assert (plain["predicted_s"], plain["measured_s"], plain["not_training_s"]) == (7.0, 7.7, 6.0)
    assert plain["links"][0] == {
        "node": "device-0",
        "there_and_back_s": 0.5,
        "at_least_bytes_per_s": pytest.approx(11.6e6),
    }
    assert plain["next"] == list(advice(view))
    nothing = job_plain(job(state=JobState.QUEUED, progress=None))
    assert nothing["state"] == "queued"
    assert "topology" not in nothing


def test_what_a_leader_writes_is_neither_markup_nor_a_command() -> None:
    sly = TopologyView(topology="\x1b[2J", pace="[red]", batch_s=1.0, detail="[/nonsense]\x1b]0;x\x07", chosen=True)
    text = said(shaped(Plan(topology="auto"), topology_reason="\x1b[31m[bold]", alternatives=(sly,)))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[bold]" in text


def test_without_a_cluster_a_job_cannot_be_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["plan", "explain", JOB]) == Exit.UNREACHABLE
    assert "shoal up" in capsys.readouterr().err


# A fleet that is not there yet -------------------------------------------------------------------------------


def test_a_fleet_gets_the_planners_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(SIXTEEN) == Exit.OK
    text = capsys.readouterr().out
    star = predict.star(sketch().cluster, model_bytes=2.9e6)
    assert "16 devices alike: links of 12.5 MB/s; a model of 2.9 MB, 1.00 s of training" in text
    assert f"{star.batch_s:.2f} s" in text
    (chosen,) = [line for line in text.splitlines() if line.startswith("▸")]
    assert "shard" in chosen
    assert "shoal train TASK --topology shard" in text


def test_on_shared_air_a_star_is_best(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([*SIXTEEN, "--shared-air", "--json"]) == Exit.OK
    told = json.loads(capsys.readouterr().out)
    assert told["chosen"] == "star"
    assert "shared" in told["reason"]
    assert told["fleet"]["shared_air"] is True
    assert [each["topology"] for each in told["alternatives"]] == ["star", "tree", "shard"]
    assert [each["chosen"] for each in told["alternatives"]] == [True, False, False]


def test_a_wider_link_of_the_leader_speaks_for_a_star(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([*SIXTEEN, "--leader-mbps", "10000", "--json"]) == Exit.OK
    wide = json.loads(capsys.readouterr().out)["alternatives"][0]["batch_s"]
    assert wide < predict.star(sketch().cluster, model_bytes=2.9e6).batch_s / 4


def test_hubs_make_a_tree_faster(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([*SIXTEEN, "--json"]) == Exit.OK
    plain = json.loads(capsys.readouterr().out)["alternatives"][1]
    assert main.run([*SIXTEEN, "--hubs", "2", "--hub-mbps", "1000", "--json"]) == Exit.OK
    told = json.loads(capsys.readouterr().out)
    assert (told["fleet"]["hubs"], told["fleet"]["hub_bytes_per_s"]) == (2, 125e6)
    tree = told["alternatives"][1]
    assert tree["batch_s"] < plain["batch_s"]
    assert "hubs with up to" in tree["detail"]
    assert main.run([*SIXTEEN, "--hubs", "2"]) == Exit.OK
    assert "; 2 hubs with 12.5 MB/s;" in capsys.readouterr().out, "as the leader's link"


def test_a_fleet_that_outvotes_liars_is_no_tree_and_told_what_that_costs() -> None:
    wary, plain = sketch(devices=16, trust="robust"), sketch(devices=16)
    assert set(wary.left_out) == {"tree"}
    told = sketch_plain(wary, wary.choose())
    assert told["chosen"] == "shard"
    # 16 aggregators with 16 * 17 / 2 numbers of eight bytes each.
    assert "17.4 kB a version to the leader from all of them" in told["trust"]["costs"]
    assert told["trust"]["trust"] == "robust: of 16 devices in a version 4 may lie"
    assert sketch_plain(plain, plain.choose())["trust"] == {}
    with pytest.raises(Misuse, match="is not a choice Shoal has"):
        sketch(devices=16, trust="magic")


@pytest.mark.parametrize("trust", ["identity", "robust", "robust(clip)", "sealed", "sealed(20, 10%, 30%)"])
def test_no_shape_is_named_that_a_plan_of_this_trust_refuses(trust: str) -> None:
    told = sketch(devices=32, trust=trust)
    chosen = told.choose()
    for each in chosen.alternatives:
        assert replace(told.plan, topology=each.topology).trust == trust
    said = sketch_plain(told, chosen)
    assert said["chosen"] not in said["left_out"]
    if trust.startswith("sealed"):
        assert said["chosen"] != "star"
        assert "learn nothing" in said["trust"]["meet"]


def test_shapes_that_a_leader_would_not_take_are_left_out() -> None:
    assert sketch(devices=2).left_out == {"tree": "takes at least 3 workers"}
    assert set(sketch(devices=1).left_out) == {"tree", "shard"}
    assert [told.topology for told in sketch(devices=1).choose().alternatives] == ["star"]
    many = sketch(devices=65)
    assert "connected with every other" in many.left_out["shard"]
    assert [told.topology for told in many.choose().alternatives] == ["star", "tree"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--devices", "16"], "depends on --mbps, --model-mb, --train-s too"),
        (["--mbps", "100"], "--mbps is of a fleet"),
        (["--shared-air"], "--shared-air is of a fleet"),
        (["mnist", *SIXTEEN[2:]], "one at a time"),
        ([*SIXTEEN[2:], "--devices", str(DEVICES_MAX + 1)], "shoal plan capacity"),
        ([*SIXTEEN[2:], "--mbps", "0"], "a link has a size above 0"),
        ([*SIXTEEN[2:], "--model-mb", "nan"], "a model has a size above 0"),
        ([*SIXTEEN[2:], "--train-s", "-1"], "trains for 0 s or more"),
        (["--hubs", "2"], "--hubs is of a fleet"),
        ([*SIXTEEN[2:], "--hub-mbps", "9"], "say how many there are with --hubs"),
        ([*SIXTEEN[2:], "--hubs", "17"], "a hub sums up for one device at least"),
    ],
)
def test_what_makes_no_sense_is_misuse(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["plan", "explain", *words]) == Exit.MISUSE
    assert says in capsys.readouterr().err


def test_the_table_in_the_docs_is_what_the_planner_says() -> None:
    text = (Path(__file__).parents[3] / "docs" / "topologies.md").read_text(encoding="utf-8")
    table = text.partition("<!-- planned")[2].partition("\n\n")[0].splitlines()[3:]
    assert len(table) == 6
    for row in table:
        devices, *cells = (cell.strip() for cell in row.strip("|").split("|"))
        told = {each.topology: f"{each.batch_s:.2f} s" for each in sketch(devices=int(devices)).choose().alternatives}
        assert cells == [told.get(shape, "–") for shape in ("star", "tree", "shard")], row


def test_a_sketch_is_checked() -> None:
    with pytest.raises(Misuse, match="the leader's link"):
        sketch(leader_bytes_per_s=0.0)


def test_a_plan_whose_devices_cut_themselves_says_what_that_stops_and_what_not() -> None:
    given = {"data": "local", "workers_min": 8, "workers_max": 20, "clip_update": 0.5}
    facts = dict(trust_facts(Plan(trust="robust(clip) + sealed", **given), devices=8, model_bytes=4e6))
    assert "cuts its update to a length of 0.5 before it seals" in facts["cuts"]
    assert "no version moves further than one update may" in facts["cuts"]
    assert "nobody sees whether a device cut" in facts["bears not"]
    assert "the leader sees sums of at least 8 devices" in facts["learns"]
    assert "counts as far as is usual" not in facts["trust"]


def test_a_sealed_and_private_plan_says_both_and_what_shares_cost() -> None:
    plan = Plan(
        trust="sealed(8, 10%, 30%) + private(8, 1e-5)",
        data="local",
        cohort=50,
        workers_min=500,
        epoch_leases=500,
        until=epochs(8),
        clip_update=0.5,
    )
    told: dict[str, str] = {}
    for label, text in trust_facts(plan, devices=500, model_bytes=4 * 720_967):
        told[label] = f"{told.get(label, '')} {text}"
    assert "nobody sees a sum without noise" in told["trust"]
    assert "of 50 devices each masks with 22 neighbours" in told["trust"]
    assert "epsilon 8, delta 1e-05 at the plan's end" in told["promise"]
    assert "8 updates at most, those of sums that come to nothing among them" in told["promise"]
    assert "the 30 devices whose noise is certain" in told["shares"]
    assert "1.29 times the deviation it needs" in told["shares"]
    assert "as far as updates that all agree could" in told["noise"]
    assert "ms of a core more a version on a device" in told["costs"]
    assert "10.5 kB more up a device" in told["costs"]
    assert "sums of at least 35 devices, never one without noise" in told["learns"]
    assert "sums of versions" not in told["stops not"]
