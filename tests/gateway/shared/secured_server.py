"""The fake server over TLS, with certificates of a private authority."""

import ipaddress
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
from anyio.abc import SocketAttribute
from anyio.streams.tls import TLSListener
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.gateway.shared.fake_server import FakeServer


@asynccontextmanager
async def secured(root: Path, *, wants_certificate: bool = False) -> AsyncIterator[tuple[FakeServer, str, Path]]:
    """A server, its address, and the file of its authority. `chain.pem` beside that is a certificate of it with its key.

    Args:
        root: where the files are written
        wants_certificate: whether it serves only clients with a certificate of the authority
    """
    ca, chain = certificates(root)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(chain)
    if wants_certificate:
        context.load_verify_locations(ca)
        context.verify_mode = ssl.CERT_REQUIRED
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        server = FakeServer(listener.extra(SocketAttribute.local_port))
        over_tls = TLSListener(listener, context, standard_compatible=False)

        async def serve() -> None:
            await over_tls.serve(server.serve)  # type: ignore[arg-type] # it only sends and receives

        tasks.start_soon(serve)
        try:
            yield server, server.url.replace("http:", "https:"), ca
        finally:
            tasks.cancel_scope.cancel()


def certificates(root: Path) -> tuple[Path, Path]:
    """A private authority's certificate, and a server's key with its certificate, with all that Python 3.13 asks of both."""
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Private CA")])
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])

    def signed(subject: x509.Name, public_key: ec.EllipticCurvePublicKey, *extensions: x509.ExtensionType) -> bytes:
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder(ca_name, subject, public_key, 7, now - timedelta(days=1), now + timedelta(days=1))
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
        for each in (*extensions, issuer, x509.SubjectKeyIdentifier.from_public_key(public_key)):
            builder = builder.add_extension(each, critical=isinstance(each, x509.BasicConstraints))
        return builder.sign(ca_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    ca, chain = root / "ca.pem", root / "chain.pem"
    signs = x509.KeyUsage(True, False, False, False, False, True, True, False, False)  # certificates and revocation lists
    ca.write_bytes(signed(ca_name, ca_key.public_key(), x509.BasicConstraints(ca=True, path_length=None), signs))
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    pem = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    chain.write_bytes(signed(name, key.public_key(), address) + key.private_bytes(*pem))
    return ca, chain


def locked_key() -> bytes:
    """A private key behind a password, in PEM."""
    key, lock = ec.generate_private_key(ec.SECP256R1()), serialization.BestAvailableEncryption(b"word")
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock)
