"""Keys that were replaced, for every order of issuing, using, crashing and restarting."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import Misuse
from shoal.store.registry import Registry
from shoal.store.rows import Certificate
from shoal.wire.limits import CERTIFICATES_KEPT_PER_NODE

#: (what happens, to which of the certificates there are)
STEPS = st.lists(st.tuples(st.sampled_from(["issue", "use", "restart"]), st.integers(0, 60)), max_size=60)


def certificate(number: int, *, node: str = "pi", issued_s: float = 0.0) -> Certificate:
    return Certificate(
        sha256=f"{node}-{number:02}", node=node, role="node", key_sha256="key", issued_s=issued_s, expires_s=9e9
    )


@settings(deadline=None, max_examples=60)
@given(steps=STEPS, clock=st.lists(st.floats(0, 1e9), min_size=60, max_size=60))
def test_of_a_members_certificates_those_are_good_that_no_newer_used_one_replaced(
    steps: list[tuple[str, int]], clock: list[float]
) -> None:
    """The model: a certificate is void if, and only if, one that was issued after it was ever used. Clocks jump."""
    with tempfile.TemporaryDirectory() as folder:
        registry = Registry(Path(folder) / "registry.db")
        registry.add_certificate(certificate(0, node="other"))
        registry.add_certificate(certificate(0))
        issued, newest_used = 1, -1
        for step, (what, which) in enumerate(steps):
            at = which % issued
            is_kept = registry.certificate(certificate(at).sha256) is not None
            if what == "restart":
                registry.close()
                registry = Registry(Path(folder) / "registry.db")
            elif what == "use":
                is_good = is_kept and at >= newest_used
                assert registry.use_certificate(certificate(at).sha256, now_s=clock[step]) == is_good
                newest_used = at if is_good else newest_used
            elif at >= newest_used:
                registry.add_certificate(certificate(issued, issued_s=clock[step]), replaces=certificate(at).sha256)
                issued += 1
            elif is_kept:
                with pytest.raises(Misuse, match="was replaced"):
                    registry.add_certificate(certificate(issued), replaces=certificate(at).sha256)
            rows = registry.certificates("pi")
            assert len(rows) <= CERTIFICATES_KEPT_PER_NODE
            for row in rows:
                number = int(row.sha256.rpartition("-")[2])
                assert (row.superseded_s is not None) == (number < newest_used)
            # Whoever was let in last is let in again, however many certificates were issued and lost since.
            if newest_used >= 0:
                assert certificate(newest_used).sha256 in {row.sha256 for row in rows}
        (bystander,) = registry.certificates("other")
        assert bystander.superseded_s is None
        registry.close()
