"""Loads the certificate authorities that a provider trusts: the system's and those in a file."""

import ssl
from pathlib import Path
from typing import Final

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


def trust_nobody() -> ssl.SSLContext:
    """Returns the context of a client that needs none, because its endpoint is called over plain HTTP.

    Reading the system's certificates takes some 40 ms of processor time.
    """
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
