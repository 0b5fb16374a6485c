"""Shared sets: members give entries, an operator approves them, and a job waits for enough. Real sockets.

Attacked by a member over its quota, by forged and revoked certificates, by entries that nobody approved, and by a
manager that is killed in between.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import Site, cluster_in, manager_site, run

from shoal.cli import main
from shoal.errors import Misuse, Refused, ShoalError
from shoal.identity.enrolment import Enrolled, enrol
from shoal.identity.identity import Authority, certificate_sha256
from shoal.identity.join_code import JoinCode
from shoal.net.grpc import GrpcLink
from shoal.runtime import shared_sets
from shoal.runtime.paths import Paths
from shoal.store.blobs import BlobStore
from shoal.trainer.shards import Examples, Manifest
from shoal.wire.encoding import from_json
from shoal.wire.messages import Blob, Contribute, ContributionView, Done, JobSpec, Message

HERE = Path(__file__).resolve().parent


def lines(first: int, count: int) -> bytes:
    """Entries as a member's tool packs them."""
    rows = ({"label": number % 2, "x": [float(number), 1.0]} for number in range(first, first + count))
    return b"".join(map(written, rows))


def written(entry: dict[str, Any]) -> bytes:
    """One entry as a member's tool writes it."""
    return json.dumps(entry, sort_keys=True, separators=(",", ":")).encode() + b"\n"


async def member_of(site: Site, folder: Path, name: str) -> Path:
    """A device that joined, as a home with its certificate. No agent runs there."""
    member = await enrol(JoinCode.parse(site.cluster.join_line), wanted=name)
    member.save(Paths(folder / name).node)
    return folder / name


async def say(member: Enrolled, opening: Message, data: bytes, folder: Path) -> Message:
    """Upload as a member that Shoal's own tool does not hold back."""
    file = folder / "upload"
    file.write_bytes(data)
    link = GrpcLink(member.identity, server_node=member.manager_node, endpoint=member.manager_endpoint)
    try:
        return await link.upload(opening, file)
    finally:
        await link.close()


def announced(data: bytes, *, name: str = "weeds") -> Contribute:
    return Contribute(set=name, sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))


async def gave(home: Path, folder: Path, data: bytes) -> Done:
    answer = await say(Enrolled.load(Paths(home).node), announced(data), data, folder)
    assert isinstance(answer, Done)
    return answer


async def refusal(member: Enrolled, opening: Message, data: bytes, folder: Path) -> str:
    with pytest.raises(ShoalError) as refused:
        await say(member, opening, data, folder)
    return str(refused.value)


def told(views: list[ContributionView]) -> list[tuple[str, int, str]]:
    return [(view.node, view.entries, view.state) for view in views]


@pytest.mark.gate("contributions")
def test_a_job_waits_for_approved_entries_and_trains_on_these_only(tmp_path: Path) -> None:
    async def story() -> None:
        async with manager_site(tmp_path, contribute_mb=1) as site:
            attic, cellar = [await member_of(site, tmp_path, name) for name in ("attic", "cellar")]
            (tmp_path / "some.jsonl").write_bytes(lines(0, 30))
            np.savez(tmp_path / "more.npz", x=np.ones((10, 2), np.float32), label=np.arange(10) % 2)
            files = [tmp_path / "some.jsonl", tmp_path / "more.npz"]
            assert await shared_sets.contribute(attic, "weeds", files) == [
                "30 entries for weeds wait for an operator's approval",
                "10 entries for weeds wait for an operator's approval",
            ]
            # Again: the same files count once. The other device's file repeats 20 of the entries.
            assert len(await shared_sets.contribute(attic, "weeds", files)) == 2
            await gave(cellar, tmp_path, lines(10, 40))
            found = await site.operator.contributions("weeds")
            assert told(found) == [("attic", 30, "pending"), ("attic", 10, "pending"), ("cellar", 40, "pending")]
            shown = certificate_sha256(Enrolled.load(Paths(attic).node).identity.certificate_pem)
            assert {view.certificate for view in found if view.node == "attic"} == {shown}

            notes: list[str] = []
            job = asyncio.create_task(
                site.operator.prepare_and_submit(
                    str(HERE / "shared_set_task.py"), shared="weeds", start_when=50, on_progress=notes.append
                )
            )
            await site.operator.settle_contributions("weeds", [found[0].sha256], approve=True)
            while not any("30 of 50 approved entries; 50 wait" in note for note in notes):
                assert not job.done()
                await asyncio.sleep(0.05)
            # 30 + 40 is enough only if an entry that two files hold counted twice. It counts once: 50.
            await site.operator.settle_contributions("weeds", [found[2].sha256], approve=True)
            await asyncio.wait_for(job, 90)
            xs = numbers_of(site, job.result())
            assert sorted(xs) == sorted(set(range(50)) - set(range(0, 50, 10))), "none of the file that is pending"
            acts = [(act.kind, act.subject) for act in await site.operator.acts("weeds")]
            assert acts == [("approve entries", "weeds")] * 2

    run(story())


def numbers_of(site: Site, job: str) -> list[int]:
    """The first value of each example that a job trains on."""
    with site.registry() as registry:
        row = registry.job(job)
        assert row is not None
        spec = from_json(JobSpec, json.loads(row.spec_json))
    blobs = BlobStore(Paths(site.cluster.home).blobs)
    manifest = Manifest.from_json(blobs.read(spec.train.manifest))
    examples = Examples([blobs.path(shard.sha256) for shard in manifest.shards])
    x = examples.column("x")
    assert isinstance(x, np.ndarray)
    return [int(value) for value in x[:, 0]]


def test_what_a_member_may_not_add_is_refused_before_it_counts(tmp_path: Path) -> None:
    async def story() -> None:
        async with manager_site(tmp_path, contribute_mb=1) as site:
            home = await member_of(site, tmp_path, "attic")
            member = Enrolled.load(Paths(home).node)
            operator = Enrolled.load(Paths(site.cluster.home).operator)
            half = b"".join(written({"label": 1, "note": f"{number:0999}"}) for number in range(500))
            await gave(home, tmp_path, half)
            more = half.replace(b'"label":1', b'"label":2')
            assert "over the quota: attic may add 0.5 MB more of 1 MB" in await refusal(
                member, announced(more), more, tmp_path
            )
            # Both at once are over it too, whichever is first.
            fourth = [more[: len(more) // 500 * 300].replace(b"2", digit) for digit in (b"3", b"4")]
            answers = await asyncio.gather(
                *(
                    say(member, announced(data), data, folder)
                    for data, folder in zip(fourth, folders(tmp_path), strict=True)
                ),
                return_exceptions=True,
            )
            assert sorted(type(answer).__name__ for answer in answers) == ["Done", "Refused"]
            for data, why in (
                (b'{"x": 1}\n', "line 1 is not an object with a label"),
                (b'{"label":1}\n{"label":NaN}\n', "line 2 is not JSON"),
                (b'{"label":1}\n{"label":1,"x":2}\n', "line 2 has other columns than the first"),
                (b"[" * 100_000 + b"\n", "line 1 has values within values"),
                (b'{"label": 1}', "does not end with a line break"),
            ):
                assert why in await refusal(member, announced(data), data, tmp_path)
            good = lines(0, 3)
            short = dataclasses.replace(announced(good), size_bytes=len(good) - 1)
            assert "more came" in await refusal(member, short, good, tmp_path)
            other = dataclasses.replace(announced(good), sha256="0" * 64)
            assert "hashes to" in await refusal(member, other, good, tmp_path)
            # An operator's certificate gives no entries, and a member's stores no blob.
            assert "Contribute" in await refusal(operator, announced(good), good, tmp_path)
            blob = Blob(sha256=hashlib.sha256(good).hexdigest(), size_bytes=len(good))
            assert "Blob" in await refusal(member, blob, good, tmp_path)
            assert len(await site.operator.contributions()) == 2

    run(story())


def test_files_that_come_at_once_take_no_more_of_the_disk_than_the_quota(tmp_path: Path) -> None:
    async def story() -> None:
        async with manager_site(tmp_path, contribute_mb=1) as site:
            member = Enrolled.load(Paths(await member_of(site, tmp_path, "attic")).node)
            files = [b'{"label":%d,"note":"%s"}\n' % (number, b"a" * 990) * 900 for number in range(8)]
            blobs = BlobStore(Paths(site.cluster.home).blobs)
            before = set(blobs.hashes())

            async def give(number: int) -> Message:
                folder = tmp_path / f"upload-{number}"
                folder.mkdir()
                return await say(member, announced(files[number]), files[number], folder)

            answers = await asyncio.gather(*map(give, range(8)), return_exceptions=True)
            assert sorted(type(answer).__name__ for answer in answers) == ["Done"] + ["Refused"] * 7
            # What is refused is refused before it is written: nobody removes it until garbage is collected.
            assert len(set(blobs.hashes()) - before) == 1

    run(story())


def folders(root: Path) -> list[Path]:
    made = [root / name for name in ("first", "second")]
    for each in made:
        each.mkdir()
    return made


def test_no_member_adds_anything_unless_the_manager_says_how_much(tmp_path: Path) -> None:
    async def story() -> None:
        async with manager_site(tmp_path) as site:
            home = await member_of(site, tmp_path, "attic")
            with pytest.raises(Refused, match="started without --contribute-mb"):
                await gave(home, tmp_path, lines(0, 3))

    run(story())


def test_a_forged_and_a_revoked_certificate_give_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with manager_site(tmp_path, contribute_mb=1) as site:
            home = await member_of(site, tmp_path, "attic")
            member = Enrolled.load(Paths(home).node)
            forger = Authority.create(tmp_path / "forged", member.identity.cluster)
            made = forger.identity(node="attic", role="node")
            forged = dataclasses.replace(member, identity=dataclasses.replace(made, ca_pem=member.identity.ca_pem))
            data = lines(0, 5)
            await refusal(forged, announced(data), data, tmp_path)
            assert await site.operator.contributions() == []
            # Its entries wait when it is revoked: nobody can approve them, and it can give no others.
            await gave(home, tmp_path, data)
            (view,) = await site.operator.contributions()
            await site.operator.revoke_node("attic", "stolen")
            more = lines(5, 5)
            assert "shut out" in await refusal(member, announced(more), more, tmp_path)
            with pytest.raises(Refused, match="came from attic, which is no member any more"):
                await site.operator.settle_contributions("weeds", [view.sha256], approve=True)
            # Nor once a new device has the name: these entries came with another certificate.
            line = (await site.operator.make_token(role="node", uses=1, valid_s=60.0, label="")).join_line
            again = await enrol(JoinCode.parse(line), wanted="attic")
            assert again.identity.node == "attic"
            with pytest.raises(Refused, match="which is no member any more"):
                await site.operator.settle_contributions("weeds", [view.sha256], approve=True)
            await site.operator.settle_contributions("weeds", [view.sha256], approve=False)
            with pytest.raises(Refused, match="a rejection is final"):
                await site.operator.settle_contributions("weeds", [view.sha256], approve=True)
            assert "rejected this file" in await refusal(again, announced(data), data, tmp_path)

    run(story())


def test_a_manager_that_is_killed_in_between_has_each_file_once(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=0, manager_options=("--contribute-mb", "40")) as site:
            home = await member_of(site, tmp_path, "attic")
            first = lines(0, 50)
            await gave(home, tmp_path, first)
            large = b"".join(written({"label": 1, "note": f"{number:09999}"}) for number in range(1200))
            upload = asyncio.create_task(gave(home, tmp_path, large))
            await asyncio.sleep(0.1)
            await site.kill_manager()
            await asyncio.gather(upload, return_exceptions=True)
            await site.cluster.start_manager()
            member = dataclasses.replace(Enrolled.load(Paths(home).node), manager_endpoint=site.cluster.endpoint)
            member.save(Paths(home).node)
            # The member cannot know what arrived, and gives both again.
            for data in (large, first):
                await gave(home, tmp_path, data)
            found = await site.operator.contributions()
            assert sorted(view.entries for view in found) == [50, 1200]
            blobs = BlobStore(Paths(site.cluster.home).blobs)
            assert all(blobs.verify(view.sha256) for view in found), "what was acknowledged is on the disk"
            await site.operator.collect_garbage()
            assert all(blobs.has(view.sha256) for view in found)

    run(story())


def test_a_job_begins_with_the_files_as_they_are_approved(tmp_path: Path) -> None:
    async def story() -> None:
        async with manager_site(tmp_path, contribute_mb=1) as site:
            home = await member_of(site, tmp_path, "attic")
            for first in (0, 10):
                await gave(home, tmp_path, lines(first, 10))
            hashes = [view.sha256 for view in await site.operator.contributions("weeds")]
            await site.operator.settle_contributions("weeds", hashes, approve=True)
            folder = await site.operator.shared_set("weeds", 20)
            assert sorted(path.name for path in folder.iterdir()) == sorted(hashes)
            # A disk that lost bytes, and a file that somebody put there: a later job has neither.
            (folder / hashes[0]).unlink()
            (folder / hashes[0]).write_bytes(lines(90, 10))
            (folder / "more").write_bytes(lines(80, 10))
            assert await site.operator.shared_set("weeds", 20) == folder
            assert sorted(path.name for path in folder.iterdir()) == sorted(hashes)
            assert all(hashlib.sha256(path.read_bytes()).hexdigest() == path.name for path in folder.iterdir())

            # One is rejected while they are fetched: the job goes on waiting.
            async def fetch(sha256: str, path: Path) -> None:
                await site.operator.pull_entries(sha256, path)
                if not notes:
                    await site.operator.settle_contributions("weeds", hashes[:1], approve=False)
                    notes.append("rejected")

            notes: list[str] = []
            other = shared_sets.SharedSet(
                "weeds", Paths(tmp_path / "other"), ask=site.operator.contributions, fetch=fetch
            )
            waits = asyncio.create_task(other.when(20, notes.append))
            while len(notes) < 2:
                assert not waits.done(), "it has a file that was rejected"
                await asyncio.sleep(0.05)
            waits.cancel()
            assert "an operator rejected a file of weeds meanwhile" in notes[1]

    run(story())


def test_people_give_and_decide_by_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def story() -> None:
        async with manager_site(tmp_path, contribute_mb=1) as site:
            home = await member_of(site, tmp_path, "attic")
            (tmp_path / "some.csv").write_text("x,label\n1,0\n2,1\n")

            async def shoal(*words: str) -> tuple[int, str]:
                code = await asyncio.to_thread(main.run, list(words))
                shown = capsys.readouterr()
                return code, " ".join((shown.out + shown.err).split())

            at = ("--home", str(site.cluster.home))
            assert (await shoal("contribute", "weeds", str(tmp_path / "some.csv"), "--home", str(home)))[0] == 0
            code, listed = await shoal("contributions", *at)
            (view,) = await site.operator.contributions()
            assert code == 0
            assert view.sha256[:12] in listed
            look = tmp_path / "look.jsonl"
            assert (await shoal("contributions", "pull", "weeds", view.sha256[:8], "--out", str(look), *at))[0] == 0
            assert look.read_bytes() == b'{"label":0.0,"x":1.0}\n{"label":1.0,"x":2.0}\n'
            code, said = await shoal("contributions", "approve", "weeds", "--from", "attic", *at)
            assert (code, said) == (0, "2 entries in 1 files of weeds are approved")
            code, said = await shoal("contributions", "approve", "weeds", "ffff", *at)
            assert code == 2
            assert "is the start of no file in weeds" in said
            code, said = await shoal("train", str(HERE / "shared_set_task.py"), "--start-when", "5", *at)
            assert (code, "name it with --shared SET" in said) == (2, True)

    run(story())


def test_entries_without_a_label_are_told_before_anything_is_sent(tmp_path: Path) -> None:
    (tmp_path / "some.jsonl").write_text('{"x": 1}\n')
    with pytest.raises(Misuse, match="entry 1 has no label"):
        asyncio.run(shared_sets.contribute(tmp_path, "weeds", [tmp_path / "some.jsonl"]))
