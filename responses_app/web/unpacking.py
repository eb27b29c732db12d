"""Bodies of requests that come compressed (`Content-Encoding`, RFC 9110 section 8.4.1), unpacked in bounded pieces.

A few kilobytes can unpack to gigabytes. So a decoder gives at most `PIECE_BYTES` at a time, as they are asked for, and
`bodies` counts them: more is never held than that, its input, and the window of the coding (at most 16 MiB). Or they
unpack to nothing and still take long: a megabyte holds 100,000 empty frames of zstd. So no more than `SLICE_BYTES` are
unpacked in one turn, and a body has at most `MAX_MEMBERS`.
"""

import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping

from responses_app.protocol.errors import ApiError, invalid_request
from responses_app.protocol.transport import GZIP, codings_in, unsupported_encoding

PIECE_BYTES = 256 * 1024
SLICE_BYTES = 8 * 1024  # of what came; behind each member the libraries copy what is left of it
MAX_MEMBERS = 16 * 1024  # of gzip, or frames of zstd; tools that write several have one for 64 KiB or more
_GZIP, _ZLIB, _RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS
_WINDOW_LOG = 23  # of zstd: 8 MiB, which is all that RFC 9659 allows in HTTP


class Decoder(ABC):
    """Unpacks one body."""

    _members = 1

    def _begin_member(self) -> None:
        """One more begins. Raises `ApiError` where those are too many."""
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise invalid_request(
                f"The body was compressed in more than {MAX_MEMBERS:,} parts. Compress it as a whole.",
                code="invalid_content_encoding",
            )

    @abstractmethod
    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield what is in the next bytes of the body. Raises what the library raises for bytes that are none of it."""

    @property
    @abstractmethod
    def is_whole(self) -> bool:
        """Whether the end of what was compressed is here."""


class _Zlib(Decoder):
    """gzip, which may have several members, and deflate, which some clients send without zlib's head."""

    def __init__(self, *, is_gzip: bool) -> None:
        self._is_gzip = is_gzip
        self._begun = b""  # the first byte of a deflate, which does not tell yet
        self._inner = zlib.decompressobj(_GZIP) if is_gzip else None

    def pieces(self, data: bytes) -> Iterator[bytes]:
        data, self._begun = self._begun + data, b""
        if self._inner is None:
            if len(data) < 2:
                self._begun = data
                return
            # RFC 1950: the method is 8, and the first two bytes are a multiple of 31.
            has_head = data[0] & 0x0F == 8 and int.from_bytes(data[:2]) % 31 == 0
            self._inner = zlib.decompressobj(_ZLIB if has_head else _RAW)
        piece = b""
        # Behind a full piece more may be kept inside, though all of the data are taken.
        while data or len(piece) == PIECE_BYTES:
            if self._inner.eof:
                if not self._is_gzip and data:
                    raise zlib.error("something comes behind its end")
                if not data:
                    return
                self._begin_member()
                self._inner = zlib.decompressobj(_GZIP)
            piece = self._inner.decompress(data, PIECE_BYTES)
            data = self._inner.unused_data if self._inner.eof else self._inner.unconsumed_tail
            if piece:
                yield piece

    @property
    def is_whole(self) -> bool:
        return self._inner is not None and self._inner.eof


class _Brotli(Decoder):
    def __init__(self) -> None:
        import brotli

        self._inner = brotli.Decompressor()

    def pieces(self, data: bytes) -> Iterator[bytes]:
        # Its buffer grows in steps, the last of them behind the limit: at most to 229,328 bytes with this one. Behind a
        # full piece there may be more, whatever `can_accept_more_data` says.
        while piece := self._inner.process(data, output_buffer_limit=PIECE_BYTES // 2):
            data = b""
            yield piece

    @property
    def is_whole(self) -> bool:
        return bool(self._inner.is_finished())


class _Zstd(Decoder):
    """zstd, which may have several frames."""

    def __init__(self) -> None:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd

        options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _WINDOW_LOG}
        self._new: Callable[[], zstd.ZstdDecompressor] = lambda: zstd.ZstdDecompressor(options=options)
        self._inner = self._new()

    def pieces(self, data: bytes) -> Iterator[bytes]:
        while data or not (self._inner.needs_input or self._inner.eof):
            if self._inner.eof:
                self._begin_member()
                self._inner = self._new()
            piece = self._inner.decompress(data, PIECE_BYTES)
            data = self._inner.unused_data if self._inner.eof else b""
            if piece:
                yield piece

    @property
    def is_whole(self) -> bool:
        return self._inner.eof


DECODERS: Mapping[str, Callable[[], Decoder]] = {
    GZIP: lambda: _Zlib(is_gzip=True),
    "deflate": lambda: _Zlib(is_gzip=False),
    "br": _Brotli,
    "zstd": _Zstd,
}


def coding_of(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return how a body is compressed, None where it is not. Raises `ApiError` (415) for what cannot be unpacked."""
    codings = codings_in(headers)
    if not codings:
        return None
    if len(codings) > 1 or codings[0] not in DECODERS:
        raise unsupported_encoding(", ".join(codings), tuple(DECODERS))
    return codings[0]


def not_unpacked(coding: str) -> ApiError:
    """A body that is not what its `Content-Encoding` says, or that was cut."""
    return invalid_request(
        f"The body is not '{coding}', although its 'Content-Encoding' says so, or its end is missing. Send all of it, "
        "or leave that header out if it is not compressed.",
        code="invalid_content_encoding",
    )


def unpacked_pieces(decoder: Decoder, data: bytes, coding: str) -> Iterator[bytes]:
    """Yield what is in the next bytes of a body, and nothing between two slices of them. Raises `ApiError` (400)."""
    try:
        for begin in range(0, len(data), SLICE_BYTES):
            yield from decoder.pieces(data[begin : begin + SLICE_BYTES])
            yield b""
    except ApiError:
        raise
    except Exception as error:  # each library has a class of its own, and brotli is imported only where it is used
        raise not_unpacked(coding) from error
