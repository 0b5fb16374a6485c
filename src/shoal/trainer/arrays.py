"""Turns what a task gives as its examples (arrays, dicts, Datasets, iterables) into columns."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils.data import DataLoader

from shoal.errors import Misuse
from shoal.trainer.columns import COLUMNS_MAX, Array, Column, Rows, checked_name, length_of, part_of
from shoal.trainer.shards import SHARD_BYTES, Manifest, blocks_of, value_bytes, write_blocks

#: One value of one example.
Value: TypeAlias = Array | str | bytes
#: What a column's values are, after its first: a number type and how many dimensions, or ``str``, or ``bytes``.
_Form: TypeAlias = tuple[Any, int]

_PROGRESS_EVERY = 4096
_PAIR = ("x", "y")


def write_examples(
    examples: Any,
    directory: Path,
    *,
    shard_bytes: int = SHARD_BYTES,
    read: Callable[[int], None] = lambda done: None,
    wrote: Callable[[int], None] = lambda done: None,
) -> Manifest:
    """Write what ``Task.examples`` gave as shards. Needs the memory of one shard on top of what the task holds."""
    columns = columns_of(examples)
    if columns is not None:
        return write_blocks(blocks_of(columns, shard_bytes), directory, progress=wrote)
    return write_blocks(_blocks_of_items(_items(examples), shard_bytes, read), directory, progress=wrote)


def count_of(examples: Any) -> int:
    """Return how many examples there are, or 0 if that is known only after they are read."""
    if isinstance(examples, Mapping):
        examples = next(iter(examples.values()), ())
    elif isinstance(examples, tuple) or _is_pair_of_columns(examples):
        examples = examples[0] if examples else ()
    return len(examples) if hasattr(examples, "__len__") else 0


def columns_of(examples: Any) -> Rows | None:
    """Return the columns of examples that are given whole: a pair, a dict, a data frame, one array; or None if they
    come one by one."""
    if isinstance(examples, DataLoader):
        raise Misuse(
            "examples() gave a DataLoader, whose items are batches: give what it reads, `loader.dataset`. Batches are"
            " made by the plan's batch_size and the task's collate, in an order that all devices share"
        )
    if _is_frame(examples):
        return _checked(_columns_of_frame(examples))
    if isinstance(examples, Mapping):
        return _checked({checked_name(name): _whole(column, name) for name, column in examples.items()})
    if isinstance(examples, np.ndarray | torch.Tensor):
        return _checked({"x": _whole(examples, "x")})
    if isinstance(examples, tuple) or _is_pair_of_columns(examples):
        if len(examples) != 2:
            count = len(examples)
            raise Misuse(f"examples() gave {count} things; it gives the pair (x, y), or a dict with a name for each")
        return _checked({name: _whole(column, name) for name, column in zip(_PAIR, examples, strict=True)})
    if isinstance(examples, str | bytes) or not (hasattr(examples, "__iter__") or _is_indexable(examples)):
        raise Misuse(
            f"examples() gave {type(examples).__name__}; it gives a pair (x, y), a dict of columns, an array, "
            "a Dataset or an iterable of examples"
        )
    return None


def first_rows(examples: Any, count: int) -> Rows:
    """Return the first examples, at most ``count``. Reads only those from a Dataset or an iterable."""
    columns = columns_of(examples)
    if columns is not None:
        return part_of(columns, 0, count)
    return rows_of(itertools.islice(_items(examples), count))


def rows_of(items: Iterable[Any]) -> Rows:
    """Stack examples that are given one by one."""
    blocks = list(_blocks_of_items(items, 1 << 62, lambda done: None))
    return blocks[0] if blocks else {}


def is_read_by_row(examples: Any) -> bool:
    """Whether single examples can be asked for by number: a Dataset with a length."""
    return _is_indexable(examples) and columns_of(examples) is None


def rows_to_torch(rows: Rows) -> Any:
    """Return examples as ``Task.collate`` takes them.

    Pairs become the tuple (x, y), anything else a dict by column. Rows of one shape are one tensor, rows of unequal
    shapes a list of tensors, text and bytes lists of ``str`` and ``bytes``.
    """
    columns = {name: _column_to_torch(column) for name, column in rows.items()}
    return (columns["x"], columns["y"]) if columns.keys() == set(_PAIR) else columns


def _column_to_torch(column: Column) -> Any:
    if isinstance(column, np.ndarray):
        return torch.from_numpy(column)
    return [torch.from_numpy(value) if isinstance(value, np.ndarray) else value for value in column]


# Examples that are given whole ----------------------------------------------------------------------


def _is_pair_of_columns(examples: Any) -> bool:
    """Return whether these are a pair (x, y): a list of two is one, unless it holds two examples."""
    if not isinstance(examples, list) or len(examples) != 2:
        return False
    return not any(isinstance(part, Mapping | tuple) for part in examples)


def _is_frame(examples: Any) -> bool:
    """Whether these are a data frame of pandas or of a package like it. Works without either package."""
    return all(hasattr(examples, name) for name in ("columns", "dtypes", "to_numpy"))


def _columns_of_frame(frame: Any) -> Rows:
    names = [str(name) for name in frame.columns]
    if len(set(names)) < len(names):
        raise Misuse(f"examples() gave a data frame with two columns of one name: {', '.join(names)}. Rename one")
    return {checked_name(name): _whole(frame[label], name) for name, label in zip(names, frame.columns, strict=True)}


def _checked(columns: Rows) -> Rows:
    length_of(columns)
    return columns


def _whole(column: Any, name: object) -> Column:
    """Return a column. Arrays stay as they are; a list's rows are stacked if they have one shape."""
    if hasattr(column, "column_names") or isinstance(column, Mapping):
        raise Misuse(
            f"examples() gave {name!r} as a {type(column).__name__}: give one split of it, such as data[split]"
        )
    if hasattr(column, "to_numpy"):
        # pandas gives texts and lists as objects.
        values = column.to_numpy()
        column = values.tolist() if values.dtype.kind == "O" else values
    if isinstance(column, list | tuple) and column and not _is_rectangular(column):
        values = [_value(value, f"row {index} of column {name}") for index, value in enumerate(column)]
        return _stacked(_alike(values, str(name)))
    if isinstance(column, np.ndarray) and column.dtype.kind in "US":
        return _whole(column.tolist(), name)
    array = _array(column, str(name))
    if not array.ndim:
        raise Misuse(f"column {name} is a single number: give one value for each example")
    return array


def _is_rectangular(column: Any) -> bool:
    """Whether numpy makes one array of a list. Texts it would make as wide as the longest."""
    if isinstance(column[0], str | bytes | torch.Tensor):
        return False
    try:
        return np.asarray(column).dtype.kind not in "OUS"
    except ValueError:
        return False


def _alike(values: list[Value], name: str) -> list[Value]:
    form = _form(next((value for value in values if not _is_empty(value)), values[0]))
    return [_fitted(value, form, f"row {index} of column {name}") for index, value in enumerate(values)]


def _stacked(values: list[Any]) -> Column:
    first = values[0]
    if isinstance(first, np.ndarray) and all(value.shape == first.shape for value in values):
        return np.stack(values)
    return values


# Examples that come one by one ------------------------------------------------------------------------


def _is_indexable(examples: Any) -> bool:
    return hasattr(examples, "__getitem__") and hasattr(examples, "__len__")


def _items(examples: Any) -> Iterator[Any]:
    # A Hugging Face Dataset reads ahead when it is iterated; a torch Dataset may never stop when it is iterated.
    if _is_indexable(examples) and not hasattr(examples, "column_names"):
        return (examples[index] for index in range(len(examples)))
    return iter(examples)


def _blocks_of_items(items: Iterable[Any], shard_bytes: int, report: Callable[[int], None]) -> Iterator[Rows]:
    forms: dict[str, _Form] = {}
    pending: dict[str, list[Value]] = {}
    size_bytes, count = 0, 0
    for index, item in enumerate(items):
        row = _row(item, f"item {index} of the examples")
        if not forms:
            forms = {name: _form(value) for name, value in row.items()}
            pending = {name: [] for name in row}
        if row.keys() != forms.keys():
            raise Misuse(
                f"item {index} of the examples has the columns {', '.join(row)}; the first has {', '.join(forms)}"
            )
        if index == count:
            _learn_types(forms, row, pending)
        row = {name: _fitted(row[name], form, f"{name} of item {index}") for name, form in forms.items()}
        row_bytes = _bytes_of(row, pending)
        if count and size_bytes + row_bytes > shard_bytes:
            yield {name: _stacked(values) for name, values in pending.items()}
            pending = {name: [] for name in forms}
            size_bytes, count, row_bytes = 0, 0, _bytes_of(row, pending)
        for name, value in row.items():
            pending[name].append(value)
        size_bytes, count = size_bytes + row_bytes, count + 1
        if (index + 1) % _PROGRESS_EVERY == 0:
            report(index + 1)
    if count:
        yield {name: _stacked(values) for name, values in pending.items()}


def _learn_types(forms: dict[str, _Form], row: dict[str, Value], pending: dict[str, list[Value]]) -> None:
    """Record the type of each column at its first value that is not an empty list."""
    for name, before in pending.items():
        if before and _is_empty(before[0]) and not _is_empty(row[name]) and all(map(_is_empty, before)):
            forms[name] = _form(row[name])
            pending[name] = [_fitted(value, forms[name], name) for value in before]


def _is_empty(value: Value) -> bool:
    return isinstance(value, np.ndarray) and not value.size


def _bytes_of(row: dict[str, Value], pending: dict[str, list[Value]]) -> int:
    """Return how many bytes an example adds to a shard that already holds ``pending``."""
    return max(1, sum(_value_bytes(value, pending[name]) for name, value in row.items()))


def _value_bytes(value: Value, before: list[Value]) -> int:
    """Return how many bytes a value adds to its column. Rows of one shape need no offsets."""
    first = before[0] if before else value
    if isinstance(value, np.ndarray) and isinstance(first, np.ndarray) and first.shape == value.shape:
        return value.nbytes
    return value_bytes(value)


def _row(item: Any, where: str) -> dict[str, Value]:
    """Return the columns of one example. A value inside a dict or a tuple gets its own column: ``y.boxes``."""
    row: dict[str, Value] = {}
    if isinstance(item, list) and len(item) == 2:
        item = tuple(item)
    named = _named(item)
    for name, value in named.items() if named is not None else [("x", item)]:
        _flatten(checked_name(name), value, where, row)
    if not row:
        raise Misuse(f"{where} is empty: an example has at least one column")
    return row


def _flatten(name: str, value: Any, where: str, row: dict[str, Value]) -> None:
    named = _named(value)
    if named is None:
        if name in row or len(row) == COLUMNS_MAX:
            raise Misuse(f"{where} has two columns {name}, or more than {COLUMNS_MAX} of them")
        row[name] = _value(value, f"{name} of {where}")
        return
    # Members of a nested tuple are numbered; only the example itself has the names x and y.
    for key, inner in named.items() if isinstance(value, Mapping) else zip(_numbers(value), value, strict=True):
        _flatten(checked_name(f"{name}.{key}"), inner, where, row)


def _named(item: Any) -> dict[str, Any] | None:
    """Return the parts of a dict or a tuple by name, or None if the item is a single value."""
    if isinstance(item, Mapping):
        return dict(item)
    if not isinstance(item, tuple):
        return None
    names = getattr(item, "_fields", None) or (_PAIR if len(item) == 2 else _numbers(item))
    return dict(zip(names, item, strict=True))


def _numbers(item: Any) -> tuple[str, ...]:
    return getattr(item, "_fields", None) or tuple(map(str, range(len(item))))


# One value ------------------------------------------------------------------------------------------


def _value(value: Any, where: str) -> Value:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if value is None:
        raise Misuse(f"{where} is None: leave such examples out, or replace None by a value")
    return _array(value, where)


def _array(value: Any, where: str) -> Array:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        # numpy has no bfloat16, and float32 holds all of it.
        value = value.float() if value.dtype == torch.bfloat16 else value
        array: Array = value.numpy()
    else:
        try:
            array = np.asarray(value)
        except ValueError:
            raise Misuse(f"{where} is a list of lists of unequal lengths: flatten it, or pad it") from None
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        shown = (
            "texts: join them into one" if array.dtype.kind in "US" else f"{array.dtype}: make it an array of numbers"
        )
        raise Misuse(f"{where} is not an array of numbers but of {shown}")
    # float64 would double the bytes on every link, for digits that float32 models do not read.
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _form(value: Value) -> _Form:
    return (value.dtype, value.ndim) if isinstance(value, np.ndarray) else (type(value), 0)


def _fitted(value: Value, form: _Form, where: str) -> Value:
    """Return a value converted to the type of its column's first one, or raise if that would lose digits."""
    found = _form(value)
    if found == form:
        return value
    wanted, dimensions = form
    if not isinstance(value, np.ndarray) or not isinstance(wanted, np.dtype):
        raise Misuse(f"{where} is {_shown(found)}; the first is {_shown(form)}")
    if _is_empty(value):
        return value.astype(wanted).reshape(value.shape if found[1] == dimensions else (0,) * dimensions)
    if found[1] != dimensions:
        raise Misuse(f"{where} has {found[1]} dimensions; the first has {dimensions}: give all of them the same number")
    cast = value.astype(wanted)
    if wanted.kind != "f" and not np.array_equal(cast, value):
        raise Misuse(
            f"{where} is {value.dtype}, and the first is {wanted}, which cannot hold it: give all of them one type"
        )
    return cast


def _shown(form: _Form) -> str:
    return form[0].__name__ if isinstance(form[0], type) else f"an array of {form[0]}"
