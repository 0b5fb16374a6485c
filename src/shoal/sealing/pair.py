"""What two devices share and no other has: a key from X25519, and what is made of it for one label. Pure functions.

Each use has a name of its own in what is hashed, so that no value serves two ends.
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

PUBLIC_BYTES = 32
PRIVATE_BYTES = 32
SEED_BYTES = 16
MAC_BYTES = 16
COMMIT_BYTES = 16

#: What an envelope has beyond its contents.
TAG_BYTES = 16

#: An envelope's key is used for one message, so that the nonce may be anything.
_NONCE = bytes(12)


def public_of(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def pair_key(private: bytes, mine: tuple[str, bytes], other: tuple[str, bytes]) -> bytes:
    """The key of two devices, each a name and a public key. Raises PeerViolation for a key that fits every secret."""
    try:
        secret = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(other[1]))
    except ValueError:
        raise PeerViolation("a public key that gives every device the same secret", peer=other[0]) from None
    ends = b"".join(len(name).to_bytes(2, "big") + name.encode() + key for name, key in sorted((mine, other)))
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=b"shoal seal pair 1\n" + ends).derive(secret)


def _made(key: bytes, use: bytes, *parts: bytes) -> bytes:
    """HKDF's expand step for one block: a key of its own for each use."""
    return hmac.new(key, b"\0".join((b"shoal seal 1", use, *parts)) + b"\x01", hashlib.sha256).digest()


def edge_seed(key: bytes, label: bytes) -> bytes:
    """The seed of the mask that one of the two adds and the other takes off."""
    return _made(key, b"edge", label)[:SEED_BYTES]


def mask_key(seed: bytes, label: bytes) -> bytes:
    """The key of the stream that a seed, of an edge or a device's own, stands for."""
    return _made(seed, b"mask", label)


def commitment(seed: bytes, label: bytes) -> bytes:
    """By this a leader knows the right seed when it is put together from shares."""
    return _made(seed, b"commit", label)[:COMMIT_BYTES]


def agree_mac(key: bytes, label: bytes, sender: int, present: bytes) -> bytes:
    """That a device was told of this set, for the other of the two."""
    return _made(key, b"agree", label, sender.to_bytes(4, "big"), present)[:MAC_BYTES]


def is_mac(mac: bytes, key: bytes, label: bytes, sender: int, present: bytes) -> bool:
    return hmac.compare_digest(mac, agree_mac(key, label, sender, present))


def close(key: bytes, label: bytes, sender: int, kind: bytes, contents: bytes) -> bytes:
    """An envelope for the other of the two."""
    return ChaCha20Poly1305(_envelope_key(key, label, sender, kind)).encrypt(_NONCE, contents, None)


def unclose(key: bytes, label: bytes, sender: int, kind: bytes, envelope: bytes) -> bytes:
    """What is in an envelope. Raises PeerViolation for one that this sender did not close under this label."""
    try:
        return ChaCha20Poly1305(_envelope_key(key, label, sender, kind)).decrypt(_NONCE, envelope, None)
    except InvalidTag:
        raise PeerViolation(f"an envelope that member {sender} did not close for this group") from None


def _envelope_key(key: bytes, label: bytes, sender: int, kind: bytes) -> bytes:
    return _made(key, b"envelope", label, sender.to_bytes(4, "big"), kind)
