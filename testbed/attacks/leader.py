"""Attacks of a leader that lies: it says what it likes to devices that seal their updates, to have the update of one.

Devices are the deployed roles and sealing code (``lied_to``). Each attack ends with the best that the leader can work
out, compared with the truth. It is held only if that is far off. An honest sum is opened first: where that is not
right, nothing was tried.
"""

from __future__ import annotations

import asyncio
import math
import struct
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shoal.learning.metrics import MetricSum
from shoal.roles.events import Trained, TrainerFailed
from shoal.wire.coded import encode_places
from shoal.wire.frames import frames
from shoal.wire.messages import Failed, Update, UpdateRefused
from testbed.attacks.kit import NotTried, Outcome
from testbed.attacks.lied_to import SIZE, SealGroup, Stage, dead_model, error_of, live_model
from testbed.attacks.lied_to_sets import Joined, ring_order

#: An update that the leader works out must be this far off, as a share of the true one's largest value.
FAR = 0.5

#: Shape -> what the plan says. A lie is told in each shape to which it applies.
SHAPES: dict[str, tuple[str, dict[str, object]]] = {
    "star": ("sealed(8, 10%, 30%)", {}),
    "helper": ("sealed(8, helper=aide)", {}),
    "int16": ("sealed(8, 10%, 30%)", {"codec": "int16"}),
    "tree": ("sealed(8, 10%, 30%)", {"topology": "tree"}),
    "shard": ("sealed(8, 10%, 30%)", {"topology": "shard"}),
}
#: Devices of most attacks. One more than the least, so that a sum without one of them may be opened.
DEVICES = 9

MODEL, DEAD = live_model(), dead_model()

Errors = dict[str, float]

#: Stages whose honest sum was found right.
_CONTROLLED: set[tuple[str, int, str]] = set()


def judged(errors: Mapping[str, float], told: str) -> Outcome:
    """Judge by the least of the errors; ``told``: what the leader worked out."""
    if not errors:
        raise NotTried("nothing was tried")
    where, least = min(errors.items(), key=lambda each: each[1])
    found = "nothing could be opened" if math.isinf(least) else f"{least:.2g} of the largest value off in {where}"
    return Outcome(least > FAR, f"{told}: {found}; {len(errors)} tries: {', '.join(errors)}")


def a_stage(shape: str, devices: int = DEVICES, **plan: object) -> Stage:
    """A new stage of this shape, once an honest sum on another one was opened and was right."""
    trust, said = SHAPES[shape]
    wanted: dict[str, object] = {**said, **plan}
    key = (shape, devices, str(wanted))
    if key not in _CONTROLLED and not str(wanted.get("codec", "")).startswith("led"):
        control = Stage(trust, devices, **wanted)
        control.lend(control.names)
        total = control.bind(control.names).sum_of(MODEL)
        if not error_of(total, truth_of(control, control.names)) < 0.05:
            raise NotTried(f"in {shape} an honest sum is not right either: {control.refusals}")
        _CONTROLLED.add(key)
    return Stage(trust, devices, **wanted)


def update_of(stage: Stage, name: str, at: int = 0) -> np.ndarray:
    """What this device's training number ``at`` changed."""
    made = stage.devices[name].made
    if len(made) <= at:
        raise NotTried(f"{name} trained {len(made)} times: {'; '.join(stage.records[-3:])}")
    return made[at].astype(np.float64)


def truth_of(stage: Stage, names: Iterable[str]) -> np.ndarray:
    """The sum as it is opened: each update times the most examples of a lease."""
    most = stage.plan.sealed_examples[1]
    return np.asarray(most * np.stack([update_of(stage, name) for name in names]).sum(axis=0))


def lone_error(stage: Stage, total: np.ndarray | None) -> float:
    """The error if the leader takes a sum for the first device's first update."""
    most, truth = stage.plan.sealed_examples[1], update_of(stage, stage.names[0])
    if not truth.any():
        raise NotTried("the model taught the device nothing, so that there is no update to find")
    return error_of(None if total is None else total / most, truth)


def difference_error(stage: Stage, everyone: np.ndarray | None, others: np.ndarray | None) -> float:
    """The error if the leader takes the difference of two sums for the first device's first update."""
    return lone_error(stage, None if everyone is None or others is None else everyone - others)


def threaded(attack: Callable[[], Outcome]) -> Callable[[Path, float], Coroutine[Any, Any, Outcome]]:
    """As an attack is run: in a thread, beside others."""

    async def run(folder: Path, scale: float) -> Outcome:
        return await asyncio.to_thread(attack)

    run.__doc__ = attack.__doc__
    return run


# Two sets of members -------------------------------------------------------------------------------------------


def split_sets(devices: int, shape: str = "star") -> Outcome:
    """A leader tells members different sets, so that some open a device's own mask and the others its edges.

    Harm: with the members that the plan lets collude it takes all masks off the words of one device.
    """
    stage = a_stage(shape, devices)
    errors: Errors = {}
    opened = []
    # With all that may collude in either way, and without any.
    for colluding, is_denied in ((True, False), (True, True), (False, False)):
        stage.lend(stage.names)
        group = stage.bind(stage.names)
        joined, victim = _split(group, colluding=colluding, is_denied=is_denied)
        name = group.members[victim].node
        truth = update_of(stage, name, -1)
        way = f"{len(joined.colluders)} colluding, {'most told without it' if is_denied else 'most told all'}"
        errors[way] = min([error_of(joined.lone([victim]), truth), *_small_pieces(stage, joined)])
        opened.append(len(joined.opened))
    return judged(errors, f"of {devices} devices {opened} opened something, and the update of one is")


def _split(group: SealGroup, *, colluding: bool, is_denied: bool) -> tuple[Joined, int]:
    """Ask as is best for the leader: enough neighbours of the victim are told of all, so that they open its own mask;
    the victim is told that they are missing; the rest of its neighbours are told that the victim is."""
    graph, shape = group.graph, group.graph.shape
    victim = 0
    near = graph.near[victim]
    colluders = near[: shape.liars] if colluding else ()
    honest = [place for place in near if place not in colluders]
    openers = honest[: 1 if is_denied else max(1, shape.threshold - len(colluders))]
    gone = set((openers + [place for place in honest if place not in openers])[: shape.devices - graph.least])
    everyone = frozenset(range(shape.devices))
    sets = {}
    for place in sorted(everyone - set(colluders)):
        is_told_without = place in honest and place not in openers and (is_denied or place not in gone)
        sets[place] = everyone - {victim} if is_told_without else everyone
    sets[victim] = everyone - gone
    joined = Joined(group, group.label(MODEL), colluders)
    joined.ask(sets)
    return joined, victim


def _small_pieces(stage: Stage, joined: Joined) -> list[float]:
    """The errors of sums that can be read, of fewer honest devices than may be."""
    errors = []
    for piece in joined.pieces():
        if len(piece) < joined.graph.least - len(joined.colluders):
            truth = np.sum([update_of(stage, joined.group.members[place].node, -1) for place in piece], axis=0)
            errors.append(error_of(joined.lone(piece), truth))
    return errors


def split_sets_16() -> Outcome:
    """Sixteen devices are told different sets of members.

    Harm: the leader, with the two that may collude, has the update of one.
    """
    return split_sets(16)


def split_sets_24() -> Outcome:
    """Twenty-four devices are told different sets of members.

    Harm: the leader, with the three that may collude, has the update of one.
    """
    return split_sets(24)


def split_sets_32() -> Outcome:
    """Thirty-two devices are told different sets of members.

    Harm: the leader, with the four that may collude, has the update of one.
    """
    return split_sets(32)


def split_sets_64() -> Outcome:
    """Sixty-four devices, on a ring, are told different sets of members.

    Harm: the leader, with the seven that may collude, has the update of one.
    """
    return split_sets(64)


def ring_gap(devices: int) -> Outcome:
    """Name a set in which two gaps cut a few devices off the ring. Those that collude are in the gaps. With them, the
    few are as many as it takes to open the mask of each."""
    stage = a_stage("star", devices)
    errors: Errors = {}
    for colluding in (True, False):
        stage.lend(stage.names)
        group = stage.bind(stage.names)
        shape, order = group.graph.shape, ring_order(group)
        if shape.is_complete:
            raise NotTried(f"{devices} devices are no ring")
        half = shape.neighbours // 2
        liars = shape.liars if colluding else 0
        run = max(2, shape.threshold + 1 - liars)
        gaps = [*order[run : run + half], *order[-half:]]
        colluders = gaps[:liars]
        missing = set(gaps) - set(colluders)
        joined = Joined(group, group.label(MODEL), colluders)
        present = frozenset(order) - missing
        joined.ask(dict.fromkeys(sorted(present - set(colluders)), present))
        truth = np.sum([update_of(stage, group.members[place].node, -1) for place in order[:run]], axis=0)
        way = f"{run} devices, {len(missing)} missing, {len(colluders)} colluding"
        errors[way] = min([error_of(joined.lone(order[:run]), truth), *_small_pieces(stage, joined)])
    return judged(errors, f"between two gaps in a ring of {devices} the sum of few is")


def ring_gap_40() -> Outcome:
    """A set of members has two gaps that cut two of forty devices off the others.

    Harm: no unknown edge hides them among the others, and the sum of the two is read.
    """
    return ring_gap(40)


def ring_gap_64() -> Outcome:
    """A set of members has two gaps that cut two of sixty-four devices off the others.

    Harm: no unknown edge hides them among the others, and the sum of the two is read.
    """
    return ring_gap(64)


# What one device is told ---------------------------------------------------------------------------------------


def one_rate() -> Outcome:
    """All devices but one are lent at a learning rate of next to nothing, or one at a huge rate.

    Harm: the sum is the update of that one.
    """
    errors: Errors = {}
    for shape in SHAPES:
        for first, rest in ((None, 1e-30), (1e3, None)):
            stage = a_stage(shape)
            stage.lend([])
            for name in stage.names:
                rate = first if name == stage.names[0] else rest
                stage.tell(name, stage.work() if rate is None else stage.work(rate=rate))
            errors[f"{shape} at {first or rest:g}"] = _sum_as_one(stage)
    return judged(errors, "a sum as the update of one is")


def _sum_as_one(stage: Stage, *, model: np.ndarray = MODEL, bound: int = 3) -> float:
    """Bind everybody, and take the sum for the update of the first device."""
    total = stage.bind(stage.names, bound=bound).sum_of(model)
    if not stage.devices[stage.names[0]].made:
        # It did not train, so that there is nothing to find.
        return math.inf
    return lone_error(stage, total)


#: From this threshold on the unit is silent for most examples.
RARE = (-8.0, -10.0, -12.0)


def one_count() -> Outcome:
    """All devices but one are lent one example, of a model that learns from few.

    Harm: theirs teach it nothing, and the sum is the update of the one that had many.
    """
    errors: Errors = {}
    for shape in SHAPES:
        for threshold in RARE:
            stage, model = a_stage(shape), rare_model(threshold)
            stage.lend([])
            for name in stage.names:
                count = stage.plan.sealed_examples[0] if name == stage.names[0] else 1
                stage.tell(name, stage.work(model, examples=count))
            errors[f"{shape} at {threshold:g}"] = _sum_as_one(stage, model=model)
    return judged(errors, "a sum as the update of one is")


def rare_model(threshold: float) -> np.ndarray:
    """A model that learns from few examples."""
    model = live_model()
    model[-1] = threshold
    return model


def drowned() -> Outcome:
    """One device is grouped with devices that have one example each, of a model that learns from few.

    Harm: as above. Nobody was lent anything that the plan does not say.
    """
    errors: Errors = {}
    for shape in SHAPES:
        for threshold in RARE:
            stage, model = a_stage(shape), rare_model(threshold)
            for name in stage.names[1:]:
                device = stage.devices[name]
                device.x, device.y = device.x[:1], device.y[:1]
            stage.lend(stage.names, model)
            errors[f"{shape} at {threshold:g}"] = _sum_as_one(stage, model=model)
    return judged(errors, "a sum as the update of one is")


def named_turn() -> Outcome:
    """A leader names the same turn of a device's examples twice, in a sum with it and a sum without.

    Harm: the difference of the two sums is its update, since all others trained the same again.
    """
    errors: Errors = {}
    for shape in SHAPES:
        stage = a_stage(shape)
        sums = []
        for names in (stage.names, stage.names[1:]):
            stage.lend(stage.names, batches=(7,))
            sums.append(stage.bind(names).sum_of(MODEL))
        errors[shape] = difference_error(stage, *sums)
    return judged(errors, "the difference of two sums as the update of one is")


def _unlike(shape: str, victim: dict[str, object], rest: dict[str, object], **plan: object) -> float:
    """Lend one device other than the rest, and open their sum under either label."""
    stage = a_stage(shape, **plan)  # type: ignore[arg-type]
    stage.lend([])
    models = {}
    for name in stage.names:
        said = dict(victim if name == stage.names[0] else rest)
        models[name] = said.pop("model", MODEL)
        stage.tell(name, stage.work(models[name], **said))  # type: ignore[arg-type]
    group = stage.bind(stage.names)
    errors = []
    for told, name in ((victim, stage.names[0]), (rest, stage.names[1])):
        trained = {"version": int(told.get("version", 1)), "epoch": int(told.get("epoch", 0))}  # type: ignore[call-overload]
        total = group.sum_of(np.asarray(models[name]), **trained)
        errors.append(min(lone_error(stage, total), error_of(total, truth_of(stage, stage.names))))
        if "model" in told:
            break
    if len(group.uploads) < len(stage.names):
        raise NotTried(f"{len(group.uploads)} of {len(stage.names)} uploaded: {stage.refusals}")
    return min(errors)


def one_version() -> Outcome:
    """All devices but one are told a later version, at which the plan's learning rate is next to nothing.

    Harm: the sum is the update of that one.
    """
    plan: dict[str, object] = {"schedule": "step 5 x.000001"}
    errors = {shape: _unlike(shape, {}, {"version": 6}, **plan) for shape in SHAPES}
    return judged(errors, "a sum of two versions, or one update in it, is")


def one_epoch() -> Outcome:
    """One device is told another epoch, from which follows what it trains on.

    Harm: a sum is opened of what was not trained alike.
    """
    errors = {shape: _unlike(shape, {"epoch": 1}, {}) for shape in SHAPES}
    return judged(errors, "a sum of two epochs, or one update in it, is")


def one_model() -> Outcome:
    """All devices but one are given a model that teaches nothing.

    Harm: the sum is the update of that one.
    """
    errors: Errors = {}
    for shape in SHAPES:
        errors[shape] = min(_unlike(shape, {}, {"model": DEAD}), _unlike(shape, {"model": MODEL}, {"model": DEAD}))
    return judged(errors, "a sum of two models, or one update in it, is")


def model_in_between() -> Outcome:
    """While all devices but one train on a model that teaches nothing, the same lease comes with the model of all.

    Harm: what they made of the first is sealed as made of the second, and the sum is the update of one.
    """
    errors: Errors = {}
    for shape in SHAPES:
        stage = a_stage(shape)
        first, *others = stage.names
        stage.lend([first])
        for name in others:
            stage.devices[name].is_slow = True
            stage.tell(name, stage.work(DEAD))
            stage.tell(name, stage.work(MODEL))
            stage.finish(name)
        errors[shape] = _sum_as_one(stage)
    return judged(errors, "a sum as the update of one is")


# What is said in the clear -------------------------------------------------------------------------------------

SECRET_LOSS, SECRET_TEXT = 1234.0625, "the reading was 42"


def clear_figures() -> Outcome:
    """A leader reads what devices say beside masked words: loss, metrics, logged figures, labels, words of an error.

    Harm: any of it is there. With the loss of one example under models of its making, a leader has the example.
    """
    found: dict[str, str] = {}
    for shape in SHAPES:
        stage = a_stage(shape)
        for name in stage.names:
            stage.devices[name].is_slow = True
        stage.lend(stage.names)
        for name in stage.names:
            _end_with_figures(stage, name)
        group = stage.bind(stage.names)
        if len(group.uploads) < len(stage.names):
            raise NotTried(f"{len(group.uploads)} of {len(stage.names)} uploaded: {stage.refusals}")
        # And a training that fails, in the words of the task.
        stage.lend(stage.names)
        failed = TrainerFailed(lease=stage.lease, reason=f"ValueError: {SECRET_TEXT}", traceback=SECRET_TEXT)
        for name in stage.names:
            stage._handle(name, failed)
        if not all(stage.said(name, Failed) for name in stage.names):
            raise NotTried("that a training failed was not told")
        for name in stage.names:
            for message in stage.devices[name].said:
                if clear := _clear(message):
                    found[f"{shape} {type(message).__name__}"] = clear
    words = "; ".join(f"{where}: {what}" for where, what in found.items())
    told = f"in {len(SHAPES)} shapes, of {SECRET_LOSS:g} and {SECRET_TEXT!r}"
    return Outcome(not found, f"{told} the leader heard {words or 'nothing'}")


def _end_with_figures(stage: Stage, name: str) -> None:
    device = stage.devices[name]
    action = device.trains.popleft()
    device.made.append(np.full(SIZE, 0.01, np.float32))
    metric = MetricSum(name="accuracy", kind="mean", sums=(SECRET_LOSS, 2.0))
    trained = Trained(
        lease=action.lease,
        examples=action.examples,
        loss_sum=SECRET_LOSS,
        seconds=1.0,
        tensors={"delta": device.made[-1]},
        fresh=17,
        fresh_metrics=(metric,),
        labels=(1234, 5678),
        logged=(MetricSum(name=SECRET_TEXT, kind="mean", sums=(SECRET_LOSS, 2.0)),),
        model=device.digest,
    )
    stage._handle(name, trained)


def _clear(message: object) -> str:
    """What a message tells of a training."""
    if isinstance(message, Update):
        fields = ("loss_sum", "fresh", "fresh_metrics", "labels", "logged")
        told = [f"{field} = {getattr(message, field)!r}" for field in fields if getattr(message, field)]
        if told:
            return ", ".join(told)
    if isinstance(message, Failed) and message.diverged:
        return "that it diverged"
    sent = b"".join(bytes(part) for part in frames(message))  # type: ignore[arg-type]
    for form in ("<d", "<f"):
        if struct.pack(form, SECRET_LOSS) in sent:
            return f"{SECRET_LOSS:g}"
    return SECRET_TEXT if SECRET_TEXT.encode() in sent else ""


def diverged_bit() -> Outcome:
    """A crafted model makes a training overflow if an example has a value above 2; sizes tell whose it was.

    Harm: the leader knows which devices have such an example.
    """
    # Every part of these numbers has another sum (Conway and Guy 1969).
    examples = (40, 60, 71, 77, 80, 82, 83, 84)
    stage = a_stage("star", len(examples), work="sized", budget_s=10.0)
    model = np.zeros(SIZE, np.float32)
    model[0], model[-1] = 1e30, -2e30
    stage.lend([])
    for name, count in zip(stage.names, examples, strict=True):
        stage.tell(name, stage.work(model, examples=count))
    group = stage.bind(stage.names)
    if group.sum_of(model) is None:
        raise NotTried(f"the sum was not opened: {stage.refusals}")
    truth = [stage.devices[name].diverged[0] for name in stage.names]
    if not 0 < sum(truth) < len(truth):
        raise NotTried("all trainings ended alike")
    told = [name for name in stage.names if any(each.diverged for each in stage.said(name, Failed))]
    weighed = sum(count for count, bit in zip(examples, truth, strict=True) if bit)
    # A sum by weights is that of one part of the devices only; one by heads is that of many.
    seen = group.figures[1]
    held = not told and abs(seen - sum(truth)) < 0.5 and abs(seen - weighed) > 0.5
    words = f"{sum(truth)} of {len(truth)} diverged, and the sum says {seen:.1f}"
    return Outcome(held, f"{words}; told apart: {told or 'none'}")


# The same again ------------------------------------------------------------------------------------------------


def old_lease() -> Outcome:
    """A lease number is lent again after the next one, for a sum without one device.

    Harm: the others train the same again, and the difference of the two sums is its update.
    """
    errors: Errors = {}
    for shape in SHAPES:
        stage = a_stage(shape)
        stage.lend(stage.names)
        first, everyone = stage.lease, stage.bind(stage.names).sum_of(MODEL)
        # Another update is sealed in between: of the last one a device knows that it was sealed.
        stage.lend(stage.names)
        stage.bind(stage.names)
        for name in stage.names:
            stage.tell(name, stage.work(lease=first))
        others = stage.bind(stage.names[1:], lease=first).sum_of(MODEL)
        errors[shape] = difference_error(stage, everyone, others)
    return judged(errors, "the difference of two sums as the update of one is")


def _replayed(shape: str, change: Callable[[Stage], None]) -> float:
    """A sum is opened; then something changes, and the leader replays all that it said, and asks for a sum without one.

    The same words under the same masks, for other values, would show the difference of the values.
    """
    stage = a_stage(shape)
    stage.lend(stage.names)
    work = stage.work()
    group = stage.bind(stage.names)
    everyone = group.sum_of(MODEL)
    if everyone is None:
        raise NotTried(f"the first sum was not opened: {stage.refusals}")
    before = {place: np.array(update.tensors["words"]) for place, update in group.uploads.items()}
    counts = {name: len(stage.said(name, Update)) for name in stage.names}
    old_keys = {one.node: one for one in group.members}
    change(stage)
    errors = []
    for lease in (work, stage.work(lease=work.lease)):
        for name in stage.names:
            stage.tell(name, lease)
    stage.roster(stage.names, {**stage.keys(), **old_keys})
    for name in stage.names:
        stage.tell(name, group.bind)
    for place, member in enumerate(group.members):
        for update in stage.said(member.node, Update)[counts[member.node] :]:
            if update.group == group.bind.group and update.term == group.bind.term:
                # The same label again: the difference of the words is that of two updates, if no mask is new.
                words = np.array(update.tensors["words"]) - before[place]
                found = np.asarray(group.fixed.decode(words, times=1.0), dtype=np.float64)
                change_of = update_of(stage, member.node, -1) - update_of(stage, member.node)
                errors.append(error_of(found, change_of) if np.abs(change_of).max() else 0.0)
    stage.group = max(stage.group, group.bind.group)
    others = stage.bind(stage.names[1:], lease=work.lease).sum_of(MODEL)
    return min([difference_error(stage, everyone, others), *errors])


def _restart(stage: Stage) -> None:
    for name in stage.names:
        stage.joins(name, incarnation="1")


def replay_over_restart() -> Outcome:
    """All devices start again, and forget what they sealed. The leader replays lease, roster and group.

    Harm: masks are used twice, or the same update is in two sums.
    """
    errors = {shape: _replayed(shape, _restart) for shape in SHAPES}
    return judged(errors, "after a new start the update of one is")


def replay_over_failover() -> Outcome:
    """Another leader takes over, under a new term, and replays lease, roster and group of the old one.

    Harm: masks are used twice, or the same update is in two sums.
    """
    errors = {shape: _replayed(shape, Stage.fails_over) for shape in SHAPES}
    return judged(errors, "under the next term the update of one is")


def two_sums() -> Outcome:
    """A sum is opened without asking one device in it; then the updates are bound again, without that device.

    Harm: the same updates are in two sums, and the difference is the update of that device.
    """
    errors: Errors = {}
    for shape in ("star", "int16", "tree", "shard"):
        stage = a_stage(shape)
        stage.lend(stage.names)
        group = stage.bind(stage.names)
        members = frozenset(range(len(stage.names)))
        joined = Joined(group, group.label(MODEL))
        joined.ask(dict.fromkeys(range(1, len(stage.names)), members))
        if len(joined.opened) < len(stage.names) - 1:
            raise NotTried(f"only {len(joined.opened)} opened: {stage.refusals}")
        everyone = joined.lone(members) * stage.plan.sealed_examples[1]
        if error_of(everyone, truth_of(stage, stage.names)) > 0.05:
            raise NotTried("the first sum is not right")
        others = stage.bind(stage.names[1:]).sum_of(MODEL)
        errors[shape] = difference_error(stage, everyone, others)
        # And the other way round: those who were asked are out, so that the one alone is bound with new updates.
        again = stage.bind(stage.names).uploads
        errors[f"{shape}, bound again"] = error_of(everyone, truth_of(stage, stage.names)) if again else math.inf
    return judged(errors, "the difference of two sums as the update of one is")


def held_back() -> Outcome:
    """What a device did not send of an update it sends with the next, which the leader refuses and has again.

    Harm: the same values are in a sum with the device and in one without.
    """
    errors: Errors = {}
    for shape in ("star", "helper"):
        for is_refused in (True, False):
            stage, count = a_stage(shape, codec="led30%+ef"), 9
            sent, held = (encode_places(np.arange(start, start + count), SIZE) for start in (0, count))
            stage.lend(stage.names)
            if stage.bind(stage.names, tensors=sent).sum_of(MODEL) is None:
                raise NotTried(f"the first sum was not opened: {stage.refusals}")
            sums = []
            for version, names in ((2, stage.names), (2 if is_refused else 3, stage.names[1:])):
                stage.lend(stage.names, DEAD, version=version)
                sums.append(stage.bind(names, tensors=held).sum_of(DEAD, version=version))
                for name in stage.names if is_refused else ():
                    stage.tell(name, UpdateRefused(job="job", term=1, lease=stage.lease, reason="no"))
            everyone, others = sums
            found = None if everyone is None or others is None else (everyone - others) / stage.plan.sealed_examples[0]
            part = update_of(stage, stage.names[0])[count : 2 * count]
            errors[f"{shape}, {'refused' if is_refused else 'taken'}"] = error_of(found, part)
    return judged(errors, "what one held back is")


def carried_on() -> Outcome:
    """Under a model that teaches nothing a device would send its momentum alone, time after time.

    Harm: what it keeps of one update is in a sum with the device and in one without.
    """
    trust, plan = "robust(clip) + sealed(8, 10%, 30%)", {"clip_update": 50.0}
    stage = Stage(trust, DEVICES, **plan)
    kept, sums = 0.9, []
    for version, model, names in ((1, MODEL, stage.names), (2, DEAD, stage.names), (3, DEAD, stage.names[1:])):
        stage.lend(stage.names, model, version=version)
        sums.append(stage.bind(names).sum_of(model, version=version))
    first, everyone, others = sums
    if error_of(first, truth_of(stage, stage.names)) > 0.05 or everyone is None or others is None:
        raise NotTried(f"a sum was not opened: {stage.refusals}")
    return judged({"star": difference_error(stage, everyone / kept, others / kept**2)}, "what one carried on is")


def tiny_bound() -> Outcome:
    """A leader names a tiny bound, under which a device sends little more than signs and keeps the values.

    Harm: the values come with the next sum, and the signs of one device with the difference.
    """
    stage, count = a_stage("star", codec="led30%+ef"), 9
    sent, held = (encode_places(np.arange(start, start + count), SIZE) for start in (0, count))
    stage.lend(stage.names)
    if stage.bind(stage.names, tensors=sent).sum_of(MODEL) is None:
        raise NotTried(f"the first sum was not opened: {stage.refusals}")
    sums = []
    for version, names in ((2, stage.names), (3, stage.names[1:])):
        stage.lend(stage.names, DEAD, version=version)
        sums.append(stage.bind(names, tensors=held, bound=-20).sum_of(DEAD, version=version))
    everyone, others = sums
    truth = np.sign(update_of(stage, stage.names[0])[count : 2 * count])
    right = 0 if everyone is None or others is None else int((np.sign(everyone - others) == truth).sum())
    return Outcome(right < count - 1, f"{right} of {count} signs of one device are right")


# A helper ------------------------------------------------------------------------------------------------------


def helper_twice() -> Outcome:
    """The helper is asked about a group twice, the second time without one device, and under a new group's number.

    Harm: the difference of the two answers is the mask of that device.
    """
    stage = a_stage("helper")
    stage.lend(stage.names)
    group = stage.bind(stage.names)
    everyone = group.sum_of(MODEL)
    if everyone is None:
        raise NotTried(f"the first sum was not opened: {stage.refusals}")
    few = range(1, len(stage.names))
    errors = {"the same group": difference_error(stage, everyone, group.sum_of(MODEL, few))}
    for ahead, again in ((1, "the next group"), (2, "a later group")):
        asked = _asked(group, few, number=group.bind.group + ahead)
        errors[again] = math.inf if asked is None else difference_error(stage, everyone, asked)
    return judged(errors, "the difference of two answers as the update of one is")


def _asked(group: SealGroup, members: Iterable[int], *, number: int) -> np.ndarray | None:
    """The sum of these with what the helper says, if it is asked under another number of the group."""
    places = sorted(members)
    total = np.sum([group.uploads[at].tensors["words"] for at in places], axis=0, dtype=np.uint32)
    masks = group.ask_helper(group.label(MODEL), frozenset(places), total.size, number=number)
    if masks is None:
        return None
    total -= masks[: total.size]
    return np.asarray(group.fixed.decode(total, times=float(group.bind.weight_most)), dtype=np.float64)


def helper_few() -> Outcome:
    """The helper is asked for the masks of one device, and of three.

    Harm: it says them.
    """
    errors: Errors = {}
    for count in (1, 3):
        stage = a_stage("helper")
        stage.lend(stage.names)
        group = stage.bind(stage.names)
        if len(group.uploads) < len(stage.names):
            raise NotTried(f"not all uploaded: {stage.refusals}")
        total = group.sum_of(MODEL, range(count))
        errors[f"{count} devices"] = error_of(total, truth_of(stage, stage.names[:count]))
    return judged(errors, "a sum of few is")


#: Each needs no process, and seconds.
STAGED: tuple[Callable[[], Outcome], ...] = (
    split_sets_16,
    split_sets_24,
    split_sets_32,
    split_sets_64,
    ring_gap_40,
    ring_gap_64,
    one_rate,
    one_count,
    drowned,
    named_turn,
    one_version,
    one_epoch,
    one_model,
    model_in_between,
    clear_figures,
    diverged_bit,
    old_lease,
    replay_over_restart,
    replay_over_failover,
    two_sums,
    held_back,
    carried_on,
    tiny_bound,
    helper_twice,
    helper_few,
)
