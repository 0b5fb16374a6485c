"""Connect the layers of a model to a desk, and disconnect them. Knows layers, not how products are computed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeVar, get_args

from torch import nn

from shoal.errors import Misuse
from shoal.offload.cost import Privacy, Shape, Verdict, Verify, check_modes, worth
from shoal.offload.products import Advertises, Products, Report, Secret
from shoal.offload.torch.desk import Decision, Desk, Weigh, log
from shoal.offload.torch.layers import Conv2d, Linear, why_not

Model = TypeVar("Model", bound=nn.Module)
#: ``worth``: what is faster away, by the cost model. ``all``: every product of the layers that can be sent.
Send = Literal["worth", "all"]

_AWAY: dict[type[nn.Module], type[Linear] | type[Conv2d]] = {nn.Linear: Linear, nn.Conv2d: Conv2d}
_HOME: dict[type[nn.Module], type[nn.Linear] | type[nn.Conv2d]] = {Linear: nn.Linear, Conv2d: nn.Conv2d}


@dataclass(frozen=True, kw_only=True, slots=True)
class Offloading:
    """The decisions and products of an offloaded model so far."""

    layers: tuple[str, ...]
    decisions: tuple[Decision, ...]
    report: Report


def offload(
    model: Model,
    products: Products,
    *,
    privacy: Privacy,
    verify: Verify,
    send: Send = "worth",
    at_end: Callable[[], None] = lambda: None,
) -> Model:
    """Change the model's Linear and Conv2d layers in place, and give the same model back.

    ``at_end`` is called when the model is brought home: then the products may be closed.
    """
    check_modes(privacy, verify)
    if send not in get_args(Send):
        raise Misuse(f"send is {' or '.join(get_args(Send))}; not {send!r}")
    if not isinstance(model, nn.Module):
        raise Misuse(f"offload takes a torch module, not {type(model).__name__}")
    if any(layers_of(model)):
        raise Misuse("this model is offloaded already: bring it home first (shoal.offload.torch.wrap.bring_home)")
    desk = Desk(products, _weigh(products, privacy, verify, send), at_end=at_end)
    found = 0
    for name, module in model.named_modules():
        why = why_not(module)
        if why is not None:
            desk.say_once(f"{name or 'the model'}: at home: {why}")
        elif type(module) in _AWAY:
            module._desk, module._name = desk, name or "the model"
            module.__class__ = _AWAY[type(module)]
            found += 1
    if not found:
        raise Misuse("this model has no Linear or Conv2d layer whose products could be sent")
    return model


def bring_home(model: Model) -> Model:
    """Undo ``offload``: the layers are torch's own again, with the weights that they have now, and lines are closed."""
    layers = list(layers_of(model))
    if layers:
        layers[0]._desk.at_end()
    for layer in layers:
        home = _HOME[type(layer)]
        del layer.__dict__["_desk"], layer.__dict__["_name"]
        layer.__class__ = home  # type: ignore[assignment]
    return model


def offloading(model: nn.Module) -> Offloading:
    """The decisions for each layer and pass so far, and the report of the products."""
    layers = tuple(layers_of(model))
    if not layers:
        raise Misuse("this model is not offloaded: shoal.offload(model, pool)")
    desk = layers[0]._desk
    return Offloading(
        layers=tuple(layer._name for layer in layers), decisions=desk.decisions, report=desk.products.report
    )


def layers_of(model: nn.Module) -> Iterator[Linear | Conv2d]:
    return (module for module in model.modules() if isinstance(module, Linear | Conv2d))


def _weigh(products: Products, privacy: Privacy, verify: Verify, send: Send) -> Weigh:
    if send == "all":
        return lambda shape, secret, pace: always(secret, privacy, "everything is to be sent")
    if not isinstance(products, Advertises):
        return lambda shape, secret, pace: always(secret, privacy, "the pool does not say what it can")
    began_s = time.monotonic()
    # Imported here: only this needs it.
    from shoal.offload.torch.measure import measured_advert, measured_home

    home, first = measured_home(), measured_advert(products, products)
    log.info("offload: measured for %.1f s: %s, %s", time.monotonic() - began_s, home, first)
    rate = first.bytes_per_s if first is not None else 0.0

    def weigh(shape: Shape, secret: Secret, pace: float) -> Verdict:
        # Asked each time: a pool grows and shrinks.
        pool = products.advert
        if pool is None:
            return Verdict(sends=False, reason="the pool has not said yet what it can", home_s=0.0)
        pool = replace(pool, bytes_per_s=max(rate, pool.bytes_per_s))
        return worth(shape, secret, home=home, pool=pool, privacy=privacy, verify=verify, pace=pace)

    return weigh


def always(secret: Secret, privacy: Privacy, reason: str) -> Verdict:
    """Send, unless that would show a secret."""
    if privacy == "mask" and secret == "both":
        return Verdict(sends=False, reason="both sides are secret, and a mask hides one", home_s=0.0)
    return Verdict(sends=True, reason=reason, home_s=0.0)
