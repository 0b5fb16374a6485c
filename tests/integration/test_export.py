"""Exports as real processes: the file does what the model does, or there is no file."""

import asyncio
import importlib.util
import json
import os
import shutil
import sys
import textwrap
from dataclasses import replace

import numpy as np
import pytest
import torch
from kit import cluster_in

import shoal
from shoal.errors import Misuse, PeerViolation, Refused
from shoal.runtime.operator import Operator
from shoal.trainer import export_child
from shoal.trainer.base import write_base
from shoal.trainer.bundle import pack
from shoal.trainer.export_child import export as export_here
from shoal.trainer.export_formats import FORMATS, Call
from shoal.trainer.exporting import ExportDiffers, ExportSettings, TaskFiles, export_model
from shoal.trainer.importer import make_task
from shoal.trainer.placement import place
from shoal.trainer.steps import build_model
from shoal.trainer.trained import trained_model
from shoal.wire import tensors

TASKS = """
import numpy as np
import torch
from torch import nn

from shoal.plan import Plan
from shoal.task import Task


def images(count):
    return np.random.default_rng(count).integers(0, 256, (count, 12, 12), dtype=np.uint8)


class Digits(Task):
    plan = Plan(batch_size=16)

    def model(self):
        return nn.Sequential(nn.Flatten(), nn.Linear(144, 16), nn.ReLU(), nn.Linear(16, 10))

    def examples(self, split):
        count = 64 if split == "train" else 41
        return images(count), np.arange(count) % 10


class Headed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
        self.body.requires_grad_(False)
        self.head = nn.Sequential(nn.Linear(400, 10), nn.BatchNorm1d(10))

    def forward(self, image):
        return self.head(self.body(image.unsqueeze(1)))


class Frozen(Digits):
    def model(self):
        return Headed()


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, ids, mask=None, labels=None):
        values = self.embed(ids) * mask.unsqueeze(-1)
        return {"logits": self.out(values.sum(1) / mask.sum(1, keepdim=True)), "values": values}


class Words(Task):
    plan = Plan(batch_size=4)

    def model(self):
        return Tokens()

    def examples(self, split):
        rows = [np.arange(1 + index * 7 % 9) for index in range(22)]
        return {"ids": rows, "labels": np.arange(22) % 3}

    def collate(self, rows, *, training):
        ids = nn.utils.rnn.pad_sequence([row.long() for row in rows["ids"]], batch_first=True)
        mask = nn.utils.rnn.pad_sequence([torch.ones(len(row)) for row in rows["ids"]], batch_first=True)
        return {"ids": ids, "mask": mask, "labels": rows["labels"]}


class Odd(Words):
    def collate(self, rows, *, training):
        return [rows["ids"], rows["labels"], 3]


class Fixed(Digits):
    def model(self):
        class Fold(nn.Module):
            def __init__(self):
                super().__init__()
                self.line = nn.Linear(144, 10)

            def forward(self, x):
                # For each example on its own: a graph of a loop has one number of turns.
                return torch.stack([self.line(each.flatten()) for each in x])

        return Fold()


class Sly(Digits):
    def model(self):
        class Other(nn.Module):
            def __init__(self):
                super().__init__()
                self.line = nn.Linear(144, 10)

            def forward(self, x):
                output = self.line(x.flatten(1))
                return output * 1.01 if torch.compiler.is_exporting() else output

        return Other()
"""

HAS_ONNX = all(importlib.util.find_spec(name) for name in FORMATS["onnx"].needs)
FORMS = ["pt2", pytest.param("onnx", marks=pytest.mark.skipif(not HAS_ONNX, reason="needs shoal[export]"))]


@pytest.fixture
def site(tmp_path):
    file = tmp_path / "task.py"
    file.write_text(textwrap.dedent(TASKS))
    return Site(tmp_path)


class Site:
    """A task file, and models of it that were trained: every value is another than at the start."""

    def __init__(self, folder):
        self.folder = folder
        self.out = folder / "out"
        self.out.mkdir()

    def trained(self, name):
        task = make_task(self.folder, f"task:{name}", {})
        model = build_model(task, 5)
        placed = place(task, model)
        generator = np.random.default_rng(1)
        values = {
            key: (tensor.detach().numpy() + generator.uniform(0, 0.5, tensor.shape)).astype(np.float32)
            for key, (tensor, _) in placed.shared.items()
        }
        path = self.folder / f"{name}.safetensors"
        with path.open("wb") as file:
            tensors.write(file, values, {})
        with torch.no_grad():
            for tensor in filter(torch.is_floating_point, placed.frozen.values()):
                tensor.add_(0.25)
        return path, write_base(placed.frozen, self.folder / "base"), values, placed

    def export(self, name, to, *, foreign=False, **options):
        path, base, _, _ = self.trained(name)
        files = TaskFiles(
            bundle=pack(self.folder / "task.py", f"task:{name}"),
            entry=f"task:{name}",
            seed=5,
            base=tuple(str(self.folder / "base" / part) for part in base),
            foreign=foreign,
        )
        return export_model(path, files, to=to, out=self.out / f"{name}.{to}", **options)

    def here(self, name, to="pt2", inputs=()):
        """The same without a process of its own, which takes many seconds to start on a busy machine."""
        path, base, _, _ = self.trained(name)
        settings = ExportSettings(
            bundle_dir=str(self.folder),
            entry=f"task:{name}",
            arguments={},
            seed=5,
            model=str(path),
            to=to,
            out=str(self.out / f"{name}.{to}"),
            base=tuple(str(self.folder / "base" / part) for part in base),
            inputs=inputs,
        )
        return export_here(settings, lambda line: None)


@pytest.mark.gate("export")
def test_a_program_exports_what_it_trained(site, monkeypatch):
    spec = importlib.util.spec_from_file_location("task_to_export", site.folder / "task.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    path, _, _, _ = site.trained("Digits")
    exported = shoal.export(path, module.Digits(), to="pt2", seed=5)
    assert exported.path == str(site.folder / "Digits.pt2")
    assert (exported.batch, exported.examples, exported.inputs) == (0, 41, ("input",))
    assert exported.difference < 1e-5
    assert exported.size_bytes == (site.folder / "Digits.pt2").stat().st_size
    with pytest.raises(Misuse, match="needs the task whose model this is"):
        shoal.export(path, to="pt2")


@pytest.mark.parametrize("to", FORMS)
@pytest.mark.parametrize("name", ["Digits", "Frozen"])
def test_a_file_does_what_the_model_does_for_any_batch(site, name, to):
    exported = site.here(name, to)
    assert exported.difference < 1e-5
    assert (exported.batch, exported.examples, len(exported.inputs)) == (0, 41, 1)
    run = FORMATS[to].load(site.out / f"{name}.{to}")
    x = torch.rand(33, 12, 12)
    assert run(Call(args=(x,), kwargs={}))[0].shape == (33, 10)


def test_trained_values_and_the_base_are_in_the_file(site):
    site.here("Frozen")
    _, _, values, placed = site.trained("Frozen")
    state = torch.export.load(site.out / "Frozen.pt2").state_dict
    assert state["head.0.weight"].numpy().tobytes() == values["head.0.weight"].tobytes()
    assert state["head.1.running_mean"].numpy().tobytes() == values["head.1.running_mean"].tobytes()
    # The base of the job, a quarter more than what the task builds.
    assert torch.equal(state["body.0.weight"], placed.frozen["body.0.weight"])
    assert torch.equal(state["body.1.running_var"], torch.full((4,), 1.25))


@pytest.mark.parametrize("to", FORMS)
def test_tensors_of_a_dict_enter_by_name_and_lengths_may_differ(site, to):
    exported = site.here("Words", to, inputs=("ids", "mask"))
    assert exported.inputs == ("ids", "mask")
    assert (exported.batch, exported.difference < 1e-5) == (0, True)


def test_a_model_that_takes_one_size_is_exported_for_one_example(site):
    exported = site.here("Fixed")
    assert (exported.batch, exported.examples) == (1, 41)
    assert exported.difference < 1e-5


@pytest.mark.skipif(not importlib.util.find_spec("executorch"), reason="needs executorch")
@pytest.mark.filterwarnings("ignore")
def test_executorch_takes_one_example_at_a_time(site):
    exported = site.here("Frozen", "executorch")
    assert (exported.batch, exported.examples, exported.difference < 1e-5) == (1, 41, True)


def test_a_file_that_differs_is_refused_and_removed(site):
    kept = site.out / "Sly.pt2"
    kept.write_bytes(b"what was there before")
    with pytest.raises(ExportDiffers, match=r"differs from the model by 0\.01 of its largest output.*removed"):
        site.export("Sly", "pt2")
    assert kept.read_bytes() == b"what was there before"
    assert os.listdir(site.out) == ["Sly.pt2"]


@pytest.mark.parametrize(("factor", "fits"), [(1.0, True), (1.00001, True), (1.01, False), (float("nan"), False)])
def test_a_writer_that_spoils_a_weight_is_caught(site, monkeypatch, factor, fits):
    def spoilt(program, path):
        program.state_dict["3.weight"].mul_(factor)
        torch.export.save(program, path)

    form = FORMATS["pt2"]
    mutant = type(form)(needs=(), install="", write=spoilt, load=form.load)
    monkeypatch.setitem(export_child.FORMATS, "pt2", mutant)
    if fits:
        assert site.here("Digits").difference < 1e-3
    else:
        with pytest.raises(ExportDiffers):
            site.here("Digits")
    assert (site.out / "Digits.pt2").exists() == fits


def test_what_cannot_be_called_is_said(site):
    with pytest.raises(
        Misuse, match=r"Odd\.collate gave a list, and Tokens\.forward takes \(ids, mask, labels\).*--inp"
    ):
        site.here("Odd")
    with pytest.raises(Misuse, match="no tensor 'sentence' in the batch; it has ids, mask, labels"):
        site.here("Words", inputs=("sentence",))
    with pytest.raises(Misuse, match="no export to 'torchscript': there is onnx, pt2, executorch"):
        site.export("Digits", "torchscript")
    path, _, _, _ = site.trained("Words")
    with pytest.raises(Misuse, match=r"Words\.safetensors holds .* which Digits\.model\(\) lacks"):
        trained_model(make_task(site.folder, "task:Digits", {}), path)
    assert os.listdir(site.out) == []


def test_code_that_came_with_a_job_is_confined(site):
    """As on a device: where the caller is root, the code is not, and it still finds the job's files."""
    source = site.folder / "task.py"
    refuses = "import os\nif os.geteuid() == 0:\n    raise RuntimeError('a task as root')\n"
    path, base, _, _ = site.trained("Frozen")
    path.chmod(0o600)
    source.write_text(refuses + source.read_text())
    files = TaskFiles(
        bundle=pack(source, "task:Frozen"),
        entry="task:Frozen",
        seed=5,
        base=tuple(str(site.folder / "base" / part) for part in base),
        foreign=True,
    )
    steps = []
    exported = export_model(path, files, to="pt2", out=site.out / "Frozen.pt2", tell=steps.append)
    assert exported.difference < 1e-5
    assert steps == ["building the model", "writing it as pt2", "running the file on 41 held-out examples"]
    assert os.listdir(site.out) == ["Frozen.pt2"]
    if os.geteuid() == 0:
        with pytest.raises(Misuse, match="a task as root"):
            export_model(path, replace(files, foreign=False), to="pt2", out=site.out / "Frozen.pt2")


JOB = """
import numpy as np
from torch import nn

from shoal.plan import Plan
from shoal.task import Task


class Small(Task):
    plan = Plan(batch_size=8)

    def model(self):
        return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))

    def examples(self, split):
        count = 32 if split == "train" else 19
        return np.random.default_rng(count).random((count, 6), dtype=np.float32), np.arange(count) % 3
"""

SLY = """

class Last(nn.Linear):
    def forward(self, x):
        import torch

        return super().forward(x) + 0.1 * torch.compiler.is_exporting()


class Sly(Small):
    def model(self):
        return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), Last(5, 3))
"""


async def exported_by_command(site, job, out, *options):
    """`shoal model export` as it is typed: its exit code, and what it says."""
    command = ("model", "export", job, "--to", "pt2", "--out", out, "--json", "--home", site.cluster.home, *options)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "shoal.cli.main", *map(str, command), stdout=asyncio.subprocess.PIPE
    )
    said = (await process.communicate())[0]
    return process.returncode, json.loads(said) if said else None


@pytest.mark.timeout(720)
def test_a_job_is_exported_with_the_code_that_an_operator_signed(tmp_path):
    """Agents that do not train: this is about where the code and the examples come from."""

    async def story():
        tmp_path.chmod(0o755)
        task = tmp_path / "small.py"
        task.write_text(JOB)
        async with cluster_in(tmp_path, workers=1, options=("--child-module", "shoal.trainer.echo")) as site:
            job = await site.submit_task(task, until={"epochs": 1})
            await site.ended(job)
            # Nothing but what the cluster has: neither the task's file nor what was prepared from it.
            task.unlink()
            shutil.rmtree(site.cluster.home / "prepared")
            out = tmp_path / "small.pt2"
            code, told = await exported_by_command(site, job, out)
            assert code == 0
            assert (told["examples"], told["batch"], told["path"]) == (19, 0, str(out))
            assert told["difference"] < 1e-5
            assert out.is_file()

            out.unlink()
            sly = tmp_path / "sly.py"
            sly.write_text(JOB + SLY)
            code, told = await exported_by_command(site, job, out, "--task", f"{sly}:Sly")
            assert (code, told, out.exists()) == (1, None, False)

            with pytest.raises(Refused, match="there is no job other"):
                await site.operator.job_spec("other")
            liar = Liar(site.operator)
            with pytest.raises(PeerViolation, match=r"not what .* signed"):
                await liar.task_files(job)

    # Three starts of PyTorch, one after the other.
    asyncio.run(asyncio.wait_for(story(), 660))


class Liar(Operator):
    """An operator whose manager asks for other code than was signed."""

    def __init__(self, honest):
        super().__init__(honest._access, honest._places)

    @property
    def _link(self):
        return Bent(super()._link)


class Bent:
    def __init__(self, link):
        self._link = link

    async def operate(self, message):
        told = await self._link.operate(message)
        return replace(told, spec=replace(told.spec, bundle="0" * 64))
