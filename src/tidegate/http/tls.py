"""TLS for both sides."""

import ssl
from pathlib import Path

from tidegate.errors import SettingError


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """A context from PEM files. Raises SettingError naming the file that cannot be used."""
    for setting, path in (("gateway.tls_cert_file", certificate), ("gateway.tls_key_file", key)):
        if not path.is_file():
            raise SettingError(setting, f"{path} is not a file")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key)
    except (ssl.SSLError, OSError) as error:
        raise SettingError("gateway.tls_cert_file", f"{certificate} and {key} cannot be used: {error}") from None
    return context


def client_context(setting: str, authorities: Path | None, *, verify: bool = True) -> ssl.SSLContext:
    """A context that believes the system's authorities, or those in a PEM file; without `verify` anybody.

    Raises SettingError that names `setting` for a file that cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=authorities)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror if isinstance(error, FileNotFoundError | PermissionError) else "it holds no certificate"
        raise SettingError(setting, f"{authorities} cannot be used: {reason}") from None
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
