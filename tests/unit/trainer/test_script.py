"""The loop of a script as a trainer: versions in, updates out, errors with their place."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from shoal import loop
from shoal.errors import Misuse
from shoal.plan import Plan
from shoal.trainer.alone import Alone
from shoal.trainer.child_loop import place_of
from shoal.trainer.find_script import find_script, find_task_or_script
from shoal.trainer.importer import file_of, is_script
from shoal.trainer.package import ReadyTask, spec_of
from shoal.trainer.prepare_script import SCRIPT_PLAN, prepare_script
from shoal.trainer.prepared_job import first_model
from shoal.trainer.protocol import TrainerSettings
from shoal.trainer.script import ScriptTrainer
from shoal.trainer.shared import SharedVectors

LOOP = """
import sys
import torch
from torch import nn
import shoal

model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
if "frozen" in sys.argv:
    model.insert(0, nn.BatchNorm1d(3))
    model[0].requires_grad_(False)
x = torch.randn(64, 3, generator=torch.Generator().manual_seed(1))
y = x[:, :1] - x[:, 1:2]
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
right = lambda: {"close": shoal.mean(((model(x) - y).abs() < 1).sum(), 64)}
with shoal.worker(model, optimizer, evaluate=right if "evaluate" in sys.argv else None) as worker:
    for lease in worker:
        for a, b in lease.batches(loader, steps=4):
            if "fail" in sys.argv and lease.number == 2:
                raise ValueError("no good")
            loss = nn.functional.mse_loss(model(a), b)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if "write" in sys.argv:
                model[0].weight.data += 1
            lease.log("loss", loss.item() * len(a), len(a))
        if "end" in sys.argv:
            break
"""


@pytest.fixture
def script(tmp_path, imports_forgotten, monkeypatch):
    """A trainer of this script in this process, with the first model in its memory."""
    opened = []
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))

    def make(*argv, source=LOOP, **settings):
        bundle = tmp_path / "bundle"
        bundle.mkdir(exist_ok=True)
        (bundle / "train.py").write_text(source)
        arguments = {"argv": list(argv)}
        prepared = prepare_script(
            bundle, "script:train.py", arguments, seed=3, out=tmp_path, key="key", report=lambda line: None
        )
        shared = SharedVectors.create(prepared.layout.size)
        opened.append(shared)
        shared.model[:] = first_model(Path(prepared.model))[1]
        chosen = {"seed": 3, "batch_size": 1 << 18, "learning_rate": 0.05} | settings
        job = TrainerSettings(
            bundle_dir=str(bundle),
            entry="script:train.py",
            arguments=arguments,
            train=(),
            base=prepared.base_paths,
            layout=prepared.layout,
            **chosen,
        )
        return ScriptTrainer(job, shared), shared, prepared

    yield make
    loop.connect(None)
    for shared in opened:
        shared.close()


def test_a_lease_is_what_the_loop_changed_and_the_loss_falls(script):
    trainer, shared, prepared = script()
    assert prepared.plan == SCRIPT_PLAN
    assert prepared.layout.size == 3 * 4 + 4 + 4 + 1
    losses = []
    for lease in range(20):
        result = trainer.learn(0, lease, 1000)
        assert (result.examples, result.held, result.finite) == (32, 64, True)
        assert np.abs(shared.update).max() > 0
        losses.append(result.loss_sum / result.examples)
        shared.model[:] += shared.update
    assert losses[-1] < losses[0] / 2


def test_passes_are_the_loops_own(script):
    _, _, prepared = script()
    ready = ReadyTask(name="loop", entry="script:train.py", arguments={}, bundle=b"", prepared=prepared)
    assert spec_of(ready, Plan(**SCRIPT_PLAN), job="loop").plan.passes == 1
    with pytest.raises(Misuse, match="local_epochs = 3: a script goes over its examples in its own loop"):
        spec_of(ready, Plan(**SCRIPT_PLAN, local_epochs=3), job="loop")


def test_a_lease_begins_with_the_version_it_is_given(script):
    trainer, shared, _ = script()
    shared.model[:] = 0.5
    trainer.learn(0, 0, 1000)
    # Four steps of AdamW at 0.01 from there, wherever the first model was.
    assert 0 < np.abs(shared.update).max() < 0.06


def test_what_is_frozen_stays_out_of_the_vector_and_does_not_move(script):
    trainer, _, prepared = script("frozen")
    assert [entry.name for entry in prepared.layout.entries] == ["1.weight", "1.bias", "3.weight", "3.bias"]
    assert len(prepared.base) == 1
    model = trainer._script.model
    trainer.learn(0, 0, 1000)
    # The loop has called nothing that says so; a framework calls train() before each step.
    model.train()
    trainer.learn(0, 1, 1000)
    assert torch.equal(model[0].running_mean, torch.zeros(3))


def test_a_script_that_changes_what_is_frozen_is_told_which_tensor(script):
    trainer, _, _ = script("frozen", "write")
    for lease in range(2):
        with pytest.raises(Misuse, match=r"the code of train\.py changed 0\.weight, which is frozen"):
            trainer.learn(0, lease, 1000)


def test_a_failure_is_told_with_its_place_in_the_script(script):
    trainer, _, _ = script("fail")
    trainer.learn(0, 0, 1000)
    with pytest.raises(ValueError, match="no good") as failed:
        trainer.learn(0, 1, 1000)
    bundle = trainer._settings.bundle_dir
    line = LOOP.splitlines().index('                raise ValueError("no good")') + 1
    assert place_of(failed.value, bundle) == f"<module> (train.py:{line})"
    with pytest.raises(ValueError, match="no good"):
        trainer.learn(0, 2, 1000)


def test_a_script_that_ends_before_the_job_is_told(script):
    trainer, _, _ = script("end")
    with pytest.raises(Misuse, match=r"train\.py ended after 1 lease"):
        trainer.learn(0, 0, 1000)


def test_a_script_without_a_worker_is_told_when_it_is_prepared(script):
    with pytest.raises(Misuse, match=r"train\.py ended without a call of shoal\.worker"):
        script(source="print('nothing')")
    with pytest.raises(Misuse, match="got str as the model"):
        script(source="import shoal\nshoal.worker('model')")


def test_the_schedule_of_the_plan_scales_the_rates_of_the_loop_for_a_lease(script):
    trainer, shared, _ = script()
    trainer.learn(0, 0, 1000, rate=0.05 * 1e-6)
    assert np.abs(shared.update).max() < 1e-6
    rates = [group["lr"] for group in trainer._script._optimizer.param_groups]
    assert rates == [pytest.approx(1e-2)]


def test_a_lease_ends_before_its_deadline(script):
    trainer, _, _ = script()
    trainer.due_in(1e-9)
    assert trainer.learn(0, 0, 1000).examples == 8
    trainer.due_in(0.0)
    assert trainer.learn(0, 1, 1000).examples == 32


def test_a_lease_counts_for_no_more_examples_than_it_was_lent_for(script):
    trainer, _, _ = script()
    assert trainer.learn(0, 0, 10).examples == 10


def test_a_version_is_measured_before_it_is_trained(script):
    trainer, shared, _ = script("evaluate")
    shared.model[:] = 0.0
    result = trainer.learn(0, 0, 1000)
    assert result.fresh == 64
    (metric,) = result.fresh_metrics
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(1))
    assert metric.sums == (float(((x[:, 0] - x[:, 1]).abs() < 1).sum()), 64.0), "the model of zeros says 0"


def test_other_commands_are_refused(script):
    trainer, _, _ = script()
    with pytest.raises(Misuse, match="its own data"):
        trainer.train(0, [1])
    with pytest.raises(Misuse, match="evaluate="):
        trainer.evaluate(0, 1)
    assert trainer.loaded().train_examples == 1


def test_started_by_hand_a_script_makes_three_passes_or_so_many_leases(capsys):
    model, loader = torch.nn.Linear(1, 1), [torch.ones(2, 1)] * 5

    def steps(**options):
        found = []
        for lease in loop.worker(model, **options):
            found.append(len(list(lease.batches(loader, steps=2))))
            lease.log("loss", 2.0, 4)
        return found

    def share():
        assert not model.training
        return {"share": shoal_mean(1, 4)}

    from shoal.metrics import mean as shoal_mean

    assert steps(evaluate=share) == [5, 5, 5]
    assert model.training
    assert steps(leases=4) == [2, 2, 2, 2]
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "lease 1: loss 0.5, held-out share 0.25, 5 steps"
    assert told[-1] == "lease 4: loss 0.5, 2 steps"
    with pytest.raises(Misuse, match="at least one"):
        Alone(leases=0)


def test_entries_that_name_scripts(tmp_path):
    assert is_script("script:train.py")
    assert not is_script("train:Digits")
    assert not is_script("script:../train.py")
    assert (file_of("script:train.py"), file_of("task:Digits")) == ("train.py", "task.py")
    file = tmp_path / "train.py"
    file.write_text(LOOP)
    assert find_script(str(file)) == find_task_or_script(str(file)) == (tmp_path, "script:train.py")
    odd = tmp_path / "my train.py"
    odd.write_text(LOOP)
    for text, why in ((str(tmp_path), "not a Python file"), (str(odd), "letters, digits")):
        with pytest.raises(Misuse, match=why):
            find_script(text)
    task = tmp_path / "task.py"
    task.write_text("import shoal\nclass Digits(shoal.Task): pass\n")
    assert find_task_or_script(str(task)) == (task, "task:Digits")
