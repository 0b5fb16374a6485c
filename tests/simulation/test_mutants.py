"""Deliberate bugs must be caught: the checks of a simulation can fail, and say what is wrong when they do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from mutants import CAUGHT_BY_A_STORY, MUTANTS, OF_CHECK_INS, OF_CROSSINGS

from dst.fuzz import fuzz
from shoal.errors import Misuse
from shoal.sim.invariants import Violation

ROOT = Path(__file__).parents[2]

#: Mutant -> seeds that are known to catch it, to be tried first: ``python -m benchmarks.protocol_seeds --find``.
KNOWN: dict[str, list[int]] = json.loads(Path(__file__).with_name("mutant_seeds.json").read_text())

#: Mutant -> a part of what is said of it.
SAID = {
    "told_before_durable": "was called durable; the disk has",
    "failed_save_called_durable": "was called durable; the disk has",
    "finished_before_durable": "is over before that was durable",
    "job_not_kept": "was accepted before it was written down",
    "step_without_waiting": "made against version",
    "merged_saved_as_applied": "ledger of epoch 0 and its history differ",
    "every_update_weighs_the_same": "is not what its history says",
    "round_not_cleared": "is not what its history says",
    "expired_lease_merged": "is in state",
    "epoch_closed_early": "was closed with",
    "term_not_raised": "under term",
    "ledger_not_restored": "was leased again",
    "model_not_restored": "is not what its history says",
    "restored_batches_lent_again": "is in state",
    "expired_batches_lost": "did not move",
    "lease_without_end": "did not move",
    "credit_for_everyone": "may be under way, at most 2 fit",
    "unlimited_uploads": "may be under way, at most 2 fit",
    "credit_not_counted": "may be under way, at most 2 fit",
    "upload_place_not_freed": "did not move",
    "silent_after_reconnecting": "did not move",
    "leader_trusts_in_models": "a storm of",
    "history_lost_with_a_failed_save": "history differ",
    "gives_up_at_the_first_failure": "no batch failed more than",
    "workers_not_dismissed": "was given a role in",
    "left_where_it_was": "was left behind in a job that is over",
    "refused_update_sent_again": "is not what its history says",
    "history_lost_during_a_save": "history differ",
    "result_of_another_lease": "is not what its history says",
    "momentum_not_restored": "is not what its history says",
    "duplicate_update_applied": "is not what its history says",
    "back_without_its_job": "did not move",
    "ended_job_led_again": "was given a role in",
    "accepted_before_kept": "was accepted before it was written down",
    "term_kept_after_it_is_used": "was used before it was written down",
    "lost_worker_keeps_its_leases": "was lost and kept lease",
    "evaluations_mixed": "examples; there are",
    "evaluation_closed_early": "examples; there are",
    "evaluation_forgotten": "its last version was not evaluated",
    "last_epoch_left_out": "is called finished: it has",
    "lease_never_expires": "should have ended at",
    "model_changed_under_a_save": "the saved model is not what its history says",
    "stale_term_merged": "was refused term and lease",
    "ending_forgotten": "should have ended, which was durable, and went on",
    "evaluation_lost_with_a_failed_save": "its last version was not evaluated",
    "lost_node_keeps_its_place": "did not move",
    "time_limit_ignored": "its time was over",
    "no_fence_on_versions": "was kept; the term is",
    "kept_before_durable": "was called kept and is not",
    "failed_write_called_kept": "was called kept and is not",
    "appointed_while_a_version_is_written": "was kept; the term is",
    "last_word_said_once": "nobody has led",
    "save_waits_for_a_lost_session": "did not move",
    "handed_over_before_durable": "was kept; the term is",
    "handed_over_with_leases_out": "given out",
    "missed_leader_never_replaced": "nobody has led",
    "missed_leader_replaced_at_once": "was replaced by a manager that began just now",
    "lost_leader_kept": "nobody has led",
    "history_counted_twice": "was applied twice",
    "stepping_down_is_not_heard": "was left behind in a job that is over",
    "worker_stays_with_its_leader": "did not move",
    "complaint_not_heard": "was left behind in a job that is over",
    "update_dropped_without_a_word": "did not move",
    "staleness_not_applied": "is not what its history says",
    "staleness_applied_twice": "is not what its history says",
    "divided_by_damped_weights": "is not what its history says",
    "late_is_late": "is not what its history says",
    "lateness_outlives_its_leader": "is not what its history says",
    "stragglers_count_for_nothing": "is not what its history says",
    "tail_begins_at_its_end": "is not what its history says",
    "one_update_too_many": "updates, the pace is",
    "buffer_waits_at_the_end": "did not move",
    "buffer_lost_at_hand_over": "updates in no version",
    "emptied_after_every_update": "updates, the pace is",
    "piece_counted_twice": "weighs",
    "all_that_came_is_summed_up": "which nobody counted",
    "sum_not_cleared": "weighs",
    "share_without_momentum": "on another model than version",
    "share_begins_at_rest": "on another model than version",
    "buffers_have_momentum": "on another model than version",
    "reported_before_all_have_taken": "has not taken",
    "taken_by_those_before": "has not taken",
    "half_a_model_will_do": "on another model than version",
    "any_values_will_do": "on another model than version",
    "any_sum_will_do": "is not what its history says",
    "one_part_for_all": "on another model than version",
    "lost_aggregator_lent_by": ", which lost ",
    "lent_while_summed_up": "on another model than version",
    "late_is_not_late_in_a_tree": "was counted for",
    "straight_into_a_shard": "on another model than version",
    "all_send_anew_at_once": "may be under way, at most 2 fit",
    "hand_over_waits_for_a_lost_sum": "did not move",
    "disband_not_heard": "was left behind in a job that is over",
    "values_given_once_more": "events",
    "not_sent_is_lost": "is not what its history says",
    "not_sent_is_not_restored": "is not what its history says",
    "changes_made_to_anything": "on another model than version",
    "change_left_out": "on another model than version",
    "part_made_of_the_wrong_one": "on another model than version",
    "moves_are_not_counted": "is not what its history says",
    "what_was_made_beyond_a_cut_is_discarded": "and all of it was discarded for what",
    "leader_fenced_by_a_manager_that_reaches_nobody": "and all of it was discarded for what",
    "older_leader_always_believed": "trained was thrown away for what",
    "first_word_after_a_cut_decides": "was thrown away for what",
    "weighed_before_the_hand_over": "was thrown away for what",
    "judged_without_the_newest_leader": "and all of it was discarded for what",
    "workers_counted_by_one_term": "was thrown away for what 1 did",
    "lease_of_the_last_process_forgotten": "has enough workers and did not move",
    "history_of_both_sides_kept": "was applied twice",
    "away_for_ever": "nobody has led",
}


def first_seed(name: str, said: str, *, profile: str = "plain") -> int | None:
    """A known seed at which this is said of a mutant. Other seeds may show other sides of it."""
    with (MUTANTS | OF_CROSSINGS)[name]():
        for seed in KNOWN[name]:
            try:
                fuzz(profile, seed)
            except (AssertionError, Misuse) as error:
                if said in str(error):
                    return seed
    return None


def test_every_mutant_is_looked_for() -> None:
    assert set(SAID) == set(MUTANTS)
    assert not set(MUTANTS) & set(CAUGHT_BY_A_STORY)


def test_the_table_of_seeds_is_of_these_mutants() -> None:
    """Each is held against the seeds that are known to catch it; ``protocol_seeds`` holds it against many more."""
    assert set(KNOWN) == {*MUTANTS, *OF_CROSSINGS}
    assert all(seeds for seeds in KNOWN.values())


@pytest.mark.timeout(450)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name: str) -> None:
    seed = first_seed(name, SAID[name])
    assert seed is not None, f"{name}: none of {KNOWN[name]} shows it: benchmarks.protocol_seeds --find"
    # The seed fails for the mutant's sake alone.
    fuzz("plain", seed)


#: Mutant where two features meet -> a part of what is said of it.
SAID_OF_CROSSINGS = {
    "tab_leads": "is a tab, and is to be the leader",
    "tab_given_any_job": "which no tab can work for",
    "tab_given_a_job_led_elsewhere": "which it cannot dial",
    "tab_sent_to_another_manager": "is a tab, and was sent to another manager",
    "hub_sent_away": "is a hub, and was told to come again later",
    "participations_read_twice": "says that it took part",
    "participations_begin_again": "says that it took part",
    "word_of_a_dead_term_summed": "was refused term and lease",
    "helper_leads": "is to lead the job whose sums it opens",
    "helper_fills_a_job": "did not move",
    "helper_kept_by_another_manager": "did not move",
    "newest_state_after_a_takeover": "and its history has",
    "merged_again_after_a_check_in": "the saved model is not what its history says",
}


@pytest.mark.parametrize("name", OF_CROSSINGS)
def test_a_mutant_where_two_features_meet_is_caught(name: str) -> None:
    seed = first_seed(name, SAID_OF_CROSSINGS[name], profile="any")
    assert seed is not None, f"{name}: none of {KNOWN[name]} shows it: benchmarks.protocol_seeds --find"
    # The seed fails for the mutant's sake alone.
    fuzz("any", seed)


@pytest.mark.full
@pytest.mark.timeout(450)
@pytest.mark.parametrize("name", CAUGHT_BY_A_STORY)
def test_a_mutant_is_caught_by_its_story(name: str) -> None:
    """The story is a test that passes elsewhere. With the mutant in its code it must fail, in a pytest of its own."""
    _, story = CAUGHT_BY_A_STORY[name]
    paths = [str(ROOT / "tests" / "simulation"), str(ROOT / "tests" / "kits"), *filter(None, sys.path)]
    told = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rf", "--tb=no", "-p", "under_mutant", "-p", "no:cacheprovider", story],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "SHOAL_MUTANT": name},
        capture_output=True,
        text=True,
    )
    # Other codes are of tests that were not found or could not run.
    assert told.returncode == pytest.ExitCode.TESTS_FAILED, told.stdout + told.stderr
    assert f"FAILED {story}" in told.stdout, told.stdout


#: Mutant of devices that check in -> a part of what is said of it.
SAID_OF_CHECK_INS = {
    "sent_away_with_work": "was given work and sent away",
    "told_to_come_never": "was told to come again too late",
    "check_in_not_answered": "checked in and was not served",
    "dormant_given_work": "is dormant and was given work",
}


def first_check_in_seed(name: str) -> int | None:
    with OF_CHECK_INS[name]():
        for seed in range(50_000 + 1, 50_000 + 40):
            try:
                fuzz("check-in", seed)
            except Violation as error:
                if SAID_OF_CHECK_INS[name] in str(error):
                    return seed
    return None


@pytest.mark.parametrize("name", sorted(OF_CHECK_INS))
def test_a_mutant_of_check_ins_is_caught(name: str) -> None:
    seed = first_check_in_seed(name)
    assert seed is not None, f"{name} was not caught"
    # The seed fails for the mutant's sake alone.
    fuzz("check-in", seed)
