"""`ContainerProxy`: the proxy of one container. `ContainerProxies` makes them, and holds what those of a process share.

`Authority` makes certificates for the domains of a container's secrets, whose TLS the proxy ends.
"""

import asyncio
import contextlib
import datetime
import logging
import os
import re
import socket
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from responses_app.extensions.containers.egress.base import CA_BUNDLE, PROXY_PORT
from responses_app.extensions.containers.egress.connections import ProxyConnection, Rules
from responses_app.extensions.containers.egress.peers import MAX_LOOKUPS, Dialler, Malformed, Meter, Spent, Streams
from responses_app.extensions.containers.egress.policy import EgressPolicy
from responses_app.extensions.containers.egress.secrets import Placeholders
from responses_app.extensions.containers.egress.settings import EgressSettings
from responses_app.tools.network import Network
from responses_app.tools.places import SharedPlaces

logger = logging.getLogger("respsite.sandbox")

MAX_CONNECTIONS = 32  # of one container at once; more wait to be accepted
# Of all containers of this process, and of those of one project: each is an open file of this process, which may have
# to accept the requests of the API, too.
MAX_CLIENTS = 384
PROJECT_CLIENTS = 192
LIFE_SECONDS = 3600.0  # of one connection
TLS_SECONDS = 10.0  # for the greeting of TLS
CLOSE_SECONDS = 10.0  # for what was sent to arrive
NO_FILE_SECONDS = 1.0  # where no descriptor is left: until the next connection is accepted
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----")
_ADDRESS = f"http://127.0.0.1:{PROXY_PORT}"
# Programs look for the proxy, and for the certificates that they trust, in these.
_PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
_LOCAL_VARIABLES = ("NO_PROXY", "no_proxy")
_CA_VARIABLES = (
    *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO", "PIP_CERT"),
    *("AWS_CA_BUNDLE", "CARGO_HTTP_CAINFO"),
)


class ContainerProxies:
    """Makes the proxies of a process, and has the connections and places that they share."""

    def __init__(self, settings: EgressSettings, *, network: Network | None = None) -> None:
        self._settings = settings
        self._network = network or Network(
            "SANDBOX_ALLOWED_HOSTS", settings.sandbox_allowed_hosts, max_lookups=MAX_LOOKUPS
        )
        self._dialler = Dialler(self._network)
        self._clients = SharedPlaces(most=MAX_CLIENTS, share=PROJECT_CLIENTS)
        self._trusted: bytes | None = None  # the certificates of this machine, once they were read

    def refusal(self, policy: EgressPolicy) -> str | None:
        """Return why no container may have a policy, as the end of a sentence; None where it may."""
        allowed = self._settings.sandbox_network
        beyond = next((each for each in policy.domains if not allowed.includes(each)), None)
        if beyond is None:
            return None
        if not allowed.domains:
            return "this server lets containers reach nothing (SANDBOX_NETWORK=off); leave 'network_policy' out"
        return f"this server does not let containers reach '{beyond}' (SANDBOX_NETWORK)"

    async def proxy(self, project: str, policy: EgressPolicy) -> "ContainerProxy":
        """Return the proxy of a container."""
        if self._trusted is None:
            self._trusted = await asyncio.to_thread(trusted_certificates)
        meter = Meter(self._settings.sandbox_network_bytes)
        return ContainerProxy(project, policy, self._dialler, self._clients, meter, trusted=self._trusted)

    def close(self) -> None:
        """End the threads that look names up."""
        self._network.close()


class ContainerProxy:
    """Serves connections to a socket of one container, from `open` to `aclose`; then it may be opened again."""

    def __init__(
        self,
        project: str,
        policy: EgressPolicy,
        dialler: Dialler,
        clients: SharedPlaces,
        meter: Meter,
        *,
        trusted: bytes,
    ) -> None:
        self._policy = policy
        self._placeholders = Placeholders(policy)
        self._authority = Authority() if policy.secrets else None
        self._trusted = trusted
        self._rules = Rules(lambda: self._policy, self._placeholders, project, dialler, meter)
        self._clients = clients  # the places of connections, of all containers
        self._room = asyncio.Semaphore(MAX_CONNECTIONS)
        self._accepting: asyncio.Task[None] | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def env(self) -> Mapping[str, str]:
        """The variables by which programs inside find it."""
        return {
            **dict.fromkeys(_PROXY_VARIABLES, _ADDRESS),
            **dict.fromkeys(_LOCAL_VARIABLES, "localhost,127.0.0.1"),
            **dict.fromkeys(_CA_VARIABLES, CA_BUNDLE),
            "NODE_USE_ENV_PROXY": "1",
            **self._placeholders.by_name,
        }

    @property
    def bundle(self) -> bytes:
        """The certificates that programs inside trust, as PEM."""
        return self._trusted + (self._authority.certificate if self._authority is not None else b"")

    def give_secrets(self, values: Sequence[Mapping[str, Any]]) -> None:
        """Have these values of the container's secrets from now on."""
        self._policy = self._policy.with_values(values)

    def open(self, listener: socket.socket) -> None:
        """Serve each connection to a socket of the container's network."""
        listener.setblocking(False)
        self._accepting = asyncio.create_task(self._accept(listener))

    async def aclose(self) -> None:
        """Serve nothing more."""
        tasks = [*self._connections, *([self._accepting] if self._accepting is not None else [])]
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                await self._room.acquire()
                try:
                    connection, _ = await loop.sock_accept(listener)
                except OSError as problem:
                    self._room.release()
                    logger.error("no connection of a container can be accepted: %s", problem)
                    await asyncio.sleep(NO_FILE_SECONDS)
                    continue
                except BaseException:
                    self._room.release()
                    raise
                try:
                    # The next one is not accepted before this one may be served.
                    await self._clients.take(self._rules.project)
                except BaseException:
                    connection.close()
                    self._room.release()
                    raise
                task = asyncio.create_task(self._serve(connection))
                self._connections.add(task)
                task.add_done_callback(self._ended)
                # One that is there already is accepted without a wait: the others have their turn here.
                await asyncio.sleep(0)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._connections.discard(task)
        self._clients.give_back(self._rules.project)
        self._room.release()
        if not task.cancelled() and (problem := task.exception()) is not None:
            logger.error("a connection of a container broke", exc_info=problem)

    async def _serve(self, connection: socket.socket) -> None:
        plain = last = await _streams(connection)
        try:
            with contextlib.suppress(OSError, TimeoutError, Spent, Malformed):
                async with asyncio.timeout(LIFE_SECONDS):
                    target = await ProxyConnection(plain, self._rules).answer()
                    if target is not None and self._authority is not None:
                        last = await _with_tls(plain[1], self._authority.context(target.host))
                        await ProxyConnection(last, self._rules, inside=target).answer()
                    # What was sent is to arrive: an abort would take it back.
                    last[1].close()
                    async with asyncio.timeout(CLOSE_SECONDS):
                        await last[1].wait_closed()
        finally:
            # Of the first one, which is below TLS where there is some; it would close it, too, where nobody had it.
            plain[1].transport.abort()


async def _streams(connection: socket.socket) -> Streams:
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    try:
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection)
    except BaseException:
        connection.close()
        raise
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def _with_tls(writer: asyncio.StreamWriter, context: ssl.SSLContext) -> Streams:
    """Meet TLS on a connection that is not read any more. Raises `OSError`."""
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport = await loop.start_tls(
        writer.transport, protocol, context, server_side=True, ssl_handshake_timeout=TLS_SECONDS
    )
    if transport is None:  # it was closed meanwhile
        raise OSError("the client is gone")
    protocol.connection_made(transport)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


def trusted_certificates() -> bytes:
    """Return the certificates that this machine trusts, as PEM, without anything else that stands beside them."""
    file = ssl.get_default_verify_paths().cafile
    with contextlib.suppress(OSError):
        if file is not None:
            return b"".join(each[0] + b"\n" for each in _CERTIFICATE.finditer(Path(file).read_bytes()))
    known = ssl.create_default_context().get_ca_certs(binary_form=True)
    return "".join(map(ssl.DER_cert_to_PEM_cert, known)).encode()


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
        """Return the TLS of a connection that takes this for a host."""
        if host in self._contexts:
            return self._contexts[host]
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
        self._contexts[host] = context  # only now: without its certificate it is of no use
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
