"""Comparisons with other people's code: counted as skipped where the package is missing, and never as passed."""

from __future__ import annotations

import pytest

from benchmarks import trust_oracles
from benchmarks.trust_oracles import ORACLES, measure, shamir_off


def test_what_cannot_be_compared_is_counted_as_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> float:
        raise ImportError("no such package")

    monkeypatch.setattr(
        trust_oracles, "ORACLES", {"one": (missing, 0.0), "two": (lambda: 0.5, 1.0), "three": (lambda: 2.0, 1.0)}
    )
    told = measure()
    assert told == {
        "oracle_two_off": 0.5,
        "oracle_three_off": 2.0,
        "oracles_compared": 2,
        "oracles_disagree": 1,
        "oracles_skipped": 1,
    }


@pytest.mark.parametrize("name", ["gaussian", "renyi"])
def test_epsilons_are_those_of_dp_accounting(name: str) -> None:
    pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")
    off, most = ORACLES[name]
    assert off() <= most


@pytest.mark.gate
def test_shares_are_those_of_pycryptodome() -> None:
    pytest.importorskip("Crypto", reason="PyCryptodome is not installed")
    assert shamir_off() == 0
