"""What the seeds of each profile draw: a row per feature, and ``any``, which draws from all of them at once.

A find is pinned as (profile, seed). Each part of a case is drawn from its own stream, so a new row, or a new part of
one row, leaves the cases of all other rows as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dst.algorithms import asking_plan
from dst.any_plan import (
    any_plan,
    chosen_for_plan,
    drawn_plan,
    equal_plan,
    fixed_local_plan,
    of_any_length_plan,
    passes_plan,
    sized_shared_plan,
    sometimes,
    unsealed_words_plan,
)
from dst.plans import averaged, clipped, over_hubs, stepped
from dst.targeted_faults import MOMENTS, SEAL_MOMENTS
from dst.trust_plans import (
    believing_plan,
    compared_plan,
    cut_unseen_plan,
    helped_plan,
    led_plan,
    noisy_plan,
    private_plan,
    private_shape_plan,
    sealed_plan,
    sealed_shape_plan,
    short_words_plan,
)
from shoal.plan import Plan
from shoal.sim.rng import Stream

PlanDraw = Callable[[Plan, Stream], Plan]


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """What a case has beyond a manager, a few devices, plain jobs and faults."""

    #: Changes of each job's plan, in this order, each with the name of its stream.
    plans: tuple[tuple[str, PlanDraw], ...] = ()
    #: What the faults that wait for a moment wait for.
    moments: tuple[str, ...] = MOMENTS
    #: Shares of cases that have each of these.
    hubs: float = 0.0
    helpers: float = 0.0
    check_ins: float = 0.0
    two_managers: float = 0.0
    browsers: float = 0.0
    #: Trees and shards may need more than nine devices.
    is_large: bool = False


_OUTER = ("outer", stepped)
_TRUST = ("trust", believing_plan)
_SEALED = ("sealed", sealed_plan)
_SEALED_SHAPES = ("sealed shapes", sealed_shape_plan)

PROFILES: dict[str, Profile] = {
    "plain": Profile(),
    "outer": Profile(plans=(_OUTER,)),
    "outer-clip": Profile(plans=(_OUTER, ("clip", clipped))),
    "ema": Profile(plans=(_OUTER, _TRUST, ("ema", averaged))),
    "robust": Profile(plans=(_OUTER, _TRUST)),
    "robust-parts": Profile(plans=(_OUTER, _TRUST, ("parts", compared_plan))),
    "private": Profile(plans=(_OUTER, _TRUST, ("private", private_plan))),
    "private-shapes": Profile(plans=(_OUTER, _TRUST, ("private shapes", private_shape_plan))),
    "sealed": Profile(plans=(_OUTER, _TRUST, _SEALED)),
    "sealed-words": Profile(plans=(_OUTER, _TRUST, _SEALED, ("words", short_words_plan))),
    # An adaptive step amplifies what is rounded: nobody could tell what a version should be.
    "sealed-led": Profile(plans=(_TRUST, _SEALED, ("led", led_plan))),
    "sealed-private": Profile(plans=(_OUTER, _TRUST, ("shares", noisy_plan))),
    "sealed-shapes": Profile(plans=(_OUTER, _TRUST, _SEALED_SHAPES), moments=(*MOMENTS, *SEAL_MOMENTS), is_large=True),
    "sealed-clip": Profile(
        plans=(_OUTER, _TRUST, _SEALED_SHAPES, ("cut unseen", cut_unseen_plan)),
        moments=(*MOMENTS, *SEAL_MOMENTS),
        is_large=True,
    ),
    "helper": Profile(plans=(_OUTER, _TRUST, ("helper", helped_plan)), helpers=1.0),
    "check-in": Profile(plans=(_OUTER, _TRUST), check_ins=1.0),
    "managers": Profile(plans=(_OUTER, _TRUST), check_ins=1.0, two_managers=1.0),
    "hubs": Profile(plans=(_OUTER, ("hubs", over_hubs)), hubs=1.0, is_large=True),
    "any": Profile(
        # The later ones draw from streams of their own: what was drawn before they existed stays.
        plans=(
            ("any", any_plan),
            ("clip", sometimes(clipped)),
            ("ema", sometimes(averaged)),
            ("unsealed words", sometimes(unsealed_words_plan)),
            ("choice", sometimes(chosen_for_plan)),
            ("fixed local", sometimes(fixed_local_plan)),
            ("sized shared", sometimes(sized_shared_plan)),
            ("drawn", sometimes(drawn_plan)),
            ("equal", sometimes(equal_plan)),
            ("passes", sometimes(passes_plan)),
            ("any length", sometimes(of_any_length_plan)),
            ("algorithm", sometimes(asking_plan)),
        ),
        moments=(*MOMENTS, *SEAL_MOMENTS),
        hubs=0.35,
        helpers=0.8,
        check_ins=0.5,
        two_managers=0.4,
        browsers=0.35,
        is_large=True,
    ),
}
