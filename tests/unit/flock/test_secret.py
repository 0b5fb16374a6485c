"""A flock's secret: who has it has the same authority, whoever has not is a stranger; a slip of the pen is told."""

from __future__ import annotations

import ssl

import pytest

from shoal.errors import Misuse, PeerViolation
from shoal.flock.peer_discovery import heard_of
from shoal.flock.secret import FlockSecret
from shoal.identity import certificates
from shoal.identity.identity import Identity


def der(identity: Identity, *, root: bool = False) -> bytes:
    return ssl.PEM_cert_to_DER_cert((identity.ca_pem if root else identity.certificate_pem).decode("ascii"))


def test_written_and_read_it_is_the_same() -> None:
    secret = FlockSecret.draw()
    assert FlockSecret.parse(f" {secret.text.upper()}\n") == secret
    assert FlockSecret.parse(secret.text).flock == secret.flock
    assert secret.text.removeprefix("flock-") not in secret.flock
    assert repr(secret.value) not in repr(secret)


@pytest.mark.parametrize("change", [lambda text: text[:-1], lambda text: text[:-1] + ("b" if text[-1] != "b" else "c")])
def test_a_slip_of_the_pen_is_told(change: object) -> None:
    with pytest.raises(Misuse, match="Copy all of it"):
        FlockSecret.parse(change(FlockSecret.draw().text))  # type: ignore[operator]


def test_what_was_thought_up_is_refused() -> None:
    with pytest.raises(Misuse, match="shoal flock secret"):
        FlockSecret.parse("correct horse battery staple")


def test_mates_believe_each_other_though_each_signed_itself() -> None:
    secret = FlockSecret.draw()
    ant, _ = secret.identities("ant", now_s=1e9)
    bee, _ = secret.identities("bee", now_s=1.1e9)
    told = certificates.authenticate(der(ant), root_der=der(bee, root=True), now_s=1e9 + 60)
    assert (told.node, told.role, told.cluster) == ("ant", "node", secret.flock)


def test_one_with_another_secret_is_a_stranger() -> None:
    ant, _ = FlockSecret.draw().identities("ant")
    bee, _ = FlockSecret.draw().identities("bee")
    with pytest.raises(PeerViolation, match="not issued by the cluster's authority"):
        certificates.authenticate(der(ant), root_der=der(bee, root=True), now_s=None)


def test_only_mates_of_this_flock_are_heard_and_only_what_makes_sense() -> None:
    said = {b"flock": b"flock-1", b"node": b"ant"}
    here = [bytes([10, 0, 0, 7])]
    assert heard_of(said, here, 7100, flock="flock-1") == [("ant", "10.0.0.7:7100")]
    assert heard_of(said, here, 7100, flock="flock-2") == []
    assert heard_of(said | {b"node": b"../ant"}, here, 7100, flock="flock-1") == []
    assert heard_of(said | {b"node": b"\xff"}, here, 7100, flock="flock-1") == []
    assert heard_of(said, here, 0, flock="flock-1") == []
    assert heard_of(said, [b"123"], 7100, flock="flock-1") == []
