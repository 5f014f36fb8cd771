"""The certificates of a provider's connections: the authorities that it trusts, and the certificate that it shows itself."""

import ssl
from pathlib import Path
from typing import Final, NamedTuple

from kitchener.config import ProviderConfig
from kitchener.config.settings_parser import dotted_key
from kitchener.config.shown import described
from kitchener.errors import ConfigError
from kitchener.errors.root import CONFIGURATION
from kitchener.small_files import read_regular

MAX_CA_BYTES: Final = 4 * 1_048_576
"""Largest file of certificates, bytes."""


def read_authorities(provider_id: str, config: ProviderConfig) -> bytes | None:
    """Returns the content of `ca_file`; None: there is none, and only the system's authorities are trusted.

    Raises:
        ConfigError: the file cannot be read or holds no certificates
    """
    if config.ca_file is None:
        return None
    key = dotted_key(("router", "providers", provider_id, "ca_file"))
    try:
        content = read_regular(Path(config.ca_file).expanduser(), MAX_CA_BYTES)
        ssl.create_default_context().load_verify_locations(cadata=content.decode("ascii"))
    except ssl.SSLError as error:
        raise ConfigError(CONFIGURATION, key, described(config.ca_file), "holds no PEM certificates") from error
    except (OSError, ValueError) as error:
        told = getattr(error, "strerror", None) or "is not a PEM file"
        raise ConfigError(CONFIGURATION, key, described(config.ca_file), f"cannot be read: {told}") from error
    return content


class ClientCertificate(NamedTuple):
    """The certificate that an endpoint is shown."""

    certificate: str
    """The path of its file."""
    key: str
    """The path of the file with its private key."""

    def load(self, context: ssl.SSLContext) -> None:
        """Makes the connections of a context show it."""
        context.load_cert_chain(self.certificate, self.key, password="")  # otherwise OpenSSL asks on the terminal


def read_client_certificate(provider_id: str, config: ProviderConfig) -> ClientCertificate | None:
    """Returns the certificate of `client_cert` with its key; None: there is none.

    Raises:
        ConfigError: a file cannot be read, holds no certificate or key, or they do not belong together
    """
    if config.client_cert is None:
        return None
    files = {"client_cert": config.client_cert, "client_key": config.client_key or config.client_cert}
    for name, path in files.items():
        key = dotted_key(("router", "providers", provider_id, name))
        try:
            read_regular(Path(path).expanduser(), MAX_CA_BYTES)
        except (OSError, ValueError) as error:
            told = f"cannot be read: {getattr(error, 'strerror', None) or 'is not a path'}"
            raise ConfigError(CONFIGURATION, key, described(path), told) from error
    found = ClientCertificate(*(str(Path(path).expanduser()) for path in files.values()))
    try:
        found.load(trust_nobody())
    except (ssl.SSLError, OSError, ValueError) as error:
        expected = "expected a PEM file with a certificate, and in it or in `client_key` its private key, not encrypted"
        key = dotted_key(("router", "providers", provider_id, "client_cert"))
        raise ConfigError(CONFIGURATION, key, described(config.client_cert), expected) from error
    return found


def trust_nobody() -> ssl.SSLContext:
    """Returns the context of a client that needs none, because its endpoint is called over plain HTTP.

    Reading the system's certificates takes some 40 ms of processor time.
    """
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
