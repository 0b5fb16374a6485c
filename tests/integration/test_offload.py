"""Borrowed compute by real processes: pools that are killed in the middle of a product, and executors that lie."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import numpy as np
import psutil
import pytest
from kit import Site, cluster_in, run

from shoal.errors import Misuse
from shoal.offload.roles.product import cut
from shoal.offload.runtime.borrowed import Borrowed
from shoal.offload.runtime.multiplier import Multiplier
from shoal.roles.actions import Multiply
from shoal.roles.events import Multiplied
from shoal.wire.messages import ExecutorView

#: Small tiles, and enough of them that a product takes seconds on slow executors.
OPERATIONS = 64 * 200 * 50
ROWS = 64 * 60


def sides(seed: int = 0, rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    chance = np.random.default_rng(seed)
    left = chance.standard_normal((rows, 200), dtype=np.float32)
    return left, chance.standard_normal((200, 50), dtype=np.float32)


async def at_home(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The same product, tile by tile, in a process of this machine."""
    multiplier = Multiplier()
    parts = []
    try:
        for tile in cut(left.shape[0], left.shape[1], right.shape[1], operations=OPERATIONS):
            done = await multiplier.multiply(
                Multiply(
                    number=tile.number,
                    kind="tile",
                    rows=tile.rows,
                    inner=left.shape[1],
                    columns=right.shape[1],
                    tensors={"left": left[tile.start : tile.stop], "right": right},
                )
            )
            assert isinstance(done, Multiplied)
            parts.append(done.tensors["result"])
    finally:
        multiplier.stop()
    return np.concatenate(parts)


async def start(site: Site, name: str, behaviour: str) -> None:
    """A device whose process that multiplies is not the honest one."""
    home = site.cluster.agent_home(name)
    if not (home / "node").exists():
        await site.cluster._enrol(name, home)
    command = ("odd_agent", behaviour, "--home", str(home), "--lend")
    site.cluster.agents[name] = await site.cluster._spawn(*command, log=f"{name}.log")


async def executors(site: Site) -> dict[str, ExecutorView]:
    return {view.node: view for view in (await site.operator.status()).executors}


async def all_lend(site: Site, count: int) -> None:
    async def ready() -> bool:
        return sum(view.state == "ready" for view in (await executors(site)).values()) == count

    await site.until(f"{count} executors are measured", ready)


@contextlib.asynccontextmanager
async def pool_in(directory: Path, *, honest: int = 0, slow: int = 0, lying: int = 0) -> AsyncIterator[Site]:
    async with cluster_in(directory, workers=honest, options=("--lend",)) as site:
        odd = [(f"slow-{at}", "slow") for at in range(slow)] + [(f"liar-{at}", "lies") for at in range(lying)]
        await asyncio.gather(*(start(site, name, behaviour) for name, behaviour in odd))
        await all_lend(site, honest + slow + lying)
        yield site


@contextlib.asynccontextmanager
async def borrowed(*sites: Site, **options: object) -> AsyncIterator[Borrowed]:
    homes: Sequence[Path] = [site.cluster.home for site in sites]
    made = await asyncio.to_thread(lambda: Borrowed(homes, tile_operations=OPERATIONS, **options))  # type: ignore[arg-type]
    try:
        yield made
    finally:
        await asyncio.to_thread(made.close)


def asked(products: Borrowed, left: np.ndarray, right: np.ndarray) -> asyncio.Future[np.ndarray]:
    return asyncio.ensure_future(asyncio.to_thread(lambda: products.multiply(left, right, secret="left", name="layer")))


async def under_way(products: Borrowed, asking: asyncio.Future[np.ndarray]) -> None:
    """Some tiles are back, others are not."""
    while products.report.bytes_in < 64 * 50 * 4 * 5:
        assert not asking.done(), "the product was too quick to break"
        await asyncio.sleep(0.01)
    assert not asking.done()


@pytest.mark.gate("borrowed compute")
def test_a_product_has_the_same_bits_from_a_pool_and_from_home(tmp_path: Path) -> None:
    async def story() -> None:
        left, right = sides()
        async with pool_in(tmp_path, honest=3) as site, borrowed(site) as products:
            advert = await asyncio.to_thread(lambda: products.advert)
            assert advert is not None
            assert advert.operations_per_s > 0
            assert advert.bytes_per_s > 0
            result = await asked(products, left, right)
            assert result.tobytes() == (await at_home(left, right)).tobytes()
            assert products.report.liars == ()
            assert products.report.operations_home < products.report.operations_away
            told = await executors(site)
            # A look at the link takes a few, too.
            assert sum(view.tasks for view in told.values()) >= ROWS // 64
            assert products.network.startswith("1-1-")

    run(story())


def test_an_executor_killed_in_the_middle_of_a_product_costs_no_bit(tmp_path: Path) -> None:
    async def story() -> None:
        left, right = sides()
        async with pool_in(tmp_path, slow=3) as site, borrowed(site) as products:
            asking = asked(products, left, right)
            await under_way(products, asking)
            await site.kill(site.cluster.agents["slow-1"])
            assert (await asking).tobytes() == (await at_home(left, right)).tobytes()
            told = await executors(site)
            assert told["slow-1"].state == "lost"
            assert products.report.liars == ()

    run(story())


def test_a_process_that_multiplies_may_be_killed_and_its_agent_goes_on(tmp_path: Path) -> None:
    async def story() -> None:
        left, right = sides()
        async with pool_in(tmp_path, slow=2) as site, borrowed(site) as products:
            asking = asked(products, left, right)
            await under_way(products, asking)
            children = psutil.Process(site.cluster.agents["slow-0"].pid).children()
            assert len(children) == 1
            os.kill(children[0].pid, signal.SIGKILL)
            assert (await asking).tobytes() == (await at_home(left, right)).tobytes()
            told = (await executors(site))["slow-0"]
            assert (told.state, told.refused) == ("ready", 1)

    run(story())


def test_a_manager_killed_in_the_middle_of_a_product_comes_back_to_the_same_bits(tmp_path: Path) -> None:
    async def story() -> None:
        left, right = sides()
        async with pool_in(tmp_path, slow=3) as site, borrowed(site, wait_s=60.0) as products:
            asking = asked(products, left, right)
            await under_way(products, asking)
            await site.kill_manager()
            before = products.report.bytes_in
            await asyncio.sleep(0.5)
            assert not asking.done()
            await site.cluster.start_manager()
            assert (await asking).tobytes() == (await at_home(left, right)).tobytes()
            report = products.report
            assert report.bytes_in > before
            assert report.operations_home < report.operations_away, "it was done by the pool, not at home"

    run(story())


def test_without_its_manager_a_product_goes_to_another_pool_or_home(tmp_path: Path) -> None:
    async def story() -> None:
        left, right = sides()
        truth = (await at_home(left, right)).tobytes()
        async with (
            pool_in(tmp_path / "a", slow=2) as first,
            pool_in(tmp_path / "b", slow=2) as second,
            borrowed(first, second, wait_s=2.0) as products,
        ):
            asking = asked(products, left, right)
            await under_way(products, asking)
            await first.kill_manager()
            assert (await asking).tobytes() == truth
            assert sum(view.tasks for view in (await executors(second)).values()) > 0
            await second.kill_manager()
            # Nobody is left: it is done here.
            assert (await asked(products, left, right)).tobytes() == truth

    for name in "ab":
        (tmp_path / name).mkdir()
    run(story())


def test_one_in_five_lies_and_is_named(tmp_path: Path) -> None:
    async def story() -> None:
        left, right = sides()
        async with pool_in(tmp_path, honest=4, lying=1) as site, borrowed(site) as products:
            truth = (await at_home(left, right)).tobytes()

            async def caught() -> bool:
                assert (await asked(products, left, right)).tobytes() == truth
                return bool(products.report.liars)

            await site.until("the liar was given a task", caught)
            assert products.report.liars == ("shoal/liar-0",)
            told = await executors(site)
            assert [view.node for view in told.values() if view.caught] == ["liar-0"]
            assert told["liar-0"].state == "excluded"
            assert "beyond any rounding" in told["liar-0"].reason

            async def written() -> bool:
                events = (await site.operator.status()).events
                return any(event.kind == "executor.excluded" and "liar-0" in event.reason for event in events)

            await site.until("it is written down", written)

    run(story())


def test_masked_products_by_two_clusters(tmp_path: Path) -> None:
    async def story() -> None:
        left, right = sides(rows=64 * 10)
        async with (
            pool_in(tmp_path / "a", honest=1, lying=1) as first,
            pool_in(tmp_path / "b", honest=1) as second,
            borrowed(first, second, privacy="mask") as products,
        ):
            results = [await asked(products, left, right) for _ in range(3)]
            np.testing.assert_allclose(results[0], left @ right, atol=0.01)
            assert results[0].tobytes() == results[1].tobytes() == results[2].tobytes()
            assert set(products.report.liars) <= {"shoal/liar-0"}
        with pytest.raises(Misuse, match="two clusters"):
            Borrowed([first.cluster.home, first.cluster.home], privacy="mask")

    for name in "ab":
        (tmp_path / name).mkdir()
    run(story())


CTRL_C = """
import sys
import numpy as np
from shoal.offload.runtime.borrowed import Borrowed
products = Borrowed(sys.argv[1], tile_operations=64 * 200 * 50)
print("asking", flush=True)
products.multiply(np.ones((64 * 600, 200), np.float32), np.ones((200, 50), np.float32), secret="left", name="layer")
"""


def test_ctrl_c_is_heard_while_a_product_is_waited_for(tmp_path: Path) -> None:
    async def story() -> None:
        async with pool_in(tmp_path, slow=1) as site:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", CTRL_C, str(site.cluster.home)),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            assert process.stdout is not None
            assert await process.stdout.readline() == b"asking\n"
            await asyncio.sleep(1.0)
            process.send_signal(signal.SIGINT)
            _, told = await asyncio.wait_for(process.communicate(), 15.0)
            assert b"KeyboardInterrupt" in told
            assert process.returncode != 0

    run(story())
