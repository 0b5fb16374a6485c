"""What each manager of a cluster says of itself: one exporter asks all of them, and remembers those that are gone."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.errors import Refused, ShoalError
from shoal.exporter.sample import Sample
from shoal.store.usage import BOUNDS_S
from shoal.wire.limits import MANAGERS_MAX

if TYPE_CHECKING:
    from shoal.runtime.operator import Operator
    from shoal.wire.messages import ManagerView, StoreView

#: How long one manager may take to answer.
ASK_TIMEOUT_S = 2.0
#: A manager that does not answer and that no other manager names is forgotten after this.
KEPT_S = 86400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class SeenManager:
    """A manager as the exporter knows it at one scrape."""

    #: Where devices dial it.
    address: str
    is_reached: bool
    #: Its latest answer, or None if it never gave one: an earlier release does not.
    view: ManagerView | None = None
    #: How old that answer is.
    age_s: float = 0.0


@dataclass(slots=True)
class _Known:
    view: ManagerView | None
    answered_s: float
    named_s: float


class Managers:
    """Asks the managers of a cluster how they are. The one that this machine knows says where the others are."""

    def __init__(self, operator: Operator, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._operator = operator
        self._clock = clock
        self._known: dict[str, _Known] = {}
        #: The address of the manager that this machine knows, once it has said so.
        self._own = ""

    def answering(self, seen: Iterable[SeenManager]) -> tuple[str, str]:
        """Return the endpoint to ask for the cluster's status, and the address of that manager. The endpoint is empty
        for the manager that this machine knows. If this manager did not answer, choose another that did."""
        reached = [each.address for each in seen if each.is_reached]
        if not reached or self._own in reached:
            return "", self._own or self._operator.endpoint
        return reached[0], reached[0]

    async def ask(self) -> list[SeenManager]:
        """Ask each manager that is known, and each that these name."""
        reached: set[str] = set()
        await self._ask("", reached)
        asked = {self._own or self._operator.endpoint}
        # The second time: managers that the others named just now.
        for _ in range(2):
            due = [address for address in self._known if address not in asked][:MANAGERS_MAX]
            asked.update(due)
            await asyncio.gather(*(self._ask(address, reached) for address in due))
        now_s = self._clock()
        for address in [a for a, known in self._known.items() if now_s - max(known.named_s, known.answered_s) > KEPT_S]:
            del self._known[address]
        return [
            SeenManager(
                address=address,
                is_reached=address in reached,
                view=known.view,
                age_s=0.0 if address in reached else now_s - known.answered_s,
            )
            for address, known in sorted(self._known.items())
        ]

    async def _ask(self, endpoint: str, reached: set[str]) -> None:
        """Ask the manager at an endpoint. An empty one means the manager that this machine knows."""
        address, view = endpoint or self._own or self._operator.endpoint, None
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                view = await self._operator.manager(endpoint)
        except Refused:
            # It answers, and is of a release that does not know the question.
            pass
        except (ShoalError, OSError, TimeoutError):
            self._known.setdefault(address, _Known(None, -KEPT_S, self._clock()))
            return
        now_s = self._clock()
        if view is not None:
            address = view.manager
            for other in view.others:
                self._known.setdefault(other, _Known(None, -KEPT_S, now_s)).named_s = now_s
        if not endpoint:
            if not self._own:
                # It had no other name before it answered.
                self._known.pop(self._operator.endpoint, None)
            self._own = address
        self._known[address] = _Known(view, now_s, now_s)
        reached.add(address)


def samples_of_managers(managers: Iterable[SeenManager]) -> Iterator[Sample]:
    """Yield the series of each manager."""
    for seen in managers:
        own = {"manager": seen.address}
        yield Sample("shoal_manager_reachable", own, int(seen.is_reached))
        view = seen.view
        if view is None:
            continue
        yield Sample("shoal_manager_ready", own, int(seen.is_reached and not view.trouble))
        yield Sample("shoal_manager_seat_held", own, int(seen.is_reached and view.has_seat))
        if view.unproven_s >= 0:
            yield Sample("shoal_manager_seat_unproven_seconds", own, view.unproven_s + seen.age_s)
        if view.authority_until_s > 0:
            yield Sample("shoal_authority_expiry_timestamp_seconds", own, view.authority_until_s)
        if not seen.is_reached:
            continue
        yield Sample("shoal_manager_takeovers", own, view.takeovers)
        yield Sample("shoal_manager_jobs_taken", own, view.jobs_taken)
        yield Sample("shoal_manager_store_went_back", own, view.went_back)
        yield Sample("shoal_manager_loop_lag_seconds", own, view.loop_lag_s)
        yield Sample("shoal_manager_devices", own, view.devices)
        for store in view.stores[:2]:
            yield from _of_store(store, own)


def _of_store(store: StoreView, own: Mapping[str, str]) -> Iterator[Sample]:
    labels = {**own, "store": "bucket" if store.store == "bucket" else "database"}
    yield Sample("shoal_store_errors", labels, store.errors)
    yield Sample("shoal_store_wait_seconds", labels, store.waiting_s)
    if len(store.counts) == len(BOUNDS_S) + 1:
        bounds = (*(f"{bound:g}" for bound in BOUNDS_S), "+Inf")
        buckets = tuple(zip(bounds, itertools.accumulate(map(float, store.counts)), strict=True))
        yield Sample("shoal_store_call_seconds", labels, store.seconds, buckets)
