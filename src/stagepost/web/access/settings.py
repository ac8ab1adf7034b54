"""Settings of the dashboard: where to look, where to listen, how much to keep."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from stagepost.errors import ConfigError
from stagepost.ground.identifiers import LOOPBACK_HOST

PORT = 8137
TABLES_FOLDER = "tables"
"""Below the data folder, unless told otherwise."""
MESSAGES_KEPT = 5_000
QUEUE_SIZE = 1_000


@dataclass(frozen=True, slots=True)
class WebSettings:
    """Settings of one dashboard or HTTP address.

    `token_hash` is SHA-256 of the token; without a token no action is possible. `open_reading` lets everybody read who
    reaches the address; the token is then asked for actions only.
    """

    data: Path
    tables: Path | None = None
    outbox: Path | None = None
    keys: Path | None = None
    host: str = LOOPBACK_HOST
    port: int = PORT
    token_hash: bytes | None = None
    open_reading: bool = False
    certificate: Path | None = None
    private_key: Path | None = None
    live_rows_max: int = 500
    page_rows: int = 50
    query_timeout_s: float = 10.0
    queue_size: int = QUEUE_SIZE
    messages_kept: int = MESSAGES_KEPT

    @property
    def tables_folder(self) -> Path:
        return self.data / TABLES_FOLDER if self.tables is None else self.tables

    @property
    def reads_need_token(self) -> bool:
        return self.token_hash is not None and not self.open_reading

    @property
    def has_tls(self) -> bool:
        return self.certificate is not None and self.private_key is not None


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def require_safe_address(settings: WebSettings) -> None:
    """`ConfigError` for an address that others can reach, unless they must show a token over TLS."""
    if (settings.certificate is None) is not (settings.private_key is None):
        raise ConfigError(
            "of the TLS certificate and its private key one is missing",
            advice="give both --certificate and --private-key",
        )
    if is_loopback(settings.host):
        return
    missing = [
        what
        for what, is_there in (
            ("a token", settings.reads_need_token),
            ("a TLS certificate", settings.has_tls),
        )
        if not is_there
    ]
    if missing:
        raise ConfigError(
            f"{settings.host} can be reached by other machines, and {' and '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing",
            advice="make a token with `stagepost serve --new-token`, give --certificate and --private-key, "
            "or listen on 127.0.0.1",
            found=settings.host,
        )
