"""The registry: tokens spent once, terms never repeated, a history without doubles."""

from __future__ import annotations

import itertools
import math
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.errors import Corrupt, Misuse, ShoalError
from shoal.scheduling.ledger import Applied
from shoal.states import JobState
from shoal.store.base import Database
from shoal.store.registry import Registry
from shoal.store.rows import EpochAudit, EvaluationRow, Event, Redeemed
from shoal.store.schema import MIGRATIONS
from shoal.wire.limits import (
    EVENTS_KEPT_PER_JOB,
    NODE_NAME_MAX_CHARS,
    REASON_MAX_CHARS,
    TRACEBACK_MAX_CHARS,
    TRACEBACKS_KEPT_PER_JOB,
)
from shoal.wire.messages import MetricView

Open = Callable[[], Database]


@pytest.fixture
def with_job(registry: Registry) -> Registry:
    registry.add_job(job="j1", name="mnist", spec_json='{"a":1}', now_s=100.0)
    return registry


def batch(number: int, *, epoch: int = 0, version: int = 1, node: str = "pi") -> Applied:
    return Applied(epoch=epoch, batch=number, version=version, node=node, lease=1000 + number)


def evaluation(version: int, loss: float = 0.5) -> EvaluationRow:
    return EvaluationRow(version=version, epoch=0, accuracy=0.9, loss=loss, examples=100, at_s=5.0)


# The file -----------------------------------------------------------------------------------------


def test_it_is_durable_private_and_survives_reopening(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    with Registry(path) as registry:
        registry.add_job(job="j1", name="mnist", spec_json="{}", now_s=1.0)
    assert path.stat().st_mode & 0o777 == 0o600
    with Registry(path) as registry:
        assert [job.job for job in registry.jobs()] == ["j1"]
        for pragma, value in (("journal_mode", "wal"), ("synchronous", 2), ("foreign_keys", 1)):
            (row,) = registry._database.rows(f"PRAGMA {pragma}")
            assert row[pragma] == value


def test_a_newer_schema_is_refused_with_advice(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    Registry(path).close()
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(Misuse, match="written by a newer Shoal"):
        Registry(path)


def test_a_damaged_file_is_called_damaged(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    path.write_bytes(b"this is not a database" * 1000)
    with pytest.raises(Corrupt, match="restore the file from a copy"):
        Registry(path)


def test_a_closed_registry_says_so(registry: Registry) -> None:
    registry.close()
    with pytest.raises(Misuse, match="closed"):
        registry.jobs()


@pytest.mark.parametrize("version", [1 << 64, -(1 << 64)])
def test_values_that_do_not_fit_are_our_mistake(with_job: Registry, version: int) -> None:
    with pytest.raises(Misuse, match="cannot hold"):
        with_job.record_applied("j1", [batch(1, version=version)])
    with pytest.raises(Misuse, match="cannot hold"):
        with_job.save_progress("j1", "\ud800")
    assert with_job.applied("j1") == []


def test_two_registries_on_one_database_see_each_other(open_database: Open) -> None:
    with Registry(open_database()) as one, Registry(open_database()) as other:
        one.add_job(job="j1", name="a", spec_json="{}", now_s=1.0)
        assert [other.next_term("j1"), one.next_term("j1"), other.next_term("j1")] == [1, 2, 3]


# Tokens -------------------------------------------------------------------------------------------


def test_a_token_is_spent_and_the_secret_is_nowhere(registry: Registry, tmp_path: Path) -> None:
    registry.add_token(secret="s3cret-value", role="worker", uses=2, now_s=10.0, label="kitchen")
    assert registry.redeem_token("s3cret-value", "pi", 11.0) == ("pi", "worker")
    assert registry.redeem_token("s3cret-value", "pi", 12.0) == Redeemed(node="pi-2", role="worker")
    refusal = registry.redeem_token("s3cret-value", "pi", 13.0)
    assert isinstance(refusal, str)
    assert "used up" in refusal
    assert [(node.node, node.role, node.state) for node in registry.nodes()] == [
        ("pi", "worker", "enrolled"),
        ("pi-2", "worker", "enrolled"),
    ]
    assert registry.tokens()[0].uses_left == 0
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert all(b"s3cret-value" not in path.read_bytes() for path in files)
    assert "s3cret-value" not in str(registry._database.rows("SELECT * FROM tokens"))


def test_unknown_expired_and_revoked_tokens_are_refused(registry: Registry) -> None:
    token = registry.add_token(secret="a", role="worker", uses=5, now_s=10.0, expires_s=20.0)
    assert "unknown" in str(registry.redeem_token("b", "pi", 11.0))
    assert isinstance(registry.redeem_token("a", "pi", 19.9), Redeemed)
    assert "expired" in str(registry.redeem_token("a", "pi", 20.0))
    assert registry.revoke_token(token.secret_sha256)
    assert not registry.revoke_token(token.secret_sha256)
    assert "revoked" in str(registry.redeem_token("a", "pi", 12.0))
    assert len(registry.nodes()) == 1


def test_a_prefix_is_put_before_names_that_lack_it(registry: Registry) -> None:
    registry.add_token(secret="a", role="worker", uses=9, now_s=1.0, node_prefix="lab-")
    redeemed = [registry.redeem_token("a", wanted, 2.0) for wanted in ("pi", "lab-pi", "pi", "lab-tv")]
    assert [each[0] for each in redeemed] == ["lab-pi", "lab-pi-2", "lab-pi-3", "lab-tv"]


def test_a_long_name_is_shortened_to_make_room_for_its_number(registry: Registry) -> None:
    registry.add_token(secret="a", role="worker", uses=2, now_s=1.0)
    wanted = "n" * NODE_NAME_MAX_CHARS
    names = [registry.redeem_token("a", wanted, 2.0)[0] for _ in range(2)]
    assert names == [wanted, "n" * (NODE_NAME_MAX_CHARS - 2) + "-2"]


@pytest.mark.parametrize("wanted", ["", "..", "a/b", "a\0b", "-a", "a.", "a\n", "é", "n" * 64, "x" * 10_000, "\ud800"])
def test_a_name_that_could_hurt_costs_no_use(registry: Registry, wanted: str) -> None:
    registry.add_token(secret="a", role="worker", uses=1, now_s=1.0)
    refusal = registry.redeem_token("a", wanted, 2.0)
    assert isinstance(refusal, str)
    assert "cannot be used" in refusal
    assert len(refusal) < 300
    assert registry.tokens()[0].uses_left == 1
    assert registry.nodes() == []


def test_threads_never_share_a_use_or_a_name(registry: Registry) -> None:
    registry.add_token(secret="a", role="worker", uses=20, now_s=1.0)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: registry.redeem_token("a", "pi", 2.0), range(30)))
    names = [result.node for result in results if isinstance(result, Redeemed)]
    assert len(names) == len(set(names)) == 20


def test_token_arguments_are_checked(registry: Registry) -> None:
    registry.add_token(secret="a", role="worker", uses=1, now_s=1.0)
    for arguments in ({"secret": "a"}, {"secret": "b", "uses": 0}, {"secret": "c", "node_prefix": "../"}):
        with pytest.raises(Misuse):
            registry.add_token(**{"role": "worker", "uses": 1, "now_s": 1.0} | arguments)  # type: ignore[arg-type]
    assert len(registry.tokens()) == 1


# Nodes and jobs -----------------------------------------------------------------------------------


def test_a_node_keeps_when_it_was_first_seen(registry: Registry) -> None:
    registry.upsert_node(node="pi", role="worker", facts_json="{}", state="idle", now_s=1.0)
    registry.upsert_node(node="pi", role="leader", facts_json='{"cores":4}', state="busy", now_s=9.0)
    (node,) = registry.nodes()
    assert (node.role, node.facts_json, node.state) == ("leader", '{"cores":4}', "busy")
    assert (node.first_seen_s, node.last_seen_s) == (1.0, 9.0)


def test_a_job_lives_and_ends(with_job: Registry) -> None:
    job = with_job.job("j1")
    assert job is not None
    assert (job.name, job.spec_json, job.state, job.term, job.progress_json) == (
        "mnist",
        '{"a":1}',
        "queued",
        0,
        "{}",
    )
    with_job.set_job_state("j1", JobState.RUNNING, now_s=101.0)
    with_job.save_progress("j1", '{"epoch":2}')
    with_job.set_job_state("j1", JobState.FAILED, now_s=102.0, reason="no workers" * 1000)
    (job,) = with_job.jobs()
    assert (job.state, job.ended_s, job.progress_json) == ("failed", 102.0, '{"epoch":2}')
    assert len(job.reason) == REASON_MAX_CHARS
    with_job.set_job_state("j1", JobState.RUNNING, now_s=103.0)
    (job,) = with_job.jobs()
    assert (job.ended_s, job.reason) == (None, "")


def test_jobs_are_told_apart(with_job: Registry) -> None:
    assert with_job.job("other") is None
    with pytest.raises(Misuse, match="exists already"):
        with_job.add_job(job="j1", name="again", spec_json="{}", now_s=2.0)
    unknown = [
        lambda: with_job.set_job_state("j9", JobState.RUNNING, now_s=2.0),
        lambda: with_job.save_progress("j9", "{}"),
        lambda: with_job.next_term("j9"),
        lambda: with_job.record_applied("j9", [batch(1)]),
        lambda: with_job.restore_applied("j9", [batch(1)], after=0),
        lambda: with_job.add_evaluation("j9", evaluation(1)),
    ]
    for use in unknown:
        with pytest.raises(Misuse, match="there is no job 'j9'"):
            use()


def test_terms_only_rise_even_over_restarts(open_database: Open) -> None:
    terms = []
    for opening in range(3):
        with Registry(open_database()) as registry:
            if not opening:
                registry.add_job(job="j1", name="a", spec_json="{}", now_s=1.0)
            terms += [registry.next_term("j1"), registry.next_term("j1")]
    assert terms == [1, 2, 3, 4, 5, 6]


# The history --------------------------------------------------------------------------------------


def test_a_batch_goes_into_the_history_once(with_job: Registry) -> None:
    with_job.record_applied("j1", [batch(1), batch(2), batch(1, epoch=1, version=2)])
    with pytest.raises(Misuse, match=r"batch 2 of epoch 0 went into version 1 \(by pi\); version 5"):
        with_job.record_applied("j1", [batch(3, version=5), batch(2, version=5)])
    assert [(row.epoch, row.batch) for row in with_job.applied("j1")] == [(0, 1), (0, 2), (1, 1)]


def test_rows_and_evaluations_of_a_save_are_written_together_or_not_at_all(with_job: Registry) -> None:
    with pytest.raises(Misuse, match="cannot hold"):
        with_job.record_applied("j1", [batch(1)], [evaluation(1 << 64)])
    assert with_job.applied("j1") == []
    # The save is tried again: nothing of the first attempt stands in its way.
    with_job.record_applied("j1", [batch(1)], [evaluation(1)])
    assert (len(with_job.applied("j1")), len(with_job.evaluations("j1"))) == (1, 1)


def test_jobs_have_histories_of_their_own(with_job: Registry) -> None:
    with_job.add_job(job="j2", name="b", spec_json="{}", now_s=1.0)
    with_job.record_applied("j1", [batch(1)])
    with_job.record_applied("j2", [batch(1)])
    with_job.forget_after("j2", 0)
    assert (len(with_job.applied("j1")), len(with_job.applied("j2"))) == (1, 0)


def test_restoring_makes_the_history_that_of_the_checkpoint(with_job: Registry) -> None:
    with_job.record_applied("j1", [batch(1, version=1), batch(2, version=2), batch(3, version=3)])
    for version in (1, 2, 3):
        with_job.add_evaluation("j1", evaluation(version))
    # The checkpoint of version 2 was written before the table: it carries batch 4, which the table lacks.
    carried = [batch(2, version=2), batch(4, version=2)]

    with_job.restore_applied("j1", carried, after=1, evaluations=[evaluation(2)])

    assert with_job.applied("j1") == [batch(1, version=1), *carried]
    assert [each.version for each in with_job.evaluations("j1")] == [1, 2]
    with_job.record_applied("j1", [batch(3, version=3)])
    assert with_job.audit("j1") == [
        EpochAudit(epoch=0, batches=4, distinct=4, first_version=1, last_version=3),
    ]


def test_who_was_given_each_term_is_remembered_and_what_was_made_in_between_is_counted(with_job: Registry) -> None:
    with_job.save_terms("j1", '{"1": ["a", 0]}')
    stored = with_job.job("j1")
    assert stored is not None
    assert stored.terms_json == '{"1": ["a", 0]}'
    with_job.record_applied("j1", [batch(1, version=1), batch(2, version=2), batch(3, version=3)])
    assert with_job.applied_between("j1", 1, 3) == (2, {batch(2).node, batch(3).node})


def test_a_checkpoint_cannot_carry_what_came_before_its_history(with_job: Registry) -> None:
    with_job.record_applied("j1", [batch(1, version=9)])
    with pytest.raises(Misuse, match="carries a batch of 3"):
        with_job.restore_applied("j1", [batch(2, version=3)], after=3)
    assert with_job.applied("j1") == [batch(1, version=9)]


def test_the_history_of_a_side_that_was_given_up_is_replaced(with_job: Registry) -> None:
    with_job.record_applied("j1", [batch(1, version=1), batch(2, version=2), batch(3, version=3)], [evaluation(3)])
    with_job.restore_applied("j1", [batch(3, version=2), batch(4, version=7)], after=1, evaluations=[evaluation(7)])
    assert with_job.applied("j1") == [batch(1, version=1), batch(3, version=2), batch(4, version=7)]
    assert [each.version for each in with_job.evaluations("j1")] == [7]


def test_a_history_without_an_end_is_thinned_and_still_says_that_each_was_once(
    with_job: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.store.registry.APPLIED_KEPT_PER_JOB", 100)
    for epoch in range(60):
        rows = [batch(n, epoch=epoch, version=10 * epoch + n) for n in range(1, 8)]
        with_job.record_applied("j1", rows[:4])
        with_job.record_applied("j1", rows[4:])
        assert len(with_job.applied("j1")) <= 100
    listed = with_job.applied("j1")
    assert len(listed) >= 75
    assert {row.epoch for row in listed} == set(range(listed[0].epoch, 60)), "whole epochs go, the oldest"
    assert with_job.audit("j1") == [
        EpochAudit(epoch=e, batches=7, distinct=7, first_version=10 * e + 1, last_version=10 * e + 7) for e in range(60)
    ]
    with pytest.raises(Misuse, match="must not apply it again"):
        with_job.record_applied("j1", [batch(7, epoch=59, version=600)])
    with_job.restore_applied("j1", [batch(7, epoch=59, version=597)], after=596)
    assert with_job.audit("j1")[-1].batches == 7
    # Back before what was thinned out: a disk was damaged.
    with_job.forget_after("j1", 15)
    assert [audit.epoch for audit in with_job.audit("j1")] == [0]


def test_one_large_epoch_stays_whole_and_very_old_ones_are_forgotten(
    with_job: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.store.registry.APPLIED_KEPT_PER_JOB", 10)
    monkeypatch.setattr("shoal.store.registry.EPOCHS_KEPT_PER_JOB", 5)
    with_job.record_applied("j1", [batch(n, epoch=0) for n in range(30)])
    with_job.record_applied("j1", [batch(n, epoch=1, version=2) for n in range(30)])
    assert len(with_job.applied("j1")) == 60, "the last two epochs stay"
    for epoch in range(2, 40):
        with_job.record_applied("j1", [batch(n, epoch=epoch, version=epoch + 1) for n in range(4)])
    epochs = [audit.epoch for audit in with_job.audit("j1")]
    assert epochs == list(range(epochs[0], 40))
    assert len(epochs) <= 5 + 3


def test_rows_of_another_job_are_left_alone(with_job: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.store.registry.APPLIED_KEPT_PER_JOB", 10)
    with_job.add_job(job="j2", name="other", spec_json="{}", now_s=1.0)
    with_job.record_applied("j2", [batch(n, epoch=n, version=n) for n in range(8)])
    for epoch in range(30):
        with_job.record_applied("j1", [batch(1, epoch=epoch, version=epoch)])
    assert len(with_job.applied("j2")) == 8
    assert len(with_job.applied("j1")) <= 10


# Events and evaluations ---------------------------------------------------------------------------


def test_events_are_numbered_paged_and_bounded(with_job: Registry) -> None:
    assert with_job.add_events("j1", []) == 0
    assert with_job.add_events("j1", [(1.0, "join", "pi came"), (2.0, "loss", "x" * 10_000)]) == 2
    first, second = with_job.events_after("j1", 0, limit=10)
    assert first == Event(seq=1, at_s=1.0, kind="join", text="pi came")
    assert len(second.text) == REASON_MAX_CHARS
    # Only what was not seen; and of more than the limit, the latest.
    assert with_job.events_after("j1", 1, limit=10) == with_job.events_after("j1", 0, limit=1) == [second]
    assert with_job.events_after("j1", 0, limit=-1) == []

    last = with_job.add_events("j1", [(3.0, "k", str(n)) for n in range(EVENTS_KEPT_PER_JOB)])
    kept = with_job.events_after("j1", 0, limit=2 * EVENTS_KEPT_PER_JOB)
    assert (kept[0].seq, kept[-1].seq, len(kept)) == (3, last, EVENTS_KEPT_PER_JOB)


def test_tracebacks_are_bounded_and_no_events(with_job: Registry) -> None:
    assert with_job.tracebacks("j1") == []
    for number in range(9):
        with_job.add_tracebacks("j1", [(float(number), f"pi: bug {number}", "x" * 20_000)])
    with_job.add_tracebacks("j2", [(1.0, "a reason\nof two lines", "a\n  b")])
    kept = with_job.tracebacks("j1")
    assert [event.text for event in kept] == [f"pi: bug {n}" for n in range(9 - TRACEBACKS_KEPT_PER_JOB, 9)]
    assert {len(event.traceback) for event in kept} == {TRACEBACK_MAX_CHARS}
    (other,) = with_job.tracebacks("j2")
    assert (other.at_s, other.text, other.traceback) == (1.0, "a reason\nof two lines", "a\n  b")
    assert with_job.events_after("j1", 0, limit=100) == []


def test_the_cluster_itself_has_events(registry: Registry) -> None:
    registry.add_events("", [(1.0, "join", "pi came")])
    assert [event.kind for event in registry.events_after("", 0, limit=10)] == ["join"]


def test_an_evaluation_is_replaced_and_may_have_diverged(with_job: Registry) -> None:
    with_job.add_evaluation("j1", evaluation(1))
    with_job.add_evaluation("j1", evaluation(1, loss=0.25))
    with_job.add_evaluation("j1", evaluation(2, loss=math.nan))
    first, second = with_job.evaluations("j1")
    assert first == evaluation(1, loss=0.25)
    assert second.loss is None


def test_metrics_are_kept_and_rows_of_an_older_schema_have_none(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    metrics = (MetricView(name="f1", value=0.5), MetricView(name="mae", value=None, lower=True))
    before = sqlite3.connect(path)
    older = 7  # the step that brings metrics is the eighth
    for statement in itertools.chain.from_iterable(MIGRATIONS[:older]):
        before.execute(statement)
    before.execute(
        "INSERT INTO jobs (job, name, spec_json, state, reason, term, created_s, progress_json)"
        " VALUES ('j1', 'm', '{}', 'running', '', 1, 1.0, '{}')"
    )
    before.execute("INSERT INTO evaluations VALUES ('j1', 1, 0, 0.9, 0.5, 100, 5.0)")
    before.execute(f"PRAGMA user_version = {older}")
    before.commit()
    before.close()
    with Registry(path) as registry:
        registry.add_evaluation("j1", replace(evaluation(2), accuracy=None, loss=None, metrics=metrics))
        first, second = registry.evaluations("j1")
    assert first == evaluation(1)
    assert (second.accuracy, second.metrics) == (None, metrics)


def test_of_many_evaluations_the_latest_are_given_oldest_first(with_job: Registry) -> None:
    for version in (3, 1, 2, 4):
        with_job.add_evaluation("j1", evaluation(version))
    assert [each.version for each in with_job.evaluations("j1")] == [1, 2, 3, 4]
    assert [each.version for each in with_job.evaluations("j1", latest=2)] == [3, 4]
    assert with_job.evaluations("j1", latest=0) == []


def test_old_evaluations_grow_sparse(with_job: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.store.registry.EVALUATIONS_KEPT_PER_JOB", 20)
    for version in range(1, 301):
        with_job.record_applied("j1", [], [evaluation(version)])
        assert len(with_job.evaluations("j1")) <= 20
    kept = [each.version for each in with_job.evaluations("j1")]
    assert kept[0] == 1, "where it began is known"
    assert kept[-10:] == list(range(291, 301)), "the newest are whole"
    gaps = [later - earlier for earlier, later in itertools.pairwise(kept)]
    assert gaps == sorted(gaps, reverse=True), "the older, the sparser"


def test_a_lock_held_too_long_is_an_error_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.store.sqlite.BUSY_TIMEOUT_S", 0.05)
    with Registry(tmp_path / "r.db") as registry:
        other = sqlite3.connect(tmp_path / "r.db", isolation_level=None)
        try:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(ShoalError, match="second manager"):
                registry.add_job(job="j1", name="a", spec_json="{}", now_s=1.0)
        finally:
            other.close()
        registry.add_job(job="j1", name="a", spec_json="{}", now_s=1.0)
