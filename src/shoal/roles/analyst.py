"""The analyst: has products computed by pools that it does not trust, and believes what it has checked.

A product is cut into tiles (``product``). Each goes to the pool that should be done with it first; what is refused,
late, wrong or lost with its pool is asked for again, elsewhere if that is possible; and what no pool does is done at
home, for a reason that is said. The result has the same bits whoever took part. One product at a time.
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
from shoal.offload.trust import Standing
from shoal.roles.actions import Action, Deliver, Multiply, Record, Send, SetTimer
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
from shoal.roles.product import RIGHTS_KNOWN_MAX_BYTES, TILE_MAX_BYTES, Known, Policy, Product, Reply, TileWork
from shoal.wire.messages import AskPool, Caught, Forget, NeedRight, Pool, Result, Right, Task, clip

#: How long tiles wait for a pool that is not there, from when it went. A manager that restarts is back before.
WAIT_S = 10.0

#: A pool has this long for a task, or so many times what it should take.
LATE_LEAST_S = 10.0
LATE_FACTOR = 8.0

#: Failures of one tile after which it is done at home.
FAILURES_MAX = 8

#: After a refusal, how long the pool is left alone with new tasks: it may have its hands full.
PAUSE_S = 0.2

#: A link is not thought to be slower than this before a task is called late.
LINK_LEAST_BYTES_PER_S = 1e6

#: Where a tile is computed that no pool does.
HOME = ""

#: A result large enough that the time it took tells the rate of the link.
MEASURED_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class _Ask:
    tile: int
    side: int
    pool: str
    sent_s: float
    due_s: float
    operations: int
    size_bytes: int


@dataclass(slots=True)
class _Pool:
    name: str
    is_connected: bool = False
    told: Pool | None = None
    #: Since when it is of no use.
    gone_s: float = 0.0
    why_gone: str = "not reached yet"
    asked_s: float = 0.0
    #: There and back to its scheduler.
    latency_s: float = 0.0
    paused_until_s: float = 0.0
    #: Tasks it has, their multiply-adds, and what they take there and back.
    tasks: int = 0
    operations: int = 0
    size_bytes: int = 0
    caught: dict[str, str] = field(default_factory=dict)

    @property
    def is_useful(self) -> bool:
        return self.is_connected and self.told is not None and self.told.executors > 0

    def gave(self, ask: _Ask, times: int) -> None:
        """It has one task more, or one fewer."""
        self.tasks += times
        self.operations += times * ask.operations
        self.size_bytes += times * ask.size_bytes

    def ends_s(self, operations: int) -> float:
        """When it should be done with one more task."""
        assert self.told is not None
        rate = max(self.told.multiply_adds_per_s, 1.0)
        return (self.operations + operations) / rate + self.told.latency_s + self.latency_s


class Analyst:
    def __init__(
        self, *, pools: Sequence[str], policy: Policy, secret: bytes, wait_s: float = WAIT_S, purpose: str = ""
    ) -> None:
        """``secret``: 32 bytes that nobody else knows: masks, shuffles and checks come from it."""
        if not pools or len(set(pools)) < len(pools):
            raise Misuse("an analyst has at least one pool, and each under a name of its own")
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
        #: The number of what is computed at home right now.
        self._at_home: int | None = None
        #: (pool, executor) -> what it earned.
        self._standings: dict[tuple[str, str], Standing] = {}
        self._checks = policy.checks()
        self._bytes_per_s = 0.0
        self._said: set[str] = set()
        self.report = Report()

    @property
    def advert(self) -> Advert | None:
        """What the pools say they can, together; None while none is there."""
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
        """As the thesis names it: ``1-2-3``, or ``1-3-(4,5,6)``. (DCL §3.1)"""
        return network_name([pool.told.executors if pool.told else 0 for pool in self._pools.values()])

    def result_limit(self, task: int) -> int:
        """The most bytes of tensors that a pool may send for this; of what is not waited for, as of a lower tile."""
        ask, product = self._asks.get(task), self._product
        if ask is None or product is None or ask.tile not in product.open:
            return TILE_MAX_BYTES if 0 < task <= self._numbers else 0
        tile = product.open[ask.tile].tile
        return result_bytes(product.kind(ask.side), tile.rows, product.columns)

    def handle(self, event: Event, now_s: float) -> list[Action]:
        match event:
            case Started():
                for pool in self._pools.values():
                    pool.gone_s = now_s
                return []
            case Connected():
                return self._connected(event.node, now_s)
            case Disconnected():
                actions = self._disconnected(event.node, event.reason, now_s)
            case ProductWanted():
                actions = self._wanted(event)
            case ProductUnwanted():
                return self._unwanted(event.product)
            case Received():
                actions = self._received(event, now_s)
            case Multiplied() if event.number == self._at_home:
                actions = self._computed(event, now_s)
            case MultiplyFailed() if event.number == self._at_home:
                actions = self._not_computed(event)
            case TimerFired(name="look"):
                actions = self._look(now_s)
            case _:
                return []
        return [*actions, *self._place(now_s), *self._finish(), *self._wake(now_s)]

    # Pools ----------------------------------------------------------------------------------------------

    def _connected(self, name: str, now_s: float) -> list[Action]:
        pool = self._pools[name]
        pool.is_connected, pool.told = True, None
        pool.asked_s, pool.why_gone = now_s, "it has not said yet what it can"
        # Another process may be there now, which does not know whom we caught.
        caught = [Caught(executor=node, reason=clip(reason)) for node, reason in pool.caught.items()]
        return [
            *(Send(to=name, message=message) for message in caught),
            Send(to=name, message=AskPool(purpose=self._purpose)),
        ]

    def _disconnected(self, name: str, reason: str, now_s: float) -> list[Action]:
        pool = self._pools[name]
        if pool.is_useful:
            pool.gone_s = now_s
        pool.is_connected, pool.told, pool.why_gone = False, None, reason
        lost = [number for number, ask in self._asks.items() if ask.pool == name]
        for number in lost:
            self._return(number)
        if not lost:
            return []
        return [Record(kind="pool-lost", reason=f"{name} is gone with {len(lost)} tasks, which go elsewhere: {reason}")]

    def _received(self, event: Received, now_s: float) -> list[Action]:
        pool = self._pools.get(event.sender)
        match event.message:
            case _ if pool is None:
                return []
            case Pool() as told:
                if pool.told is None:
                    pool.latency_s = now_s - pool.asked_s
                was_useful = pool.is_useful
                pool.told = told
                if not pool.is_useful:
                    pool.why_gone = "nobody lends there now"
                    if was_useful:
                        pool.gone_s = now_s
                return []
            case NeedRight() as need:
                product = self._product
                if product is None or need.right != product.known.sent_digest:
                    return []
                self.report = replace(self.report, bytes_out=self.report.bytes_out + product.known.sent.nbytes)
                return [Send(to=pool.name, message=Right(right=need.right, tensors={"right": product.known.sent}))]
            case Result() as result:
                return self._on_result(pool, result, event.size_bytes, now_s)
            case _:
                return []

    # A product ------------------------------------------------------------------------------------------

    def _wanted(self, event: ProductWanted) -> list[Action]:
        if self._product is not None:
            raise Misuse("one product at a time: wait for the one that was asked for")
        policy = self._policy
        left, right = event.left, event.right
        self.report = replace(self.report, products=self.report.products + 1)
        is_masked = policy.privacy == "mask" and event.hidden != "none"
        why_home = ""
        if is_masked and event.hidden == "both":
            why_home = "both sides are secret, and a mask hides one"
        elif not left.size or not right.size:
            why_home = "it is empty"
        elif is_masked and not (np.isfinite(left).all() and np.isfinite(right).all()):
            why_home = "it has numbers that are not finite, which no mask hides"
        try:
            self._product = self._new_product(event, is_masked=is_masked and not why_home)
        except Misuse as error:
            # What cannot be hidden is not sent.
            why_home = str(error)
            self._product = self._new_product(event, is_masked=False)
        self._todo = deque((tile, side) for tile, work in self._product.open.items() for side in work.sides)
        if not why_home:
            return []
        # Cut the same way: what is done at home has the bits that it would have from elsewhere.
        for work in self._product.open.values():
            work.failures = FAILURES_MAX
        return self._say_once(f"{event.name or 'a product'} is done at home: {why_home}")

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

    def _unwanted(self, number: int) -> list[Action]:
        if self._product is None or self._product.number != number:
            return []
        return self._let_go()

    def _let_go(self) -> list[Action]:
        """Nothing of the product is needed any more, wherever it is."""
        self._product = None
        self._todo.clear()
        # What is computed at home right now goes on, and is of no use.
        self._asks = {}
        actions: list[Action] = []
        for pool in self._pools.values():
            if pool.tasks and pool.is_connected:
                actions.append(Send(to=pool.name, message=Forget(upto=self._numbers)))
            pool.tasks = pool.operations = pool.size_bytes = 0
        return actions

    def _finish(self) -> list[Action]:
        product = self._product
        if product is None or not product.done:
            return []
        self.report = replace(
            self.report,
            operations_home=self.report.operations_home + product.operations_home,
            sent=self.report.sent + product.was_sent,
        )
        return [*self._let_go(), Deliver(product=product.number, result=product.result())]

    # Who does what --------------------------------------------------------------------------------------

    def _place(self, now_s: float) -> list[Action]:
        """Give out what can be given out now; home takes one at a time of what nobody else will do."""
        product = self._product
        actions: list[Action] = []
        if product is None:
            return actions
        waiting: deque[tuple[int, int]] = deque()
        while self._todo:
            tile, side = self._todo.popleft()
            work = product.open.get(tile)
            if work is None or side not in work.sides:
                continue
            if product.is_replicated and self._has_too_few(work):
                # No two replicas go to one executor, so there cannot be as many: those there are are checked instead.
                actions += self._with_fewer(product, work)
                if side not in work.sides or tile not in product.open:
                    continue
            pool, why_home = self._choose(product, work, side, now_s)
            if pool is not None:
                actions += self._ask(product, work, side, pool, now_s)
            elif why_home and self._at_home is None:
                actions += self._say_once(f"tiles of {product.name or 'a product'} are done at home: {why_home}")
                actions += self._do_at_home(product, work, side, now_s)
            else:
                waiting.append((tile, side))
        self._todo = waiting
        return actions

    def _has_too_few(self, work: TileWork) -> bool:
        there = sum(pool.told.executors for pool in self._pools.values() if pool.is_useful and pool.told)
        return 0 < there < len(work.sides)

    def _with_fewer(self, product: Product, work: TileWork) -> list[Action]:
        there = sum(pool.told.executors for pool in self._pools.values() if pool.is_useful and pool.told)
        asked = {ask.side for ask in self._asks.values() if ask.tile == work.tile.number}
        wanted = sorted(work.sides, key=lambda side: (side not in work.replies, side not in asked, side))
        work.sides = tuple(sorted(wanted[: max(there, len(work.replies), 1)]))
        said = self._say_once(f"tiles are given to {len(work.sides)} executors each, since there are no more")
        return [*said, *self._settle(product, work)]

    def _choose(self, product: Product, work: TileWork, side: int, now_s: float) -> tuple[_Pool | None, str]:
        """The pool for this side of a tile; or why it is done at home; or neither yet."""
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
            # A pool that went a moment ago may come back; one that is long gone is not waited for.
            if all(now_s - pool.gone_s >= self._wait_s for pool in allowed):
                return None, "; ".join(f"{pool.name}: {pool.why_gone}" for pool in allowed)
            return None, ""
        operations = product.operations(work)
        best = min(fits, key=lambda pool: (pool.name in work.avoid, pool.ends_s(operations), pool.name))
        assert best.told is not None
        if best.tasks >= best.told.window or best.paused_until_s > now_s:
            others = [pool for pool in fits if pool.tasks < (pool.told.window if pool.told else 0)]
            others = [pool for pool in others if pool.paused_until_s <= now_s]
            if not others:
                return None, ""
            best = min(others, key=lambda pool: (pool.ends_s(operations), pool.name))
        return best, ""

    def _fits(self, pool: _Pool, product: Product, work: TileWork, side: int) -> bool:
        told = pool.told
        assert told is not None
        size = max(4 * work.tile.rows * product.inner, 4 * work.tile.rows * product.columns)
        return size <= told.task_max_bytes and product.known.sent.nbytes <= told.right_max_bytes

    def _ask(self, product: Product, work: TileWork, side: int, pool: _Pool, now_s: float) -> list[Action]:
        operations = product.operations(work)
        tensors = product.tensors(work, side)
        moving_s = (pool.size_bytes + product.bytes_of(work, side)) / max(self._bytes_per_s, LINK_LEAST_BYTES_PER_S)
        patience_s = max(LATE_LEAST_S, LATE_FACTOR * (pool.ends_s(operations) + moving_s))
        self._numbers += 1
        task = Task(
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
        due_s = now_s + patience_s + LATE_LEAST_S / 10
        self._asks[self._numbers] = _Ask(
            work.tile.number, side, pool.name, now_s, due_s, operations, product.bytes_of(work, side)
        )
        work.saw.setdefault(pool.name, set()).add(side)
        product.was_sent = True
        pool.gave(self._asks[self._numbers], +1)
        self.report = replace(
            self.report,
            bytes_out=self.report.bytes_out + size_bytes,
            operations_away=self.report.operations_away + operations,
        )
        return [Send(to=pool.name, message=task)]

    def _return(self, number: int, *, failed: bool = False) -> TileWork | None:
        """An ask came to nothing: it is to be asked for again."""
        ask = self._asks.pop(number)
        pool = self._pools.get(ask.pool)
        if pool is not None:
            pool.gave(ask, -1)
        product = self._product
        work = product.open.get(ask.tile) if product is not None else None
        if work is not None:
            work.failures += failed
            self._todo.appendleft((ask.tile, ask.side))
        return work

    # What comes back ------------------------------------------------------------------------------------

    def _on_result(self, pool: _Pool, result: Result, size_bytes: int, now_s: float) -> list[Action]:
        ask = self._asks.get(result.task)
        product = self._product
        if ask is None or ask.pool != pool.name or product is None:
            # Late: it was asked for again, and one result of a tile counts.
            return []
        work = product.open[ask.tile]
        if result.reason:
            return self._refused(pool, result, now_s)
        try:
            kind = product.kind(ask.side)
            array = check_result(kind, result.tensors, rows=work.tile.rows, columns=product.columns)
            if not result.executor:
                raise PeerViolation("a result of nobody")
        except PeerViolation as violation:
            return self._refused(pool, replace(result, reason=violation.reason), now_s)
        del self._asks[result.task]
        pool.gave(ask, -1)
        self.report = replace(self.report, bytes_in=self.report.bytes_in + (size_bytes or array.nbytes))
        self._note_rate(pool, ask, result, now_s)
        # The memory it came in is used again for the next.
        work.replies[ask.side] = Reply(pool.name, result.executor, np.array(array))
        return self._settle(product, work)

    def _note_rate(self, pool: _Pool, ask: _Ask, result: Result, now_s: float) -> None:
        latency_s = pool.latency_s + (pool.told.latency_s if pool.told else 0.0)
        moving_s = now_s - ask.sent_s - result.seconds - latency_s
        if ask.size_bytes >= MEASURED_BYTES and moving_s > 0:
            # The best of late: a task also waits for others, and a link is as fast as it was when none did.
            self._bytes_per_s = max(ask.size_bytes / moving_s, 0.95 * self._bytes_per_s)

    def _refused(self, pool: _Pool, result: Result, now_s: float) -> list[Action]:
        ask = self._asks[result.task]
        work = self._return(result.task, failed=True)
        pool.paused_until_s = now_s + PAUSE_S
        said = self._say_once(f"{pool.name} did not do a task: {result.reason}")
        product = self._product
        if work is None or product is None or not product.is_replicated:
            return said
        if work.replies and work.failures >= len(work.sides):
            # A replica that nobody there may do any more: the others are settled without it.
            work.sides = tuple(side for side in work.sides if side != ask.side)
            return [*said, *self._settle(product, work)]
        return said

    def _settle(self, product: Product, work: TileWork, sides: tuple[int, ...] | None = None) -> list[Action]:
        if sides is None and not set(work.sides) <= set(work.replies):
            return []
        number = work.tile.number
        verdict = product.settle(work, chance=self._chance, must_check=self._must_check, sides=sides)
        for reply in verdict.held:
            self._stand(reply, held=True)
        actions: list[Action] = []
        for reply, reason in verdict.liars:
            actions += self._catch(reply, reason)
            work.failures += 1
        if verdict.value is not None:
            self._asks = {n: ask for n, ask in self._asks.items() if ask.tile != number or self._drop(ask)}
        else:
            self._todo.extendleft((number, side) for side in verdict.again)
        return actions

    def _drop(self, ask: _Ask) -> bool:
        """A tile is done, and this was still asked for: it is not waited for."""
        pool = self._pools.get(ask.pool)
        if pool is not None:
            pool.gave(ask, -1)
        return False

    def _must_check(self, reply: Reply) -> bool:
        if self._policy.verify == "none":
            return False
        standing = self._standings.get((reply.pool, reply.node), Standing())
        return self._checks.checks(standing, draw=float(self._chance.random()))

    def _stand(self, reply: Reply, *, held: bool, reason: str = "") -> None:
        if reply.node:
            key = (reply.pool, reply.node)
            self._standings[key] = self._checks.after(self._standings.get(key, Standing()), held=held, reason=reason)

    def _catch(self, reply: Reply, reason: str) -> list[Action]:
        pool = self._pools[reply.pool]
        self._stand(reply, held=False, reason=reason)
        if reply.node in pool.caught:
            return []
        pool.caught[reply.node] = reason
        name = f"{reply.pool}/{reply.node}"
        self.report = replace(self.report, liars=(*self.report.liars, name))
        told: list[Action] = [
            Record(kind="caught", reason=f"{name} gave a wrong result and is asked no more: {reason}")
        ]
        if pool.is_connected:
            told.append(Send(to=pool.name, message=Caught(executor=reply.node, reason=clip(reason))))
        return told

    # At home --------------------------------------------------------------------------------------------

    def _do_at_home(self, product: Product, work: TileWork, side: int, now_s: float) -> list[Action]:
        self._numbers += 1
        self._at_home = self._numbers
        self._asks[self._numbers] = _Ask(work.tile.number, side, HOME, now_s, float("inf"), 0, 0)
        return [
            Multiply(
                number=self._numbers,
                kind=product.kind(side),
                rows=work.tile.rows,
                inner=product.inner,
                columns=product.columns,
                tensors={**product.tensors(work, side), "right": product.known.sent},
            )
        ]

    def _computed(self, event: Multiplied, now_s: float) -> list[Action]:
        self._at_home = None
        ask = self._asks.pop(event.number, None)
        product = self._product
        work = product.open.get(ask.tile) if product is not None and ask is not None else None
        if product is None or work is None or ask is None:
            return []
        self.report = replace(self.report, operations_home=self.report.operations_home + product.operations(work))
        reply = Reply(HOME, "", event.tensors["result"])
        if not product.is_masked:
            # It is the product, whatever others say of it.
            work.replies = {ask.side: reply}
            self._todo = deque(item for item in self._todo if item[0] != ask.tile)
            return self._settle(product, work, sides=(ask.side,))
        work.replies[ask.side] = reply
        return self._settle(product, work)

    def _not_computed(self, event: MultiplyFailed) -> list[Action]:
        """Nobody else does it, and it cannot be done here: that is the end of it."""
        self._at_home = None
        product = self._product
        if product is None or event.number not in self._asks:
            return []
        reason = f"a tile could not be computed at home either: {event.reason}"
        return [*self._let_go(), Deliver(product=product.number, result=None, reason=reason)]

    # Time -----------------------------------------------------------------------------------------------

    def _look(self, now_s: float) -> list[Action]:
        late = [number for number, ask in self._asks.items() if ask.due_s <= now_s]
        actions: list[Action] = []
        for number in late:
            pool = self._asks[number].pool
            work = self._return(number, failed=True)
            if work is not None:
                work.avoid.setdefault(pool, set())
            actions += self._say_once(f"{pool} did not answer in time: its tasks go elsewhere")
        return actions

    def _wake(self, now_s: float) -> list[Action]:
        times = [ask.due_s for ask in self._asks.values() if ask.pool != HOME]
        if self._todo:
            times += [pool.gone_s + self._wait_s for pool in self._pools.values() if not pool.is_useful]
            times += [pool.paused_until_s for pool in self._pools.values()]
        ahead = [time_s for time_s in times if time_s > now_s]
        return [SetTimer(name="look", after_s=min(ahead) - now_s + 1e-3)] if ahead else []

    def _say_once(self, reason: str) -> list[Action]:
        """A decision and its reason; the same one is not said for every tile of every step."""
        if reason in self._said or len(self._said) > 1000:
            return []
        self._said.add(reason)
        return [Record(kind="offload", reason=reason)]


def network_name(executors: Sequence[int]) -> str:
    """One analyst, its schedulers, the executors of each: ``1-2-3``, or ``1-3-(4,5,6)``. (DCL §3.1)"""
    counts = sorted(set(executors))
    if len(counts) == 1:
        return f"1-{len(executors)}-{counts[0]}"
    return f"1-{len(executors)}-({','.join(str(count) for count in executors)})"
