"""Real trainers, a process each with a processor quota that changes: where the profilers' sizes are tried out.

What a device says of itself, and how its quota drifts, is drawn (``slo_fleet``); what a task takes is measured. The
quota is refilled every 20 ms, not every 100 as in the testbed: a task is a few tenths of a second, and would otherwise
end in one refill or the next.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from benchmarks.slo_fleet import Member
from shoal.data.digits import mnist
from shoal.errors import Misuse
from shoal.scheduling.profile.features import Features
from testbed import owners, quota
from testbed.commands import NoNamespaces
from testbed.quota import Quota

PERIOD_US = 20_000
#: The kernel gives a group at least a millisecond of each period.
CORES_LEAST, CORES_MOST = 0.05, 1.0
#: What a device of the nominal speed 1 has. With less, the slowest would have no more of a period than the kernel's
#: clock can tell apart, and what they take would be a matter of luck.
CORES = 0.4

#: Examples that all trainers read; they share the memory.
EXAMPLES = 20_000
START_TIMEOUT_S = 120.0
#: A task that takes so many budgets is cut short, and counts as having taken in proportion.
CUT_BUDGETS = 5.0
#: After a task a group may still owe time that it took too much of.
REST_S = 0.03
#: Trainers that load, or train, at the same time: together they have less than two cores.
AT_ONCE = 2


def why_not() -> str:
    """Why quotas cannot be set here; empty if they can."""
    if os.geteuid() != 0:
        return "a quota of processor time takes root"
    owners.record()
    try:
        tried = Share()
        tried.make()
        tried.remove()
    except NoNamespaces as error:
        return str(error)
    return ""


def write_examples(directory: Path) -> tuple[Path, Path]:
    images, labels = mnist("train")
    paths = directory / "images.npy", directory / "labels.npy"
    np.save(paths[0], images[:EXAMPLES])
    np.save(paths[1], labels[:EXAMPLES])
    return paths


class Share(Quota):
    """A quota that may change while its process runs."""

    def __init__(self) -> None:
        super().__init__(CORES_MOST)

    def make(self) -> None:
        """Without a limit at first: to load torch within a twentieth of a core takes a minute."""
        super().make()
        self._write("cpu.cfs_quota_us", -1)
        self._write("cpu.cfs_period_us", PERIOD_US)

    def limit(self, cores: float) -> None:
        self._write("cpu.cfs_quota_us", round(min(CORES_MOST, max(CORES_LEAST, cores)) * PERIOD_US))

    def _write(self, name: str, value: int) -> None:
        (quota.groups() / self.name / name).write_text(str(value))


class Trainer:
    """One process in a group of its own."""

    def __init__(self, examples: tuple[Path, Path]) -> None:
        self._share = Share()
        self._share.make()
        words = (*self._share.enter(), sys.executable, "-m", "benchmarks.slo_trainer", *map(str, examples))
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **threads}
        )
        self._working = threading.Lock()
        self.loss = float("nan")

    def wait_ready(self) -> None:
        if self._line(START_TIMEOUT_S) != "ready":
            raise Misuse("a trainer of the benchmark did not start: see what it printed above")

    def train(self, examples: int, *, cores: float, limit_s: float) -> float:
        """Seconds that it took. One task at a time, whoever asks."""
        with self._working:
            return self._train(examples, cores=cores, limit_s=limit_s)

    def _train(self, examples: int, *, cores: float, limit_s: float) -> float:
        self._share.limit(cores)
        time.sleep(REST_S)
        assert self._process.stdin is not None
        self._process.stdin.write(f"{examples} {limit_s}\n")
        self._process.stdin.flush()
        answer = json.loads(self._line(limit_s + START_TIMEOUT_S))
        self.loss = answer["loss"]
        return float(answer["spent_s"] * examples / answer["examples"])

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._share.remove()

    def _line(self, timeout_s: float) -> str:
        """Lines are answers, one for each question: none is ever left in the buffer."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], timeout_s)[0]:
            raise Misuse(f"a trainer of the benchmark did not answer within {timeout_s:.0f} s")
        return self._process.stdout.readline().strip()


class Trainers:
    """A process for each device of the test. The devices of the offline set borrow them, with quotas of their own."""

    def __init__(
        self, members: Sequence[Member], teachers: Sequence[Member], scratch: Path, *, budget_s: float
    ) -> None:
        self._members = {member.name: member for member in (*members, *teachers)}
        self._names = [member.name for member in members]
        self._scratch, self._budget_s = scratch, budget_s
        self._trainers: dict[str, Trainer] = {}
        #: Device of the offline set -> whose process it borrows.
        self._lent = {each.name: self._names[place % len(self._names)] for place, each in enumerate(teachers)}
        self._stack = ExitStack()
        self.cut = 0

    def __enter__(self) -> Self:
        owners.record()
        examples = write_examples(self._scratch)
        with ExitStack() as made:
            made.callback(owners.forget, os.getpid())
            for start in range(0, len(self._names), AT_ONCE):
                for name in self._names[start : start + AT_ONCE]:
                    self._trainers[name] = Trainer(examples)
                    made.callback(self._trainers[name].close)
                for name in self._names[start : start + AT_ONCE]:
                    self._trainers[name].wait_ready()
            self._stack = made.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with owners.undisturbed():
            self._stack.close()

    @property
    def loss(self) -> float:
        """The median over devices, of the last task of each."""
        return float(np.median([trainer.loss for trainer in self._trainers.values()]))

    def features(self, device: str, request: int) -> Features:
        return self._members[device].features(request)

    def spend(self, device: str, request: int, examples: int) -> float:
        limit_s = CUT_BUDGETS * self._budget_s
        cores = CORES * self._members[device].moments[request].speed
        spent_s = self._of(device).train(examples, cores=cores, limit_s=limit_s)
        if spent_s > limit_s:
            self.cut += 1
        return spent_s

    def repeat(self, examples: int) -> list[float]:
        """A task whose quota never changes, on as many as there are at once: what differs is the machine's doing."""

        def train(name: str) -> float:
            return self._trainers[name].train(examples, cores=CORES, limit_s=CUT_BUDGETS * self._budget_s)

        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(train, self._names[:AT_ONCE]))

    def _of(self, device: str) -> Trainer:
        own = self._trainers.get(device)
        return own if own is not None else self._trainers[self._lent[device]]
