"""Objects packed: compressed as one frame of zstd, then sealed if there is a key; and unpacked.

The first piece of the content is its header, which can be read without the rest: the compressor
writes it as blocks of its own. Whether an object is sealed is seen by its first bytes; one in the
clear is not accepted where its name says that it is sealed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Final

from treedbd.archive.sealing import SUFFIX, Damaged, Key, is_sealed, open_sealed, seal

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LEVEL: Final = 3
_WINDOW_LOG: Final = 23
"""The largest window that is accepted: 8 MiB, which is more than level 3 uses."""
_DECODED_AT_ONCE: Final = 1024 * 1024


def pack(chunks: Iterable[bytes], key: Key | None = None, *, level: int = LEVEL) -> Iterator[bytes]:
    """Yield the packed form of a content, whose first piece is its header."""
    packed = _compress(chunks, level)
    return packed if key is None else seal(packed, key)


def unpack(chunks: Iterable[bytes], key: Key | None = None, *, name: str = "") -> Iterator[bytes]:
    """Yield the content of a packed form.

    All of it is there only if the iteration ends: raises `Damaged` or `WrongKey`.
    """
    pieces = iter(chunks)
    first = next(pieces, b"")
    rest = _with_first(first, pieces)
    if is_sealed(first) or name.endswith(SUFFIX):
        rest = open_sealed(rest, key)
    elif key is not None:  # anyone who can write to the place could have made it
        raise Damaged("It is not sealed, as all objects of a sealed archive are.")
    return _decompress(rest)


def suffix(key: Key | None) -> str:
    """Return the end of the names of objects that are packed with a key, or without one."""
    return "" if key is None else SUFFIX


def _with_first(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _compress(chunks: Iterable[bytes], level: int) -> Iterator[bytes]:
    parameter = zstd.CompressionParameter
    compressor = zstd.ZstdCompressor(
        options={parameter.compression_level: level, parameter.checksum_flag: 1}
    )
    is_first = True
    for chunk in chunks:
        packed = compressor.compress(
            chunk, compressor.FLUSH_BLOCK if is_first else compressor.CONTINUE
        )
        is_first = False
        if packed:
            yield packed
    yield compressor.flush()


def _decompress(chunks: Iterable[bytes]) -> Iterator[bytes]:
    decoder = zstd.ZstdDecompressor(
        options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG}
    )
    try:
        for chunk in chunks:
            if decoder.eof and chunk:
                raise Damaged("It has more than it should have.")
            yield from _decoded(decoder, chunk)
    except zstd.ZstdError:
        raise Damaged("It cannot be decompressed.") from None
    if not decoder.eof:
        raise Damaged("It is cut off.")
    if decoder.unused_data:
        raise Damaged("It has more than it should have.")


def _decoded(decoder: zstd.ZstdDecompressor, chunk: bytes) -> Iterator[bytes]:
    while True:
        if piece := decoder.decompress(chunk, _DECODED_AT_ONCE):
            yield piece
        if decoder.eof or decoder.needs_input:
            return
        chunk = b""
