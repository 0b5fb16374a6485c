"""``shoal.offload``: let others multiply for a model that is trained here. Imports torch when it is called."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from shoal.errors import Misuse
from shoal.offload.cost import MASK_POOLS, Privacy, Verify, check_modes
from shoal.offload.products import Products

if TYPE_CHECKING:
    from torch import nn

Model = TypeVar("Model", bound="nn.Module")


def offload(
    model: Model,
    pool: str | Path | Sequence[str | Path] | Products,
    *,
    privacy: Privacy = "mask",
    verify: Verify = "freivalds",
    send: Literal["worth", "all"] = "worth",
) -> Model:
    """Let executors that need not be trusted do the large products of ``model``; train it in a loop of your own.

    ``pool`` is the home of a cluster that you operate or a line to join one, a list of these, or anything that
    multiplies (``shoal.offload.products.Products``). The model's ``Linear`` and ``Conv2d`` layers are changed in place;
    parameters, ``state_dict`` and autograd are as before.

    ``privacy``: with ``"mask"`` nobody learns the examples, as long as two pools do not collude: it takes two, and
    weight gradients stay here. ``"shuffle"`` only makes it harder. ``"none"`` hides nothing. ``verify``:
    ``"freivalds"`` checks each result for a few percent of its cost; ``"replicate"`` compares three.

    What is sent is what the cost model says is faster away; the log (``"shoal"``) tells, layer by layer. ``send="all"``
    sends whatever can be sent.
    """
    from shoal.offload.torch.wrap import offload as offloaded

    check_modes(privacy, verify)
    if isinstance(pool, str | Path):
        pool = [pool]
    if not isinstance(pool, Sequence):
        return offloaded(model, pool, privacy=privacy, verify=verify, send=send)
    if privacy == "mask" and len(pool) < MASK_POOLS:
        raise Misuse(
            f"privacy='mask' takes {MASK_POOLS} pools that do not collude, and there is {len(pool)}: "
            "name another, or say privacy='none' if executors may see the examples"
        )
    from shoal.offload.runtime.borrowed import Borrowed

    borrowed = Borrowed(pool, privacy=privacy, verify=verify)
    try:
        return offloaded(model, borrowed, privacy=privacy, verify=verify, send=send, at_end=borrowed.close)
    except BaseException:
        borrowed.close()
        raise
