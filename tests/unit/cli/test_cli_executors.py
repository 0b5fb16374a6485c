"""The pool as people see it: who lends, what they did, who was caught."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from statuses import status

from shoal.cli import screen
from shoal.cli.commands.status import _print_cluster
from shoal.cli.render.tables import executors_table
from shoal.wire.messages import ExecutorView, Status

POOL = (
    ExecutorView(
        node="attic-pi4", state="ready", multiply_adds_per_s=2.5e9, latency_s=0.004, tasks=12, multiply_adds=8 << 30
    ),
    ExecutorView(
        node="shed",
        state="excluded",
        reason="caught by operator: row 3 is\x1b[2J wrong",
        multiply_adds_per_s=1e9,
        caught=1,
    ),
)


def test_the_table_names_who_was_caught_and_why() -> None:
    terminal = Console(file=io.StringIO(), width=140, color_system=None)
    terminal.print(executors_table(POOL))
    assert isinstance(terminal.file, io.StringIO)
    text = terminal.file.getvalue()
    assert "2.5G" in text
    assert "● excluded" in text
    assert "caught by operator: row 3 is" in text
    assert "\x1b" not in text


def test_a_cluster_tells_of_its_pool_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Console(file=io.StringIO(), width=140, color_system=None)
    monkeypatch.setattr(screen, "out", lambda: terminal)
    plain = status()
    _print_cluster(Status(cluster=plain.cluster, manager=plain.manager, nodes=plain.nodes, executors=POOL))
    assert isinstance(terminal.file, io.StringIO)
    text = terminal.file.getvalue()
    assert "pool: 2 executors (1 excluded, 1 ready), 2.5G operations/s, 12 tasks done" in text
    assert "shed gets no further tasks: caught by operator" in text
    _print_cluster(plain)
    assert terminal.file.getvalue().count("pool:") == 1, "without executors there is no pool to tell of"
