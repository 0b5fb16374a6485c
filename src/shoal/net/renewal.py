"""How a member replaces its certificate before it runs out, or after. Knows when, not what else the member does.

While it is valid, over a session of its own and with a fresh key. After that, where devices join, by proving that it
still holds the old key. An agent runs this as a program (``python -m shoal.net.renewal FOLDER``), so that the
memory which `cryptography` takes is given back.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from shoal.errors import PeerViolation, Refused, ShoalError, Unreachable
from shoal.identity import chain
from shoal.identity.enrolled import Enrolled
from shoal.identity.identity import Identity, changing
from shoal.identity.names import RemoteIdentity
from shoal.net.grpc import GrpcLink

#: The share of a certificate's life after which it is replaced: there is time for many attempts before it runs out.
DUE_AFTER = 2 / 3

#: How long to wait for another program that changes the same identity, and how often to look.
LOCK_TIMEOUT_S = 60.0
LOCK_LOOK_S = 0.1


def due_s(identity: Identity) -> float:
    """From when on it is to be renewed, by the manager's clock. At once, where its times are not known."""
    return identity.issued_s + DUE_AFTER * (identity.expires_s - identity.issued_s) if identity.expires_s else 0.0


def is_due(identity: Identity, *, now_s: float) -> bool:
    return now_s >= due_s(identity)


def has_lapsed(identity: Identity, *, now_s: float) -> bool:
    return 0 < identity.expires_s <= now_s


async def renewed(member: Enrolled) -> Enrolled:
    """The same member with a new key and certificate, which its manager issued over a session of the old one."""
    from shoal.identity import certificates

    old = member.identity
    request = certificates.new_request(old.node)
    link = GrpcLink(old, server_node=member.manager_node, endpoint=member.manager_endpoint)
    try:
        answer = await link.renew(request.pem.decode("ascii"))
    finally:
        await link.close()
    try:
        certificate_der = chain.der_of(answer.certificate_pem)
    except ValueError as error:
        raise PeerViolation("the new certificate cannot be read", peer=member.manager_node) from error
    root_der = chain.der(old.ca_pem)
    peer = certificates.authenticate(certificate_der, root_der=root_der, now_s=time.time())
    if peer != RemoteIdentity(node=old.node, role=old.role, cluster=old.cluster):
        raise PeerViolation(f"the new certificate is for {peer.uri}", peer=member.manager_node)
    if not certificates.belongs_to(certificate_der, request.key_pem):
        raise PeerViolation("the new certificate is for another key", peer=member.manager_node)
    identity = replace(
        old,
        key_pem=request.key_pem,
        certificate_pem=answer.certificate_pem.encode("ascii"),
        issued_s=answer.issued_s,
        expires_s=answer.expires_s,
    )
    return replace(member, identity=identity)


async def renew_in(folder: Path) -> Enrolled:
    """Renew the member of this folder, one way or the other. What is in the folder is the old one or the new, whole."""
    from shoal.identity.enrolment import return_lapsed

    async with _alone_in(folder):
        member = Enrolled.load(folder)
        try:
            fresh = await renewed(member)
        except Unreachable:
            # Nobody is there, or TLS refuses a certificate that ran out: from here, both look the same.
            fresh = await return_lapsed(member)
        fresh.save(folder)
        return fresh


@contextlib.asynccontextmanager
async def _alone_in(folder: Path) -> AsyncIterator[None]:
    """Allow one renewal of a member at a time. With two at once, the certificate that is used first would void the
    other, and the manager would mistake the other's owner for a thief."""
    deadline_s = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        with changing(folder) as is_alone:
            if is_alone:
                yield
                return
        if time.monotonic() > deadline_s:
            raise Unreachable(f"another program has been renewing the certificate in {folder} for long: try again")
        await asyncio.sleep(LOCK_LOOK_S)


async def kept_fresh(folder: Path, *, now_s: float) -> Enrolled:
    """The member of this folder, renewed if it is time: for a person's commands, which have no background."""
    member = Enrolled.load(folder)
    if not is_due(member.identity, now_s=now_s):
        return member
    from shoal.identity.enrolment import return_lapsed

    lapsed = False
    try:
        async with _alone_in(folder):
            # Another command may have done so while this one waited.
            member = Enrolled.load(folder)
            if not is_due(member.identity, now_s=now_s):
                return member
            lapsed = has_lapsed(member.identity, now_s=now_s)
            fresh = await (return_lapsed(member) if lapsed else renewed(member))
            fresh.save(folder)
    except (ShoalError, OSError) as error:
        if lapsed and isinstance(error, Refused):
            raise
        # It is good for a while yet; and if the cluster cannot be reached, the command itself says so.
        return member
    return fresh


def main() -> int:
    (folder,) = sys.argv[1:]
    try:
        fresh = asyncio.run(renew_in(Path(folder)))
    except (ShoalError, OSError) as error:
        print(error, flush=True)
        return 4 if isinstance(error, Refused) else 3
    print(f"valid until {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime(fresh.identity.expires_s))}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
