"""``shoal.offload`` as people call it: one name for a package and a function."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import shoal
from benchmarks.offload_at_home import AtHome
from shoal.errors import Misuse
from shoal.offload.torch.wrap import offloading


def test_it_is_a_package_and_can_be_called() -> None:
    model = nn.Linear(4, 2)
    products = AtHome()
    assert shoal.offload(model, products, privacy="none") is model
    model(torch.randn(3, 4))
    assert products.report.products == 1
    assert offloading(model).layers == ("the model",)
    assert "offload" in shoal.__all__


def test_it_is_found_by_whoever_asks_first() -> None:
    text = "import shoal; assert callable(shoal.offload); import shoal.offload.products; assert callable(shoal.offload)"
    subprocess.run([sys.executable, "-c", text], check=True, timeout=60)


def test_torch_is_not_imported_before_it_is_needed() -> None:
    text = "import sys, shoal; shoal.offload; import shoal.api; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", text], check=True, timeout=60)


@pytest.mark.parametrize("pools", ["~/one", Path("one"), ["one"]])
def test_a_mask_takes_two_pools(pools: object) -> None:
    with pytest.raises(Misuse, match="takes 2 pools that do not collude, and there is 1"):
        shoal.offload(nn.Linear(2, 2), pools)  # type: ignore[arg-type]
