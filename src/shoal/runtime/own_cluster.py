"""The cluster of a manager's home: its authority, the manager's own identity, and the operator of this machine."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from shoal.errors import Misuse
from shoal.identity.enrolment import Enrolled, EnrolmentServer
from shoal.identity.identity import AUTHORITY_FILE, IDENTITY_FILE, MEMBER_VALID_DAYS, Authority, Identity
from shoal.net.grpc import GrpcServer
from shoal.net.renewal import is_due
from shoal.runtime.member_register import MemberRegister
from shoal.runtime.paths import Paths
from shoal.runtime.renewal import LOOK_LEAST_S, LOOK_MOST_S, LOOK_SHARE

log = logging.getLogger("shoal")

MANAGER = "manager"
OPERATOR = "operator"


def open_cluster(
    places: Paths, *, name: str, certificate_days: float = MEMBER_VALID_DAYS
) -> tuple[Authority, Identity]:
    """The cluster's authority and the manager's identity: made once, found again ever after, renewed in time.

    A home with an authority and no manager is that of a second manager, to which the authority was copied.
    """
    has_authority = (places.authority / AUTHORITY_FILE).exists()
    authority = Authority.load(places.authority) if has_authority else Authority.create(places.authority, name)
    authority.member_days = certificate_days
    if (places.manager / IDENTITY_FILE).exists():
        return authority, _fresh(authority, Identity.load(places.manager), places)
    return authority, _new_identity(authority, places)


def _new_identity(authority: Authority, places: Paths) -> Identity:
    identity = authority.identity(node=MANAGER, role="manager", hosts=())
    identity.save(places.manager)
    return identity


def _fresh(authority: Authority, identity: Identity, places: Paths) -> Identity:
    return _new_identity(authority, places) if is_due(identity, now_s=time.time()) else identity


async def stay_fresh(
    authority: Authority, identity: Identity, places: Paths, doors: Sequence[GrpcServer | EnrolmentServer]
) -> None:
    """The manager's own certificate runs out like any other: show the next one in time."""
    while True:
        life_s = identity.expires_s - identity.issued_s
        await asyncio.sleep(min(max(life_s * LOOK_SHARE, LOOK_LEAST_S), LOOK_MOST_S))
        fresh = _fresh(authority, identity, places)
        if fresh is not identity:
            identity = fresh
            for door in doors:
                door.become(identity)
            log.info("the manager has a new certificate")


def give_operator_access(
    authority: Authority, register: MemberRegister, places: Paths, doors: tuple[str, str], *, name: str
) -> None:
    """Commands on this machine, by this user, may operate the cluster. ``doors``: where it works, where one joins."""
    try:
        identity = Enrolled.load(places.operator).identity
        if identity.ca_pem != authority.certificate_pem:
            raise Misuse("an operator of another cluster")
        if is_due(identity, now_s=time.time()):
            raise Misuse("a certificate that has had its time")
        if identity.node != name or register.is_replaced(identity.certificate_pem):
            raise Misuse("a certificate that another manager has replaced")
    except (Misuse, OSError, ValueError):
        identity = authority.identity(node=name, role="operator", hosts=())
        register.record(identity.certificate_pem, now_s=time.time())
    work, joining = doors
    access = Enrolled(identity=identity, manager_node=MANAGER, manager_endpoint=work, enrol_endpoint=joining)
    access.save(places.operator)
