"""Secrets that two devices share: a key from X25519, and the values derived from it for one label. Pure functions.

Each use hashes its own name, so that no value serves two purposes.
"""

from __future__ import annotations

import hashlib
import hmac

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from shoal.errors import PeerViolation

PRIVATE_BYTES = 32
SEED_BYTES = 16
MAC_BYTES = 16
COMMIT_BYTES = 16

#: Bytes that an envelope adds to its contents.
TAG_BYTES = 16

#: An envelope's key encrypts only one message, so the nonce may be anything.
_NONCE = bytes(12)


def public_of(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def pair_key(private: bytes, mine: tuple[str, bytes], other: tuple[str, bytes]) -> bytes:
    """Return the key of two devices, each a name and a public key. Raises PeerViolation for a public key that gives
    every device the same secret."""
    try:
        secret = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(other[1]))
    except ValueError:
        raise PeerViolation("the public key gives every device the same secret", peer=other[0]) from None
    ends = b"".join(len(name).to_bytes(2, "big") + name.encode() + key for name, key in sorted((mine, other)))
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=b"shoal seal pair 1\n" + ends).derive(secret)


def _made(key: bytes, use: bytes, *parts: bytes) -> bytes:
    """Return a separate key for each use, by HKDF's expand step for one block."""
    return hmac.new(key, b"\0".join((b"shoal seal 1", use, *parts)) + b"\x01", hashlib.sha256).digest()


def edge_seed(key: bytes, label: bytes) -> bytes:
    """Return the seed of the mask that one of the two devices adds and the other subtracts."""
    return _made(key, b"edge", label)[:SEED_BYTES]


def mask_key(seed: bytes, label: bytes) -> bytes:
    """Return the key of the mask's stream, from the seed of an edge or a device's own seed."""
    return _made(seed, b"mask", label)


def commitment(seed: bytes, label: bytes) -> bytes:
    """Return the value by which a leader recognises the right seed after joining its shares."""
    return _made(seed, b"commit", label)[:COMMIT_BYTES]


def agree_mac(key: bytes, label: bytes, sender: int, present: bytes) -> bytes:
    """Return the MAC that proves to the other of the two devices that the sender agreed to this set."""
    return _made(key, b"agree", label, sender.to_bytes(4, "big"), present)[:MAC_BYTES]


def is_mac(mac: bytes, key: bytes, label: bytes, sender: int, present: bytes) -> bool:
    return hmac.compare_digest(mac, agree_mac(key, label, sender, present))


def close(key: bytes, label: bytes, sender: int, kind: bytes, contents: bytes) -> bytes:
    """Return an envelope that only the other of the two devices can open."""
    return ChaCha20Poly1305(_envelope_key(key, label, sender, kind)).encrypt(_NONCE, contents, None)


def unclose(key: bytes, label: bytes, sender: int, kind: bytes, envelope: bytes) -> bytes:
    """Return the contents of an envelope. Raises PeerViolation if this sender did not close it under this label."""
    try:
        return ChaCha20Poly1305(_envelope_key(key, label, sender, kind)).decrypt(_NONCE, envelope, None)
    except InvalidTag:
        raise PeerViolation(f"the message has an envelope that member {sender} did not close for this group") from None


def _envelope_key(key: bytes, label: bytes, sender: int, kind: bytes) -> bytes:
    return _made(key, b"envelope", label, sender.to_bytes(4, "big"), kind)
