"""A manager starts over where that is the remedy, on the same ports and with one line, and ends where it is not.

Its seat is in a SQLite file: managers share PostgreSQL, and the seat does not know the difference.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from shoal.runtime import manager_main, manager_state
from shoal.runtime.manager_main import run_home
from shoal.runtime.manager_options import ManagerOptions
from shoal.runtime.manager_start import ManagerReady, ManagerRun, serve
from shoal.runtime.manager_state import ManagerState, take_state
from shoal.store.base import Away
from shoal.store.depot import FolderDepot
from shoal.store.opening import Stores
from shoal.store.seat import Deposed, WentBack
from shoal.store.sqlite import SqliteDatabase

pytestmark = pytest.mark.timeout(120)

WAIT_S = 60.0


def shared_stores(folder: Path, **_: object) -> Stores:
    """The stores of a manager that is one of several."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "registry.sqlite"
    return Stores(database=SqliteDatabase(file), depot=FolderDepot(folder), seats=SqliteDatabase(file))


class Watched:
    """A manager of this process, and the state of each of its starts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ready: list[ManagerReady] = []
        self.runs: list[ManagerRun] = []
        self.states: asyncio.Queue[ManagerState] = asyncio.Queue()
        monkeypatch.setattr(manager_state, "open_stores", shared_stores)
        monkeypatch.setattr("shoal.runtime.manager_start.take_state", self._take_state)
        monkeypatch.setattr(manager_main, "serve", self._serve)
        monkeypatch.setattr(manager_main, "START_OVER_S", 0.01)

    async def _take_state(self, *arguments: Any, **told: Any) -> ManagerState:
        state = await take_state(*arguments, **told)
        self.states.put_nowait(state)
        return state

    async def _serve(self, run: ManagerRun, *arguments: Any) -> None:
        self.runs.append(run)
        await serve(run, *arguments)

    async def started(self) -> ManagerState:
        """Wait until it has its seat, and until it serves."""
        state = await asyncio.wait_for(self.states.get(), WAIT_S)
        async with asyncio.timeout(WAIT_S):
            while not (self.ready and state.held is not None and self.runs[-1].vitals.trouble == ""):
                await asyncio.sleep(0.01)
        return state


def depose(state: ManagerState, error: Deposed) -> None:
    assert state.held is not None
    state.held.depose(error)


def test_a_manager_whose_database_went_back_starts_over_and_one_that_was_deposed_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watched = Watched(monkeypatch)

    async def story() -> None:
        serving = asyncio.create_task(run_home(ManagerOptions(home=tmp_path / "home"), on_ready=watched.ready.append))
        first = await watched.started()
        ports = watched.runs[-1].ports
        depose(first, WentBack("the database went back"))
        second = await watched.started()
        assert second.held is not first.held
        assert watched.runs[-1].ports == ports
        depose(second, Deposed("another took over"))
        with pytest.raises(Deposed, match="another manager has taken over the jobs of this one"):
            await asyncio.wait_for(serving, WAIT_S)
        assert len(watched.runs) == 2
        # It printed one line, at its first start.
        assert [(ready.port, ready.enrol_port) for ready in watched.ready] == [ports]
        assert watched.ready[0].join_line.startswith("shoal://127.0.0.1:")

    with caplog.at_level(logging.WARNING, "shoal"):
        asyncio.run(story())
    assert "this manager starts over: the database went back" in caplog.text


@pytest.mark.parametrize("token", ["always", "never", "first"])
def test_a_line_is_made_when_it_was_asked_for(token: str, tmp_path: Path) -> None:
    async def start() -> ManagerReady:
        ready: asyncio.Future[ManagerReady] = asyncio.get_running_loop().create_future()
        options = ManagerOptions(home=tmp_path / "home", token=token)
        serving = asyncio.create_task(run_home(options, on_ready=ready.set_result))
        try:
            return await asyncio.wait_for(ready, WAIT_S)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    told = asyncio.run(start())
    assert bool(told.join_line) is (token != "never")


def test_stores_that_are_away_end_the_first_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> Stores:
        raise Away("the database does not answer")

    monkeypatch.setattr(manager_state, "open_stores", away)
    with pytest.raises(Away, match="does not answer"):
        asyncio.run(run_home(ManagerOptions(home=tmp_path / "home"), on_ready=lambda ready: None))
