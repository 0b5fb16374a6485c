"""The client: has matrix products computed by pools that it does not trust, and accepts only checked results.

The client cuts a product into tiles (``product``) and gives each tile to the pool that should finish it first. A tile
that is refused, late, wrong or lost with its pool is requested again, elsewhere if possible. A tile that no pool
computes is computed at home, and the reason is recorded. The bits of the result do not depend on the pools. It computes
one product at a time.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from shoal.errors import Misuse, PeerViolation
from shoal.offload import shuffle
from shoal.offload.kinds import check_result, digest_of, result_bytes
from shoal.offload.products import Advert, Report
from shoal.offload.roles.product import RIGHTS_KNOWN_MAX_BYTES, TILE_MAX_BYTES, Known, Policy, Product, Reply, TileWork
from shoal.offload.trust import CheckRecord
from shoal.roles.actions import Deliver, Multiply
from shoal.roles.events import (
    Connected,
    Disconnected,
    Event,
    Multiplied,
    MultiplyFailed,
    ProductUnwanted,
    ProductWanted,
    Received,
    Started,
    TimerFired,
)
from shoal.roles.machine import Machine
from shoal.wire.messages import AskPool, Caught, Forget, NeedOperand, Pool, RightOperand, TileResult, TileTask, clip

LOOK = "look"

#: How long tiles wait for a lost pool, from its loss. A manager that restarts is back before.
WAIT_S = 10.0

#: A pool has this long for a task, or this multiple of its expected duration.
LATE_LEAST_S = 10.0
LATE_FACTOR = 8.0

#: Failures of one tile after which it is computed at home.
FAILURES_MAX = 8

#: After a refusal, how long the pool gets no new tasks: it may have its hands full.
PAUSE_S = 0.2

#: The lowest link rate that is assumed before a task counts as late.
LINK_LEAST_BYTES_PER_S = 1e6

#: A result large enough that its duration tells the rate of the link.
MEASURED_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class _Ask:
    """One side of a tile that is being computed."""

    tile: int
    side: int
    #: None if it is computed at home.
    pool: str | None
    sent_s: float
    due_s: float
    operations: int
    size_bytes: int


@dataclass(slots=True)
class _Pool:
    name: str
    is_connected: bool = False
    told: Pool | None = None
    #: Since when it has not been usable.
    gone_s: float = 0.0
    why_gone: str = "not reached yet"
    asked_s: float = 0.0
    #: There and back to its broker.
    latency_s: float = 0.0
    paused_until_s: float = 0.0
    #: Tasks it has, their multiply-adds, and their bytes there and back.
    tasks: int = 0
    operations: int = 0
    size_bytes: int = 0
    caught: dict[str, str] = field(default_factory=dict)

    @property
    def is_useful(self) -> bool:
        return self.is_connected and self.told is not None and self.told.executors > 0

    def count(self, ask: _Ask, times: int) -> None:
        """Add the task to its load (1), or subtract it (-1)."""
        self.tasks += times
        self.operations += times * ask.operations
        self.size_bytes += times * ask.size_bytes

    def ends_s(self, operations: int) -> float:
        """When it should be done with one more task."""
        assert self.told is not None
        rate = max(self.told.multiply_adds_per_s, 1.0)
        return (self.operations + operations) / rate + self.told.latency_s + self.latency_s


class Client(Machine):
    def __init__(
        self, *, pools: Sequence[str], policy: Policy, secret: bytes, wait_s: float = WAIT_S, purpose: str | None = None
    ) -> None:
        """``secret``: 32 bytes that nobody else knows: masks, shuffles and checks come from it."""
        super().__init__()
        if not pools or len(set(pools)) < len(pools):
            raise Misuse("a client has at least one pool, and each under a name of its own")
        if policy.privacy == "mask" and len(pools) < 2:
            raise Misuse('privacy="mask" takes two pools that do not collude: a second cluster, of another operator')
        if len(secret) < 32:
            raise Misuse("a secret has at least 32 bytes")
        self._policy = policy
        self._secret = secret
        self._wait_s = wait_s
        self._purpose = purpose
        self._chance = np.random.default_rng(int.from_bytes(hashlib.sha256(b"checks" + secret).digest()[:16], "little"))
        self._pools = {name: _Pool(name) for name in pools}
        self._known: OrderedDict[str, Known] = OrderedDict()
        self._product: Product | None = None
        #: (tile, side) to be asked for.
        self._todo: deque[tuple[int, int]] = deque()
        self._asks: dict[int, _Ask] = {}
        self._numbers = 0
        #: The number of the multiplication that runs at home.
        self._at_home: int | None = None
        #: (pool, executor) -> its record of checks.
        self._standings: dict[tuple[str | None, str], CheckRecord] = {}
        self._checks = policy.checks()
        self._bytes_per_s = 0.0
        self._said: set[str] = set()
        self.report = Report()

    @property
    def advert(self) -> Advert | None:
        """The speed of all pools together, as they say; None while there is no pool."""
        useful = [pool for pool in self._pools.values() if pool.is_useful and pool.told is not None]
        told = [pool.told for pool in useful if pool.told is not None]
        if not told:
            return None
        return Advert(
            executors=sum(pool.executors for pool in told),
            operations_per_s=sum(pool.multiply_adds_per_s for pool in told),
            bytes_per_s=self._bytes_per_s,
            latency_s=max(pool.latency_s + (pool.told.latency_s if pool.told else 0.0) for pool in useful),
            pools=len(told),
        )

    @property
    def network(self) -> str:
        """The network's name in the thesis's notation: ``1-2-3``, or ``1-3-(4,5,6)``. (DCL §3.1)"""
        return network_name([pool.told.executors if pool.told else 0 for pool in self._pools.values()])

    def result_limit(self, task: int) -> int:
        """The most bytes of tensors that a pool may send for this task; for an old one, the most of any tile."""
        ask, product = self._asks.get(task), self._product
        if ask is None or product is None or ask.tile not in product.open:
            return TILE_MAX_BYTES if 0 < task <= self._numbers else 0
        tile = product.open[ask.tile].tile
        return result_bytes(product.kind(ask.side), tile.rows, product.columns)

    def on_event(self, event: Event) -> None:
        match event:
            case Started():
                for pool in self._pools.values():
                    pool.gone_s = self.now_s
                return
            case Connected():
                self._on_connected(event.node)
                return
            case Disconnected():
                self._on_disconnected(event.node, event.reason)
            case ProductWanted():
                self._on_wanted(event)
            case ProductUnwanted():
                self._on_unwanted(event.product)
                return
            case Received():
                self._on_message(event)
            case Multiplied() if event.number == self._at_home:
                self._on_computed(event)
            case MultiplyFailed() if event.number == self._at_home:
                self._on_not_computed(event)
            case TimerFired(name=name) if name == LOOK:
                self._on_look()
            case _:
                return
        self._place()
        self._finish()
        self._set_look_timer()

    # Pools ----------------------------------------------------------------------------------------------

    def _on_connected(self, name: str) -> None:
        pool = self._pools[name]
        pool.is_connected, pool.told = True, None
        pool.asked_s, pool.why_gone = self.now_s, "it has not said yet what it can"
        # The broker may have restarted, and not know which executors this client caught.
        for node, reason in pool.caught.items():
            self.send(name, Caught(executor=node, reason=clip(reason)))
        self.send(name, AskPool(purpose=self._purpose or ""))

    def _on_disconnected(self, name: str, reason: str) -> None:
        pool = self._pools[name]
        if pool.is_useful:
            pool.gone_s = self.now_s
        pool.is_connected, pool.told, pool.why_gone = False, None, reason
        lost = [number for number, ask in self._asks.items() if ask.pool == name]
        for number in lost:
            self._return(number)
        if lost:
            self.record("pool.lost", f"{name} is gone with {len(lost)} tasks, which go elsewhere: {reason}")

    def _on_message(self, event: Received) -> None:
        pool = self._pools.get(event.sender)
        match event.message:
            case _ if pool is None:
                pass
            case Pool() as told:
                self._on_pool(pool, told)
            case NeedOperand() as need:
                product = self._product
                if product is not None and need.right == product.known.sent_digest:
                    self.report = replace(self.report, bytes_out=self.report.bytes_out + product.known.sent.nbytes)
                    self.send(pool.name, RightOperand(right=need.right, tensors={"right": product.known.sent}))
            case TileResult() as result:
                self._on_result(pool, result, event.size_bytes)
            case _:
                pass

    def _on_pool(self, pool: _Pool, told: Pool) -> None:
        if pool.told is None:
            pool.latency_s = self.now_s - pool.asked_s
        was_useful = pool.is_useful
        pool.told = told
        if not pool.is_useful:
            pool.why_gone = "it has no executor now"
            if was_useful:
                pool.gone_s = self.now_s

    # A product ------------------------------------------------------------------------------------------

    def _on_wanted(self, event: ProductWanted) -> None:
        if self._product is not None:
            raise Misuse("one product at a time: wait for the one that was asked for")
        policy = self._policy
        left, right = event.left, event.right
        self.report = replace(self.report, products=self.report.products + 1)
        is_masked = policy.privacy == "mask" and event.hidden != "none"
        why_home: str | None = None
        if is_masked and event.hidden == "both":
            why_home = "both sides are secret, and a mask hides one"
        elif not left.size or not right.size:
            why_home = "it is empty"
        elif is_masked and not (np.isfinite(left).all() and np.isfinite(right).all()):
            why_home = "it has numbers that are not finite, which no mask hides"
        try:
            self._product = self._new_product(event, is_masked=is_masked and why_home is None)
        except Misuse as error:
            # A product that cannot be hidden is not sent.
            why_home = str(error)
            self._product = self._new_product(event, is_masked=False)
        self._todo = deque((tile, side) for tile, work in self._product.open.items() for side in work.sides)
        if why_home is None:
            return
        # Cut the same way: a product has the same bits at home and away.
        for work in self._product.open.values():
            work.failures = FAILURES_MAX
        self._record_once("product.kept", f"{event.name or 'a product'}: {why_home}")

    def _new_product(self, event: ProductWanted, *, is_masked: bool) -> Product:
        left, right = event.left, event.right
        digest = digest_of(right)
        shuffled = None
        if self._policy.privacy == "shuffle":
            shuffled = shuffle.Shuffle(
                rows=shuffle.permutation(self._secret, f"rows of product {event.product}", left.shape[0]),
                # The same for all products with this right side: it crosses the wire once.
                inner=shuffle.permutation(self._secret, f"inner of {digest}", right.shape[0]),
                columns=shuffle.permutation(self._secret, f"columns of {digest}", right.shape[1]),
            )
        key = f"{digest} {is_masked}"
        known = self._known.pop(key, None)
        if known is None:
            sent = shuffle.shuffle_right(right, shuffled) if shuffled is not None else right
            known = Known(sent, digest if shuffled is None else digest_of(sent), is_masked=is_masked)
        self._known[key] = known
        while len(self._known) > 1 and sum(kept.nbytes for kept in self._known.values()) > RIGHTS_KNOWN_MAX_BYTES:
            self._known.popitem(last=False)
        product = Product(
            number=event.product,
            left=left,
            known=known,
            policy=self._policy,
            is_masked=is_masked,
            seed=self._secret,
            shuffled=shuffled,
            name=event.name,
        )
        product.try_hiding()
        return product

    def _on_unwanted(self, number: int) -> None:
        if self._product is not None and self._product.number == number:
            self._let_go()

    def _let_go(self) -> None:
        """Drop the product, here and at every pool."""
        self._product = None
        self._todo.clear()
        # A multiplication that runs at home goes on, and its result is dropped.
        self._asks = {}
        for pool in self._pools.values():
            if pool.tasks and pool.is_connected:
                self.send(pool.name, Forget(upto=self._numbers))
            pool.tasks = pool.operations = pool.size_bytes = 0

    def _finish(self) -> None:
        product = self._product
        if product is None or not product.done:
            return
        self.report = replace(
            self.report,
            operations_home=self.report.operations_home + product.operations_home,
            sent=self.report.sent + product.was_sent,
        )
        self._let_go()
        self.act(Deliver(product=product.number, result=product.result()))

    # Placement ------------------------------------------------------------------------------------------

    def _place(self) -> None:
        """Give out every tile that can be given out now; home takes one at a time of the tiles that no pool will do."""
        product = self._product
        if product is None:
            return
        waiting: deque[tuple[int, int]] = deque()
        while self._todo:
            tile, side = self._todo.popleft()
            work = product.open.get(tile)
            if work is None or side not in work.sides:
                continue
            if product.is_replicated and self._has_too_few(work):
                # No two replicas go to one executor, so there are fewer replicas: their results are checked instead.
                self._replicate_less(product, work)
                if side not in work.sides or tile not in product.open:
                    continue
            pool, why_home = self._choose(product, work, side)
            if pool is not None:
                self._ask(product, work, side, pool)
            elif why_home is not None and self._at_home is None:
                self._record_once("product.kept", f"tiles of {product.name or 'a product'}: {why_home}")
                self._compute_at_home(product, work, side)
            else:
                waiting.append((tile, side))
        self._todo = waiting

    def _has_too_few(self, work: TileWork) -> bool:
        there = sum(pool.told.executors for pool in self._pools.values() if pool.is_useful and pool.told)
        return 0 < there < len(work.sides)

    def _replicate_less(self, product: Product, work: TileWork) -> None:
        there = sum(pool.told.executors for pool in self._pools.values() if pool.is_useful and pool.told)
        asked = {ask.side for ask in self._asks.values() if ask.tile == work.tile.number}
        wanted = sorted(work.sides, key=lambda side: (side not in work.replies, side not in asked, side))
        work.sides = tuple(sorted(wanted[: max(there, len(work.replies), 1)]))
        self._record_once("tile.repeated", f"tiles are given to {len(work.sides)} executors each: there are no others")
        self._settle(product, work)

    def _choose(self, product: Product, work: TileWork, side: int) -> tuple[_Pool | None, str | None]:
        """The pool for this side of a tile; or the reason to compute it at home; or neither yet."""
        if work.failures >= FAILURES_MAX:
            return None, f"it failed {work.failures} times elsewhere"
        allowed = [p for p in self._pools.values() if work.may_see(p.name, side, is_masked=product.is_masked)]
        fits = [pool for pool in allowed if pool.is_useful and self._fits(pool, product, work, side)]
        if not fits:
            there = [pool for pool in allowed if pool.is_useful]
            if there:
                return None, "it is larger than the executors there take"
            if not allowed:
                return None, "every pool that is there has seen its other half"
            # A pool that went a moment ago may come back; the client does not wait for one that is long gone.
            if all(self.now_s - pool.gone_s >= self._wait_s for pool in allowed):
                return None, "; ".join(f"{pool.name}: {pool.why_gone}" for pool in allowed)
            return None, None
        operations = product.operations(work)
        best = min(fits, key=lambda pool: (pool.name in work.avoid, pool.ends_s(operations), pool.name))
        assert best.told is not None
        if best.tasks >= best.told.window or best.paused_until_s > self.now_s:
            others = [pool for pool in fits if pool.tasks < (pool.told.window if pool.told else 0)]
            others = [pool for pool in others if pool.paused_until_s <= self.now_s]
            if not others:
                return None, None
            best = min(others, key=lambda pool: (pool.ends_s(operations), pool.name))
        return best, None

    def _fits(self, pool: _Pool, product: Product, work: TileWork, side: int) -> bool:
        told = pool.told
        assert told is not None
        size = max(4 * work.tile.rows * product.inner, 4 * work.tile.rows * product.columns)
        return size <= told.task_max_bytes and product.known.sent.nbytes <= told.right_max_bytes

    def _ask(self, product: Product, work: TileWork, side: int, pool: _Pool) -> None:
        operations = product.operations(work)
        tensors = product.tensors(work, side)
        moving_s = (pool.size_bytes + product.bytes_of(work, side)) / max(self._bytes_per_s, LINK_LEAST_BYTES_PER_S)
        patience_s = max(LATE_LEAST_S, LATE_FACTOR * (pool.ends_s(operations) + moving_s))
        self._numbers += 1
        task = TileTask(
            task=self._numbers,
            kind=product.kind(side),
            # Tiles are numbered from 0, and products are one at a time.
            group=product.number * (1 << 24) + work.tile.number + 1 if product.is_replicated else 0,
            right=product.known.sent_digest,
            rows=work.tile.rows,
            inner=product.inner,
            columns=product.columns,
            deadline_s=patience_s,
            avoid=tuple(sorted(work.avoid.get(pool.name, set()) | set(pool.caught)))[:256],
            tensors=tensors,
        )
        size_bytes = sum(array.nbytes for array in tensors.values())
        due_s = self.now_s + patience_s + LATE_LEAST_S / 10
        self._asks[self._numbers] = _Ask(
            work.tile.number, side, pool.name, self.now_s, due_s, operations, product.bytes_of(work, side)
        )
        work.saw.setdefault(pool.name, set()).add(side)
        product.was_sent = True
        pool.count(self._asks[self._numbers], +1)
        self.report = replace(
            self.report,
            bytes_out=self.report.bytes_out + size_bytes,
            operations_away=self.report.operations_away + operations,
        )
        self.send(pool.name, task)

    def _return(self, number: int, *, failed: bool = False) -> TileWork | None:
        """An ask failed: queue its side of the tile again."""
        ask = self._asks.pop(number)
        self._uncount(ask)
        product = self._product
        work = product.open.get(ask.tile) if product is not None else None
        if work is not None:
            work.failures += failed
            self._todo.appendleft((ask.tile, ask.side))
        return work

    def _uncount(self, ask: _Ask) -> None:
        pool = self._pools.get(ask.pool) if ask.pool is not None else None
        if pool is not None:
            pool.count(ask, -1)

    # Results --------------------------------------------------------------------------------------------

    def _on_result(self, pool: _Pool, result: TileResult, size_bytes: int) -> None:
        ask = self._asks.get(result.task)
        product = self._product
        if ask is None or ask.pool != pool.name or product is None:
            # Late: the tile was asked for again, and one result of it counts.
            return
        work = product.open[ask.tile]
        if result.reason:
            self._on_refused(pool, result.task, result.reason)
            return
        try:
            kind = product.kind(ask.side)
            array = check_result(kind, result.tensors, rows=work.tile.rows, columns=product.columns)
            if not result.executor:
                raise PeerViolation("the result names no executor")
        except PeerViolation as violation:
            self._on_refused(pool, result.task, violation.reason)
            return
        del self._asks[result.task]
        pool.count(ask, -1)
        self.report = replace(self.report, bytes_in=self.report.bytes_in + (size_bytes or array.nbytes))
        self._measure_link(pool, ask, result)
        # The transport reuses the memory of a message for the next one.
        work.replies[ask.side] = Reply(pool.name, result.executor, np.array(array))
        self._settle(product, work)

    def _measure_link(self, pool: _Pool, ask: _Ask, result: TileResult) -> None:
        latency_s = pool.latency_s + (pool.told.latency_s if pool.told else 0.0)
        moving_s = self.now_s - ask.sent_s - result.seconds - latency_s
        if ask.size_bytes >= MEASURED_BYTES and moving_s > 0:
            # The best of late: a task also waits for others, and a link is as fast as it was when none did.
            self._bytes_per_s = max(ask.size_bytes / moving_s, 0.95 * self._bytes_per_s)

    def _on_refused(self, pool: _Pool, task: int, reason: str) -> None:
        ask = self._asks[task]
        work = self._return(task, failed=True)
        pool.paused_until_s = self.now_s + PAUSE_S
        self._record_once("task.refused", f"{pool.name}: {reason}")
        product = self._product
        if work is None or product is None or not product.is_replicated:
            return
        if work.replies and work.failures >= len(work.sides):
            # No executor there may do this replica: the others are settled without it. One that was given up because
            # there are too few executors may have been answered all the same.
            work.sides = tuple(side for side in sorted({*work.sides, *work.replies}) if side != ask.side)
            self._settle(product, work)

    def _settle(self, product: Product, work: TileWork, sides: tuple[int, ...] | None = None) -> None:
        """Check a tile once all its sides are there: take it, or queue the wrong sides again."""
        if sides is None and not set(work.sides) <= set(work.replies):
            return
        number = work.tile.number
        verdict = product.settle(work, chance=self._chance, must_check=self._must_check, sides=sides)
        for reply in verdict.held:
            self._judge(reply, held=True)
        for reply, reason in verdict.liars:
            self._catch(reply, reason)
            work.failures += 1
        if verdict.value is None:
            self._todo.extendleft((number, side) for side in verdict.again)
            return
        # The tile is done: the client waits for no other result of it.
        for other in [n for n, ask in self._asks.items() if ask.tile == number]:
            self._uncount(self._asks.pop(other))

    def _must_check(self, reply: Reply) -> bool:
        if self._policy.verify == "none":
            return False
        standing = CheckRecord()
        if reply.node is not None:
            standing = self._standings.get((reply.pool, reply.node), standing)
        return self._checks.checks(standing, draw=float(self._chance.random()))

    def _judge(self, reply: Reply, *, held: bool, reason: str | None = None) -> None:
        """Write a check into the executor's record."""
        if reply.node is not None:
            key = (reply.pool, reply.node)
            before = self._standings.get(key, CheckRecord())
            self._standings[key] = self._checks.after(before, held=held, reason=reason)

    def _catch(self, reply: Reply, reason: str) -> None:
        """Report an executor with a wrong result to its broker, and avoid it from now on."""
        assert reply.pool is not None
        assert reply.node is not None
        pool = self._pools[reply.pool]
        self._judge(reply, held=False, reason=reason)
        if reply.node in pool.caught:
            return
        pool.caught[reply.node] = reason
        name = f"{reply.pool}/{reply.node}"
        self.report = replace(self.report, liars=(*self.report.liars, name))
        self.record("executor.excluded", f"{name} gave a wrong result: {reason}")
        if pool.is_connected:
            self.send(pool.name, Caught(executor=reply.node, reason=clip(reason)))

    # At home --------------------------------------------------------------------------------------------

    def _compute_at_home(self, product: Product, work: TileWork, side: int) -> None:
        self._numbers += 1
        self._at_home = self._numbers
        self._asks[self._numbers] = _Ask(work.tile.number, side, None, self.now_s, float("inf"), 0, 0)
        self.act(
            Multiply(
                number=self._numbers,
                kind=product.kind(side),
                rows=work.tile.rows,
                inner=product.inner,
                columns=product.columns,
                tensors={**product.tensors(work, side), "right": product.known.sent},
            )
        )

    def _on_computed(self, event: Multiplied) -> None:
        self._at_home = None
        ask = self._asks.pop(event.number, None)
        product = self._product
        work = product.open.get(ask.tile) if product is not None and ask is not None else None
        if product is None or work is None or ask is None:
            return
        self.report = replace(self.report, operations_home=self.report.operations_home + product.operations(work))
        reply = Reply(None, None, event.tensors["result"])
        if not product.is_masked:
            # Computed at home, it is right, whatever executors say.
            work.replies = {ask.side: reply}
            self._todo = deque(item for item in self._todo if item[0] != ask.tile)
            self._settle(product, work, sides=(ask.side,))
            return
        work.replies[ask.side] = reply
        self._settle(product, work)

    def _on_not_computed(self, event: MultiplyFailed) -> None:
        """No pool does the tile, and it failed at home: the product fails."""
        self._at_home = None
        product = self._product
        if product is None or event.number not in self._asks:
            return
        reason = f"a tile could not be computed at home either: {event.reason}"
        self._let_go()
        self.act(Deliver(product=product.number, result=None, reason=reason))

    # Time -----------------------------------------------------------------------------------------------

    def _on_look(self) -> None:
        """Queue late tiles again."""
        late = [number for number, ask in self._asks.items() if ask.due_s <= self.now_s]
        for number in late:
            pool = self._asks[number].pool
            assert pool is not None
            work = self._return(number, failed=True)
            if work is not None:
                work.avoid.setdefault(pool, set())
            self._record_once("task.reissued", f"{pool} did not answer in time: its tasks go elsewhere")

    def _set_look_timer(self) -> None:
        times = [ask.due_s for ask in self._asks.values() if ask.pool is not None]
        if self._todo:
            times += [pool.gone_s + self._wait_s for pool in self._pools.values() if not pool.is_useful]
            times += [pool.paused_until_s for pool in self._pools.values()]
        ahead = [time_s for time_s in times if time_s > self.now_s]
        if ahead:
            self.timer(LOOK, min(ahead) - self.now_s + 1e-3)

    def _record_once(self, kind: str, reason: str) -> None:
        """Record a decision and its reason; not again for every tile of every step."""
        if reason in self._said or len(self._said) > 1000:
            return
        self._said.add(reason)
        self.record(kind, reason)


def network_name(executors: Sequence[int]) -> str:
    """One client, its brokers, the executors of each: ``1-2-3``, or ``1-3-(4,5,6)``. (DCL §3.1)"""
    counts = sorted(set(executors))
    if len(counts) == 1:
        return f"1-{len(executors)}-{counts[0]}"
    return f"1-{len(executors)}-({','.join(str(count) for count in executors)})"
