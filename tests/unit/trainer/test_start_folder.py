"""A job begins with a folder that ``save_pretrained`` wrote: parts by their index, adapters, and no pickle."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from shoal.errors import Misuse
from shoal.learning.layout import Layout
from shoal.trainer.outside_files import opened_outside, told_of
from shoal.trainer.start import StartCopy, start_digest, start_files, start_from


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def started(folder: Path, *names: str) -> tuple[StartCopy, np.ndarray]:
    layout = Layout.of([(name, (2,), "parameter") for name in names])
    flat = np.zeros(layout.size, np.float32)
    return start_from(flat, layout, folder), flat


def test_one_file_of_a_folder(tmp_path: Path) -> None:
    save_file({"w": ones(2), "other": ones(3)}, tmp_path / "model.safetensors")
    told, flat = started(tmp_path, "w", "b")
    assert (told.copied, told.missing, told.unused) == (("w",), ("b",), ("other",))
    assert flat.tolist() == [1, 1, 0, 0]


def test_parts_by_their_index(tmp_path: Path) -> None:
    for number, name in enumerate(("w", "b"), start=1):
        save_file({name: number * ones(2)}, tmp_path / f"model-{number}.safetensors")
    listed = {"weight_map": {"w": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(listed))
    told, flat = started(tmp_path, "w", "b")
    assert (told.copied, told.missing) == (("b", "w"), ())
    assert flat.tolist() == [1, 1, 2, 2]
    before = start_digest(tmp_path)
    save_file({"b": 3 * ones(2)}, tmp_path / "model-2.safetensors")
    assert start_digest(tmp_path) != before
    (tmp_path / "model-2.safetensors").unlink()
    with pytest.raises(Misuse, match="lacks model-2"):
        start_files(tmp_path)


@pytest.mark.parametrize("listed", ["{}", "nonsense", '{"weight_map": {"w": "../secret.safetensors"}}'])
def test_an_index_that_lists_no_files_of_the_folder_is_refused(tmp_path: Path, listed: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(listed)
    with pytest.raises(Misuse, match=r"model\.safetensors\.index\.json of"):
        start_files(tmp_path)


@pytest.mark.parametrize("prefix", ["", "base_model.model."])
def test_adapters_and_the_layers_below_them(tmp_path: Path, prefix: str) -> None:
    """peft saves ``base_model.model.q.lora_A.weight``; the model has ``q.lora_A.default.weight``."""
    save_file({"base_model.model.q.lora_A.weight": ones(2)}, tmp_path / "adapter_model.safetensors")
    save_file({"q.weight": 2 * ones(2)}, tmp_path / "model.safetensors")
    told, flat = started(tmp_path, f"{prefix}q.lora_A.default.weight", f"{prefix}q.base_layer.weight")
    assert told.missing == ()
    assert told.unused == ()
    assert flat.tolist() == [1, 1, 2, 2]


def test_a_pickle_is_refused_with_the_way_to_convert_it(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02.")
    with pytest.raises(Misuse, match=r"save_pretrained\(OTHER, safe_serialization=True\)"):
        start_files(tmp_path)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=r"has no model\.safetensors"):
        start_files(tmp_path)


# Files that devices do not have ----------------------------------------------------------------------------------


def test_files_outside_the_bundle_are_named(tmp_path: Path) -> None:
    bundle, elsewhere = tmp_path / "bundle", tmp_path / "folder"
    for folder in (bundle, elsewhere):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
    with opened_outside(bundle) as opened:
        json.loads((elsewhere / "config.json").read_text())
        (bundle / "config.json").read_text()
        Path(json.__file__).read_text()
        (elsewhere / "made.txt").write_text("written, not read")
    assert opened == [str(elsewhere / "config.json")]
    assert "T.model() opens" in told_of(opened, "T")
    (elsewhere / "config.json").read_text()
    assert len(opened) == 1, "nobody listens any more"
