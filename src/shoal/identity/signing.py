"""An operator's signature of a job: made when the job is submitted, checked before its code runs.

A job names its code, first model and data by their hashes, so a signature of the job covers all of it. Importing this
needs no `cryptography`; signing and checking do.
"""

from __future__ import annotations

import base64
import json
from dataclasses import replace

from shoal.errors import Misuse, PeerViolation
from shoal.identity import chain
from shoal.identity.cards import CardKey
from shoal.identity.identity import Identity
from shoal.identity.signatures import Checker, SignaturesAsked, SignaturesFound, verdict_of
from shoal.wire.encoding import changed_json, decode_envelope, encode_envelope
from shoal.wire.messages import JobSpec, Submit

#: What is signed begins so: the same key also signs for TLS and for new certificates, and neither may pass for a job.
#: The number counts the forms; a job signed in another form has to be submitted again.
FORM = b"shoal job 2\n"

#: ECDSA over P-256 makes at most 72 bytes.
SIGNATURE_MAX_CHARS = 96

#: Ours have up to 1,250, with the longest names there are, and so has that of a manager's own authority.
SIGNER_PEM_MAX_CHARS = 3072


def sign(spec: JobSpec, identity: Identity, card_key: CardKey | None = None) -> JobSpec:
    """Return the same job, signed by this operator, and with its card key if it has one."""
    from shoal.identity import certificates

    if identity.role != "operator":
        raise Misuse(f"{identity.node} is {identity.role}: a job is signed by an operator")
    # As the other side will read it: where a person wrote 1 for a number of seconds, the wire carries 1.0.
    submit, _ = decode_envelope(encode_envelope(Submit(spec=spec)))
    assert isinstance(submit, Submit)
    content = signed_bytes(submit.spec)
    made = certificates.signature(content, identity.key_pem)
    return replace(
        submit.spec,
        signature=base64.b64encode(made).decode("ascii"),
        signer_pem=identity.certificate_pem.decode("ascii"),
        card_signature=base64.b64encode(card_key.sign(content)).decode("ascii") if card_key is not None else "",
    )


def check(spec: JobSpec, *, ca_pem: bytes, cluster: str, now_s: float | None) -> str:
    """The operator who signed this job. Raises PeerViolation, with the reason, if none of this cluster did.

    A manager gives the time and asks its roll about the signer, when the job is submitted: the certificate must be
    valid then. A device gives None. A job may run, and be restarted, for longer than the 30 days of a certificate; when
    it was signed nobody can prove to a device, whose clock may be wrong besides; and the manager took it in time.
    """
    return _check(cluster, verdict_of(_question(spec, ca_pem=ca_pem, now_s=now_s)))


def check_on_device(
    spec: JobSpec,
    *,
    ca_pem: bytes,
    cluster: str,
    pinned: bytes,
    find: Checker = verdict_of,
) -> str:
    """Return which operator of this cluster signed a job whose code is to run on this device.

    Raises PeerViolation if none did, or not the one whose key the device pinned: a manager can make itself an operator
    and sign a job of its own, but not with the pinned key. ``pinned`` is empty if the device pinned none: then it runs
    every operator's jobs, and none with signed members. ``find`` may be a function that has another process check.
    """
    verdict = find(_question(spec, ca_pem=ca_pem, now_s=None, pinned=pinned))
    signer = _check(cluster, verdict)
    if not pinned and spec.plan.believes.has_signed_members:
        raise PeerViolation(
            "the job has signed members, and this device does not know which operator signs them. Run `shoal join"
            " --operator-key KEY` on it, with the key that `shoal nodes key` shows on the operator's machine"
        )
    if pinned and not verdict.is_card_signed:
        raise PeerViolation(
            "the job is not signed with the operator's key that this device pinned. If another operator's jobs are to"
            " run here, run `shoal join --operator-key KEY` on this device, or `--operator-key none` for any operator's"
        )
    return signer


def _question(spec: JobSpec, *, ca_pem: bytes, now_s: float | None, pinned: bytes = b"") -> SignaturesAsked:
    if not spec.signature or not spec.signer_pem:
        raise PeerViolation("the job is not signed by an operator: submit it again with `shoal train`")
    if len(spec.signature) > SIGNATURE_MAX_CHARS or len(spec.signer_pem) > SIGNER_PEM_MAX_CHARS:
        raise PeerViolation("the job's signature or its signer's certificate is too long")
    try:
        signature = base64.b64decode(spec.signature, validate=True)
        certificate_der = chain.der_of(spec.signer_pem)
        if "".join(map(chain.pem, chain.split_der(certificate_der))) != spec.signer_pem:
            raise ValueError("certificates and nothing beside them")
    except ValueError as error:
        raise PeerViolation("the job's signature or its signer's certificate cannot be read") from error
    try:
        card_signature = base64.b64decode(spec.card_signature[:SIGNATURE_MAX_CHARS], validate=True)
    except ValueError:
        card_signature = b""
    return SignaturesAsked(
        content=signed_bytes(spec),
        signature=signature,
        certificate_der=certificate_der,
        root_der=chain.der(ca_pem),
        now_s=now_s,
        card_signature=card_signature,
        pinned=pinned,
    )


def _check(cluster: str, verdict: SignaturesFound) -> str:
    """Return the operator of this cluster who signed the job."""
    signer = verdict.signer
    if signer is None:
        raise PeerViolation(f"the job's signer is not known: {verdict.refusal}")
    if (signer.cluster, signer.role) != (cluster, "operator"):
        raise PeerViolation(f"the job is signed by {signer.uri}, who is not an operator of {cluster}")
    if not verdict.is_whole:
        raise PeerViolation(f"the job is not what {signer.node} signed: it was changed since, or is of another release")
    return signer.node


def signed_bytes(spec: JobSpec) -> bytes:
    """Return the bytes that a signature covers: every field but those of signatures, in one form only.

    They are not the bytes on the wire: protobuf may write the same message in more than one way. A field with its
    default is left out, so that devices of the release before can check a job that does without a newer field. They
    refuse a job that sets one.
    """
    bare = replace(spec, signature="", signer_pem="", card_signature="")
    try:
        text = json.dumps(changed_json(bare), sort_keys=True, separators=(",", ":"), allow_nan=False)
    except ValueError as error:
        raise PeerViolation("the job has a number that is not finite") from error
    return FORM + text.encode("ascii")
