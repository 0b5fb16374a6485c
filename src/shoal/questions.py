"""Questions to the examples of devices, without training: counts of them, and how good a model is on them. No torch.

An answer is a job like any other: each device gets one lease, answers from its own examples, and the leader makes the
mean of the answers. So ``where``, ``sealed``, ``private`` and a device's account hold for questions too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from shoal.errors import Misuse
from shoal.learning.answers import ANSWERS, PARTS, from_parts
from shoal.plan import epochs
from shoal.task import Task
from shoal.trainer.bundle import pack, unpack
from shoal.trust import Trust
from shoal.wire import tensors

if TYPE_CHECKING:
    from torch import nn

    from shoal.trainer.lease import TaskLease

#: What a model is asked for, unless the caller names other metrics.
METRICS = ("loss", "accuracy")
#: The row of the answers with the number of examples.
_EXAMPLES = "examples"
_QUESTION = "shoal_question"


class Tally(Task):
    """Count something over the examples of many devices: say which figures there are, and ``count`` them.

    Each figure is summed over devices. A mean is two figures: a sum, and how many were summed.
    """

    #: The shape of each figure by its name: ``()`` for a number, ``(12,)`` for a histogram of twelve bins.
    figures: ClassVar[Mapping[str, tuple[int, ...]]] = {}
    #: Whether a device sends each figure in parts that fit the words of a sealed sum. ``tally_of`` sets it.
    in_parts: ClassVar[bool] = False

    def count(self, rows: Any) -> Mapping[str, Any]:
        """Return every figure of this device. ``rows`` is what ``examples("train")`` returned here."""
        raise NotImplementedError(f"{type(self).__name__} does not say what to count: define count(self, rows)")

    def model(self) -> nn.Module:
        from shoal.trainer.answering import answer_sheet

        if not self.figures:
            raise Misuse(f'{type(self).__name__} has no figures: set figures = {{"people": ()}}, the shape of each')
        return answer_sheet(self.figures, is_in_parts=self.in_parts)

    def train(self, model: nn.Module, batches: Iterator[Any], lease: TaskLease) -> None:
        from shoal.trainer.answering import write_figures

        for _ in batches:
            # A lease ends with its last batch, and the figures are of all examples.
            pass
        counted = self.count(self.examples("train"))
        write_figures(type(self).__name__, model, self.figures, counted, is_in_parts=self.in_parts)
        lease.log("loss", 0.0, 1.0)


class ModelQuestion(Task):
    """How good a model is on the examples of devices. ``shoal.evaluate`` makes one for a task."""

    asked: ClassVar[type[Task]]

    def __init__(self, arguments: dict[str, Any], metrics: list[str]) -> None:
        self._task = self.asked(**arguments)
        self._metrics = metrics

    def model(self) -> nn.Module:
        from shoal.trainer.answering import with_answers

        return with_answers(self._task.model(), rows=len(self._metrics) + 1)

    def examples(self, split: Any) -> Any:
        return self._task.examples(split) if split == "train" else None

    def collate(self, rows: Any, *, training: bool) -> Any:
        return self._task.collate(rows, training=False)

    def train(self, model: nn.Module, batches: Iterator[Any], lease: TaskLease) -> None:
        from shoal.trainer.answering import write_metrics

        write_metrics(self._task, model, batches, lease, self._metrics)


@dataclass(frozen=True, kw_only=True, slots=True)
class Answers:
    """What devices answered."""

    job: str
    #: How many devices did.
    devices: int
    #: Sums over devices for a tally; means over all examples for an evaluation.
    figures: Mapping[str, Any]

    def to_plain(self) -> dict[str, Any]:
        plain = {name: np.asarray(value).tolist() for name, value in self.figures.items()}
        return {"job": self.job, "devices": self.devices, "figures": plain}


#: What a question decides itself. Any other codec, rate or bound would change the sum.
_DECIDED = frozenset(
    (
        *("data", "pace", "momentum", "outer", "outer_rate", "until", "weights", "cohort", "sampling", "algorithm"),
        *("codec", "codec_down", "clip_mean", "ema", "schedule", "weight_decay", "local_epochs", "batch_size"),
        "lease_batches",
    )
)


def is_sealed_only(changes: Mapping[str, Any] | None) -> bool:
    """Whether answers are sealed and have no noise: then their words are those of updates."""
    trust = Trust.parse(str((changes or {}).get("trust", "identity")))
    return trust.sealed is not None and trust.private is None


def question_plan(devices: int, changes: Mapping[str, Any] | None, *, is_tally: bool = True) -> dict[str, Any]:
    """Return the plan of a question: one version with one lease per device."""
    if devices < 1:
        raise Misuse(f"a question is put to at least one device, not {devices}")
    whole = {
        "data": "local",
        "pace": "sync",
        "workers_min": devices,
        "cohort": devices,
        "epoch_leases": devices,
        # A lease is over all examples that a device has.
        "batch_size": 256,
        "lease_batches": 4096,
        # Devices have different numbers of examples, and each of them has one answer.
        "weights": "device",
        "accept_unusual": True,
        "momentum": 0.0,
        "until": epochs(1),
    }
    changed = dict(changes or {})
    if fixed := sorted(set(changed) & _DECIDED):
        raise Misuse(f"{', '.join(fixed)}: a question sets this itself. Give other keys of a plan, such as trust")
    trust = Trust.parse(str(changed.get("trust", "identity")))
    if trust.rule is not None:
        raise Misuse(f"trust = {trust.text!r}: a device whose answer differs from the others would count for less")
    if trust.sealed is not None or trust.private is not None:
        # Such sums count each device once without being told, and nobody could compare the lengths of answers.
        del whole["weights"], whole["accept_unusual"]
    if is_sealed_only(changed):
        if not is_tally:
            raise Misuse(
                f"trust = {trust.text!r}: an evaluation's lease is over all examples of a device, and devices of a"
                " sealed sum have leases of the same length. Add private(...), or write a shoal.Tally that evaluates"
            )
        # A tally counts by itself whatever its lease is of, and a device with few examples may answer too.
        whole |= {"batch_size": 1, "lease_batches": 1}
    return {**whole, **changed}


def why_not_whole(*, devices: int, took_part: int, version: int) -> str | None:
    """Return why the answers of a job are not those of every device, once, or None if they are."""
    if version == 1 and took_part == devices:
        return None
    told = f"{took_part} of {devices} devices answered" if took_part != devices else "a device answered twice"
    return f"{told}, so there is no sum: `shoal jobs show` says what kept the others. Ask fewer devices, or again"


def evaluation_of(path: Path, entry: str, folder: Path) -> tuple[Path, str]:
    """Write the code of an evaluation of this task into a folder. Return its path and entry."""
    return _question_of(path, entry, folder, "Question", _EVALUATION)


def tally_of(path: Path, entry: str, folder: Path, changes: Mapping[str, Any] | None) -> tuple[Path, str]:
    """Return the code of a tally as its path and entry. If its sums are sealed, write it into this folder."""
    if not is_sealed_only(changes):
        return path, entry
    return _question_of(path, entry, folder, entry.split(":")[1], _SEALED_TALLY)


_EVALUATION = """\
from {stem} import {name} as Asked
from shoal.questions import ModelQuestion


class {question}(ModelQuestion):
    asked = Asked
"""
_SEALED_TALLY = """\
from {stem} import {name} as Asked


class {question}(Asked):
    in_parts = True
"""


def _question_of(path: Path, entry: str, folder: Path, question: str, code: str) -> tuple[Path, str]:
    unpack(pack(path, entry), folder)
    stem, name = entry.split(":")
    file = folder / f"{_QUESTION}.py"
    if file.exists():
        raise Misuse(f"{path}: a question writes a file {file.name}, and the task has one: call it otherwise")
    file.write_text(code.format(stem=stem, name=name, question=question), encoding="utf-8")
    return folder, f"{_QUESTION}:{question}"


def tallied(job: str, file: Path, *, devices: int) -> Answers:
    """Read the figures of a tally from the model that its job made."""
    found, _ = tensors.read(file, mmap=False)
    sums: dict[str, np.ndarray] = {}
    for name, mean in found.items():
        module, _, figure = name.partition(".")
        total = devices * mean.astype(np.float64)
        if module in (ANSWERS, PARTS):
            sums[figure] = total if module == ANSWERS else from_parts(total)
    return Answers(job=job, devices=devices, figures=sums)


def evaluated(job: str, file: Path, *, devices: int, metrics: Sequence[str]) -> Answers:
    """Read the means of an evaluation from the model that its job made."""
    found, _ = tensors.read(file, mmap=False)
    sums = dict(zip((*metrics, _EXAMPLES), devices * found[ANSWERS].astype(np.float64), strict=True))
    means = {name: float(total / weight) if weight else float("nan") for name, (total, weight) in sums.items()}
    figures: dict[str, Any] = {**means, _EXAMPLES: round(float(sums[_EXAMPLES][0]))}
    return Answers(job=job, devices=devices, figures=figures)
