"""Events that are written at leisure."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shoal.runtime.journal import Journal
from shoal.store.files import DiskFull
from shoal.store.registry import Registry

pytestmark = pytest.mark.timeout(60)


def test_a_flush_returns_once_what_another_thread_writes_is_written_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manager that gives a job away writes its events before that: afterwards it may not."""
    with Registry(tmp_path / "registry.sqlite") as registry:
        journal, began, may_end = Journal(registry), threading.Event(), threading.Event()
        add_events = registry.add_events

        def slowly(job: str, events: Sequence[tuple[float, str, str]], *, numbers: Sequence[int] | None = None) -> int:
            began.set()
            assert may_end.wait(30)
            return add_events(job, events, numbers=numbers)

        monkeypatch.setattr(registry, "add_events", slowly)
        journal.add("", "kind", "first")
        with ThreadPoolExecutor(2) as pool:
            writing = pool.submit(journal.flush)
            assert began.wait(30)
            second = pool.submit(journal.flush)
            with pytest.raises(TimeoutError):
                second.result(timeout=0.3)
            may_end.set()
            second.result(timeout=30)
            assert [event.text for event in registry.events_after("cluster", 0, limit=9)] == ["first"]
            writing.result(timeout=30)


def test_events_wait_while_the_disk_of_the_store_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise DiskFull("the disk is full")

    with Registry(tmp_path / "registry.sqlite") as registry:
        journal = Journal(registry)
        journal.add("", "device.connected", "attic connected")
        with monkeypatch.context() as patched:
            patched.setattr(registry, "add_events", full)
            journal.flush()
        assert registry.events_after("cluster", 0, limit=9) == []
        journal.flush()
        assert [event.text for event in registry.events_after("cluster", 0, limit=9)] == ["attic connected"]
