"""A task: what to train. The class people subclass; it imports no torch, so that any device can read it."""

from __future__ import annotations

import difflib
import inspect
import json
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from shoal.data.raw_columns import checked_columns
from shoal.errors import Misuse

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor, nn

    from shoal.data.raw_columns import RawColumn, RawColumns
    from shoal.plan import Plan
    from shoal.trainer.lease import TaskLease

Split = Literal["train", "test"]


def class_dimension(output: Sequence[int], y: Sequence[int]) -> int | None:
    """Return the dimension of an output's shape that has the classes of labels of this shape, or None if no dimension
    fits. It is 1 where that fits, as in ``torch.nn.functional.cross_entropy``; else the last, as in language models."""
    sizes, labels = tuple(output), tuple(y)
    if len(sizes) != len(labels) + 1 or len(sizes) < 2:
        return None
    return next((at for at in (1, len(sizes) - 1) if sizes[:at] + sizes[at + 1 :] == labels), None)


class Task:
    """Subclass this, override ``model`` and ``examples``, and perhaps the rest.

    A task is rebuilt on every device from its file and its constructor's arguments, never from its memory. So the
    arguments are recorded when it is made, and must be what JSON can say: numbers, texts, booleans, None, lists, and
    dicts with text keys. Anything else the constructor needs, it computes.

    Shoal calls the methods below and no others. A method with another name would be passed over in silence, so defining
    one is an error, unless its name begins with an underscore: such helpers are yours. So are constants, properties,
    class methods, and whatever a base class brings that is no task.
    """

    #: How this task is trained, unless the person who starts the job says otherwise.
    plan: ClassVar[Plan | None] = None

    #: The columns of the rows that devices have with ``data = "local"``: ``{"x": shoal.column("uint8", (28, 28)),
    #: "y": shoal.column("int64")}``. Any device then reads them from its folder, and ``collate`` (or ``batch``) turns
    #: them into a batch; without, ``examples("train")`` is called on the device, which needs PyTorch.
    columns: ClassVar[Mapping[str, RawColumn]] = {}

    _arguments: dict[str, Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        task = super().__new__(cls)
        task._arguments = _recorded(cls, args, kwargs)
        return task

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, value in vars(cls).items():
            if not name.startswith("_"):
                _check_known(cls, name, value)
            if name == "columns" and not isinstance(value, property):
                checked_columns(value)

    def __init__(self) -> None:
        """Nothing to do; here so that a task without a constructor refuses arguments."""

    @property
    def arguments(self) -> dict[str, Any]:
        """What the constructor was called with, by name: enough to make the same task elsewhere."""
        copied: dict[str, Any] = json.loads(json.dumps(self._arguments))
        return copied

    def model(self) -> nn.Module:
        """Build the model. Called with a seeded generator, on the machine that starts the job and on every device.

        Only tensors that are trained cross the network. Parameters with ``requires_grad = False`` are frozen: devices
        fetch them once, in their own type, up to 64 GiB per tensor. At most 268,435,456 values are trained.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say what to train: define model(self)")

    def examples(self, split: Split) -> Any:
        """The ``"train"`` or the held-out ``"test"`` examples: a pair of arrays (x, y), or a Dataset of pairs.

        Called once, on the machine that starts the job; devices receive the stored arrays. Keep compact types here
        (uint8 images) and unfold them in ``batch``.

        With ``data = "local"`` each device is asked for its own ``"train"`` examples before every lease: they may grow,
        and new ones come last. Read them cheaply (a mapped array, or a Dataset whose rows are read one by one). The
        ``"test"`` examples are still those of the machine that starts the job; None if there are none. A task with
        ``columns`` is asked for ``"test"`` only, except on a device without a folder of rows.
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not say what to learn from: define examples(self, split)"
        )

    @staticmethod
    def loss(output: Tensor, y: Tensor) -> Tensor:
        """The mean loss of a batch. By default, cross entropy of logits with class numbers. ``step`` calls it.

        Classes are the dimension 1 of the logits, or the last where only that fits ``y``: (batch, place, class).
        """
        at = class_dimension(output.shape, y.shape) or 1
        return -output.log_softmax(at).gather(at, y.long().unsqueeze(at)).mean()

    def batch(self, x: Tensor, y: Tensor) -> tuple[Any, Tensor]:
        """Turn stored arrays into what the model and the loss take. ``collate`` calls it.

        By default, uint8 images (three dimensions or more) become float32 in [0, 1]; all else stays as it is.
        """
        if str(x.dtype) == "torch.uint8" and x.dim() >= 3:
            return x.float().div_(255), y
        return x, y

    def correct(self, output: Tensor, y: Tensor) -> int:
        """How many of a batch are right, for ``metrics``. By default, those whose largest output is their class."""
        return int((output.argmax(class_dimension(output.shape, y.shape) or 1) == y).sum())

    def collate(self, rows: Any, *, training: bool) -> Any:
        """Turn stored rows into a batch of any structure. By default, ``batch(x, y)`` of a pair; else the rows.

        ``rows`` is the pair (x, y), or a dict of columns. Augment only where ``training`` is True: the same method
        serves evaluation. Random numbers come from generators that are seeded for each batch.
        """
        if isinstance(rows, tuple) and len(rows) == 2:
            return self.batch(*rows)
        return rows

    def step(self, model: nn.Module, batch: Any, lease: TaskLease) -> Tensor:
        """The loss of one batch, to be minimised. By default, ``loss(model(x), y)`` of a pair (x, y)."""
        x, y = batch
        return self.loss(model(x), y)

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        """Named sums over a batch of held-out examples, such as ``{"mae": shoal.mean(total, weight)}``.

        By default, ``loss``, and ``accuracy`` where y holds class numbers. A task with a ``step`` of its own has
        ``loss`` by default. Return ``loss`` too: if it is missing, Shoal runs ``step`` for it, a second forward pass.
        """
        raise NotImplementedError

    def optimizer(self, model: nn.Module) -> Any:
        """The optimiser that steps through a lease. By default (None) the plan's ``inner``, over what is trained."""
        return None

    def train(self, model: nn.Module, batches: Iterator[Any], lease: TaskLease) -> None:
        """Train a whole lease, with two optimisers, for instance. By default, one ``step`` a batch.

        Take every batch, and ``lease.log("loss", total, weight)``. Build optimisers here: a lease is a pure function.
        """
        raise NotImplementedError

    def placement(self, name: str, tensor: Tensor) -> str | None:
        """Where a tensor of the model lives: ``"shared"``, ``"frozen"`` or ``"own"``; None, the default, decides.

        By default a parameter is frozen where ``requires_grad`` is False, and so are the buffers of a frozen module
        (BatchNorm's running means); all else is shared. What is own never leaves the device, and needs local data.
        """
        return None

    def _declared_columns(self) -> RawColumns:
        """Return the columns that the class declares. A task may keep other things in an attribute of this name."""
        declared = inspect.getattr_static(type(self), "columns")
        return checked_columns(self.columns if isinstance(declared, property) else declared)

    @classmethod
    def _overrides(cls, hook: str) -> bool:
        """Whether a subclass defines this method."""
        return getattr(cls, hook) is not getattr(Task, hook)


def _check_known(cls: type[Task], name: str, value: object) -> None:
    """Refuse a method that Shoal would never call, and a plan that it would never read."""
    # Kinds of tasks that come with Shoal have methods of their own.
    known = [base for base in cls.__mro__[1:] if base.__module__.partition(".")[0] == "shoal"]
    if cls.__module__.partition(".")[0] == "shoal" or any(name in vars(base) for base in known):
        return
    hooks = [hook for hook, default in vars(Task).items() if _is_method(default) and not hook.startswith("_")]
    if _is_method(value):
        near = difflib.get_close_matches(name, hooks, 1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise Misuse(
            f"{cls.__name__} defines {name}, which Shoal never calls: {meant}A task's methods are {', '.join(hooks)}; "
            f"begin the name of a helper with an underscore (_{name})"
        )
    if type(value).__name__ == "Plan" and difflib.get_close_matches(name.lower(), ["plan"]):
        raise Misuse(f"{cls.__name__}.{name} is a plan that Shoal never reads: call it plan")


def _is_method(value: object) -> bool:
    return isinstance(value, FunctionType | staticmethod)


def _recorded(cls: type[Task], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    signature = inspect.signature(cls.__init__)
    bound = signature.bind(None, *args, **kwargs)
    arguments: dict[str, Any] = {}
    for name, value in list(bound.arguments.items())[1:]:
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            arguments.update(value)
        elif kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY):
            raise Misuse(f"{cls.__name__}: give {name!r} a name in __init__; devices rebuild the task by keyword")
        else:
            arguments[name] = value
    return {name: _plain(cls, name, value) for name, value in arguments.items()}


def _plain(cls: type[Task], name: str, value: object) -> object:
    try:
        same = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        same = None
    # A tuple comes back as a list and a key 1 as "1": the device would build another task than this one.
    if same != value or not _same_types(same, value):
        raise Misuse(
            f"{cls.__name__}({name}={value!r}): devices rebuild a task from JSON, which cannot say this value; "
            "pass numbers, texts, lists or dicts with text keys, and build the rest inside"
        )
    return same


def _same_types(left: object, right: object) -> bool:
    if isinstance(left, list) and isinstance(right, list):
        return all(map(_same_types, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return all(_same_types(left[key], right[key]) for key in left)
    return type(left) is type(right)
