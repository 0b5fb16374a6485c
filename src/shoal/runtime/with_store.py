"""What the manager decided is read or written even if its store is away: what follows from it waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

from shoal.store.base import Away
from shoal.store.seat import Deposed

log = logging.getLogger("shoal")

#: How often a store that is away is tried again.
STORE_AGAIN_S = 0.5

_Result = TypeVar("_Result")


async def with_store(
    act: Callable[..., _Result],
    *arguments: object,
    on_deposed: Callable[[Deposed], object],
    waits_for: tuple[type[Exception], ...] = (Away,),
) -> _Result:
    """Call ``act`` in a thread until the store is there, and return its result. The manager decides nothing while a
    record of its own is written; heartbeats are answered elsewhere. ``waits_for``: the errors after which it is called
    again."""
    waits = False
    while True:
        try:
            result = await asyncio.to_thread(act, *arguments)
        except Deposed as error:
            # Nothing that this manager would do next counts: it ends.
            on_deposed(error)
            await asyncio.Event().wait()
        except waits_for as error:
            if not waits:
                log.warning("the manager waits for its store: %s", error)
            waits = True
            await asyncio.sleep(STORE_AGAIN_S)
        else:
            if waits:
                log.info("the manager's store is back")
            return result
