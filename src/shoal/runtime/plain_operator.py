"""An operator for programs without an event loop: the connection lives in a thread of its own. No torch here.

Ctrl-C is raised in the thread that asks, as in any Python call; what was asked is cancelled, the connection stays.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

from shoal.runtime.local import LocalCluster
from shoal.runtime.operator import Operator
from shoal.trainer.package import Tell

_T = TypeVar("_T")

#: Texts are told at most this late.
TELL_EVERY_S = 0.2


class PlainOperator:
    """``with PlainOperator(at_home(path)) as operator: operator.ask(lambda each: each.status())``."""

    def __init__(self, cluster: AbstractAsyncContextManager[Path]) -> None:
        self._cluster = cluster
        self._thread = threading.Thread(target=self._run, name="shoal-operator", daemon=True)
        #: Set once the loop runs: from then on the connection can be closed.
        self._began = threading.Event()
        self._ready: concurrent.futures.Future[Path] = concurrent.futures.Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._serving: asyncio.Task[Any] | None = None
        self._operator: Operator | None = None
        self.home = Path()

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.home = self._ready.result()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, what: Callable[[Operator], Coroutine[Any, Any, _T]]) -> _T:
        """Let the operator do this, and wait for it."""
        return self.ask_telling(lambda operator, _: what(operator), lambda text: None)

    def ask_telling(self, what: Callable[[Operator, Tell], Coroutine[Any, Any, _T]], tell: Tell) -> _T:
        """Likewise, with texts that come meanwhile. They are told in the thread that asks."""
        assert self._operator is not None
        assert self._loop is not None
        told: queue.SimpleQueue[str] = queue.SimpleQueue()
        asked = asyncio.run_coroutine_threadsafe(what(self._operator, told.put), self._loop)
        try:
            while True:
                is_done = asked.done() or bool(concurrent.futures.wait((asked,), TELL_EVERY_S).done)
                while not told.empty():
                    tell(told.get())
                if is_done:
                    return asked.result()
        except BaseException:
            asked.cancel()
            raise

    def close(self) -> None:
        """Disconnect; a cluster that was started for this connection ends."""
        self._began.wait()
        if self._thread.is_alive() and self._loop is not None and self._serving is not None:
            try:
                self._loop.call_soon_threadsafe(self._serving.cancel)
            except RuntimeError:
                pass  # the loop closed in between
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
        finally:
            self._began.set()

    async def _serve(self) -> None:
        self._loop, self._serving = asyncio.get_running_loop(), asyncio.current_task()
        self._began.set()
        async with self._cluster as home, Operator.open(home) as operator:
            self._operator = operator
            self._ready.set_result(home)
            await asyncio.Event().wait()


@asynccontextmanager
async def at_home(home: Path) -> AsyncIterator[Path]:
    """A cluster that runs already and is operated from here."""
    yield home


@asynccontextmanager
async def for_a_while(workers: int) -> AsyncIterator[Path]:
    """A cluster on this machine that lives as long as the connection."""
    async with LocalCluster(workers=workers) as local:
        yield local.home
