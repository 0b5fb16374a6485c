"""A member's card: an operator's signature that names a device which may be in sealed groups. Does not read files.

A certificate comes from the manager, and a manager can issue one to anybody, also to a second operator. A card comes
from the operator's card key, which the manager never has and which devices pin. A device has a card key too, which its
card names. Card keys outlive certificates, whose keys change with every renewal. Importing this needs no
`cryptography`; signing and checking do.
"""

from __future__ import annotations

import base64
import time
import zlib
from dataclasses import dataclass, field
from typing import Self

from shoal.errors import Misuse, PeerViolation

#: What is signed begins so; the number counts the forms.
CARD_FORM = b"shoal seal member 1\n"

KEY_BYTES = 32
SIGNATURE_BYTES = 64
_UNTIL_BYTES = 8
CARD_BYTES = KEY_BYTES + _UNTIL_BYTES + SIGNATURE_BYTES

#: How long a card is valid at most. Devices do not learn of revocations: a revoked device is out of sealed groups when
#: its card has run out.
CARD_DAYS_MAX = 366.0

#: Clocks of devices differ: what ran out less than this long ago is still accepted.
SLACK_S = 7 * 86400.0

_CHECKSUM_BYTES = 3
#: 35 bytes are 56 characters of base32 exactly, so that a key has one spelling.
WRITTEN_BYTES = KEY_BYTES + _CHECKSUM_BYTES
_GROUP_CHARS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class CardKey:
    """A card key with its private half."""

    private: bytes = field(repr=False)
    public: bytes

    @classmethod
    def new(cls) -> Self:
        from shoal.identity import certificates

        private = certificates.new_card_key()
        return cls(private=private, public=certificates.card_public(private))

    def sign(self, content: bytes) -> bytes:
        from shoal.identity import certificates

        return certificates.card_signature(content, self.private)


def key_text(public: bytes) -> str:
    """A public card key as people copy it: groups of four characters, the last ones a checksum."""
    text = base64.b32encode(written_key(public)).decode("ascii").lower()
    return "-".join(text[at : at + _GROUP_CHARS] for at in range(0, len(text), _GROUP_CHARS))


def parse_key(text: str) -> bytes:
    """Read a public card key. Raises Misuse if a character of it is wrong."""
    plain = text.strip().lower().replace("-", "")
    try:
        raw = base64.b32decode(plain.upper())
    except ValueError:
        raw = b""
    if len(raw) != WRITTEN_BYTES:
        raise Misuse(
            f"{text[:80]!r} is not a key. A key is 14 groups of 4 characters: copy all of it from `shoal join` on the"
            " device, or from `shoal nodes key` on the operator's machine"
        )
    return read_key(raw)


def written_key(public: bytes) -> bytes:
    """A public card key with its checksum."""
    if len(public) != KEY_BYTES:
        raise Misuse(f"a card key has {KEY_BYTES} bytes, not {len(public)}")
    return public + _checksum(public)


def read_key(raw: bytes) -> bytes:
    """Return the key of what `written_key` made. Raises Misuse if the checksum differs."""
    public, checksum = raw[:KEY_BYTES], raw[KEY_BYTES:]
    if _checksum(public) != checksum:
        raise Misuse("a character of this key is wrong: copy it again")
    return public


def _checksum(public: bytes) -> bytes:
    return zlib.crc32(b"shoal card key\n" + public).to_bytes(4, "big")[:_CHECKSUM_BYTES]


def make_card(signer: CardKey, *, cluster: str, node: str, key: bytes, until_s: int) -> bytes:
    """Return a card for the device whose public card key this is."""
    if len(key) != KEY_BYTES:
        raise Misuse(f"a card key has {KEY_BYTES} bytes, not {len(key)}")
    signature = signer.sign(_statement(cluster=cluster, node=node, key=key, until_s=until_s))
    return key + until_s.to_bytes(_UNTIL_BYTES, "big") + signature


def check_card(card: bytes, *, cluster: str, node: str, pinned: bytes, now_s: float) -> bytes:
    """Return the card key of the device that a card names.

    Raises PeerViolation if the pinned operator did not sign it for this node of this cluster, or if it ran out.
    """
    from shoal.identity import certificates

    if not card:
        raise PeerViolation("it has no card: the operator signs one with `shoal nodes approve NODE --key KEY`")
    if len(card) != CARD_BYTES:
        raise PeerViolation(f"its card has {len(card)} bytes, not {CARD_BYTES}")
    key, until_s, signature = card[:KEY_BYTES], card_until_s(card), card[-SIGNATURE_BYTES:]
    statement = _statement(cluster=cluster, node=node, key=key, until_s=until_s)
    if not certificates.is_card_signed(statement, signature, pinned):
        raise PeerViolation("its card is not one that the operator whose key is pinned here signed for it")
    if now_s > until_s + SLACK_S:
        raise PeerViolation(f"its card was valid until {day_of(until_s)}: approve the device again")
    return key


def card_until_s(card: bytes) -> int:
    """When a card runs out, in seconds since 1970; 0 if it is not a card. Does not check who signed it."""
    if len(card) != CARD_BYTES:
        return 0
    return int.from_bytes(card[KEY_BYTES : KEY_BYTES + _UNTIL_BYTES], "big")


def _statement(*, cluster: str, node: str, key: bytes, until_s: int) -> bytes:
    # Names have no line breaks, so that no two statements have the same bytes.
    return CARD_FORM + "\n".join([cluster, node, key.hex(), str(until_s)]).encode()


def day_of(at_s: float) -> str:
    """Return the date in UTC of a time in seconds since 1970. A card may name a time that no calendar has."""
    return time.strftime("%Y-%m-%d", time.gmtime(min(at_s, 253402300799)))
