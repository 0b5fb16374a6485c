"""Questions that rules ask about a plan."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from shoal.compress.codec import Codec
from shoal.errors import Misuse
from shoal.learning.blt_table import VERSIONS_MAX
from shoal.learning.privacy import PARTICIPATIONS_MAX, SharedPrivacy
from shoal.sealing.graph import GROUP_MAX, shape_of

if TYPE_CHECKING:
    from shoal.learning.privacy import Privacy
    from shoal.plan import Plan


def is_chain(plan: Plan) -> bool:
    return plan.topology == "chain"


def is_sealed(plan: Plan) -> bool:
    return plan.believes.sealed is not None


def is_private(plan: Plan) -> bool:
    return plan.believes.private is not None


def is_compared(plan: Plan) -> bool:
    """The leader compares updates with each other, which it cannot where they are sealed."""
    return plan.believes.rule == "nearest" and plan.believes.sealed is None


def is_clipped(plan: Plan) -> bool:
    return 0 < plan.clip_update < math.inf


def has_helper(plan: Plan) -> bool:
    return plan.believes.helper is not None


def is_coded_shard(plan: Plan) -> bool:
    """Or may become one."""
    return plan.topology in ("shard", "auto") and plan.down != "dense"


def is_led(plan: Plan) -> bool:
    return Codec.parse(plan.codec).form == "led"


def can_be_sealed(plan: Plan) -> bool:
    """Whether the codec sends whole numbers of one size."""
    return Codec.parse(plan.codec).word_bits > 0


def hides_nobody(plan: Plan) -> bool:
    """Whether the smallest sum that is opened has too few honest devices."""
    sealed, least = plan.believes.sealed, plan.opened_least
    if sealed is None or sealed.helper is not None or least > GROUP_MAX:
        return False
    try:
        shape_of(least, sealed.liars_of(least), sealed.lost)
    except Misuse:
        return True
    return False


def account(plan: Plan) -> Privacy | None:
    """Return what the plan promises a person, or None if another rule says why that is not known yet."""
    is_counted = plan.paces[0] in ("buffered", "async") or plan.cohort > 0
    return plan.privacy if is_counted and is_clipped(plan) else None


def shared_account(plan: Plan) -> SharedPrivacy | None:
    """Return the same where devices add the noise."""
    privacy = account(plan)
    is_shared = isinstance(privacy, SharedPrivacy) and plan.paces == ("sync",) and plan.cohort <= plan.group_most
    return privacy if is_shared and isinstance(privacy, SharedPrivacy) else None


def has_many_versions(plan: Plan) -> bool:
    privacy = account(plan)
    if privacy is None or isinstance(privacy, SharedPrivacy):
        return False
    return not 1 <= privacy.versions <= VERSIONS_MAX


def comes_often(plan: Plan) -> bool:
    privacy = account(plan)
    return privacy is not None and privacy.participations > PARTICIPATIONS_MAX


def rests_long(plan: Plan) -> bool:
    privacy = account(plan)
    return privacy is not None and privacy.apart > 1 and privacy.workers_least > plan.workers_min


def has_no_certain_noise(plan: Plan) -> bool:
    privacy = shared_account(plan)
    return privacy is not None and privacy.certain < 1


def needs_too_much_noise(plan: Plan) -> bool:
    privacy = shared_account(plan)
    if privacy is None or privacy.certain < 1 or privacy.participations > PARTICIPATIONS_MAX:
        return False
    try:
        _ = privacy.shares
    except Misuse:
        return True
    return False
