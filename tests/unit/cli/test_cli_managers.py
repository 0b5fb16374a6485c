"""`shoal managers` as people see it: which manager has what, which is drained, and which does not answer."""

from __future__ import annotations

import io

from rich.console import Console

from shoal.cli.render.tables import managers_table
from shoal.wire.messages import ManagerView

VIEWS = (
    ManagerView(manager="a.lan:7070", jobs=3, devices=12, seat="east/host-1"),
    ManagerView(manager="b.lan:7070", is_drained=True),
    ManagerView(manager="c.lan:7070", trouble="it does not answer: \x1b[2Jtimed out", is_drained=True),
)


def test_the_table_says_what_each_manager_has_and_whether_it_takes_jobs() -> None:
    terminal = Console(file=io.StringIO(), width=160, color_system=None)
    terminal.print(managers_table(VIEWS))
    assert isinstance(terminal.file, io.StringIO)
    text = terminal.file.getvalue()
    first, second, third = (line.split() for line in text.splitlines() if ".lan" in line)
    assert first[:4] == ["a.lan:7070", "serves", "3", "12"]
    assert second[:4] == ["b.lan:7070", "drained", "0", "0"]
    assert third[:2] == ["c.lan:7070", "trouble"]
    assert "it does not answer" in text
    assert "\x1b" not in text
