"""A checkpoint store against a model of it: any order of saves, damage, restarts and loads."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shoal.errors import Corrupt
from shoal.store.checkpoints import CheckpointStore


class Store(RuleBasedStateMachine):
    """``files`` maps each checkpoint's version to (its mark, whether it is still whole)."""

    def __init__(self) -> None:
        super().__init__()
        self.marks = 0
        self.last_saved = 0
        self.files: dict[int, tuple[int, bool]] = {}
        self.scratch = tempfile.TemporaryDirectory()
        self.directory = Path(self.scratch.name)
        self.store = CheckpointStore(self.directory)

    def teardown(self) -> None:
        self.scratch.cleanup()

    @rule()
    def restart(self) -> None:
        self.store = CheckpointStore(self.directory)
        self.last_saved = 0

    @rule(version=st.integers(0, 8))
    def save(self, version: int) -> None:
        if version < self.last_saved:
            self.restart()
        self.last_saved = version
        self.marks += 1
        tensors = {"model": np.full(8, self.marks, np.int32)}
        self.store.save(version=version, tensors=tensors, state={"mark": self.marks})
        lower = sorted(other for other in self.files if other < version)[-1:]
        self.files = {other: self.files[other] for other in lower} | {version: (self.marks, True)}

    @rule(name=st.text("abc0123", min_size=1, max_size=4))
    def crash_of_another_writer(self, name: str) -> None:
        (self.directory / f".shoal-{name}.tmp").write_bytes(b"torn")

    @precondition(lambda self: self.files)
    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(sorted(self.files)), label="version")
        (path,) = self.directory.glob(f"{version:012d}-*.safetensors")
        raw = bytearray(path.read_bytes())
        if raw and data.draw(st.booleans(), label="flip"):
            raw[data.draw(st.integers(0, len(raw) - 1))] ^= 0x10
            # A second flip at the same place would heal it; cutting off the end as well never does.
        path.write_bytes(raw[:-1])
        self.files[version] = (self.files[version][0], False)

    @rule()
    def load(self) -> None:
        good = [version for version, (_, whole) in self.files.items() if whole]
        try:
            found = self.store.load()
        except Corrupt:
            assert self.files
            assert not good
            return
        if found is None:
            assert not self.files
            return
        skipped = sorted(version for version in self.files if version > found.version)
        assert found.version == max(good)
        assert found.state == {"mark": self.files[found.version][0]}
        assert np.all(found.tensors["model"] == found.state["mark"])
        assert found.which == ("the one before" if skipped else "newest")
        assert sorted(int(name[:12]) for name, _ in found.skipped) == skipped
        self.files = {version: what for version, what in self.files.items() if version <= found.version}

    @invariant()
    def files_are_those_of_the_model(self) -> None:
        on_disk = sorted(int(path.name[:12]) for path in self.directory.glob("*.safetensors"))
        assert on_disk == sorted(self.files)
        assert len(on_disk) <= 2


TestStore = Store.TestCase
TestStore.settings = settings(max_examples=100, stateful_step_count=15, deadline=None)
