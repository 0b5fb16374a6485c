"""A sealed job whose members an operator signed: real agents, one of which has no card and is in no group."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from kit import cluster_in, run
from test_sealed import PULL, _started

from shoal.cli.commands.nodes import operator_key_text
from shoal.errors import Misuse
from shoal.identity.card_files import make_card_key, pin_operator
from shoal.identity.cards import CardKey, make_card, parse_key

TRUST = "sealed(3, 0%, 30%, members=3)"


@pytest.mark.gate("signed members")
def test_only_devices_that_the_operator_signed_are_in_groups(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=5, options=PULL) as site:
            key = parse_key(operator_key_text(site.cluster.home))
            nodes = sorted(site.cluster.agents)
            own = {node: make_card_key(site.cluster.agent_home(node) / "node") for node in nodes}
            for node in nodes:
                # As `shoal join --operator-key` does; read when a job begins.
                pin_operator(site.cluster.agent_home(node) / "node", key, may_change=False)
            with pytest.raises(
                Misuse, match=r"0 devices have a valid card, and the job needs at least 3\. Sign devices"
            ):
                await _started(site, tmp_path, trust=TRUST)
            *signed, sybil, unsigned = nodes
            for node in signed:
                card = site.operator.sign_card(node, own[node].public, days=90)
                assert "until" in await site.operator.approve_node(node, card=card)
            # The manager makes itself an operator: its cards are as good as any to the manager, and not to a device.
            until_s = int(time.time() + 86400)
            forged = make_card(
                CardKey.new(),
                cluster=site.operator._identity.cluster,
                node=sybil,
                key=own[sybil].public,
                until_s=until_s,
            )
            await site.operator.approve_node(sybil, card=forged)
            job = await _started(site, tmp_path / "again", trust=TRUST)
            view = await site.ended(job)
            assert "reached" in view.reason, view.reason
            rows, _ = site.history(job)
            assert {row.node for row in rows} == set(signed), unsigned

    run(story())
