"""The evaluations of a job as a table: a row a version, columns by name. Pure; knows no screen and no cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, overload

from shoal.errors import Misuse

if TYPE_CHECKING:
    from pandas import DataFrame

    from shoal.wire.messages import EvaluationView

_ALWAYS = ("version", "epoch", "seconds", "examples", "loss", "accuracy")


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryRow:
    """How good one version of the model was."""

    version: int
    epoch: int
    #: Since the job began to train.
    seconds: float
    examples: int
    loss: float | None
    accuracy: float | None
    #: Every metric by name; None where there was nothing to count.
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    #: Metrics that are better when they are lower.
    lower: frozenset[str] = frozenset({"loss"})

    @classmethod
    def of(cls, view: EvaluationView) -> HistoryRow:
        return cls(
            version=view.version,
            epoch=view.epoch,
            seconds=view.seconds,
            examples=view.examples,
            loss=view.loss,
            accuracy=view.accuracy,
            metrics={metric.name: metric.value for metric in view.metrics},
            lower=frozenset({"loss"} | {metric.name for metric in view.metrics if metric.lower}),
        )

    @property
    def measured(self) -> dict[str, float]:
        """What was measured, by name: loss, accuracy and every metric that has a value."""
        found = {"loss": self.loss, "accuracy": self.accuracy, **self.metrics}
        return {name: value for name, value in found.items() if value is not None}

    def to_dict(self) -> dict[str, float | int | None]:
        return {**self.metrics, **{name: getattr(self, name) for name in _ALWAYS}}

    def __getitem__(self, name: str) -> float | int | None:
        return self.to_dict()[name]


class History(Sequence[HistoryRow]):
    """``history[-1].loss``, ``history["loss"]``, ``history.to_dataframe()``; oldest version first."""

    def __init__(self, views: Iterable[EvaluationView] = ()) -> None:
        self._rows: list[HistoryRow] = []
        self.take(views)

    def take(self, views: Iterable[EvaluationView]) -> tuple[HistoryRow, ...]:
        """Add what a cluster tells, and give the rows that are new. A version that was judged again is new."""
        known = {row.version: row for row in self._rows}
        told = {row.version: row for row in map(HistoryRow.of, views)}
        new = tuple(told[version] for version in sorted(told) if known.get(version) != told[version])
        if new:
            known |= told
            self._rows = [known[version] for version in sorted(known)]
        return new

    @property
    def columns(self) -> tuple[str, ...]:
        more = {name: None for row in self._rows for name in row.metrics if name not in _ALWAYS}
        return (*_ALWAYS, *more)

    def to_dataframe(self) -> DataFrame:
        """The table as pandas has it, indexed by nothing but its order."""
        try:
            import pandas
        except ImportError:
            raise Misuse("a data frame needs pandas: pip install pandas") from None
        return pandas.DataFrame([row.to_dict() for row in self._rows], columns=list(self.columns))

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[HistoryRow]:
        return iter(self._rows)

    @overload
    def __getitem__(self, key: int) -> HistoryRow: ...
    @overload
    def __getitem__(self, key: slice) -> list[HistoryRow]: ...
    @overload
    def __getitem__(self, key: str) -> list[Any]: ...
    def __getitem__(self, key: int | slice | str) -> HistoryRow | list[HistoryRow] | list[Any]:
        if not isinstance(key, str):
            return self._rows[key]
        if key not in self.columns:
            raise KeyError(f"{key!r} is not in this history; it has {', '.join(self.columns)}")
        return [row.to_dict().get(key) for row in self._rows]

    def __repr__(self) -> str:
        latest = f", latest {self._rows[-1].measured}" if self._rows else ""
        return f"<History: {len(self)} evaluations{latest}>"

    def _repr_html_(self) -> str:
        return table_html(self)


def table_html(history: History, rows: int = 50) -> str:
    """The latest rows as an HTML table."""
    columns = history.columns
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{_cell(row.to_dict().get(name))}</td>' for name in columns)}</tr>"
        for row in history[-rows:]
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: float | int | None) -> str:
    return "–" if value is None else str(value) if isinstance(value, int) else f"{value:.4g}"
