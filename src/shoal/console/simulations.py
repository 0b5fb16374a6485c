"""Compares two plans on simulated devices: `shoal simulate` as a child process, one at a time, with low priority.

Nothing that a browser sends becomes a path or an option: only known keys of a plan are accepted, and values pass the
plan's own checks and reach the child as ``KEY=JSON``. The task is the one of `shoal demo`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from shoal.cli.render.format import clean
from shoal.errors import Misuse, ShoalError
from shoal.plan import Plan
from shoal.sim.profiles import PROFILES
from shoal.trainer.spawn import command, environment

DEVICES_MAX = 2000
#: The most devices with a model that really learns: each costs as much time as a real one.
TRAINED_DEVICES_MAX = 40
EPOCHS_MAX = 20
#: How many epochs a plan has to reach an accuracy that should end it.
GOAL_EPOCHS = 5
#: The time limit of both plans together.
SECONDS_MAX = 600.0
ANSWER_MAX_BYTES = 16 << 20
#: Answers that are kept.
KEPT = 8
#: The prefix of a command with low priority.
_GIVE_WAY = ("nice", "-n", "10") if shutil.which("nice") else ()

#: The keys of a plan that a browser may set. None names data or files, or sets how often disks are written.
PLAN_KEYS = (
    "topology",
    "pace",
    "codec",
    "codec_down",
    "work",
    "batch_size",
    "lease_batches",
    "learning_rate",
    "momentum",
    "workers_min",
    "workers_max",
    "buffer",
    "staleness",
    "aggregators",
    "cohort",
    "outer",
    "outer_rate",
    "epochs",
    "until",
)
#: The keys of these whose values are texts.
_TEXTS = frozenset({"topology", "pace", "codec", "codec_down", "work", "staleness", "outer"})
NUMBER_MAX = 1e9


class SimulationRefused(ShoalError):
    """A simulation that was refused, with the HTTP status of the answer."""

    def __init__(self, reason: str, status: int = 400) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationQuestion:
    """A request that was checked."""

    plans: dict[str, tuple[str, ...]]
    devices: int
    profile: str
    train: bool


@dataclass(slots=True)
class Simulation:
    state: str = "running"
    progress: float = 0.0
    reason: str = ""
    outcomes: dict[str, Any] = field(default_factory=dict)

    def to_plain(self) -> dict[str, Any]:
        return {"state": self.state, "progress": self.progress, "reason": self.reason, **self.outcomes}


def parse(asked: Any) -> SimulationQuestion:
    """Check every part of a browser's request."""
    if not isinstance(asked, Mapping) or not asked.keys() <= {"a", "b", "devices", "profile", "task", "train"}:
        raise SimulationRefused("a simulation is asked for with a, b, devices, profile and train")
    if asked.get("task") is not None:
        raise SimulationRefused("the console simulates the digits of `shoal demo`; for a task: `shoal simulate TASK`")
    plans = {name: _plan_words(asked.get(name)) for name in ("a", "b") if asked.get(name) is not None}
    if "a" not in plans:
        raise SimulationRefused("a is missing: an object with a plan")
    # Only real training reaches an accuracy.
    has_goal = any("--until-accuracy" in words for words in plans.values())
    train, devices, profile = asked.get("train", has_goal), asked.get("devices", 20), asked.get("profile", "pi4-lan")
    if not isinstance(train, bool) or not isinstance(devices, int) or isinstance(devices, bool):
        raise SimulationRefused("devices is a whole number, and train is true or false")
    if train and not 1 <= devices <= TRAINED_DEVICES_MAX:
        raise SimulationRefused(
            f"a model is trained on 1 to {TRAINED_DEVICES_MAX} simulated devices here: leave the goal out to see the"
            f" time of up to {DEVICES_MAX:,}, or run `shoal simulate`"
        )
    if not 1 <= devices <= DEVICES_MAX:
        raise SimulationRefused(f"devices is from 1 to {DEVICES_MAX:,}")
    if not isinstance(profile, str) or profile not in PROFILES:
        raise SimulationRefused(f"profile is one of {', '.join(PROFILES)}")
    return SimulationQuestion(plans=plans, devices=devices, profile=profile, train=train)


def _plan_words(told: Any) -> tuple[str, ...]:
    plan = told.get("plan") if isinstance(told, Mapping) and told.keys() <= {"plan"} else None
    if not isinstance(plan, Mapping):
        raise SimulationRefused("a plan is asked for as {'plan': {KEY: VALUE}}")
    if unknown := sorted(str(name) for name in plan if name not in PLAN_KEYS):
        raise SimulationRefused(f"the console simulates no {clean(unknown[0], 40)}; it knows {', '.join(PLAN_KEYS)}")
    values = dict(plan)
    end = _end_words(values.pop("until", None), values.pop("epochs", None))
    for name, value in values.items():
        if not _fits(name, value):
            raise SimulationRefused(f"{name} is {'a short text' if name in _TEXTS else 'a number'}")
    try:
        Plan(**values)
    except (Misuse, TypeError, ValueError) as error:
        raise SimulationRefused(clean(str(error), 300)) from None
    words = [f"{name}={json.dumps(value)}" for name, value in sorted(values.items())]
    return (*(part for word in words for part in ("--plan", word)), *end)


def _end_words(until: Any, epochs: Any) -> tuple[str, ...]:
    """Return the options for a plan's end: after some epochs, or sooner at an accuracy."""
    told = {} if until is None else until
    if not isinstance(told, Mapping) or not told.keys() <= {"accuracy", "epochs"}:
        raise SimulationRefused("until is an object with an accuracy, epochs, or both")
    epochs, accuracy = told.get("epochs", epochs), told.get("accuracy")
    if epochs is None:
        epochs = 1 if accuracy is None else GOAL_EPOCHS
    if not isinstance(epochs, int) or isinstance(epochs, bool) or not 1 <= epochs <= EPOCHS_MAX:
        raise SimulationRefused(f"epochs is from 1 to {EPOCHS_MAX}")
    if accuracy is None:
        return ("--epochs", str(epochs))
    if not isinstance(accuracy, int | float) or not 0 < accuracy < 1:
        raise SimulationRefused("an accuracy is a share between 0 and 1, such as 0.9")
    return ("--until-accuracy", str(float(accuracy)), "--epochs", str(epochs))


def _fits(name: str, value: Any) -> bool:
    if name in _TEXTS:
        return isinstance(value, str) and len(value) <= 100
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= NUMBER_MAX


class Simulations:
    def __init__(self, home: Path) -> None:
        self._home = home
        self._kept: dict[str, Simulation] = {}
        self._running: asyncio.Task[None] | None = None

    def begin(self, asked: Any) -> str:
        """Begin a simulation, and return its id."""
        question = parse(asked)
        if self._running is not None and not self._running.done():
            raise SimulationRefused("a simulation is running: one at a time", 429)
        name, simulation = secrets.token_hex(8), Simulation()
        while len(self._kept) >= KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[name] = simulation
        self._running = asyncio.create_task(self._run(question, simulation))
        return name

    def find(self, name: str) -> Simulation | None:
        return self._kept.get(name)

    async def stop(self) -> None:
        """End the child that runs, if any."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _run(self, question: SimulationQuestion, simulation: Simulation) -> None:
        try:
            async with asyncio.timeout(SECONDS_MAX):
                for number, (name, words) in enumerate(question.plans.items(), start=1):
                    simulation.outcomes[name] = await self._child(question, words)
                    simulation.progress = round(number / len(question.plans), 2)
            simulation.state = "done"
        except TimeoutError:
            simulation.state = "failed"
            simulation.reason = f"not done within {SECONDS_MAX:g} s: take fewer devices or epochs"
        except (ShoalError, OSError, ValueError) as error:
            simulation.state, simulation.reason = "failed", clean(str(error), 400)

    async def _child(self, question: SimulationQuestion, words: tuple[str, ...]) -> Any:
        task = str(files("shoal.trainer") / "demo_task.py")
        options = (
            "--devices",
            str(question.devices),
            "--profile",
            question.profile,
            "--home",
            str(self._home),
            "--json",
        )
        more = () if question.train else ("--system-only",)
        with tempfile.TemporaryDirectory(prefix="shoal-console-") as scratch:
            process = await asyncio.create_subprocess_exec(
                *_GIVE_WAY,
                *command("shoal.cli.main", "simulate", task, *options, *more, *words),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                # It draws its picture in its working directory.
                cwd=scratch,
                env=environment({"NO_COLOR": "1"}),
                start_new_session=True,
            )
            try:
                said, complained = await asyncio.gather(_bounded(process.stdout), _bounded(process.stderr))
                code = await process.wait()
            finally:
                if process.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        # The whole group, since it prepares the task in another child.
                        os.killpg(process.pid, signal.SIGKILL)
                    await process.wait()
        # Code 1 means that the simulated job did not reach its end, which is a result too.
        if code not in (0, 1) or not said.strip():
            lines = complained.decode("utf-8", "replace").strip().splitlines()
            raise ShoalError(lines[-1] if lines else f"the simulation ended with exit code {code}")
        told = json.loads(said)
        return {"seconds": told["seconds"], **told["plans"][0]}


async def _bounded(stream: asyncio.StreamReader | None) -> bytes:
    """Read all output of a child, up to a limit."""
    assert stream is not None
    parts, size = [], 0
    while chunk := await stream.read(1 << 16):
        size += len(chunk)
        if size > ANSWER_MAX_BYTES:
            raise ShoalError("the simulation's output is too long: take fewer devices")
        parts.append(chunk)
    return b"".join(parts)
