"""§4.1, Table 4.1: bytes of each role for one layer, as printed, as they are, as counted, and by tiles.

*Counted*: the arrays of all tasks of a smaller batch, task by task, held against the equations; they must agree.
"""

from __future__ import annotations

from benchmarks import offload_outer as outer
from benchmarks.offload_modes import Paper, drawn
from papers.dcl import paper
from papers.harness.rows import Row
from shoal.errors import ShoalError

#: Examples of the counted layer.
COUNTED, QUICK_COUNTED = 2_000, 100
_GB = 1e9


def run(quick: bool) -> list[Row]:
    sizes = (paper.SAMPLES, paper.FEATURES, paper.NEURONS)
    network = {"schedulers": paper.SCHEDULERS, "executors_each": paper.EXECUTORS_EACH}
    issued, returned = outer.issued(*sizes, **network), outer.returned(*sizes, **network)
    sent, received = tiled(*sizes)
    parts = {"analyst": 1, "scheduler": paper.SCHEDULERS, "executor": paper.SCHEDULERS * paper.EXECUTORS_EACH}
    rows: list[Row] = []
    for role, count in parts.items():
        thesis_issued, thesis_returned = paper.TABLE_4_1_GB[role]
        rows.append(
            {
                "role": role,
                "thesis_issued_gb": thesis_issued,
                "thesis_returned_gb": thesis_returned,
                "issued_gb": getattr(issued, role) / _GB,
                "returned_gb": getattr(returned, role) / _GB,
                "tiles_issued_gb": sent / count / _GB,
                "tiles_returned_gb": received / count / _GB,
            }
        )
    rows.append({"role": "as printed", **printed()})
    rows.append({"role": "counted", **counted(QUICK_COUNTED if quick else COUNTED)})
    rows.append({"role": "ratio", "times_fewer": (issued.analyst + returned.analyst) / (sent + received)})
    return rows


def tiled(samples: int, features: int, neurons: int) -> tuple[int, int]:
    """Row blocks: each value once, and the weights once for each executor."""
    executors = paper.SCHEDULERS * paper.EXECUTORS_EACH
    sent = paper.VALUE_BYTES * (samples * features + executors * features * neurons)
    return sent, paper.VALUE_BYTES * samples * neurons


def printed() -> Row:
    """What equations (4.1) and (4.6) come to as they stand, and what Table 4.1 holds instead."""
    a, b, c = paper.SAMPLES, paper.FEATURES, paper.NEURONS
    network = {"schedulers": paper.SCHEDULERS, "executors_each": paper.EXECUTORS_EACH}
    return {
        # (4.1) multiplies all three.
        "issued_4_1_gb": paper.VALUE_BYTES * a * b * c / _GB,
        "returned_4_6_gb": outer.returned_as_printed_bytes(a, c, **network) / _GB,
        "returned_table_gb": outer.returned_in_table_bytes(a, b, c, **network) / _GB,
    }


def counted(samples: int) -> Row:
    """Tasks made, executed and counted: the equations for this batch, to the byte."""
    mode = Paper(paper.SCHEDULERS * paper.EXECUTORS_EACH)
    mode.multiply(*drawn(samples, paper.FEATURES, paper.NEURONS), secret="left", name="counted")
    a, b, c = samples, paper.FEATURES, paper.NEURONS
    expected = (outer.issued_bytes(a, b, c), outer.returned_bytes(a, b, c))
    if (mode.spent.bytes_out, mode.spent.bytes_in) != expected:
        raise ShoalError(
            f"tasks moved {mode.spent.bytes_out}, {mode.spent.bytes_in} bytes; the equations say {expected}"
        )
    return {"samples": samples, "issued_bytes": mode.spent.bytes_out, "returned_bytes": mode.spent.bytes_in}
