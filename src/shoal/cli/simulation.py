"""A question to the simulator as a person puts it: from words to studies, and from a trace back to the question."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.cli import screen
from shoal.cli.commands.train import overrides, pairs_of
from shoal.cli.render.topologies import topology_text
from shoal.data.partition_text import parse_partition
from shoal.errors import Misuse
from shoal.runtime.paths import Paths
from shoal.sim.fault_text import parse, write
from shoal.sim.faults import Fault, resolve
from shoal.sim.fleet_file import FleetFile, chosen_devices
from shoal.sim.garbage import collected_seldom
from shoal.sim.local_devices import DividedSet, divide
from shoal.sim.observe import Observer
from shoal.sim.real import NOTHING_TO_DIVIDE, close, simulated_job, why_not
from shoal.sim.study import Glance, Study, simulate
from shoal.sim.trace import Comparison, Difference, TraceWriter, read_header
from shoal.trainer.find import find_task
from shoal.trainer.package import ReadyTask, laid_over, make_ready, plan_from

if TYPE_CHECKING:
    from shoal.sim.outcome import Outcome
    from shoal.wire.messages import Progress

_JOB = "job"


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationAnswer:
    """What came of one plan."""

    title: str
    outcome: Outcome
    #: Where its updates met at the end, and what a batch took; empty if its leader never said.
    topology: str = ""
    #: Which examples each device had, if they were the devices' own.
    divided: DividedSet | None = None
    #: What it cost by the prices of a fleet file: of energy, of traffic. Empty without prices.
    cost: Mapping[str, float] = field(default_factory=dict)
    currency: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    task: str
    devices: int
    profile: str | FleetFile
    #: What differs from the task's own plan, as plain values.
    plan: dict[str, Any]
    #: What a second plan has otherwise; empty: there is none.
    versus: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    seed: int = 0
    train: bool = True
    #: How this machine's examples are divided among the devices, or "" if they are shared (``parse_partition``).
    partition: str = ""

    @classmethod
    def typed(
        cls,
        *,
        task: str,
        devices: int | None,
        profile: str | None,
        until: Mapping[str, Any],
        arguments: Sequence[str],
        numbers: Mapping[str, float | str | None],
        plan: Sequence[str],
        versus: Sequence[str],
        faults: Path | None,
        seed: int,
        train: bool,
        partition: str = "",
        fleet: Path | None = None,
    ) -> Question:
        count, kind = chosen_devices(devices=devices, profile=profile, fleet=fleet)
        if partition:
            # Now, as with faults: a slip of the pen costs no preparation.
            partition = str(parse_partition(partition))
            if not train:
                raise Misuse(NOTHING_TO_DIVIDE)
        question = cls(
            task=task,
            devices=count,
            profile=kind,
            plan=_plain(overrides(workers="", until=until, numbers=numbers, pairs=plan)),
            versus=_plain(overrides(workers="", until={}, numbers={}, pairs=versus)),
            arguments=pairs_of(arguments, option="--set"),
            faults=_read_faults(faults),
            seed=seed,
            train=train,
            partition=partition,
        )
        # Now, not when its time comes: a fault of a device that is not there is a slip of the pen.
        for fault in question.faults:
            resolve(fault.who, workers=count)
        return question

    def header(self) -> dict[str, Any]:
        """All of it, for a trace that is to be played again."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        profile = self.profile if isinstance(self.profile, str) else self.profile.to_plain()
        return plain | {"faults": write(self.faults), "profile": profile}

    @classmethod
    def from_header(cls, header: Mapping[str, Any]) -> Question:
        # Traces of earlier releases have no partition.
        plain = {f.name: header[f.name] for f in dataclasses.fields(cls) if f.name in header}
        if isinstance(plain["profile"], Mapping):
            plain["profile"] = FleetFile.from_plain(plain["profile"])
        return cls(**plain | {"faults": parse(plain["faults"])})

    def answer(self, home: Path, *, trace: Path | None = None) -> list[SimulationAnswer]:
        """Prepare the task once, then play each plan; tells of its progress."""
        ready = self._ready(home)
        self._check(ready)
        if trace is not None:
            with trace.open("w", encoding="utf-8") as file:
                writer = TraceWriter(file, {"simulate": self.header()})
                return [self._play(ready, self.plan, [writer])]
        return [self._play(ready, plan) for plan in self._plans]

    def title(self, plan: Mapping[str, Any]) -> str:
        """What tells one plan from the other."""
        if not self.versus:
            return "plan"
        names = [name for name in self.versus if name != "until"]
        return ", ".join(f"{name}={plan[name]}" if name in plan else f"{name} as is" for name in names)

    @property
    def _plans(self) -> list[dict[str, Any]]:
        return [self.plan, *([{**self.plan, **self.versus}] if self.versus else [])]

    def _check(self, ready: ReadyTask) -> None:
        """Refuse what cannot be simulated, before the first plan is played: that may take an hour."""
        wholes = [plan_from(laid_over(ready.prepared.plan, plan)) for plan in self._plans]
        local = [whole for whole in wholes if whole.data == "local"]
        for whole in wholes:
            # Beside a plan with local data, another may have shared data: it has no use for the partition.
            divided = self._divided(ready) if whole in local or not local else None
            if (why := why_not(ready, whole, train=self.train, divided=divided)) is not None:
                raise Misuse(why)

    def _divided(self, ready: ReadyTask) -> DividedSet | None:
        if not self.partition:
            return None
        return divide(ready, parse_partition(self.partition), devices=self.devices, seed=self.seed)

    def _ready(self, home: Path) -> ReadyTask:
        path, entry = find_task(self.task)
        tell = screen.Teller(screen.err())
        return asyncio.run(
            make_ready(
                path,
                entry,
                out=Paths(home).prepared,
                kwargs=self.arguments,
                plan=self.plan,
                divided=bool(self.partition),
                on_progress=tell,
            )
        )

    def _play(self, ready: ReadyTask, plan: Mapping[str, Any], observers: Sequence[Observer] = ()) -> SimulationAnswer:
        whole = plan_from(laid_over(ready.prepared.plan, plan))
        divided = self._divided(ready) if whole.data == "local" else None
        job = simulated_job(ready, whole, train=self.train, job=_JOB, divided=divided)
        study = Study(job=job, devices=self.devices, profile=self.profile, seed=self.seed, faults=self.faults)
        try:
            with _progress(self.title(plan)) as look, collected_seldom():
                outcome = simulate(study, observers=observers, look=look)
        finally:
            close(job)
        told = look.progress
        topology = topology_text(told, whole) if told is not None and told.topology else ""
        fleet = None if isinstance(self.profile, str) else self.profile
        return SimulationAnswer(
            title=self.title(plan),
            outcome=outcome,
            topology=topology,
            divided=divided,
            cost=fleet.cost(outcome) if fleet is not None else {},
            currency=fleet.currency if fleet is not None else "",
        )


def _plain(plan: dict[str, Any]) -> dict[str, Any]:
    """As JSON can say it."""
    return {k: dataclasses.asdict(v) if dataclasses.is_dataclass(v) else v for k, v in plan.items()}  # type: ignore[arg-type]


def _read_faults(path: Path | None) -> tuple[Fault, ...]:
    if path is None:
        return ()
    try:
        return parse(path.read_text(encoding="utf-8"), source=str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise Misuse(f"the faults cannot be read: {error}") from None


class _Look:
    """Turns glances into a line that moves."""

    def __init__(self, status: Any) -> None:
        self._status = status
        #: What the leader told last.
        self.progress: Progress | None = None

    def __call__(self, glance: Glance) -> None:
        from shoal.cli.render.format import count_text, metrics_text, share_text, span_text

        progress = self.progress = glance.progress
        parts = [f"{span_text(glance.at_s)} simulated", f"{count_text(glance.events)} events"]
        if progress is not None:
            parts.append(f"epoch {progress.epoch + 1}, version {progress.version}")
            if progress.accuracy is not None:
                parts.append(f"{share_text(progress.accuracy)} right")
            elif progress.metrics:
                parts.append(metrics_text(progress.metrics))
        self._status.update("  " + ", ".join(parts))


@contextmanager
def _progress(title: str) -> Iterator[_Look]:
    with screen.err().status(f"  {title}") as status:
        yield _Look(status)


# Traces that are played again --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Replayed:
    lines: int
    difference: Difference | None

    @property
    def explained(self) -> list[str]:
        """What differs within the line."""
        if self.difference is None or self.difference.first is None or self.difference.second is None:
            return []
        then, now = json.loads(self.difference.first), json.loads(self.difference.second)
        return [
            f"{name}: {_short(then.get(name))} then, {_short(now.get(name))} now"
            for name in dict.fromkeys((*then, *now))
            if then.get(name) != now.get(name)
        ]


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 300 else f"{text[:300]}…"


class _Parted(Exception):
    """The replay differs from the trace."""


class _UpToThere(Comparison):
    """Ends the run at the first line that differs: there is no use in going on."""

    def write(self, line: str) -> None:
        super().write(line)
        if self.difference is not None:
            raise _Parted


def replay(path: Path, home: Path) -> Replayed:
    """Play a trace again, line by line, up to where it differs."""
    try:
        file = path.open(encoding="utf-8")
    except OSError as error:
        raise Misuse(f"the trace cannot be read: {error}") from None
    with file:
        header = read_header(file)
        file.seek(0)
        compared = _UpToThere(file)
        try:
            _play_again(header, home, compared)
            compared.finish()
        except _Parted:
            pass
    return Replayed(compared.count, compared.difference)


def _play_again(header: dict[str, Any], home: Path, compared: Comparison) -> None:
    writer = TraceWriter(compared, {name: value for name, value in header.items() if name != "shoal_trace"})
    if "simulate" not in header:
        raise Misuse("this trace is of a test seed: play it again with `python -m dst FILE` in the repository")
    question = Question.from_header(header["simulate"])
    question._play(question._ready(home), question.plan, [writer])
