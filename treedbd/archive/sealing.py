"""Encryption of objects with the key of a file: AES-256-GCM in chunks, as STREAM has it.

A sealed object begins with `MAGIC`, the id of the key (8 bytes) and a random file id (32 bytes).
The key of the object is derived from that of the file with HKDF-SHA-256, the file id as salt. Then
come chunks of 64 KiB, each with a tag of 16 bytes; the nonce is the number of the chunk (11 bytes)
and 1 for the last chunk, else 0. So chunks that are changed, moved, left out, doubled or cut off at
the end are found; the head is authenticated with each chunk. The construction is that of
Hoang, Reyhanitabar, Rogaway and Vizár, "Online Authenticated-Encryption and its Nonce-Reuse
Misuse-Resistance" (2015), section 7.
"""

from __future__ import annotations

import base64
import binascii
import os
import pathlib
import stat
from collections.abc import Iterable, Iterator
from typing import Final

import attrs
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from treedbd.files import READABLE_BY_OTHERS, is_open_to_others

SUFFIX: Final = ".sealed"
MAGIC: Final = b"treedb-sealed\x01\r\n"
KEY_BYTES: Final = 32
CHUNK_BYTES: Final = 65_536
_ID_BYTES: Final = 8
_SALT_BYTES: Final = 32
_TAG_BYTES: Final = 16
_COUNTER_BYTES: Final = 11
_HEAD_BYTES: Final = len(MAGIC) + _ID_BYTES + _SALT_BYTES
_MAX_FILE_BYTES: Final = 1024


class Damaged(Exception):
    """An object is not what was written; `str()` is a sentence without its name."""


class WrongKey(Exception):
    """An object cannot be opened with this key, or without one; `str()` is a sentence."""


@attrs.frozen
class Key:
    """A key of 32 bytes.

    Attributes:
        public_id: 8 bytes that say which key has sealed an object, and nothing about the key.

    """

    secret: bytes = attrs.field(repr=False, validator=attrs.validators.min_len(KEY_BYTES))
    public_id: bytes = attrs.field(init=False)

    @public_id.default
    def _public_id(self) -> bytes:
        return _derive(self.secret, b"", b"treedb archive: id", _ID_BYTES)


def make_key() -> str:
    """Return a new key as the text of a key file."""
    return base64.b64encode(os.urandom(KEY_BYTES)).decode() + "\n"


def parse_key(text: str) -> Key:
    """Return the key of the text of a key file; raise ValueError."""
    try:
        secret = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        secret = b""
    if len(secret) != KEY_BYTES:
        raise ValueError(f"A key is {KEY_BYTES} bytes in base64.")
    return Key(secret)


def read_key(file: pathlib.Path) -> Key:
    """Return the key of a file; raise ValueError with a sentence, or OSError."""
    if not stat.S_ISREG(file.stat().st_mode):  # to read another kind may take for ever
        raise ValueError(f"{file} is not a key file: it is not a regular file.")
    with file.open("rb") as opened:
        content = opened.read(_MAX_FILE_BYTES)
    if is_open_to_others(file):
        raise ValueError(READABLE_BY_OTHERS.format(file=file))
    try:
        return parse_key(content.decode("ascii"))
    except ValueError:
        raise ValueError(
            f"{file} is not a key file: it has to hold {KEY_BYTES} bytes in base64."
        ) from None


def seal(chunks: Iterable[bytes], key: Key) -> Iterator[bytes]:
    """Yield the sealed form of a content."""
    salt = os.urandom(_SALT_BYTES)
    head = MAGIC + key.public_id + salt
    cipher = _cipher(key, salt)
    yield head
    number = 0
    pending = bytearray()
    for chunk in chunks:
        pending += chunk
        while len(pending) > CHUNK_BYTES:  # the last chunk stays, since it is marked
            yield cipher.encrypt(_nonce(number), bytes(pending[:CHUNK_BYTES]), head)
            del pending[:CHUNK_BYTES]
            number += 1
    yield cipher.encrypt(_nonce(number, is_last=True), bytes(pending), head)


def open_sealed(chunks: Iterable[bytes], key: Key | None) -> Iterator[bytes]:
    """Yield the content of a sealed form, each chunk after it is authenticated.

    All of it is there only if the iteration ends: raises `Damaged` or `WrongKey`.
    """
    pieces = iter(chunks)
    pending = bytearray()
    while len(pending) < _HEAD_BYTES:
        pending += _next(pieces)
    head = bytes(pending[:_HEAD_BYTES])
    del pending[:_HEAD_BYTES]
    cipher = _cipher(_check_head(head, key), head[-_SALT_BYTES:])
    number = 0
    for piece in pieces:
        pending += piece
        while len(pending) > CHUNK_BYTES + _TAG_BYTES:
            sealed = bytes(pending[: CHUNK_BYTES + _TAG_BYTES])
            del pending[: CHUNK_BYTES + _TAG_BYTES]
            yield _open(cipher, _nonce(number), sealed, head)
            number += 1
    while len(pending) > CHUNK_BYTES + _TAG_BYTES:
        sealed = bytes(pending[: CHUNK_BYTES + _TAG_BYTES])
        del pending[: CHUNK_BYTES + _TAG_BYTES]
        yield _open(cipher, _nonce(number), sealed, head)
        number += 1
    yield _open(cipher, _nonce(number, is_last=True), bytes(pending), head)


def is_sealed(beginning: bytes) -> bool:
    """Return whether an object is sealed, by its first bytes."""
    return beginning.startswith(MAGIC)


def _check_head(head: bytes, key: Key | None) -> Key:
    if not is_sealed(head):
        raise Damaged("It is not sealed.")
    if key is None:
        raise WrongKey("It is sealed: name the key file with which it was written.")
    if head[len(MAGIC) : -_SALT_BYTES] != key.public_id:
        raise WrongKey("It is sealed with another key than that of the key file.")
    return key


def _next(pieces: Iterator[bytes]) -> bytes:
    piece = next(pieces, None)
    if piece is None:
        raise Damaged("It is cut off.")
    return piece


def _cipher(key: Key, salt: bytes) -> AESGCM:
    return AESGCM(_derive(key.secret, salt, b"treedb archive: object", KEY_BYTES))


def _derive(secret: bytes, salt: bytes, purpose: bytes, length: int) -> bytes:
    return HKDF(algorithm=SHA256(), length=length, salt=salt, info=purpose).derive(secret)


def _nonce(number: int, *, is_last: bool = False) -> bytes:
    return number.to_bytes(_COUNTER_BYTES, "big") + bytes((is_last,))


def _open(cipher: AESGCM, nonce: bytes, sealed: bytes, head: bytes) -> bytes:
    try:
        return cipher.decrypt(nonce, sealed, head)
    except (InvalidTag, ValueError):
        raise Damaged("It was changed or cut off after it was sealed.") from None
