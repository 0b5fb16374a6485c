"""Where a member keeps its card key, and a device the operator's key that it pinned: files beside its identity."""

from __future__ import annotations

from pathlib import Path

from shoal.errors import Corrupt, Misuse
from shoal.identity.cards import KEY_BYTES, CardKey, key_text
from shoal.identity.identity import load_private_json, save_private_json

CARD_KEY_FILE = "card_key.json"
PINNED_FILE = "pinned_operator.json"


def card_key_of(folder: Path) -> CardKey | None:
    """Return the card key in this folder, or None if there is none."""
    path = folder / CARD_KEY_FILE
    if not path.exists():
        return None
    private, public = load_private_json(path, ("private", "public"))
    return CardKey(private=_key(path, private), public=_key(path, public))


def make_card_key(folder: Path) -> CardKey:
    """Return the card key in this folder, and make one if there is none."""
    key = card_key_of(folder)
    if key is None:
        key = CardKey.new()
        save_private_json(folder / CARD_KEY_FILE, {"private": key.private.hex(), "public": key.public.hex()})
    return key


def pinned_operator(folder: Path) -> bytes:
    """Return the operator's key that this device pinned, or nothing if it pinned none."""
    path = folder / PINNED_FILE
    if not path.exists():
        return b""
    (public,) = load_private_json(path, ("public",))
    return _key(path, public)


def pin_operator(folder: Path, public: bytes, *, may_change: bool) -> None:
    """Take cards and jobs only from the operator with this key from now on.

    Raises Misuse if another key is pinned, unless the person at this device said that it may change.
    """
    known = pinned_operator(folder)
    if known == public:
        return
    if known and not may_change:
        raise Misuse(
            f"this device pinned another operator's key, {key_text(known)}. If the operator changed, run `shoal join"
            f" --operator-key {key_text(public)}` on this device"
        )
    save_private_json(folder / PINNED_FILE, {"public": public.hex()})


def unpin_operator(folder: Path) -> None:
    (folder / PINNED_FILE).unlink(missing_ok=True)


def _key(path: Path, text: str) -> bytes:
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise Corrupt(f"{path} is damaged: restore it from a backup, or remove it and ask the operator for a new card")
    return key
