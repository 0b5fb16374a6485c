"""Who says too much is slowed down, who breaks the contract again and again is turned away, and for how long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import PeerViolation
from shoal.net.conduct import Bucket, Conduct, Rate, TurnedAway
from shoal.wire.limits import (
    CONTROL_MESSAGES_BURST,
    CONTROL_MESSAGES_PER_S,
    FETCHES_BURST,
    FETCHES_PER_S,
    OFFENCES_MAX,
    OPENING_WAIT_MAX_S,
    OPENINGS_BURST,
    OPENINGS_PER_S,
    RENEWALS_BURST,
    TURNED_AWAY_LONGEST_S,
    TURNED_AWAY_S,
)
from shoal.wire.messages import Lane


def offend_until_away(conduct: Conduct, node: str, now_s: float) -> str:
    verdicts = [conduct.offend(node, f"offence {number}", now_s) for number in range(OFFENCES_MAX + 1)]
    assert verdicts[:-1] == [""] * OFFENCES_MAX
    return verdicts[-1]


def is_away(conduct: Conduct, node: str, now_s: float) -> bool:
    try:
        conduct.admit(node, now_s)
    except TurnedAway:
        return True
    return False


def test_a_bucket_waits_for_what_it_does_not_have() -> None:
    bucket = Bucket.full(Rate(burst=3, per_s=2), 0.0)
    assert [bucket.spend(1, 0.0) for _ in range(5)] == [0.0, 0.0, 0.0, 0.5, 1.0]
    # Two seconds give four tokens: two for the debt, two to spend; and it never holds more than its burst.
    assert [bucket.spend(1, 2.0) for _ in range(3)] == [0.0, 0.0, 0.5]
    assert [bucket.spend(1, 100.0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0.5, 5)), max_size=50))
def test_whoever_waits_as_told_never_exceeds_the_rate(steps: list[tuple[float, float]]) -> None:
    rate = Rate(burst=4, per_s=2)
    bucket, now_s, spent = Bucket.full(rate, 0.0), 0.0, 0.0
    for pause_s, cost in steps:
        now_s += pause_s
        now_s += bucket.spend(cost, now_s)
        spent += cost
        assert spent <= rate.burst + rate.per_s * now_s + 1e-6


def test_a_debt_has_an_end() -> None:
    bucket = Bucket.full(Rate(burst=4, per_s=2), 0.0)
    assert max(bucket.spend(1, 0.0) for _ in range(1000)) == 2.0
    assert bucket.spend(10, 0.0) == 5.0
    assert bucket.spend(1, 5.0) == 0.5


def test_an_honest_peer_never_waits() -> None:
    conduct = Conduct()
    assert conduct.open("device-1", "Work", 0.0) == conduct.open("device-1", "Work", 0.0) == 0.0
    for second in range(1000):
        assert conduct.hear("device-1", Lane.CONTROL, float(second)) == 0.0
        for lease in range(100):
            assert conduct.hear("device-1", Lane.WORK, second + lease / 100) == 0.0
        if second % 30 == 0:
            # A lease that ran out now and then.
            assert conduct.offend("device-1", "late", float(second)) == ""
    conduct.admit("device-1", 1000.0)


def test_a_flood_is_read_slowly_and_nobody_else_pays_for_it() -> None:
    conduct = Conduct()
    waits_s = [conduct.hear("liar", Lane.CONTROL, 0.0) for _ in range(CONTROL_MESSAGES_BURST + 100)]
    assert waits_s[CONTROL_MESSAGES_BURST - 1] == 0.0
    assert waits_s[-1] == pytest.approx(100 / CONTROL_MESSAGES_PER_S)
    # Its own work is counted apart, and so is everyone else.
    assert conduct.hear("liar", Lane.WORK, 0.0) == 0.0
    assert conduct.hear("device-1", Lane.CONTROL, 0.0) == 0.0


def test_a_dear_message_counts_for_many() -> None:
    conduct = Conduct()
    assert conduct.hear("liar", Lane.CONTROL, 0.0, cost=CONTROL_MESSAGES_BURST) == 0.0
    assert conduct.hear("liar", Lane.CONTROL, 0.0, cost=25) == pytest.approx(25 / CONTROL_MESSAGES_PER_S)


def test_streams_are_put_off_and_then_refused_and_come_again_later() -> None:
    conduct = Conduct()
    put_off = int(OPENING_WAIT_MAX_S * OPENINGS_PER_S)
    for number in range(OPENINGS_BURST + put_off):
        assert conduct.open("liar", "Work", 0.0) <= OPENING_WAIT_MAX_S, number
    for _ in range(1000):
        with pytest.raises(PeerViolation, match="liar: opens more than 16 streams a second"):
            conduct.open("liar", "Work", 0.0)
    # A thousand knocks cost nothing: a moment later the next is put off as the last one was.
    assert conduct.open("liar", "Work", 1.0) <= OPENING_WAIT_MAX_S


def test_who_offends_again_and_again_is_turned_away_and_told_why() -> None:
    conduct = Conduct()
    verdict = offend_until_away(conduct, "liar", 100.0)
    assert verdict == (
        "is turned away for 10 s: broke the contract more than 10 times within a minute, last: offence 10"
    )
    with pytest.raises(TurnedAway, match="liar: turned away for 10 s more, last for: offence 10"):
        conduct.admit("liar", 100.0)
    with pytest.raises(TurnedAway):
        conduct.hear("liar", Lane.WORK, 109.0)
    assert not is_away(conduct, "liar", 110.0)
    assert not is_away(conduct, "device-1", 100.0)


def test_each_time_is_longer_up_to_a_limit_and_forgiven_after_long() -> None:
    conduct, now_s, spans_s = Conduct(), 0.0, []
    for _ in range(9):
        offend_until_away(conduct, "liar", now_s)
        began_s = now_s
        while is_away(conduct, "liar", now_s):
            now_s += 1.0
        spans_s.append(now_s - began_s)
    assert spans_s == [10, 20, 40, 80, 160, 320, 640, 640, 640]
    now_s += TURNED_AWAY_LONGEST_S + 1
    offend_until_away(conduct, "liar", now_s)
    assert is_away(conduct, "liar", now_s + TURNED_AWAY_S - 1)
    assert not is_away(conduct, "liar", now_s + TURNED_AWAY_S)


def test_offences_far_apart_are_only_counted() -> None:
    conduct = Conduct()
    assert {conduct.offend("clumsy", "a slip", 6.0 * number) for number in range(500)} == {""}


def test_knocking_while_turned_away_makes_it_no_longer() -> None:
    conduct = Conduct()
    offend_until_away(conduct, "liar", 0.0)
    assert {conduct.offend("liar", "knocks", 5.0) for _ in range(100)} == {""}
    assert not is_away(conduct, "liar", TURNED_AWAY_S)


def test_an_offence_of_any_length_is_kept_short() -> None:
    conduct = Conduct()
    for _ in range(OFFENCES_MAX):
        conduct.offend("liar", "x" * 5000, 0.0)
    assert len(conduct.offend("liar", "x" * 5000, 0.0)) < 400


def test_calls_that_are_no_streams_have_rates_of_their_own() -> None:
    conduct = Conduct()
    for _ in range(RENEWALS_BURST):
        assert conduct.open("pi", "Renew", 0.0) == 0.0
    with pytest.raises(PeerViolation, match="opens more than 1 calls of Renew a minute"):
        conduct.open("pi", "Renew", 0.0)
    assert conduct.open("pi", "Work", 0.0) == 0.0
    assert conduct.open("another", "Renew", 0.0) == 0.0
    assert conduct.open("pi", "Renew", 60.0) == 0.0
    # Commands and blobs are put off before they are refused.
    waits_s = [conduct.open("pi", "Fetch", 0.0) for _ in range(FETCHES_BURST + FETCHES_PER_S)]
    assert waits_s[FETCHES_BURST - 1] == 0.0
    assert waits_s[-1] == pytest.approx(1.0)
