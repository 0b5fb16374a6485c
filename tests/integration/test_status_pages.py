"""The nodes of a large cluster come in pages, each once, whatever a single reply holds. A real manager and operator."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from kit import manager_in, run

from shoal.runtime import status_pages
from shoal.runtime.operator import Operator
from shoal.runtime.own_cluster import open_cluster
from shoal.runtime.paths import Paths
from shoal.store.registry import Registry
from shoal.wire.messages import AskStatus, Status

NODES = 11
A_PAGE = 4


@pytest.mark.timeout(200)
def test_an_operator_is_shown_every_node_once_and_no_reply_grows_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_pages, "NODES_SHOWN", A_PAGE)
    home = tmp_path / "home"
    open_cluster(Paths(home), name="many")
    names = [f"pi-{number:02}" for number in range(NODES)]
    with Registry(Paths(home).registry) as registry:
        for name in names:
            registry.upsert_node(node=name, role="node", facts_json="{}", state="pending", now_s=time.time())

    async def story() -> None:
        async with manager_in(home), Operator.open(home) as operator:
            status = await operator.status()
            assert [view.node for view in status.nodes if view.node in names] == names
            assert not status.next_node
            first = await operator._link.operate(AskStatus())
            assert isinstance(first, Status)
            assert len(first.nodes) == A_PAGE
            assert first.next_node == first.nodes[-1].node

    run(story())
