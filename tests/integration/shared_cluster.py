"""One running cluster for all tests of a module that kill nothing.

Each test has a job, an operator and a folder of its own. A module says ``cluster = shared_cluster(workers=3)``; a test
takes ``cluster`` and calls ``cluster.run(story)``, and its story takes the site. A test that revokes a device, kills a
process or changes the manager starts its own cluster with ``kit.cluster_in``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit import STORY_S, Site, assert_no_bug_of_its_own, cluster_in

from shoal.runtime.local import LocalCluster
from shoal.runtime.operator import Operator
from shoal.trainer.spawn import end_process

Story = Callable[[Site], Awaitable[None]]


def shared_cluster(*, also: Story | None = None, **options: Any) -> Any:
    """Return a fixture of a module: a cluster that is started with these options of ``kit.cluster_in``.

    ``also`` starts other devices, which then belong to the cluster like the first ones.
    """

    @pytest.fixture(scope="module")
    def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedCluster]:
        shared = SharedCluster(tmp_path_factory.mktemp("shared"), options, also)
        try:
            # Before any fixture of a test changes the environment, which the processes of the cluster inherit.
            shared.start()
            yield shared
        finally:
            shared.close()

    return cluster


class SharedCluster:
    """Keeps a cluster running from test to test, and proves after each that the next one finds it as it was."""

    def __init__(self, folder: Path, options: dict[str, Any], also: Story | None) -> None:
        self._folder = folder
        self._options = options
        self._also = also
        # The handles of processes belong to a loop: it is kept as long as they are.
        self._runner = asyncio.Runner()
        self._stack = contextlib.AsyncExitStack()
        self._cluster: LocalCluster | None = None
        self._members: frozenset[str] = frozenset()
        self._numbered = 0

    def start(self) -> None:
        self._runner.run(asyncio.wait_for(self._running(), STORY_S))

    def run(self, story: Story) -> None:
        """Tell a story of this cluster. If it fails, the next test gets a new cluster."""
        try:
            self._runner.run(asyncio.wait_for(self._tell(story), STORY_S))
        except BaseException as error:
            # Its jobs, tasks and devices may be in any state.
            self._runner.run(self._discard(error))
            self._runner.close()
            self._runner = asyncio.Runner()
            raise

    def close(self) -> None:
        """End the cluster, with the checks that ``kit.cluster_in`` makes at its end."""
        try:
            self._runner.run(self._stack.aclose())
        finally:
            self._runner.close()

    async def _running(self) -> LocalCluster:
        """Return the cluster; start one if there is none, or if it is dead."""
        # Lets the loop hear of processes that ended while it did not run.
        await asyncio.sleep(0.01)
        if self._cluster is not None and self._dead(self._cluster):
            self._cluster = None
            await self._stack.aclose()
        if self._cluster is None:
            site = await self._stack.enter_async_context(cluster_in(self._new_folder(), **self._options))
            if self._also is not None:
                await self._also(site)
            self._cluster, self._members = site.cluster, frozenset(site.cluster.agents)
        return self._cluster

    def _new_folder(self) -> Path:
        self._numbered += 1
        folder = self._folder / str(self._numbered)
        folder.mkdir()
        # As a test's own folder is where a task runs as another user.
        for path in (self._folder, folder):
            path.chmod(0o755)
        return folder

    def _dead(self, cluster: LocalCluster) -> list[str]:
        """Return the names of those of its first processes that do not run."""
        processes = {"manager": cluster.manager, **{name: cluster.agents.get(name) for name in self._members}}
        return [name for name, process in processes.items() if process is None or process.returncode is not None]

    async def _tell(self, story: Story) -> None:
        cluster = await self._running()
        async with Operator.open(cluster.home) as operator:
            site = Site(cluster, operator, self._new_folder())
            site.begin()
            await story(site)
            await self._leave_as_it_was(site)

    async def _leave_as_it_was(self, site: Site) -> None:
        """Stop the jobs and devices that the test left, and wait until the others are free."""
        for job in (await site.operator.status()).jobs:
            if job.state in ("queued", "running"):
                await site.operator.stop(job.job)
        for name in frozenset(site.cluster.agents) - self._members:
            await end_process(site.cluster.agents.pop(name))
        dead = self._dead(site.cluster)
        assert not dead, f"a test of a shared cluster ended {', '.join(dead)}: it needs a cluster of its own"

        async def free() -> bool:
            views = {view.node: view for view in (await site.operator.status()).nodes}
            return all((views[n].state, views[n].standing, views[n].job) == ("alive", "", "") for n in self._members)

        await site.until("every device of the shared cluster is free", free)
        assert_no_bug_of_its_own(site.cluster.home)

    async def _discard(self, error: BaseException) -> None:
        """End the cluster of a story that failed. What its logs say is part of that failure, not another one."""
        self._cluster = None
        with contextlib.suppress(type(error)):
            await self._stack.__aexit__(type(error), error, error.__traceback__)
        self._stack = contextlib.AsyncExitStack()
