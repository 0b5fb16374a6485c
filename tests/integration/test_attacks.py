"""The attacks that start little: each is tried on real processes, and says what happened. The rest are a benchmark."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from testbed.attacks.kit import Attack
from testbed.attacks.run import ATTACKS, judged
from testbed.attacks.supply import dependencies, floor_of, make_wheel, requirements_in

#: Those that take seconds.
CHEAP = ("replaced_key", "label_lie", "foreign_blobs")


def named(name: str) -> Attack:
    return next(attack for attack in ATTACKS if attack.name == name)


@pytest.mark.parametrize("name", CHEAP)
def test_a_cheap_attack_is_held(name: str) -> None:
    outcome = asyncio.run(asyncio.wait_for(judged(named(name), scale=1.0), 330))
    assert outcome.held, outcome.told


def test_every_finding_has_an_attack_of_its_own_name() -> None:
    assert {attack.finding for attack in ATTACKS} >= set(range(1, 17))
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)
    assert all(attack.about for attack in ATTACKS)


def test_a_lock_without_a_hash_is_seen(tmp_path: Path) -> None:
    lock = (
        f"# a comment\nrich==14.0.0 \\\n    --hash=sha256:{'a' * 64} \\\n    --hash=sha256:{'b' * 64}\ntyper==0.12.0\n"
    )
    pinned = requirements_in(lock)
    assert [len(hashes) for hashes in pinned.values()] == [2, 0]
    assert make_wheel(tmp_path, "rich", "14.0.0").name == "rich-14.0.0-py3-none-any.whl"
    assert floor_of("grpcio").count(".") == 2
    assert "cryptography" in dependencies()
