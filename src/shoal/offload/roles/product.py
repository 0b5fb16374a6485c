"""One product in progress: its tiles, the mask of each, and the replies to each with their checks.

Only a product's shape decides how it is cut, before any pool is asked. So its bits do not depend on the executors that
take part, fail or send wrong results.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from shoal.errors import Misuse
from shoal.offload import masking, shuffle, trust
from shoal.offload.kinds import KINDS, SEED_BYTES, digest_of
from shoal.offload.tiling import Tile, assemble, rows_each, tiles
from shoal.offload.verify import TRIALS, TRIALS_EXACT, Freivalds, FreivaldsExact

Privacy = Literal["none", "shuffle", "mask"]
Verify = Literal["freivalds", "replicate", "spot", "none"]

PRIVACIES = ("none", "shuffle", "mask")
VERIFIES = ("freivalds", "replicate", "spot", "none")

#: Multiply-adds of a tile, about: a fraction of a second on a small board, and far more than a message costs.
TILE_OPERATIONS = 1 << 26
#: Lower tiles would read the right side more often than they use it.
TILE_ROWS_LEAST = 32
#: The left side of a tile, and its result.
TILE_MAX_BYTES = 8 << 20

#: Memory for the checks and digits of right sides, so that they are computed once per version.
RIGHTS_KNOWN_MAX_BYTES = 64 << 20

#: The lowest probability of a check if results are checked at random.
SPOT_LEAST = 1 / 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """The secrecy of a product, and how results are checked."""

    privacy: Privacy = "none"
    verify: Verify = "freivalds"
    #: How many executors get each tile if tiles are replicated.
    replicas: int = 3
    tile_operations: int = TILE_OPERATIONS

    def __post_init__(self) -> None:
        if self.privacy not in PRIVACIES or self.verify not in VERIFIES:
            raise Misuse(f"privacy is one of {', '.join(PRIVACIES)}; verify one of {', '.join(VERIFIES)}")
        if self.privacy == "mask" and self.verify == "replicate":
            raise Misuse('masked products are verified by "freivalds": exactly, and for less than a replica costs')
        if self.replicas < 2 or self.tile_operations < 1:
            raise Misuse("a tile is replicated at least twice, and has at least one operation")

    def checks(self) -> trust.SpotChecks:
        return trust.SpotChecks(least=SPOT_LEAST if self.verify == "spot" else 1.0)


@dataclass(frozen=True, slots=True)
class Reply:
    """A result for one side of a tile, and its pool and executor, which are None if it was computed at home."""

    pool: str | None
    node: str | None
    array: np.ndarray


@dataclass(frozen=True, kw_only=True, slots=True)
class TileVerdict:
    """The outcome for a tile: its part of the product, or the sides to ask for again."""

    value: np.ndarray | None
    again: tuple[int, ...] = ()
    #: The wrong replies, and how each was found out.
    liars: tuple[tuple[Reply, str], ...] = ()
    #: The replies that were checked and are right.
    held: tuple[Reply, ...] = ()
    #: Multiply-adds that this took here.
    operations: int = 0


@dataclass(slots=True)
class TileWork:
    """A tile that is not done. Each side is asked for by itself: two of a mask, one of each replica, else one."""

    tile: Tile
    sides: tuple[int, ...]
    replies: dict[int, Reply] = field(default_factory=dict)
    #: Pool -> sides of it that this pool was ever sent. Both of a mask are never sent to one.
    saw: dict[str, set[int]] = field(default_factory=dict)
    #: How often an ask for it was refused, late or wrong.
    failures: int = 0
    #: Pool -> executors that failed at it.
    avoid: dict[str, set[str]] = field(default_factory=dict)
    #: Side -> the tensors to send, made once.
    tensors: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)
    fixed: masking.FixedLeft | None = None

    def may_see(self, pool: str, side: int, *, is_masked: bool) -> bool:
        return not is_masked or self.saw.get(pool, set()) <= {side}


class Known:
    """A right side as it is sent, with its checks and digits, computed once per version."""

    def __init__(self, right: np.ndarray, digest: str, *, is_masked: bool) -> None:
        self.digest = digest
        #: In memory of its own: its owner may change it in place before the next product, and a check must not.
        self.right = np.array(right, order="C")
        self.fixed = masking.quantise_right(self.right) if is_masked else None
        self.sent: np.ndarray = self.fixed.digits if self.fixed is not None else self.right
        self.sent_digest = digest_of(self.sent) if self.fixed is not None else digest
        self._check: Freivalds | None = None
        self._exact: FreivaldsExact | None = None

    @property
    def nbytes(self) -> int:
        return self.right.nbytes + (self.fixed.digits.nbytes if self.fixed is not None else 0)

    def check(self, chance: np.random.Generator) -> Freivalds:
        if self._check is None:
            self._check = Freivalds(self.right, chance=chance)
        return self._check

    def exact(self, chance: np.random.Generator) -> FreivaldsExact:
        assert self.fixed is not None
        if self._exact is None:
            self._exact = FreivaldsExact(self.fixed.digits, chance=chance)
        return self._exact


class Product:
    """``left`` times ``right``, tile by tile."""

    def __init__(
        self,
        *,
        number: int,
        left: np.ndarray,
        known: Known,
        policy: Policy,
        is_masked: bool,
        seed: bytes,
        shuffled: shuffle.Shuffle | None = None,
        name: str = "",
    ) -> None:
        self.number = number
        self.name = name
        self.known = known
        self.is_masked = is_masked
        self._policy = policy
        self._seed = seed
        self._shuffled = shuffled
        self._left = shuffle.shuffle_left(left, shuffled) if shuffled is not None else np.ascontiguousarray(left)
        rows, inner = left.shape
        #: The sizes of the matrices that are sent: the digits of a right side are side by side.
        self.inner, self.columns = inner, known.sent.shape[1]
        self._width = known.right.shape[1]
        self.cut = cut(rows, inner, self.columns, operations=policy.tile_operations)
        sides = (0, 1) if is_masked else tuple(range(policy.replicas)) if policy.verify == "replicate" else (0,)
        self.open = {tile.number: TileWork(tile, sides) for tile in self.cut}
        self._parts: dict[int, np.ndarray] = {}
        self.operations_home = 0
        #: Whether anything of it left this machine.
        self.was_sent = False

    @property
    def is_replicated(self) -> bool:
        return self._policy.verify == "replicate" and not self.is_masked

    @property
    def done(self) -> bool:
        return not self.open

    def kind(self, side: int) -> str:
        return ("mask", "share")[side] if self.is_masked else "tile"

    def operations(self, work: TileWork) -> int:
        return int(work.tile.rows * self.inner * self.columns)

    def bytes_of(self, work: TileWork, side: int) -> int:
        """The bytes of this side, there and back."""
        kind = KINDS[self.kind(side)]
        out = kind.seed_bytes or 4 * work.tile.rows * self.inner
        return int(out + 4 * work.tile.rows * self.columns)

    def tensors(self, work: TileWork, side: int) -> dict[str, np.ndarray]:
        """The tensors to send for this side of a tile."""
        if side not in work.tensors:
            rows = self._left[work.tile.start : work.tile.stop]
            if not self.is_masked:
                work.tensors[side] = {"left": rows}
            else:
                self._hide(work, rows)
        return work.tensors[side]

    def try_hiding(self) -> None:
        """Raise Misuse where a mask cannot hide this product: better now than in the middle of it."""
        if self.is_masked and self.known.fixed is not None:
            masking.quantise_fixed(self._left[:1], self.known.fixed)

    def _hide(self, work: TileWork, rows: np.ndarray) -> None:
        assert self.known.fixed is not None
        seed = self._tile_seed(work)
        work.fixed = masking.quantise_fixed(rows, self.known.fixed)
        work.tensors = {
            0: {"seed": np.frombuffer(seed, dtype=np.uint8)},
            1: {"left": masking.masked(work.fixed.values, seed)},
        }
        # Sampling a mask and removing it do not multiply, but each takes one operation per value.
        self.operations_home += 2 * rows.size

    def _tile_seed(self, work: TileWork) -> bytes:
        text = f"mask of tile {work.tile.number} of product {self.number}".encode()
        return hashlib.sha256(self._seed + text).digest()[:SEED_BYTES]

    # Replies -------------------------------------------------------------------------------------------

    def settle(
        self,
        work: TileWork,
        *,
        chance: np.random.Generator,
        must_check: Callable[[Reply], bool],
        sides: tuple[int, ...] | None = None,
    ) -> TileVerdict:
        """Check a tile whose every side was answered. ``sides``: the answered ones, where no others can be had."""
        replies = {side: work.replies[side] for side in sides or work.sides}
        if self.is_masked:
            verdict = self._settle_masked(work, replies, chance, must_check)
        elif self.is_replicated and len(replies) > 1:
            verdict = self._settle_replicas(work, replies, chance)
        else:
            verdict = self._settle_one(work, replies, chance, must_check)
        self.operations_home += verdict.operations
        if verdict.value is not None:
            self._parts[work.tile.number] = verdict.value
            del self.open[work.tile.number]
        for side in verdict.again:
            work.replies.pop(side, None)
        return verdict

    def _settle_one(
        self,
        work: TileWork,
        replies: dict[int, Reply],
        chance: np.random.Generator,
        must_check: Callable[[Reply], bool],
    ) -> TileVerdict:
        side, reply = next(iter(replies.items()))
        if reply.node is None or not must_check(reply):
            return TileVerdict(value=reply.array)
        judgement = self.known.check(chance).judge(self.tensors(work, side)["left"], reply.array)
        operations = self._checking(work)
        if judgement.holds:
            return TileVerdict(value=reply.array, held=(reply,), operations=operations)
        return TileVerdict(value=None, again=(side,), liars=((reply, judgement.reason),), operations=operations)

    def _settle_replicas(self, work: TileWork, replies: dict[int, Reply], chance: np.random.Generator) -> TileVerdict:
        left = self.tensors(work, 0)["left"]
        by_name = {f"{reply.pool} {reply.node}": (side, reply) for side, reply in replies.items()}
        arrays = {name: reply.array for name, (_, reply) in by_name.items()}

        def holds(array: np.ndarray) -> bool:
            return self.known.check(chance).holds(left, array)

        settled = trust.settle(arrays, holds=holds)
        was_checked = len(settled.liars) > 0 or settled.value is None
        if settled.value is not None and not settled.liars and len(arrays) < self._policy.replicas:
            # Too few for their agreeing to mean anything: two that lie together would be all there is.
            was_checked = True
            if not holds(settled.value):
                reason = "replicas agree on what is not the product"
                settled = trust.Settled(value=None, liars=tuple(sorted(arrays)), reason=reason)
        return TileVerdict(
            value=settled.value,
            again=() if settled.value is not None else tuple(replies),
            liars=tuple((by_name[name][1], settled.reason) for name in settled.liars),
            held=() if settled.liars else tuple(replies.values()),
            operations=self._checking(work) * len(arrays) if was_checked else 0,
        )

    def _settle_masked(
        self,
        work: TileWork,
        replies: dict[int, Reply],
        chance: np.random.Generator,
        must_check: Callable[[Reply], bool],
    ) -> TileVerdict:
        fixed = self.known.fixed
        assert fixed is not None
        self.tensors(work, 0)
        assert work.fixed is not None
        whole = masking.combined(replies[0].array, replies[1].array)
        operations = whole.size * 2
        away = [reply for reply in replies.values() if reply.node is not None and must_check(reply)]
        if away:
            wrong = self.known.exact(chance).wrong_rows(work.fixed.values, whole)
            operations += TRIALS_EXACT * work.tile.rows * (self.inner + self.columns)
            if len(wrong):
                return self._whose_fault(work, replies, wrong[:1], operations)
        value = masking.restored(whole, work.fixed, fixed)
        return TileVerdict(value=value, held=tuple(away), operations=operations)

    def _whose_fault(self, work: TileWork, replies: dict[int, Reply], rows: np.ndarray, operations: int) -> TileVerdict:
        """The sum is wrong: one row, computed here, tells which of the two sides is."""
        assert self.known.fixed is not None
        faults = masking.liars(
            rows,
            seed=self._tile_seed(work),
            share=self.tensors(work, 1)["left"],
            right=self.known.fixed,
            a=replies[0].array,
            b=replies[1].array,
        )
        sides = tuple(side for side, is_wrong in enumerate(faults) if is_wrong)
        row = int(rows[0])
        return TileVerdict(
            value=None,
            again=sides,
            liars=tuple((replies[side], f"row {row} is not what it was asked for") for side in sides),
            operations=operations + 2 * self.inner * self.columns,
        )

    def _checking(self, work: TileWork) -> int:
        """Y·r and X·(W·r), a trial each."""
        return int(TRIALS * work.tile.rows * (self.inner + self.columns))

    def result(self) -> np.ndarray:
        whole = assemble(self._parts, self.cut, self._width)
        return shuffle.unshuffle(whole, self._shuffled) if self._shuffled is not None else whole


def cut(rows: int, inner: int, columns: int, *, operations: int) -> tuple[Tile, ...]:
    """Return the tiles of a product. Only its shape decides their height."""
    if not rows:
        return ()
    height = rows_each(rows, inner, columns, operations=operations)
    fitting = max(1, TILE_MAX_BYTES // (4 * max(inner, columns)))
    return tiles(rows, rows_each=min(max(height, TILE_ROWS_LEAST), fitting))
