"""The graphs of a job in one file, with what a device needs to run and verify them. No torch, no onnxruntime."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from shoal.data.raw_columns import RawColumns, columns_from_plain, columns_to_plain
from shoal.errors import Corrupt
from shoal.learning.metrics import KINDS, METRICS_MAX, MetricSum
from shoal.trainer.launch import opened
from shoal.trainer.portable.draws import Drawn
from shoal.trainer.portable.graph import GRAPH_MAX_BYTES, check_graph
from shoal.wire import tensors

_FORMAT = 1
_NOTE = "portable"
#: Room for the graphs, the rows of one small batch, and a part of the update from it.
FILE_MAX_BYTES = 64 << 20
_DRAWS_MAX = 10_000
#: AMSGrad keeps three.
_STATES_MAX = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """A metric, and how many of the sums that a graph gives belong to it."""

    name: str
    kind: str
    sums: int
    lower: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """One batch, and the result of a step on it from the first model, as PyTorch computed it."""

    columns: Mapping[str, np.ndarray[Any, Any]]
    rate: float
    weight_decay: float
    seed: int
    loss: float
    #: ``change`` has every ``stride``-th value of the vector.
    stride: int
    change: np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Graphs:
    train: bytes
    evaluate: bytes
    #: How many vectors the optimiser keeps.
    states: int
    #: The optimiser's own rate and decay, at the plan's learning rate.
    rate: float
    weight_decay: float
    draws: tuple[Drawn, ...]
    evaluation_draws: tuple[Drawn, ...]
    metrics: tuple[Metric, ...]
    proof: Proof
    #: The largest distance from PyTorch's update that the capture measured, as a part of its length.
    error: float = 0.0
    #: The columns of devices' own rows. Empty if the job trains on shared examples.
    columns: RawColumns = field(default_factory=dict)
    #: Each device's own part of the first model, flat. Empty if all of it is shared.
    own: np.ndarray[Any, Any] = field(default_factory=lambda: np.zeros(0, np.float32))

    def write(self, file: BinaryIO) -> None:
        plain = {
            "format": _FORMAT,
            "states": self.states,
            "rate": self.rate,
            "weight_decay": self.weight_decay,
            "draws": [asdict(draw) for draw in self.draws],
            "evaluation_draws": [asdict(draw) for draw in self.evaluation_draws],
            "metrics": [asdict(metric) for metric in self.metrics],
            "proof": {
                "rate": self.proof.rate,
                "weight_decay": self.proof.weight_decay,
                "seed": self.proof.seed,
                "loss": self.proof.loss,
                "stride": self.proof.stride,
            },
        }
        # Left out if empty, so that the file of a job with shared examples is what it was.
        plain |= {"columns": columns_to_plain(self.columns)} if self.columns else {}
        arrays = {
            "train": np.frombuffer(self.train, np.uint8),
            "evaluate": np.frombuffer(self.evaluate, np.uint8),
            "proof": self.proof.change,
        }
        arrays |= {f"column.{name}": np.ascontiguousarray(column) for name, column in self.proof.columns.items()}
        arrays |= {"own": self.own} if self.own.size else {}
        tensors.write(file, arrays, {_NOTE: json.dumps(plain)})

    @classmethod
    def read(cls, path: Path) -> Graphs:
        """Read and check a file, which is not trusted: sizes first, then each graph byte by byte."""
        with opened(path) as file:
            arrays, notes = tensors.read(file, mmap=True)
        if sum(array.nbytes for array in arrays.values()) > FILE_MAX_BYTES:
            raise Corrupt(f"the graphs of a job have more than {FILE_MAX_BYTES:,} bytes")
        try:
            plain = json.loads(notes[_NOTE])
            if plain["format"] != _FORMAT:
                raise Corrupt(
                    f"the graphs are of format {plain['format']!r}, and this device knows {_FORMAT}: update it"
                )
            proof = plain["proof"]
            read = cls(
                train=_graph(arrays["train"]),
                evaluate=_graph(arrays["evaluate"]),
                states=_whole(plain["states"], _STATES_MAX),
                rate=float(plain["rate"]),
                weight_decay=float(plain["weight_decay"]),
                draws=_draws(plain["draws"]),
                evaluation_draws=_draws(plain["evaluation_draws"]),
                metrics=_metrics(plain["metrics"]),
                proof=Proof(
                    columns={
                        name.removeprefix("column."): array
                        for name, array in arrays.items()
                        if name.startswith("column.")
                    },
                    rate=float(proof["rate"]),
                    weight_decay=float(proof["weight_decay"]),
                    seed=_whole(proof["seed"], 1 << 63),
                    loss=float(proof["loss"]),
                    stride=_whole(proof["stride"], 1 << 40),
                    change=np.array(arrays["proof"], np.float32),
                ),
                columns=columns_from_plain(plain.get("columns", [])),
                own=np.array(arrays["own"], np.float32).reshape(-1) if "own" in arrays else np.zeros(0, np.float32),
            )
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise Corrupt(f"this file does not hold the graphs of a job: {error}") from None
        return read


def declared_columns(path: Path) -> RawColumns:
    """Return the columns of devices' own rows that a file of graphs declares. Reads nothing else of it."""
    with opened(path) as file:
        _, notes = tensors.read(file, mmap=True)
    try:
        return columns_from_plain(json.loads(notes[_NOTE]).get("columns", []))
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise Corrupt(f"this file does not hold the graphs of a job: {error}") from None


def metric_sums(metrics: tuple[Metric, ...], numbers: list[float]) -> tuple[MetricSum, ...]:
    """Return the sums that a graph gave, by metric."""
    if len(numbers) != sum(metric.sums for metric in metrics):
        raise Corrupt("a graph gives other sums than its metrics have")
    found, place_ = [], 0
    for metric in metrics:
        sums = tuple(numbers[place_ : place_ + metric.sums])
        found.append(MetricSum(name=metric.name, kind=metric.kind, sums=sums, lower=metric.lower))
        place_ += metric.sums
    return tuple(found)


def _graph(array: np.ndarray[Any, Any]) -> bytes:
    if array.dtype != np.uint8 or array.nbytes > GRAPH_MAX_BYTES:
        raise Corrupt(f"a graph has {array.nbytes:,} bytes, at most {GRAPH_MAX_BYTES:,}")
    graph = array.tobytes()
    check_graph(graph)
    return graph


def _whole(value: object, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise Corrupt("the graphs of a job name a number that is out of bounds")
    return value


def _draws(plain: Any) -> tuple[Drawn, ...]:
    if len(plain) > _DRAWS_MAX:
        raise Corrupt(f"a graph draws more than {_DRAWS_MAX:,} times")
    return tuple(
        Drawn(
            name=str(each["name"]),
            kind=str(each["kind"]),
            shape=tuple((_whole(slope, 1 << 40), int(more)) for slope, more in each["shape"]),
            low=int(each["low"]),
            high=int(each["high"]),
        )
        for each in plain
    )


def _metrics(plain: Any) -> tuple[Metric, ...]:
    if len(plain) > METRICS_MAX:
        raise Corrupt(f"a graph gives more than {METRICS_MAX} metrics")
    metrics = tuple(
        Metric(
            name=str(each["name"]), kind=str(each["kind"]), sums=_whole(each["sums"], 8), lower=each["lower"] is True
        )
        for each in plain
    )
    if any(metric.kind not in KINDS for metric in metrics):
        raise Corrupt("a graph gives a metric of a kind that is not known")
    return metrics
