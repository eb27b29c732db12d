"""`Sealer`: what a client carries for this server and may neither read nor change, such as a compaction's summary.

An envelope is base64url of: version, key id (4 bytes), nonce (12 bytes), and the compressed content under AES-256-GCM.
Purpose and project are authenticated with it, so what one project was given opens in no other, and for nothing else.
Keys are made of secrets with HKDF-SHA256; the first secret seals, all of them open, so a new one can be put in front.
"""

import base64
import zlib
from collections.abc import Callable, Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

MAX_BYTES = 4 * 1024 * 1024  # of content, before it is compressed

_VERSION = b"\x01"
_ID, _NONCE, _KEY = 4, 12, 32
_HEADER = len(_VERSION) + _ID + _NONCE
_MAX_ENVELOPE = 6 * 1024 * 1024  # characters; incompressible content of MAX_BYTES takes less


class SealBroken(Exception):
    """What should be opened was not sealed here, for this purpose and project, or was changed since."""


class Sealer:
    """Seals and opens. `random_bytes(n)` returns n bytes that nobody can guess."""

    def __init__(self, secrets: Sequence[str], *, random_bytes: Callable[[int], bytes]) -> None:
        if not secrets:
            raise ValueError("a sealer needs a secret")
        made = [_key(secret) for secret in secrets]
        self._first_id = made[0][0]
        self._keys = dict(reversed(made))
        self._random_bytes = random_bytes

    def seal(self, purpose: str, project: str, data: bytes) -> str:
        """Return an envelope. Raises `ValueError` for content over `MAX_BYTES`."""
        if len(data) > MAX_BYTES:
            raise ValueError(f"{len(data)} bytes are too much to be sealed")
        header = _VERSION + self._first_id + self._random_bytes(_NONCE)
        sealed = self._keys[self._first_id].encrypt(
            header[-_NONCE:], zlib.compress(data), _bound_to(header, purpose, project)
        )
        return base64.urlsafe_b64encode(header + sealed).decode().rstrip("=")

    def open(self, purpose: str, project: str, envelope: str) -> bytes:
        """Return what was sealed. Raises `SealBroken`."""
        raw = _decoded(envelope)
        header, sealed = raw[:_HEADER], raw[_HEADER:]
        key = self._keys.get(header[1 : 1 + _ID])
        if header[:1] != _VERSION or key is None:
            raise SealBroken("it has another version, or an unknown key")
        try:
            compressed = key.decrypt(header[-_NONCE:], sealed, _bound_to(header, purpose, project))
        except (InvalidTag, ValueError) as error:
            raise SealBroken("it is changed, or meant for another project") from error
        return _decompressed(compressed)


def _key(secret: str) -> tuple[bytes, AESGCM]:
    derived = HKDF(algorithm=SHA256(), length=_ID + _KEY, salt=None, info=b"respsite sealing 1").derive(secret.encode())
    return derived[:_ID], AESGCM(derived[_ID:])


def _bound_to(header: bytes, purpose: str, project: str) -> bytes:
    """Return what is authenticated beside the content; lengths keep the parts apart."""
    parts = (header, purpose.encode(), project.encode())
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def _decoded(envelope: str) -> bytes:
    """Read base64url, in its one spelling: what differs in a bit that says nothing is changed, too."""
    if len(envelope) > _MAX_ENVELOPE:
        raise SealBroken("it is too long")
    try:
        raw = base64.urlsafe_b64decode(envelope.encode("ascii") + b"=" * (-len(envelope) % 4))
    except ValueError as error:
        raise SealBroken("it is not base64url") from error
    if base64.urlsafe_b64encode(raw).decode().rstrip("=") != envelope:
        raise SealBroken("it is not base64url")
    return raw


def _decompressed(compressed: bytes) -> bytes:
    reader = zlib.decompressobj()
    try:
        data = reader.decompress(compressed, MAX_BYTES + 1)
    except zlib.error as error:
        raise SealBroken("its content is damaged") from error
    if len(data) > MAX_BYTES or not reader.eof:
        raise SealBroken("its content is too large")
    return data
