"""Exports a trained model to another format. A separate process writes and checks the file. No torch here."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from shoal.errors import Misuse, ShoalError
from shoal.learning.layout import Layout
from shoal.task import Task
from shoal.trainer.bundle import pack, unpack
from shoal.trainer.confine import Limits, device_memory_bytes
from shoal.trainer.find import source_of
from shoal.trainer.guard import stop_if_importing
from shoal.trainer.protocol import TrainerSettings
from shoal.trainer.sandbox import Room
from shoal.trainer.spawn import command, environment

#: The formats, each with the suffix of its files.
SUFFIXES = {"onnx": ".onnx", "pt2": ".pt2", "executorch": ".pte"}
#: The largest difference that a file may have, as a part of the model's largest output. Float32 sums in another order
#: differ by 1e-6.
LARGEST_DIFFERENCE = 1e-3

Tell = Callable[[str], None]


class ExportDiffers(ShoalError):
    """The written file computes something else than the model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportSettings:
    """The settings of the process that exports."""

    bundle_dir: str
    entry: str
    arguments: dict[str, Any]
    seed: int
    #: The trained values, a safetensors file.
    model: str
    to: str
    out: str
    base: tuple[str, ...] = ()
    #: Whether ``test`` is what the job held out. If not, the task gives the examples.
    has_data: bool = False
    test: tuple[str, ...] = ()
    #: The tensors of a dict batch that enter the model. Empty for those that its ``forward`` names.
    inputs: tuple[str, ...] = ()

    def to_plain(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> ExportSettings:
        return cls(**plain | {name: tuple(plain[name]) for name in ("base", "test", "inputs")})


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """A file that was written and checked."""

    path: str
    to: str
    size_bytes: int
    #: Held-out examples that it was checked on.
    examples: int
    #: The largest difference from the model, as a part of the model's largest output.
    difference: float
    #: How many examples it takes at once, or 0 for any number.
    batch: int
    #: The names of its inputs, in order.
    inputs: tuple[str, ...]

    def to_plain(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskFiles:
    """A task's code, first model and data, in files on this machine."""

    bundle: bytes
    entry: str
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    seed: int = 0
    base: tuple[str, ...] = ()
    #: The files of held-out examples, or `None` if the task gives them.
    test: tuple[str, ...] | None = None
    #: Whether the code came from elsewhere. It is then confined as on a device, and can read only these files.
    foreign: bool = False


class _HasModel(Protocol):
    @property
    def path(self) -> Path: ...
    @property
    def task(self) -> Task: ...
    @property
    def seed(self) -> int: ...


def export(
    trained: _HasModel | str | Path,
    task: Task | None = None,
    *,
    to: str,
    path: str | Path = "",
    inputs: tuple[str, ...] = (),
    seed: int = 0,
) -> Exported:
    """Write a trained model as ``"onnx"``, ``"pt2"`` or ``"executorch"``, and check the file on held-out examples.

    ``trained`` is what ``fit`` gave, or a safetensors file and its ``task``; ``seed`` is then the plan's. Raises
    ``ExportDiffers``, and leaves no file, where the largest difference is above 1e-3 of the model's largest output.
    """
    stop_if_importing()
    if isinstance(trained, str | Path):
        model = Path(trained)
    else:
        model, task, seed = trained.path, task or trained.task, trained.seed
    if task is None:
        raise Misuse(f"export({str(model)!r}) needs the task whose model this is: export(path, task, to=...)")
    file, entry = source_of(task)
    files = TaskFiles(bundle=pack(file, entry, lambda note: None), entry=entry, arguments=task.arguments, seed=seed)
    return export_model(model, files, to=to, out=Path(path) if path else default_file(model, to), inputs=inputs)


def default_file(model: Path, to: str) -> Path:
    return model.with_suffix(_suffix(to))


def export_model(
    model: Path,
    files: TaskFiles,
    *,
    to: str,
    out: Path,
    inputs: tuple[str, ...] = (),
    tell: Tell = lambda text: None,
) -> Exported:
    """Have a process write and check ``out``. If anything fails, ``out`` stays as it was."""
    _suffix(to)
    if not model.is_file():
        raise Misuse(f"there is no model {model}")
    with tempfile.TemporaryDirectory(prefix="shoal-export-") as folder:
        bundle_dir = Path(folder) / "bundle"
        bundle_dir.mkdir()
        unpack(files.bundle, bundle_dir)
        settings = ExportSettings(
            bundle_dir=str(bundle_dir.resolve()),
            entry=files.entry,
            arguments=files.arguments,
            seed=files.seed,
            model=str(model.resolve()),
            to=to,
            out=out.name,
            base=files.base,
            has_data=files.test is not None,
            test=files.test or (),
            inputs=inputs,
        )
        with (_walled if files.foreign else _in_the_open)(settings, Path(folder)) as (launched, told):
            exported = Exported(**_run(launched, told, tell))
            made = _made_files(Path(told.out))
            # First to a file next to it, so that the old file is replaced in one step.
            for file in made:
                draft = out.with_name(f".{file.name}.new-{os.getpid()}")
                shutil.copyfile(file, draft)
                draft.replace(out.with_name(file.name))
    return dataclasses.replace(exported, path=str(out), inputs=tuple(exported.inputs))


def _suffix(to: str) -> str:
    if to not in SUFFIXES:
        raise Misuse(
            f"there is no export to {to!r}: there is {', '.join(SUFFIXES)}; `shoal model pull` gives safetensors"
        )
    return SUFFIXES[to]


def _made_files(out: Path) -> list[Path]:
    """Return the written file and, if it exists, the file of weights next to it. Refuses links and folders that task
    code may have put there."""
    made = [path for path in (out.with_name(f"{out.name}.data"), out) if os.path.lexists(path)]
    if out not in made or not all(stat.S_ISREG(path.lstat().st_mode) for path in made):
        raise ShoalError(f"the export left no file {out.name}")
    return made


@contextlib.contextmanager
def _in_the_open(settings: ExportSettings, folder: Path) -> Iterator[tuple[list[str], ExportSettings]]:
    """Run the code of the person who exports with that person's rights, as when a job is prepared."""
    told = dataclasses.replace(settings, out=str(folder / settings.out))
    yield command("shoal.trainer.export_child", json.dumps(told.to_plain())), told


@contextlib.contextmanager
def _walled(settings: ExportSettings, folder: Path) -> Iterator[tuple[list[str], ExportSettings]]:
    """Run code that came with a job. It is confined as on a device, and can read only the job's files."""
    limits = Limits.from_environment(os.environ, device_bytes=device_memory_bytes())
    # The room treats an export as a trainer that reads one more file: the model.
    room = Room(
        TrainerSettings(
            bundle_dir=settings.bundle_dir,
            entry=settings.entry,
            train=(settings.model,),
            test=settings.test,
            base=settings.base,
            layout=Layout.of([("none", (1,), "parameter")]),
            seed=0,
            batch_size=1,
            learning_rate=0.1,
        ),
        limits,
    )
    try:
        seen = room.settings
        told = dataclasses.replace(
            settings,
            bundle_dir=seen.bundle_dir,
            model=seen.train[0],
            test=seen.test,
            base=seen.base,
            out=str(room.plan.parent / "work" / settings.out),
        )
        arguments = (str(room.plan), "shoal.trainer.export_child", json.dumps(told.to_plain()))
        yield command("shoal.trainer.launch", *arguments), told
    finally:
        room.close()


def _run(launched: list[str], settings: ExportSettings, tell: Tell) -> dict[str, Any]:
    outcome: dict[str, Any] = {}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(launched, env=environment({}), stdout=subprocess.PIPE, stderr=log)
        try:
            assert process.stdout is not None
            for line in process.stdout:
                outcome = json.loads(line)
                if "step" in outcome:
                    tell(_told(outcome, settings.to))
            process.wait()
        finally:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        if "exported" in outcome:
            exported: dict[str, Any] = outcome["exported"]
            return exported
        if "failed" in outcome:
            failed = outcome["failed"]
            where = f", at {failed['where']}" if failed.get("where") else ""
            error = ExportDiffers if failed.get("differs") else Misuse
            raise error(f"{'' if failed.get('differs') else 'no export: '}{failed['reason']}{where}")
        log.seek(0)
        words = log.read().decode(errors="replace").strip().splitlines()
    last = words[-1] if words else f"exit code {process.returncode}"
    if "No module named 'torch'" in last:
        last = "PyTorch is not installed here: pip install 'torch>=2.11'"
    raise Misuse(f"no export: {last}")


def _told(step: dict[str, Any], to: str) -> str:
    match step:
        case {"step": "model"}:
            return "building the model"
        case {"step": "write"}:
            return f"writing it as {to}"
        case {"step": "check", "examples": examples}:
            return f"running the file on {examples:,} held-out examples"
    return str(step.get("step", ""))
