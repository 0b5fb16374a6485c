"""A thousand bad moments for a checkpoint: kill -9, power cuts, damaged bytes, full disks. Nothing promised is lost.

    python -m benchmarks.checkpoint_crashes [--quick] [--count N] [--seed S] --json

After each, the version that was acknowledged last (or one that was being saved, whole) is loaded, or, where its bytes
were damaged, the one before; it says which and why, and saving goes on. Five kinds:

- kills: real processes, killed at random moments while they save;
- steps: real processes that start, mend the table and save, killed before each thing they ask of disk and database;
- power cuts: a disk that forgets what was not flushed (``disk``), in any order, torn anywhere;
- damage: flipped bits, cut, zeroed, swapped and overwritten files, leftovers;
- full disks: no room from any request on, until there is again.

``lost`` counts acknowledged versions that did not come back, ``wrong`` whatever else is not as promised.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from shoal.errors import Corrupt, ShoalError
from shoal.store.checkpoints import CheckpointStore, LoadedCheckpoint
from shoal.store.files import DiskFull
from testbed.crashes.disk import CrashDisk, Stopped
from testbed.crashes.saver import Desk, model_of
from testbed.results import finish, say

COUNT = 5_000
QUICK_COUNT = 1_000
#: Problems told in full; after so many it is clear that something is broken.
TOLD_MAX = 20
#: Crashes that one directory lives through before a new one begins.
LIVES = 25
#: Requests that a start and a few saves make of a disk, and some more.
REQUESTS_MAX = 60
SAVER_DEAD = -signal.SIGKILL
#: In memory where that is possible: a kill leaves there what it leaves on a disk, and nothing waits for a busy one.
#: Only a power cut tells the two apart, and that one is modelled.
MEMORY = Path("/dev/shm")  # noqa: S108  (names in it are drawn at random)

ROOT = Path(__file__).parents[2]


@dataclass(slots=True)
class Tally:
    """What happened so far."""

    crashes: int = 0
    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.crashes += other.crashes
        self.lost += other.lost
        self.wrong += other.wrong


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """Tells one save from every other, of the same version too."""

    version: int
    number: int


# A store without a table, inside this process -------------------------------------------------------------


def save(store: CheckpointStore, mark: Mark) -> None:
    # Two tensors larger than a buffer, so that a save is several writes.
    tensors = {name: np.full(3000 + mark.number % 7, mark.number, np.int32) for name in ("model", "velocity")}
    store.save(version=mark.version, tensors=tensors, state={"version": mark.version, "number": mark.number})


def mark_of(loaded: LoadedCheckpoint) -> Mark:
    mark = Mark(version=loaded.version, number=int(str(loaded.state["number"])))
    for name in ("model", "velocity"):
        expected = np.full(3000 + mark.number % 7, mark.number, np.int32)
        assert np.array_equal(loaded.tensors[name], expected), f"{name} is not that of {mark}"
    assert loaded.state["version"] == loaded.version, "the state is of another version"
    return mark


class Memory:
    """What was promised about a directory, against which everything loaded from it is held."""

    def __init__(self, metrics: Tally, where: str) -> None:
        self._tally = metrics
        self._where = where
        self.acknowledged: Mark | None = None
        #: Saves that began since and were not acknowledged: each may have come through, or not.
        self.begun: list[Mark] = []
        self._numbers = 0

    def begin(self, *, again: bool) -> Mark:
        """The save to come: the next version, or the last one again, as after its evaluation."""
        self._numbers += 1
        last = self.acknowledged.version if self.acknowledged else 0
        mark = Mark(version=last if again and last else last + 1, number=self._numbers)
        self.begun.append(mark)
        return mark

    def settle(self, mark: Mark | None) -> None:
        """This one is durable: it was acknowledged, or loaded."""
        self.acknowledged, self.begun = mark, []

    def check(self, load: Callable[[], LoadedCheckpoint | None]) -> Mark | None:
        """Load, and compare with what was promised where no bytes were damaged. A full disk is the caller's to know."""
        try:
            loaded = load()
            mark = mark_of(loaded) if loaded else None
        except DiskFull:
            raise
        except (ShoalError, OSError) as error:
            self._tally.lost.append(f"{self._where}: {self.acknowledged} is gone: {type(error).__name__}: {error}")
            return self.acknowledged
        except AssertionError as error:
            self._tally.wrong.append(f"{self._where}: {error}")
            return self.acknowledged
        if mark != self.acknowledged and mark not in self.begun:
            self._tally.lost.append(f"{self._where}: {self.acknowledged} was acknowledged, {mark} came back")
        if loaded and (loaded.which != "newest" or loaded.skipped):
            self._tally.wrong.append(f"{self._where}: nothing was damaged, yet it says {loaded.which} {loaded.skipped}")
        return mark


def peek(memory: Memory, directory: Path, scratch: Path) -> None:
    """Load a copy, so that looking does not change what the next start finds."""
    shutil.rmtree(scratch, ignore_errors=True)
    if directory.exists():
        shutil.copytree(directory, scratch)
    memory.check(lambda: CheckpointStore(scratch).load())


@contextlib.contextmanager
def scratch_directory() -> Iterator[Path]:
    place = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="shoal-crashes-", dir=place) as name:
        yield Path(name)


def power_cuts(count: int, seed: int, *, deaf_to: str = "") -> Tally:
    """Lives that end at a random request, by a kill that leaves all or a power cut that leaves what was flushed."""
    metrics, chance = Tally(), np.random.default_rng(seed)
    for begin in range(0, count, LIVES):
        with scratch_directory() as scratch:
            root = scratch / "disk"
            root.mkdir()
            disk = CrashDisk(root, chance, deaf_to=deaf_to)
            memory = Memory(metrics, f"power cuts, seed {seed}, disk {begin // LIVES}")
            # Deep, because a directory has to be made durable too.
            directory = root / "home" / "checkpoints" / "job"
            for _ in range(min(LIVES, count - begin)):
                disk.stop_at(int(chance.integers(1, REQUESTS_MAX)))
                with contextlib.suppress(Stopped), disk.attached():
                    live(directory, memory, chance)
                if chance.random() < 0.7:
                    disk.cut_power()
                metrics.crashes += 1
                peek(memory, directory, scratch / "copy")
    return metrics


def live(directory: Path, memory: Memory, chance: np.random.Generator) -> None:
    store = CheckpointStore(directory)
    memory.settle(memory.check(store.load))
    for _ in range(int(chance.integers(0, 6))):
        mark = memory.begin(again=chance.random() < 0.2)
        save(store, mark)
        memory.settle(mark)


def full_disks(count: int, seed: int) -> Tally:
    """No room from a random request on: whatever fails says so, harms nothing, and works again with room."""
    metrics, chance = Tally(), np.random.default_rng(seed)
    for begin in range(0, count, LIVES):
        with scratch_directory() as scratch:
            root = scratch / "disk"
            root.mkdir()
            disk = CrashDisk(root, chance)
            memory = Memory(metrics, f"full disks, seed {seed}, disk {begin // LIVES}")
            directory = root / "home" / "job"
            for _ in range(min(LIVES, count - begin)):
                disk.stop_at(0)
                disk.full_from(int(chance.integers(1, REQUESTS_MAX // 2)))
                with disk.attached():
                    try:
                        live(directory, memory, chance)
                    except DiskFull:
                        pass
                    except OSError as error:
                        metrics.wrong.append(f"a full disk is told as {type(error).__name__}: {error}")
                    metrics.crashes += 1
                    if left := list(directory.glob(".*.tmp")):
                        metrics.wrong.append(f"a failed save left {left[0].name}")
                    peek(memory, directory, scratch / "copy")
                    disk.full_from(0)
                    live(directory, memory, chance)
                if chance.random() < 0.2:
                    disk.cut_power()
    return metrics


# Damaged bytes --------------------------------------------------------------------------------------------

Damage = Callable[[bytes, bytes, np.random.Generator], bytes]


def flipped(raw: bytes, other: bytes, chance: np.random.Generator) -> bytes:
    damaged = bytearray(raw)
    damaged[int(chance.integers(0, len(raw)))] ^= 1 << int(chance.integers(0, 8))
    return bytes(damaged)


def flipped_in_the_header(raw: bytes, other: bytes, chance: np.random.Generator) -> bytes:
    return flipped(raw[:300], other, chance) + raw[300:]


def flipped_in_the_tail(raw: bytes, other: bytes, chance: np.random.Generator) -> bytes:
    return raw[:-16] + flipped(raw[-16:], other, chance)


def cut_short(raw: bytes, other: bytes, chance: np.random.Generator) -> bytes:
    return raw[: int(chance.integers(0, len(raw)))]


def zeroed(raw: bytes, other: bytes, chance: np.random.Generator) -> bytes:
    begin, end = sorted(int(edge) for edge in chance.integers(0, len(raw) + 1, 2))
    return raw[:begin] + bytes(end - begin) + raw[end:]


def zeroed_whole(raw: bytes, other: bytes, chance: np.random.Generator) -> bytes:
    return bytes(len(raw))


def longer(raw: bytes, other: bytes, chance: np.random.Generator) -> bytes:
    return raw + chance.bytes(int(chance.integers(1, 5000)))


def noise(raw: bytes, other: bytes, chance: np.random.Generator) -> bytes:
    return chance.bytes(len(raw))


def overwritten_by_the_other(raw: bytes, other: bytes, chance: np.random.Generator) -> bytes:
    return other


DAMAGES: tuple[Damage, ...] = (
    flipped,
    flipped_in_the_header,
    flipped_in_the_tail,
    cut_short,
    zeroed,
    zeroed_whole,
    longer,
    noise,
    overwritten_by_the_other,
)


def damages(count: int, seed: int) -> Tally:
    """The newest, the one before, both, or neither are damaged."""
    metrics, chance = Tally(), np.random.default_rng(seed)
    for number in range(count):
        with scratch_directory() as directory:
            try:
                damage_once(directory, number, chance, metrics)
            except (ShoalError, OSError, AssertionError) as error:
                metrics.lost.append(f"damage {number}, seed {seed}: {type(error).__name__}: {error}")
        metrics.crashes += 1
    return metrics


def damage_once(directory: Path, number: int, chance: np.random.Generator, metrics: Tally) -> None:
    store = CheckpointStore(directory)
    before, newest = Mark(version=1, number=2 * number + 1), Mark(version=2, number=2 * number + 2)
    save(store, before)
    save(store, newest)
    paths = sorted(directory.iterdir())
    raw = [path.read_bytes() for path in paths]
    if chance.random() < 0.3:
        (directory / ".shoal-left.tmp").write_bytes(raw[1][: int(chance.integers(0, len(raw[1])))])
    for which in range(2):
        # The newest twice as often: nobody looks at the other while it is whole.
        if chance.random() < (0.33, 0.66)[which]:
            damage = DAMAGES[int(chance.integers(0, len(DAMAGES)))]
            paths[which].write_bytes(damage(raw[which], raw[1 - which], chance))
    whole = [path.read_bytes() == content for path, content in zip(paths, raw, strict=True)]

    store = CheckpointStore(directory)
    if not any(whole):
        check_unusable(store, directory, metrics)
        return
    loaded = store.load()
    mark = mark_of(loaded) if loaded else None
    wanted = newest if whole[1] else before
    if mark != wanted or loaded is None:
        metrics.lost.append(f"{wanted} is whole, {mark} was loaded")
        return
    skipped = [] if whole[1] else [paths[1].name]
    if [name for name, _ in loaded.skipped] != skipped or not all(reason for _, reason in loaded.skipped):
        metrics.wrong.append(f"{skipped} should be named as skipped, not {loaded.skipped}")
    if loaded.which != ("newest" if whole[1] else "the one before"):
        metrics.wrong.append(f"it says {loaded.which}, with {whole} whole")
    after = Mark(version=wanted.version + 1, number=newest.number + 1)
    save(store, after)
    again = CheckpointStore(directory).load()
    if again is None or mark_of(again) != after or again.which != "newest":
        metrics.lost.append(f"{after}, saved after the damage, did not come back")


def check_unusable(store: CheckpointStore, directory: Path, metrics: Tally) -> None:
    """With both damaged there is nothing to load; starting over in silence would be worse than an error."""
    before = sorted(os.listdir(directory))
    try:
        loaded = store.load()
    except Corrupt as error:
        if not all(name in str(error) for name in before):
            metrics.wrong.append(f"an error that does not name every damaged file: {error}")
    else:
        metrics.wrong.append(f"both files are damaged, yet {loaded and loaded.version} was loaded")
    if sorted(os.listdir(directory)) != before:
        metrics.wrong.append("damaged files were moved, with nothing to use instead")


# Real processes, with a table beside the file ---------------------------------------------------------------


class Savers:
    """Talks to the process that forks savers."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout
        #: The newest version that the saver said is durable.
        self.acknowledged = 0

    def start(self, command: str) -> int:
        self._ask(command)
        return self._hear("started")

    def saved(self) -> None:
        self.acknowledged = self._hear("saved")

    def reap(self) -> int:
        """Wait for the saver to be gone; how it ended."""
        self._ask("reap")
        return self._hear("reaped")

    def _ask(self, command: str) -> None:
        self._stdin.write(command + "\n")
        self._stdin.flush()

    def _hear(self, wanted: str) -> int:
        while True:
            word, number = self._stdout.readline().split()
            if word == "saved":
                self.acknowledged = int(number)
            if word == wanted:
                return int(number)


@contextlib.contextmanager
def savers() -> Iterator[Savers]:
    process = subprocess.Popen(
        [sys.executable, "-m", "testbed.crashes.saver"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
    )
    try:
        yield Savers(process)
    finally:
        process.kill()
        process.communicate()


def kills(count: int, seed: int) -> Tally:
    """kill -9 at random moments."""
    metrics, chance = Tally(), np.random.default_rng(seed)
    with savers() as saver:
        for begin in range(0, count, LIVES):
            saver.acknowledged = 0
            with scratch_directory() as directory:
                for _ in range(min(LIVES, count - begin)):
                    pid = saver.start(f"loop {directory}")
                    # Counted in saves, so that a busy machine is killed in the same places as an idle one.
                    began_s = time.monotonic()
                    for _ in range(int(chance.integers(0, 3))):
                        began_s = time.monotonic()
                        saver.saved()
                    # The first save waits for the start as well; a start is to be hit too.
                    time.sleep(chance.uniform(0, 2 * min(max(time.monotonic() - began_s, 0.005), 0.05)))
                    os.kill(pid, signal.SIGKILL)
                    if saver.reap() != SAVER_DEAD:
                        metrics.wrong.append(f"kills, seed {seed}: a saver failed by itself: see above")
                    metrics.crashes += 1
                    look(directory, saver, metrics, f"kills, seed {seed}", damaged=False)
    return metrics


def steps(count: int, seed: int) -> Tally:
    """Killed before the first request, the second, ... until it survives; every third time damage follows the kill."""
    metrics, chance = Tally(), np.random.default_rng(seed)
    with savers() as saver:
        while metrics.crashes < count:
            saver.acknowledged = 0
            with scratch_directory() as directory:
                for step in itertools.count(1):
                    saver.start(f"step {directory} {step}")
                    ended = saver.reap()
                    if ended not in (0, SAVER_DEAD):
                        metrics.wrong.append(f"step {step}: a saver failed by itself: see above")
                    metrics.crashes += ended != 0
                    damaged = chance.random() < 0.33 and damage_newest(directory / "checkpoints", chance)
                    look(directory, saver, metrics, f"step {step}, seed {seed}", damaged=damaged)
                    if ended == 0 or metrics.crashes == count:
                        break
    return metrics


def damage_newest(directory: Path, chance: np.random.Generator) -> bool:
    found = sorted(directory.glob("*.safetensors"))
    if len(found) < 2:
        return False
    found[-1].write_bytes(flipped(found[-1].read_bytes(), b"", chance))
    return True


def look(directory: Path, saver: Savers, metrics: Tally, where: str, *, damaged: bool) -> None:
    """Start as the next leader would: the right version, whole, and a table that agrees with it."""
    before = {path.name for path in (directory / "checkpoints").glob("*.safetensors")}
    try:
        desk = Desk(directory)
    except (ShoalError, OSError) as error:
        metrics.lost.append(f"{where}: version {saver.acknowledged} is gone: {type(error).__name__}: {error}")
        return
    with desk.registry:
        loaded, version = desk.loaded, desk.version
        if version < saver.acknowledged and not damaged:
            metrics.lost.append(f"{where}: version {saver.acknowledged} was acknowledged, {version} came back")
        if loaded is not None:
            if any(not np.array_equal(loaded.tensors[name], part) for name, part in model_of(version).items()):
                metrics.wrong.append(f"{where}: the model is not that of version {version}")
            skipped = [name for name, _ in loaded.skipped]
            wanted = [max(before)] if damaged else []
            if skipped != wanted or loaded.which != ("the one before" if damaged else "newest"):
                metrics.wrong.append(f"{where}: it says {loaded.which}, without {skipped}, instead of {wanted}")
        if told := desk.disagreement():
            metrics.wrong.append(f"{where}: version {version}: {told}")
        left = [path.name for path in (directory / "checkpoints").iterdir() if path.name.endswith(".tmp")]
        if left or len(list((directory / "checkpoints").glob("*.safetensors"))) > 2:
            metrics.wrong.append(f"{where}: left behind: {left or 'more than two checkpoints'}")
    saver.acknowledged = version


KINDS: dict[str, Callable[[int, int], Tally]] = {
    "kills": kills,
    "steps": steps,
    "power_cuts": power_cuts,
    "damages": damages,
    "full_disks": full_disks,
}
#: Of a hundred crashes. Real processes are the slow ones.
SHARES = {"kills": 10, "steps": 20, "power_cuts": 30, "damages": 20, "full_disks": 20}


def split(count: int) -> dict[str, int]:
    """How many of each kind; they add up."""
    edges = [count * upto // 100 for upto in itertools.accumulate(SHARES.values(), initial=0)]
    return {name: end - begin for name, (begin, end) in zip(SHARES, itertools.pairwise(edges), strict=True)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=0, help=f"how many, all kinds together; {COUNT:,} unless --quick")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_COUNT:,} crashes")
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object")
    given = parser.parse_args()
    count = given.count or (QUICK_COUNT if given.quick else COUNT)
    began_s = time.monotonic()
    total, by_kind = Tally(), {}
    for name, share in split(count).items():
        kind_began_s = time.monotonic()
        metrics = KINDS[name](share, given.seed)
        total.add(metrics)
        by_kind[name] = metrics.crashes
        told = f"{metrics.crashes} in {time.monotonic() - kind_began_s:.1f} s"
        say(f"{name}: {told}; lost {len(metrics.lost)}, wrong {len(metrics.wrong)}")
    for problem in [*total.lost, *total.wrong][:TOLD_MAX]:
        say(f"  {problem}")
    result = {"crashes": total.crashes, "lost": len(total.lost), "wrong": len(total.wrong)}
    finish(result | {"seconds": time.monotonic() - began_s, "by_kind": by_kind, "seed": given.seed})
    return 1 if total.lost or total.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
