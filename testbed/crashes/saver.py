"""A process that forks savers on request: each writes checkpoints and the table beside them, until it is killed.

Commands on standard input: ``loop DIRECTORY`` saves version after version; ``step DIRECTORY N`` starts as a leader
does, saves once and kills itself at the Nth thing it asks of the disk or the database; ``reap`` waits for the saver.
Answers on standard output. Forking spares importing numpy for each; this process has one thread, so it is safe.
"""

from __future__ import annotations

import itertools
import os
import signal
import sqlite3
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from shoal.roles.actions import Save
from shoal.roles.evaluation_rows import row_of as evaluation_row
from shoal.roles.node.checkpoint_transfer import StoredVersion, version_of
from shoal.runtime.journal import Journal
from shoal.scheduling.ledger import Applied
from shoal.store.checkpoints import CheckpointStore
from shoal.store.registry import Registry
from shoal.wire.messages import EvaluationView

JOB = "job"
#: Versions that pass between two saves, and batches in an epoch.
STRIDE, EPOCH = 2, 5
VALUES = 1 << 14

Row = list[int | str]


def row_of(version: int, term: int) -> Applied:
    # The lease tells a row of this history from one of a history that was abandoned.
    epoch, batch = divmod(version, EPOCH)
    return Applied(epoch=epoch, batch=batch, version=version, node=f"pi-{version % 3}", lease=term * 10**6 + version)


def evaluation_of(version: int, term: int) -> EvaluationView:
    return EvaluationView(version=version, epoch=1, accuracy=0.5, loss=float(term), examples=10, seconds=float(version))


def model_of(version: int) -> dict[str, np.ndarray]:
    return {"model": np.full(VALUES, version, np.float32), "velocity": np.arange(version, version + VALUES)}


class Desk:
    """A job's checkpoints and its table, opened and mended as the node that leads it does."""

    def __init__(self, directory: Path) -> None:
        self.registry = Registry(directory / "registry.db")
        if self.registry.job(JOB) is None:
            self.registry.add_job(job=JOB, name=JOB, spec_json="{}", now_s=0.0)
        self.term = self.registry.next_term(JOB)
        self.journal = Journal(self.registry)
        self.store = CheckpointStore(directory / "checkpoints")
        self.loaded = self.store.load()
        self.version = 0
        #: As it stands in the state of a checkpoint: what a ledger knows.
        self.history: list[Row] = []
        self.evaluations: list[dict[str, Any]] = []
        if self.loaded is not None:
            state: dict[str, Any] = dict(self.loaded.state)
            self.journal.restore(
                JOB, StoredVersion(version=self.loaded.version, tensors=self.loaded.tensors, state=state)
            )
            self.version, self.history, self.evaluations = self.loaded.version, state["history"], state["evaluations"]

    def save(self) -> int:
        """Apply a few batches and make them durable: the file with the rows inside, then the table."""
        versions = range(self.version + 1, self.version + 1 + STRIDE)
        rows = tuple(row_of(version, self.term) for version in versions)
        evaluations = (evaluation_of(versions[-1], self.term),)
        self.version = versions[-1]
        self.history += [list(asdict(row).values()) for row in rows]
        self.evaluations += [evaluation_row(view) for view in evaluations]
        save = Save(
            version=self.version,
            tensors=model_of(self.version),
            state={"evaluations": self.evaluations, "history": self.history},
            after=versions[0] - 1,
            applied=rows,
            evaluations=evaluations,
        )
        version = version_of(save)
        self.store.save(version=version.version, tensors=version.tensors, state=version.state)
        self.journal.commit(JOB, save)
        return self.version

    def disagreement(self) -> str:
        """How file and table differ, or nothing."""
        in_table = [list(asdict(row).values()) for row in self.registry.applied(JOB)]
        if in_table != sorted(self.history, key=lambda row: row[:2]):
            return f"{len(in_table)} rows in the table, {len(self.history)} batches in the model, not the same ones"
        evaluated = [(each.version, each.loss) for each in self.registry.evaluations(JOB)]
        if evaluated != [(each["version"], each["loss"]) for each in self.evaluations]:
            return "the evaluations in the table are not those of the model"
        return ""


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def loop(directory: Path) -> None:
    desk = Desk(directory)
    while True:
        say(f"saved {desk.save()}")


def step(directory: Path, last: int) -> None:
    """Die at the ``last`` request; survive where there are fewer."""
    asked = itertools.count(1)

    def count() -> None:
        if next(asked) == last:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            count()
            return original(*arguments, **named)

        return wrapped

    connect = sqlite3.connect

    def watched(*arguments: Any, **named: Any) -> sqlite3.Connection:
        database: sqlite3.Connection = connect(*arguments, **named)
        database.set_trace_callback(lambda statement: count())  # before each statement, COMMIT among them
        return database

    for name in ("fsync", "replace", "unlink", "mkdir", "open"):
        setattr(os, name, counted(getattr(os, name)))
    sqlite3.connect = watched  # type: ignore[assignment]
    desk = Desk(directory)
    say(f"saved {desk.save()}")


def main() -> None:
    saver = 0
    for line in sys.stdin:
        match line.split():
            case ["reap"]:
                _, status = os.waitpid(saver, 0)
                say(f"reaped {os.waitstatus_to_exitcode(status)}")
            case [command, directory, *rest]:
                saver = os.fork()
                if saver:
                    say(f"started {saver}")
                    continue
                code = 1
                try:
                    if command == "loop":
                        loop(Path(directory))
                    else:
                        step(Path(directory), int(rest[0]))
                    code = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(code)


if __name__ == "__main__":
    main()
