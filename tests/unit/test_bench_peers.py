"""``benchmarks.peers``: what can be counted and read without a peer."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.peers import __main__ as peers
from benchmarks.peers import contenders, install, table
from benchmarks.peers.bed import Stuck, crossed, wait_until
from benchmarks.peers.contest import Watched, bytes_per_round, rounded
from benchmarks.peers.counts import Typed, lines_of, lines_user_writes, user_files
from benchmarks.peers.deployment import HERE
from benchmarks.peers.repeats import ROOT, Turns, wait_for_quiet
from benchmarks.peers.shares import CLIENTS, names, write_shares
from benchmarks.peers.spread import is_quiet, of_contender, over

APPS = ("shoal_app", "flower_app", "nvflare_app")

NETWORK = {
    "shoal_app": "digits.py",
    "flower_app": "digits/task.py",
    "nvflare_app": "model.py",
    "hivemind_app": "average.py",
}


def test_a_line_counts_if_it_says_something(tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.write_text(
        '"""Two lines\nof words."""\n\nimport os  # counts\n\n\n# does not\ndef f():\n    "nor this"\n    return 1\n'
    )
    assert lines_of(file) == 3
    other = tmp_path / "project.yml"
    other.write_text("# no\n\nname: yes\n")
    assert lines_of(other) == 1
    (tmp_path / "kept.log").write_text("not written by a user\n")
    assert user_files(tmp_path) == [file, other]
    assert lines_user_writes(tmp_path) == 4


def test_commands_are_counted_as_they_are_typed() -> None:
    typed = Typed()
    typed.note(("pip", "install", "x"))
    typed.note(("x", "up"))
    assert typed.steps == 2
    assert typed.commands == ["pip install x", "x up"]


@pytest.mark.parametrize("app", APPS)
def test_a_users_files_lie_in_one_folder_and_are_few(app: str) -> None:
    assert 10 < lines_user_writes(HERE / app) < 150


def test_all_train_the_same_network() -> None:
    found = {_layers((HERE / app / file).read_text()) for app, file in NETWORK.items()}
    assert len(found) == 1
    (layers,) = found
    assert layers.count("nn.Conv2d") == 2
    assert layers.count("nn.Linear") == 3


def _layers(source: str) -> str:
    """The arguments of the one call that has convolutions directly below it."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    (network,) = [
        call
        for call in calls
        if any(isinstance(part, ast.Starred) and "Conv2d" in ast.unparse(part) for part in call.args)
    ]
    return ", ".join(ast.unparse(part) for part in network.args)


def test_every_client_has_a_share_of_its_own(tmp_path: Path) -> None:
    y = np.arange(400)
    pair = y.astype(np.uint8).reshape(-1, 1, 1, 1), y
    write_shares(tmp_path, pair, pair, examples=5)
    shares = [np.load(tmp_path / name / "train.npz")["y"] for name in names()]
    assert len(shares) == CLIENTS
    assert [share.tolist() for share in shares[:2]] == [[0, 4, 8, 12, 16], [1, 5, 9, 13, 17]]
    assert len(np.unique(np.concatenate(shares))) == CLIENTS * 5


def test_bytes_of_a_link_are_read_from_the_kernels_table() -> None:
    table = (
        "Inter-|   Receive                |  Transmit\n"
        " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo\n"
        "    lo:     100       1    0    0    0     0          0         0      100       1    0    0    0\n"
        "  eth0: 7000000    5000    0    0    0     0          0         0  2000000    4000    0    0    0\n"
    )
    assert crossed(table) == (2_000_000, 7_000_000)
    with pytest.raises(Stuck):
        crossed("lo: 1 2 3\n")


def test_bytes_are_told_by_round_and_client() -> None:
    before, after = [(0, 100), (50, 0)], [(600, 1300), (650, 1200)]
    # Up: 600 + 600 over 2 clients and 3 rounds; down: 1,200 + 1,200.
    assert bytes_per_round(before, after, 3) == {"up": 200, "down": 400}


def test_a_round_is_the_median_between_two_models() -> None:
    assert Watched(at_s=[10.0, 12.0, 15.0, 117.0]).round_s == 3.0


def test_a_wait_has_an_end() -> None:
    with pytest.raises(Stuck, match="nothing: not within 0 s"):
        wait_until(lambda: False, limit_s=0, what="nothing")


def test_a_peer_that_is_not_installed_is_told_as_missing(tmp_path: Path) -> None:
    for name in set(contenders.CONTENDERS) - {"shoal"}:
        told = contenders.turn(name, tmp_path / "none", tmp_path, quick=True)
        assert list(told) == ["missing"]
        assert str(told["missing"]).startswith("pip install")


def test_shoal_runs_in_this_environment() -> None:
    assert install.version_of(install.python_of(Path("nowhere"), "shoal"), "shoal")


def test_figures_are_rounded_to_what_they_can_tell() -> None:
    assert rounded({"accuracy": 0.97654, "round_s": 1.23456, "steps": 7}) == {
        "accuracy": 0.9765,
        "round_s": 1.23,
        "steps": 7,
    }


def test_a_turn_waits_until_the_machine_is_quiet_and_not_for_ever() -> None:
    loads = [9.0, 4.0, 2.0]
    slept: list[float] = []
    assert wait_for_quiet(300, load=lambda: loads.pop(0), sleep=slept.append) == 2.0
    assert len(slept) == 2
    slept.clear()
    assert wait_for_quiet(20, load=lambda: 9.0, sleep=slept.append) == 9.0
    assert sum(slept) == 20
    assert is_quiet([2.4, 0.0])
    assert not is_quiet([2.4, 2.5])
    assert not is_quiet([])


def _contest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: list[dict[str, object]], *, repeats: int
) -> dict[str, Any]:
    """A contest of Shoal alone, whose turns tell these figures in turn."""
    monkeypatch.setattr(peers, "turn", lambda *_, **__: told.pop(0))
    monkeypatch.setattr(peers, "wait_for_quiet", lambda _: 1.0)
    turns = Turns(tmp_path / "turns.json")
    return peers.contest(["shoal"], tmp_path, turns, tmp_path, repeats=repeats, wait_s=0.0, quick=False)


def test_a_run_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = _contest(monkeypatch, tmp_path, [{"round_s": 7.0}], repeats=1)
    assert first["shoal"] == {"round_s": {"median": 7.0, "least": 7.0, "greatest": 7.0}, "turns": 1, "loads": [1.0]}
    left: list[dict[str, object]] = [{"error": "a cable"}, {"round_s": 9.0}, {"round_s": 8.0}]
    # The turn that failed is told, and another is taken by the next run.
    second = _contest(monkeypatch, tmp_path, left, repeats=3)
    assert second["shoal"]["turns"] == 2
    assert second["shoal"]["errors"] == ["a cable"]
    third = _contest(monkeypatch, tmp_path, left, repeats=3)
    assert left == []
    assert third["shoal"]["round_s"] == {"median": 8.0, "least": 7.0, "greatest": 9.0}
    assert third["repeats"] == 3
    assert third["quiet"] is True
    assert third["loads"] == [1.0] * 4


def test_turns_of_other_code_or_another_release_do_not_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    turns = Turns(tmp_path / "turns.json")
    turns.keep("flower", "1.41.0", load=1.0, figures={"round_s": 9.0})
    assert len(Turns(tmp_path / "turns.json").of("flower", "1.41.0")) == 1
    assert turns.of("flower", "1.42.0") == turns.of("nvflare", "1.41.0") == []
    monkeypatch.setattr("benchmarks.peers.repeats.code", lambda: "other")
    assert Turns(tmp_path / "turns.json").of("flower", "1.41.0") == []


def test_figures_have_a_spread_and_words_stay_words() -> None:
    told: list[dict[str, Any]] = [
        {"setup": "one", "killed_s": 4.0, "said": "after 4 s", "bytes": {"up": 10}, "commands": ["a 1"]},
        {"setup": "one", "killed_s": None, "said": "none", "bytes": {"up": 30}, "commands": ["a 2"]},
        {"setup": "one", "killed_s": 6.0, "said": "after 6 s", "bytes": {"up": 20}, "commands": ["a 3"]},
    ]
    assert over(told) == {
        "setup": "one",
        # What did not happen in time took longer than all that did.
        "killed_s": {"median": 6.0, "least": 4.0, "greatest": None},
        "said": ["after 4 s", "none", "after 6 s"],
        "bytes": {"up": {"median": 20, "least": 10, "greatest": 30}},
        "commands": ["a 3"],
    }


def test_a_contender_that_always_fails_says_why() -> None:
    told = of_contender([{"load": 1.0, "figures": {"version": "1", "error": "no model"}}])
    assert told["turns"] == 0
    assert told["errors"] == ["no model"]


def test_the_tables_are_those_of_the_kept_result() -> None:
    for page, block in table.blocks(table.read(table.KEPT)).items():
        text = (ROOT / page).read_text(encoding="utf-8")
        assert table.replaced(text, block) == text, f"{page}: python -m benchmarks.peers --write RESULT"


def test_what_is_kept_names_no_folder_of_the_machine() -> None:
    result = {
        "shoal": {"version": "1", "commands": ["/root/x"], "round_s": {"median": 1}, "errors": ["/root/x"]},
        "hivemind": {"setup": "/root/x"},
        "loads": [1.0],
    }
    assert table.kept(result) == {"shoal": {"version": "1", "round_s": {"median": 1}}, "loads": [1.0]}


def test_a_table_has_spreads_and_the_setting_that_suits_each_best() -> None:
    def killed(*values: float | None) -> dict[str, object]:
        return {"version": "1", **over([{"client_killed_s": value, "round_s": 7.0} for value in values])}

    result: table.Result = {
        "shoal": killed(4.0, 3.0, 5.0),
        "flower": killed(50.0, 52.4, 90.0),
        "flower_timeout": killed(70.0, 71.0, 72.0),
        "nvflare": killed(None, None, None),
        "nvflare_three": killed(9.0, 5.25, None),
        "loads": [1.0],
        "repeats": 3,
        "quiet": True,
        "date": "2026-11-20",
        "command": "it",
    }
    rows = table.readme(result).splitlines()
    assert rows[-1] == (
        "| next model after a client is killed | 4 s (3 to 5) | 52 s (50 to 90) | 9 s (5.2 to none within 120 s) |"
    )
    assert "| used in production by others | no | yes | yes |" in rows
    rows = table.comparison(result).splitlines()
    assert "| a client is killed: next model after | 4 s (3 to 5) | 52 s (50 to 90) | none within 120 s |" in rows
    assert rows[-1] == "Measured on 2026-11-20 by `it`: medians of 3 turns of each (least to greatest)."
    averaged = over([{"average_s": 0.25, "client_bytes": {"up": 460_000, "down": 480_000}}])
    assert table.comparison({**result, "hivemind": {"version": "1.1.12", **averaged}}).endswith(
        "\n\nhivemind 1.1.12 trains nothing here: four peers average the same 61,706 values in 0.25 s; each sends and"
        " receives 460 kB, 480 kB for that."
    )
