"""DCL repeated: its equations, its pair of equal models, and tables that are made of rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import offload_outer as outer
from benchmarks.offload_modes import MODES, Centralised, Masked, Paper, Tiles, drawn, made
from papers.dcl import analyst, brute_force, communication, headline, paper, same, tables
from papers.dcl.__main__ import PAPER
from papers.dcl.experiments import EXPERIMENTS
from shoal.errors import Misuse

ROOT = Path(__file__).resolve().parents[3]


# What the thesis counts ----------------------------------------------------------------------------------------


def test_what_crosses_is_what_the_table_should_say() -> None:
    rows = {row["role"]: row for row in communication.run(True)}
    assert rows["analyst"]["issued_gb"] == pytest.approx(0.188561408)
    assert rows["analyst"]["returned_gb"] == pytest.approx(24.08448)
    assert rows["executor"]["returned_gb"] == pytest.approx(0.2408448)
    # The thesis' table rounds the same issue, and returns 8 products for each of 100 executors instead of 784.
    assert rows["analyst"]["thesis_issued_gb"] == pytest.approx(rows["analyst"]["issued_gb"], abs=5e-5)
    assert rows["as printed"]["returned_table_gb"] == pytest.approx(rows["analyst"]["thesis_returned_gb"], abs=5e-3)
    assert rows["as printed"]["issued_4_1_gb"] == pytest.approx(24.08448)
    assert rows["as printed"]["returned_4_6_gb"] == pytest.approx(3.072)
    assert rows["ratio"]["times_fewer"] == pytest.approx(93.7, abs=0.1)


def test_tasks_that_are_counted_move_what_the_equations_say() -> None:
    told = communication.counted(7)
    assert told["issued_bytes"] == 4 * (7 * 784 + 784 * 128)
    assert told["returned_bytes"] == 4 * 7 * 784 * 128


def test_the_analyst_does_half_of_the_work() -> None:
    share = outer.analyst_share(paper.SAMPLES, paper.FEATURES, paper.NEURONS)
    assert share == pytest.approx(0.4994, abs=1e-4)
    assert share / paper.ANALYST_SHARE > 2_400


def test_brute_force_in_ages_of_the_universe() -> None:
    # 20! and 25!, by hand.
    assert brute_force.log10_factorial(20) == pytest.approx(np.log10(2432902008176640000))
    assert [row["log10_ages"] for row in brute_force.run(True)] == [260_814, 262_744]
    assert brute_force.log10_ages(36.0) == pytest.approx(36.0 - np.log10(2.3e18 * 4.355e17), abs=1e-3)


# The modes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_computes_the_product(mode: str) -> None:
    left, right = drawn(40, 30, 20)
    products = made(mode, 4)  # type: ignore[arg-type]
    np.testing.assert_allclose(
        products.multiply(left, right, secret="left", name="x"), left @ right, atol=1e-3 if mode == "mask" else 1e-5
    )
    assert products.spent.layer_operations == 2 * 40 * 30 * 20
    assert products.report.sent == 1


def test_bytes_and_operations_of_each_mode() -> None:
    left, right = drawn(40, 30, 20)
    spent = {}
    for mode in MODES:
        products = made(mode, 4)
        products.multiply(left, right, secret="left", name="x")
        spent[mode] = products.spent
    # left 1,200 values, right 600, result 800.
    assert (spent["paper"].bytes_out, spent["paper"].bytes_in) == (4 * (1_200 + 600), 4 * 30 * 800)
    assert spent["paper"].analyst_operations == 29 * 800
    assert (spent["tiles"].bytes_out, spent["tiles"].bytes_in) == (4 * (1_200 + 4 * 600), 4 * 800)
    assert spent["tiles"].analyst_operations == 0
    assert spent["freivalds"].bytes == spent["tiles"].bytes
    assert spent["freivalds"].analyst_operations == 2 * 8 * (1_200 + 600 + 800)
    assert spent["replicate"].bytes_in == 3 * spent["tiles"].bytes_in
    # Two pairs: a share, two seeds of 16 bytes, digits for four; two numbers a value from both.
    assert spent["mask"].bytes_out == 4 * 1_200 + 2 * 16 + 4 * 600 * 2 * 2
    assert spent["mask"].bytes_in == 2 * 2 * 4 * 800


def test_outer_products_by_others_have_the_bits_of_those_at_home() -> None:
    left, right = drawn(50, 33, 17)
    home = Centralised(3).multiply(left, right, secret="left", name="x")
    np.testing.assert_array_equal(Paper(3).multiply(left, right, secret="left", name="x"), home)
    # Another order has other bits, or the order would not have to be stated.
    other = outer.at_home(left, right, np.arange(33))
    assert not np.array_equal(home, other)


def test_an_executor_of_the_papers_mode_does_not_see_the_order() -> None:
    left, right = drawn(50, 33, 17)
    seen: list[np.ndarray] = []

    class Looking(Paper):
        def _away(self, work):  # type: ignore[no-untyped-def]
            made = super()._away(work)
            seen.append(made)
            return made

    Looking(3).multiply(left, right, secret="left", name="x")
    plain = {np.multiply.outer(left[:, j], right[j]).tobytes() for j in range(33)}
    assert not plain & {part.tobytes() for part in seen}
    # But all of its values: a shuffle hides none.
    assert {np.sort(part, axis=None).tobytes() for part in seen} == {
        np.sort(np.multiply.outer(left[:, j], right[j]), axis=None).tobytes() for j in range(33)
    }


class FewDigits:
    """Drawn, so that no data is needed."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.rand(400, 784, generator=generator)
        self.y = torch.randint(0, 10, (400,), generator=generator)
        self.test_x, self.test_y = self.x[:50], self.y[:50]


def test_training_by_others_is_training_at_home() -> None:
    digits = FewDigits()
    done = {way.name: same.trained(way, digits, steps=2) for way in same.WAYS}  # type: ignore[arg-type]
    rows = {way.name: same.row_of(way, done, steps=2) for way in same.WAYS}
    assert rows["outer products by tasks, shuffled"]["same_bits"]
    assert rows["tiles by tasks, checked"]["same_bits"]
    assert not rows["plain products at home"]["same_bits"]
    assert 0 < rows["tiles at home"]["difference_of_moved"] < 1e-4
    assert 0 < rows["masks by tasks, checked"]["difference_of_moved"] < 1e-2


# Rows, tables, files -------------------------------------------------------------------------------------------


def test_the_analysts_part_is_told_for_each_mode() -> None:
    rows = [
        {"mode": "at home", "samples": 10, "analyst_s": 0.5},
        {"mode": "paper", "samples": 10, "share": 0.5, "analyst_s": 4.0, "executors_s": 1.0, "over_home": 8.0},
    ]
    assert "summed (the thesis) | 50.00 % | 4,000.0 | 1,000.0 | 8 |" in tables.analyst(rows)
    assert analyst.EXECUTORS == 100


def test_the_headline_says_only_what_was_measured() -> None:
    assert headline.headline({}) == {}
    rows = {"brute_force": brute_force.run(True), "communication": communication.run(True)}
    told = headline.headline(rows)
    assert told["log10_ages_shuffles_alone"] == 260_814
    assert told["bytes_times_fewer"] == pytest.approx(93.7, abs=0.1)


def test_the_readme_is_what_the_results_say() -> None:
    assert PAPER.filled(PAPER.readme.read_text(), PAPER.store.read()) == PAPER.readme.read_text()
    with pytest.raises(Misuse, match="a table 'nothing'"):
        PAPER.filled("<!-- table: nothing -->\n<!-- end -->", {})


def test_every_table_and_plot_of_the_readme_is_there() -> None:
    from papers.dcl import plots

    text = PAPER.readme.read_text()
    assert all(f"<!-- table: {name} -->" in text for name in tables.TABLES)
    assert all(f"({name}.png)" in text and (PAPER.folder / f"{name}.png").exists() for name in plots.PLOTS)
    assert set(PAPER.store.read()) == {experiment.name for experiment in EXPERIMENTS}


@pytest.mark.needs_data
def test_one_experiment_from_end_to_end() -> None:
    command = (sys.executable, "-m", "papers.dcl", "--quick", "--only", "communication", "brute_force", "--json")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=True)
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["quick"] is True
    assert set(told["rows"]) == {"communication", "brute_force"}


def test_replicas_and_masks_are_told_apart() -> None:
    assert isinstance(made("mask", 2), Masked)
    assert isinstance(made("replicate", 2), Tiles)
