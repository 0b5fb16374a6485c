"""Numbers, spans and strange texts, as people read them on a terminal. Pure functions; knows no message."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from shoal.errors import Misuse

if TYPE_CHECKING:
    from shoal.wire.messages import MetricView

NOTHING = "–"

_BARS = "▁▂▃▄▅▆▇█"
_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_COUNT_UNITS = ("", "k", "M", "G", "T")
_SPAN = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?(s|m|min|h)?")
_SPAN_UNITS_S = {None: 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}

#: Within this much of the typical pace, a device is neither slow nor fast.
_TYPICAL = 1.25


def clean(text: str, limit_chars: int = 0) -> str:
    """One printable line. Peers choose these texts, and on a terminal an escape sequence is a command."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if not limit_chars or len(line) <= limit_chars else line[: max(0, limit_chars - 1)] + "…"


def bytes_text(size_bytes: float) -> str:
    """1_500_000 -> ``1.5 MB``. Powers of ten, as network links and disks are sold."""
    value, unit = _scaled(size_bytes, _BYTE_UNITS)
    return f"{value} {unit}".rstrip()


def count_text(count: float) -> str:
    """3_140 -> ``3.1k``."""
    value, unit = _scaled(count, _COUNT_UNITS)
    return f"{value}{unit}"


def _scaled(value: float, units: Sequence[str]) -> tuple[str, str]:
    if not math.isfinite(value):
        return "∞", ""
    step = 0
    # 999.95 is already shown as 1000.0, so the next unit begins there.
    while abs(value) >= (999.95 if step else 999.5) and step < len(units) - 1:
        value, step = value / 1000, step + 1
    return (f"{value:.1f}" if step else f"{value:.0f}"), units[step]


def rate_text(per_s: float) -> str:
    """A rate with as many digits as mean something."""
    if not math.isfinite(per_s):
        return "∞"
    return count_text(per_s) if per_s >= 100 else f"{per_s:.1f}" if per_s >= 1 else f"{per_s:.2g}"


def span_text(span_s: float) -> str:
    """75.2 -> ``1 min 15 s``."""
    if not math.isfinite(span_s):
        return "∞"
    if abs(span_s) < 9.95:
        return f"{span_s:.1f} s"
    whole = round(span_s)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 172_800:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86_400} days {whole % 86_400 // 3600} h"


def parse_span(text: str) -> float:
    """``10s``, ``5m`` or ``1h`` as seconds; without a unit it is seconds."""
    found = _SPAN.fullmatch(text.strip())
    if not found:
        raise Misuse(f"a span is written such as 10s, 5m or 1h; {text!r} is not")
    return float(found[1]) * _SPAN_UNITS_S[found[2]]


def lease_text(span_s: float) -> str:
    """A short span, with its digits where it is short."""
    if span_s <= 0:
        return NOTHING
    if span_s < 1:
        return f"{span_s * 1000:.0f} ms"
    return f"{span_s:.2f} s" if span_s < 10 else span_text(span_s)


def share_text(share: float | None, digits: int = 2) -> str:
    """0.9764 -> ``97.64 %``."""
    return NOTHING if share is None else f"{share * 100:.{digits}f} %" if math.isfinite(share) else "∞"


def number_text(value: float | None) -> str:
    """A loss: four digits that mean something."""
    return NOTHING if value is None else f"{value:.4g}" if math.isfinite(value) else "∞"


def metric_text(metric: MetricView | None) -> str:
    """``97.64 %`` of an accuracy; else four digits."""
    if metric is None:
        return NOTHING
    return share_text(metric.value) if metric.name == "accuracy" else number_text(metric.value)


def metrics_text(metrics: Sequence[MetricView]) -> str:
    """``accuracy 97.64 %, loss 0.08``."""
    return ", ".join(f"{clean(metric.name, 30)} {metric_text(metric)}" for metric in metrics)


def slowness_text(slowness: float) -> str:
    """How a device's pace compares with the typical one."""
    if slowness >= _TYPICAL:
        return f"{_factor(slowness)} slower"
    if 0 < slowness <= 1 / _TYPICAL:
        return f"{_factor(1 / slowness)} faster"
    return "average"


def is_slow(slowness: float) -> bool:
    return slowness >= _TYPICAL


def _factor(ratio: float) -> str:
    return f"{ratio:.1f}x" if ratio < 100 else f"{count_text(ratio)}x"


def sparkline(values: Sequence[float], width: int) -> str:
    """The last ``width`` values as bars, the lowest of them at the bottom and the highest at the top."""
    shown = [value for value in values if math.isfinite(value)][-max(0, width) :] if width > 0 else []
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    if high == low:
        return _BARS[len(_BARS) // 2] * len(shown)
    return "".join(_BARS[round((value - low) / (high - low) * (len(_BARS) - 1))] for value in shown)


def plural(count: int, one: str, many: str = "") -> str:
    """``1 device``, ``2 devices``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
