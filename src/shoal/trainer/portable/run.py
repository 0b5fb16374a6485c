"""Runs a checked graph by onnxruntime. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime

from shoal.errors import Misuse

Array = np.ndarray[Any, Any]


class GraphRun:
    """A session that takes inputs by name. Leaves out those that the graph does not read."""

    def __init__(self, graph: bytes, *, threads: int, fixed: Mapping[str, Array] | None = None) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # Threads that wait sleep: on a busy machine they would spin away its cores.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        # A plan of places for the tensors took 9 of 74 MB of a GRU over 128 steps, and none of LeNet; no step of LeNet,
        # of depthwise convolutions or of a GRU took longer without one.
        options.enable_mem_pattern = False
        self._session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        self.inputs: tuple[str, ...] = tuple(each.name for each in self._session.get_inputs())
        self._fixed = {name: array for name, array in (fixed or {}).items() if name in self.inputs}

    def run(self, given: Mapping[str, Any]) -> list[Array]:
        feed = self._fixed | {name: np.asarray(given[name]) for name in self.inputs if name in given}
        if missing := [name for name in self.inputs if name not in feed]:
            raise Misuse(f"the job's graph reads {missing[0]}, which this device does not have")
        found: list[Array] = self._session.run(None, feed)
        return found


class StepRun:
    """Steps of training from one vector to the next, with the optimiser's state."""

    def __init__(self, graph: GraphRun, states: int) -> None:
        self._graph = graph
        self._states = states
        self._parameters = 0
        self._kept: list[Array] = []
        self.count = 0
        #: The device's own part of the model, if it has one. Each step replaces it.
        self.own: Array | None = None

    def begin(self, parameters: int) -> None:
        """Start with a new optimiser state. ``parameters``: how many are trained, shared and own."""
        self._parameters = parameters
        self._kept = [np.zeros(parameters, np.float32) for _ in range(self._states)]
        self.count = 0

    def step(
        self,
        vector: Array,
        columns: Mapping[str, Any],
        *,
        rate: float,
        weight_decay: float,
        draws: Mapping[str, Array],
    ) -> tuple[Array, float]:
        self.count += 1
        given = {
            "vector": vector,
            **({"own": self.own} if self.own is not None else {}),
            **{f"state{number}": state for number, state in enumerate(self._kept)},
            "count": np.float32(self.count),
            # Graphs of earlier releases take it in float64.
            "step": np.float64(self.count),
            "rate": np.float32(rate),
            "weight_decay": np.float32(weight_decay),
            **columns_of(columns),
            **draws,
        }
        after, *states, loss = self._graph.run(given)
        if self.own is not None:
            self.own, *states = states
        self._kept = states
        return after, float(loss)


def columns_of(rows: Mapping[str, Any]) -> dict[str, Array]:
    """Return stored rows by the names that graphs have for them."""
    for name, column in rows.items():
        if not isinstance(column, np.ndarray):
            raise Misuse(f"column {name} holds rows of unequal shapes or texts, which no graph takes")
    return {f"column.{name}": column for name, column in rows.items()}


def sums_of(found: Sequence[Array]) -> list[float]:
    return [float(each) for each in found[0]]
