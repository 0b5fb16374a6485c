"""Who did what: operators by name in the audit log, in events, and in what devices and jobs are told."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from pathlib import Path

import pytest
from kit import cluster_in, manager_in, run

from shoal.errors import Refused
from shoal.identity.enrolment import enrol
from shoal.identity.join_code import JoinCode
from shoal.runtime.operator import Operator
from shoal.runtime.paths import Paths
from testbed.echo_job import echo_job


async def shoal_said(*command: str, code: int = 0) -> str:
    """Run the command as a person does; everything that it printed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "shoal.cli.main",
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == code, err.decode()
    return out.decode() if code == 0 else out.decode() + err.decode()


def test_every_act_is_recorded_with_its_operators_name(tmp_path: Path) -> None:
    async def story() -> None:
        home = tmp_path / "home"
        async with manager_in(home) as ready, Operator.open(home) as owner:
            line = (await owner.make_token(role="operator", uses=1, valid_s=600.0, label="for alice")).join_line
            (await enrol(JoinCode.parse(line), wanted="alice")).save(Paths(tmp_path / "alice").operator)
            await enrol(JoinCode.parse(ready.join_line), wanted="pi")
            async with Operator.open(tmp_path / "alice") as alice:
                job = await alice.submit(echo_job(tmp_path, values=50, batches=20), plan={})
                await alice.stop(job, "too slow")
                await alice.label_node("pi", ("room=3",))
                await alice.revoke_node("pi", "stolen")
                with pytest.raises(Refused, match=r"revoked on .* \(by alice: stolen\)"):
                    await alice.revoke_node("pi")
            acts = await owner.acts()
            told = [(act.operator, act.kind, act.subject, act.text, act.is_refused) for act in acts[1:]]
            assert told[0][:3] == ("alice", "submit a job", job)
            assert told[1:4] == [
                ("alice", "stop a job", job, "too slow", False),
                ("alice", "label a node", "pi", "room=3", False),
                ("alice", "revoke a node", "pi", "stolen", False),
            ]
            assert told[4][:3] == ("alice", "revoke a node", "pi")
            assert told[5][-1], "the second revocation was refused, and the log says so"
            assert acts[0].kind == "make a join line"
            assert len({act.certificate for act in acts}) == 2
            assert [act.kind for act in await owner.acts(job)] == ["submit a job", "stop a job"]
            wanted = f"alice: stop a job {job}: too slow"
            # Events are written down a moment after what they tell of.
            while wanted not in {event.reason for event in (await owner.status(job)).events}:
                await asyncio.sleep(0.05)
            assert (await owner.status(job)).jobs[0].reason == "too slow (by alice)"

    run(story())


def test_a_log_that_was_rewritten_is_found_by_its_reader(tmp_path: Path) -> None:
    home = tmp_path / "home"

    async def story() -> tuple[str, str]:
        async with manager_in(home), Operator.open(home) as owner:
            for label in ("one", "two", "three"):
                await owner.make_token(role="node", uses=1, valid_s=600.0, label=label)
            whole = await shoal_said("audit", "--json", "--home", str(home))
            with sqlite3.connect(Paths(home).registry) as database:
                database.execute("UPDATE acts SET operator = 'nobody' WHERE seq = 2")
            return whole, await shoal_said("audit", "--home", str(home), code=4)

    whole, broken = asyncio.run(asyncio.wait_for(story(), 120))
    found = json.loads(whole)
    assert found["is_whole"] is True
    assert [act["kind"] for act in found["acts"]] == ["make a join line"] * 3
    assert "act 2 was changed or removed" in broken


def test_a_job_trains_on_the_devices_of_its_label_only(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=2, options=("--child-module", "shoal.trainer.echo")) as site:
            home = str(site.cluster.home)
            while len(names := sorted(view.node for view in (await site.operator.status()).nodes)) < 2:
                await asyncio.sleep(0.05)
            await shoal_said("nodes", "label", names[1], "room=3", "--home", home)
            listed = json.loads(await shoal_said("nodes", "--json", "--home", home))
            assert {node["node"]: node["labels"] for node in listed} == {names[0]: [], names[1]: ["room=3"]}
            ready = echo_job(tmp_path, values=50, batches=20)
            job = await site.operator.submit(ready, plan={"where": "room in (3, 4)", "until": {"epochs": 1}})
            await site.ended(job)
            assert {row.node for row in site.history(job)[0]} == {names[1]}

    run(story())
