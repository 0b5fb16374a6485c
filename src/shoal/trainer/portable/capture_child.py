"""Captures the graphs of a prepared task. Run as ``python -m shoal.trainer.portable.capture_child JSON``.

Imports torch and the task's code, so the machine that starts a job runs it as a separate process. The last line of
standard output is ``{"captured": ...}`` or ``{"failed": REASON}``; those before are ``{"doing": TEXT}``.
"""

from __future__ import annotations

import json
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.trainer.base import load_base
from shoal.trainer.child_loop import reason_of
from shoal.trainer.flat import write_from
from shoal.trainer.importer import make_task
from shoal.trainer.package import plan_from
from shoal.trainer.placement import place
from shoal.trainer.portable.capture import capture, settings_of
from shoal.trainer.portable.graph import check_graph
from shoal.trainer.portable.graphs_file import Graphs
from shoal.trainer.portable.refusal import Unportable
from shoal.trainer.prepared_job import first_model
from shoal.trainer.report import reporting
from shoal.trainer.shards import Examples
from shoal.trainer.steps import build_model


def captured(given: dict[str, Any], tell: Callable[[str], None]) -> Graphs:
    plan = plan_from(given["plan"])
    task = make_task(Path(given["bundle_dir"]), given["entry"], given["arguments"])
    model = build_model(task, plan.seed)
    placed = place(task, model)
    layout, first = first_model(Path(given["model"]))
    write_from(first, {name: tensor for name, (tensor, _) in placed.shared.items()}, layout)
    load_base(placed.frozen, given["base"])
    settings = settings_of(plan, task=task, layout=layout)
    train, test = Examples(given["train"]), Examples(given["test"])
    return capture(task, model, placed, settings, train=train, test=test, tell=tell)


def main() -> int:
    given = json.loads(sys.argv[1])
    report = reporting("shoal-capture")
    # PyTorch's passes warn of things that the person who submits a job cannot change.
    warnings.simplefilter("ignore")
    try:
        graphs = captured(given, lambda text: report({"doing": text}))
    except Unportable as error:
        report({"failed": str(error)})
        return 1
    except BaseException as error:
        traceback.print_exc()
        report({"failed": reason_of(error)})
        return 1
    with Path(given["out"]).open("wb") as file:
        graphs.write(file)
    sizes = len(graphs.train) + len(graphs.evaluate)
    report({"captured": {"bytes": sizes, "nodes": check_graph(graphs.train)}})
    return 0


if __name__ == "__main__":
    sys.exit(main())
