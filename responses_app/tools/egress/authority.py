"""`Authority`: certificates for the domains of a container's secrets, whose TLS the proxy ends.

Each container has an authority of its own, which no other one trusts, and whose key is in this process' memory alone.
"""

import datetime
import os
import ssl
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAYS = 7  # more than a container lives
_EARLY = datetime.timedelta(days=1)  # clocks differ


class Authority:
    """The authority of one container."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "respsite container")])
        self._contexts: dict[str, ssl.SSLContext] = {}  # by their hosts: no more than the policy has
        certificate = self._signed(
            self._name,
            self._key.public_key(),
            [
                (x509.BasicConstraints(ca=True, path_length=0), True),
                (_usage(signs_certificates=True), True),
                (x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), False),
            ],
        )
        self.certificate = certificate.public_bytes(Encoding.PEM)

    def context(self, host: str) -> ssl.SSLContext:
        """Return what a connection is met with that takes this for a host."""
        if host not in self._contexts:
            self._contexts[host] = self._made(host)
        return self._contexts[host]

    def _made(self, host: str) -> ssl.SSLContext:
        certificate = self._signed(
            x509.Name([]),
            self._leaf_key.public_key(),
            [
                (x509.SubjectAlternativeName([x509.DNSName(host)]), True),
                (x509.BasicConstraints(ca=False, path_length=None), True),
                (_usage(signs_certificates=False), True),
                (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
                (x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False),
            ],
        )
        key = self._leaf_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # What is masked is HTTP/1.1.
        context.set_alpn_protocols(["http/1.1"])
        _load(context, certificate.public_bytes(Encoding.PEM) + key)
        return context

    def _signed(
        self,
        subject: x509.Name,
        public_key: ec.EllipticCurvePublicKey,
        extensions: Sequence[tuple[x509.ExtensionType, bool]],
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _EARLY)
            .not_valid_after(now + datetime.timedelta(days=_DAYS))
        )
        for extension, is_critical in extensions:
            builder = builder.add_extension(extension, critical=is_critical)
        return builder.sign(self._key, SHA256())


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _load(context: ssl.SSLContext, chain: bytes) -> None:
    """Load a certificate and its key, which `ssl` takes from a file alone: one that lies in memory, and has no name."""
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    with open(descriptor, "wb") as file:
        file.write(chain)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
