"""`--http`: where a full node takes external messages by HTTP, and who may come there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stagepost.cli.options.shared import with_options
from stagepost.ground.files.expected import PORT_MAX, spelt_number

if TYPE_CHECKING:
    from stagepost.full_node.running import RunningFullNode
    from stagepost.web.access.settings import WebSettings

F = TypeVar("F", bound=Callable[..., Any])


def with_http(command: F) -> F:
    """Add `http`, `http_certificate` and `http_private_key`; `http_settings` makes sense of them."""
    file = click.Path(path_type=Path)
    return with_options(
        command,
        click.option(
            "--http",
            metavar="HOST:PORT",
            callback=_address,
            help="Accept messages by HTTP at this address as well; port 0 takes a free port. Needs the extra `web`.",
        ),
        click.option(
            "--http-certificate",
            type=file,
            help="TLS certificate (PEM); required for an address that other machines can reach.",
        ),
        click.option("--http-private-key", type=file, help="Private key of --http-certificate (PEM)."),
    )


def _address(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, int] | None:
    if value is None:
        return None
    host, _, port = value.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    number = spelt_number(port, PORT_MAX)
    if not host or number is None:
        raise click.BadParameter(
            f"{value!r} is not a valid address; give it as 127.0.0.1:8140", context, parameter
        )
    return host, number


def http_settings(
    address: tuple[str, int] | None, certificate: Path | None, private_key: Path | None, data: Path
) -> WebSettings | None:
    """`ConfigError` for an address that others can reach without token and TLS, or if the extra is not installed."""
    if address is None:
        if certificate is not None or private_key is not None:
            raise click.UsageError("--http-certificate and --http-private-key need --http")
        return None
    from stagepost.web.access.security import read_token_hash
    from stagepost.web.access.settings import WebSettings, require_safe_address

    host, port = address
    settings = WebSettings(
        data,
        host=host,
        port=port,
        token_hash=read_token_hash(data),
        certificate=certificate,
        private_key=private_key,
    )
    require_safe_address(settings)
    _require_extra()
    return settings


def http_flags(settings: WebSettings | None) -> tuple[str, ...]:
    """The same for the command line of another process."""
    if settings is None:
        return ()
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    files = (("--http-certificate", settings.certificate), ("--http-private-key", settings.private_key))
    given = (word for flag, path in files if path is not None for word in (flag, str(path)))
    return ("--http", f"{host}:{settings.port}", *given)


def _require_extra() -> None:
    from importlib.util import find_spec

    from stagepost.errors import ConfigError

    missing = [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"--http needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed",
            advice="install the extra: pip install 'stagepost[web]'",
        )


@asynccontextmanager
async def serving_http(node: RunningFullNode, settings: WebSettings) -> AsyncIterator[str]:
    """Beside a full node, which tells the address in its note."""
    from stagepost.web.intake.server import serving_intake

    async with serving_intake(node.desk, settings) as address:
        node.tell_http(address)
        yield address
