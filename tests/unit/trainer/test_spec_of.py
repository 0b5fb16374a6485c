"""What is refused when a plan meets the model of its job."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.errors import Misuse
from shoal.plan import Plan
from shoal.trainer.package import spec_of
from testbed.echo_job import echo_job


def test_a_name_of_decay_skips_that_no_parameter_has_is_refused(tmp_path: Path) -> None:
    ready = echo_job(tmp_path, values=4, batches=4)
    name = ready.prepared.layout.entries[0].name
    spec_of(ready, Plan(outer="adamw", weight_decay=0.1, decay_skips=name), job="echo")
    with pytest.raises(Misuse, match=r"decay_skips names '\*.biass', which no parameter of the model matches"):
        spec_of(ready, Plan(outer="adamw", weight_decay=0.1, decay_skips="vectors, *.biass"), job="echo")
