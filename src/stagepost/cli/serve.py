"""`stagepost serve`: the dashboard, its API and its metrics over one data folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stagepost.cli.exit_codes import INTERRUPTED
from stagepost.cli.options.delivery import settings_in, with_settings_file
from stagepost.cli.options.shared import path_option
from stagepost.errors import StorageError

if TYPE_CHECKING:
    from stagepost.web.access.settings import WebSettings

TOKEN_VARIABLE = "STAGEPOST_TOKEN"
HEADER_BYTES_MAX = 16_384
KEEP_ALIVE_S = 15
STOP_WITHIN_S = 5
REQUESTS_AT_ONCE = 256
"""Requests under way at a time, open streams of pages among them."""
MISSING = "the dashboard needs FastAPI, uvicorn, Jinja2 and DuckDB, and {name} is not installed"


@click.command()
@path_option(
    "--data",
    metavar="DIR",
    default="stagepost-data",
    show_default=True,
    help="Data folder of a full node, devnet or demo.",
)
@path_option("--tables", metavar="DIR", help="Folder of the tables. [DATA/tables]")
@path_option("--outbox", metavar="DIR", help="Outbox of a publisher. [DATA/outbox]")
@path_option(
    "--keys", metavar="DIR", help="Folder with a pool's keys; enables flush and replay of the outbox."
)
@click.option("--host", help="Address to listen on. [127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65_535), help="Port to listen on; 0 takes a free port. [8137]")
@path_option("--certificate", metavar="FILE", help="TLS certificate chain (PEM).")
@path_option("--private-key", metavar="FILE", help="Private key of --certificate (PEM).")
@click.option("--new-token", is_flag=True, help="Make a token, print it once, and end.")
@with_settings_file
def serve(
    data: Path,
    tables: Path | None,
    outbox: Path | None,
    keys: Path | None,
    host: str | None,
    port: int | None,
    certificate: Path | None,
    private_key: Path | None,
    new_token: bool,
    config_file: Path | None,
    config_context: str | None,
) -> int:
    """Serve a data folder to browsers, and as an API: traces, live messages, queues, validators, peers, tables.

    Actions (flush, replay) need a token. Without a token of yours, one is made at the start and printed as a link, and
    everybody on this machine may read; `web.open_reading = false` asks for the token then, too. With a token of yours, made
    by --new-token or set as STAGEPOST_TOKEN, every request needs it. Other machines are served only with both a token of
    yours and a TLS certificate.

    \b
    Example:
      stagepost serve --data stagepost-demo
      stagepost serve --new-token --data stagepost-data
      stagepost serve --host 0.0.0.0 --certificate fullchain.pem --private-key key.pem
    """
    if new_token:
        from stagepost.ground.files.audit import record_action, user_name
        from stagepost.web.access.security import write_token

        record_action(data, "serve --new-token", through="cli", who=user_name())
        click.echo(write_token(data))
        click.echo("shown this once; it is asked for from the next start on", err=True)
        return 0
    if not data.is_dir():
        raise StorageError(
            f"there is no folder {data}",
            advice="give the data folder of a node, a devnet or a demo with --data",
        )
    if keys is not None and not keys.is_dir():
        raise StorageError(
            f"there is no folder {keys}", advice="give the folder of the pool's keys with --keys"
        )
    chosen = _web_settings(config_file, config_context)
    chosen_open = bool(chosen.pop("open_reading"))
    settings = _settings(data, tables, outbox, keys, host, port, certificate, private_key, chosen)
    if settings.token_hash is not None:
        return _run(settings)
    return _run_with_new_token(settings, open_reading=chosen_open)


def _web_settings(config_file: Path | None, config_context: str | None) -> dict[str, Any]:
    values = {key: value.value for key, value in settings_in(config_file, config_context).values.items()}
    found = {key.removeprefix("web."): value for key, value in values.items() if key.startswith("web.")}
    return {**found, "queue_size": values["delivery.queue_size"]}


def _settings(
    data: Path,
    tables: Path | None,
    outbox: Path | None,
    keys: Path | None,
    host: str | None,
    port: int | None,
    certificate: Path | None,
    private_key: Path | None,
    chosen: dict[str, Any],
) -> WebSettings:
    import os

    from stagepost.web.access.security import chosen_token_hash, read_token_hash
    from stagepost.web.access.settings import WebSettings

    token = os.environ.get(TOKEN_VARIABLE)
    if host is not None:
        chosen["host"] = host
    if port is not None:
        chosen["port"] = port
    return WebSettings(
        data=data,
        tables=tables,
        outbox=outbox,
        keys=keys,
        token_hash=chosen_token_hash(token) if token else read_token_hash(data),
        certificate=certificate,
        private_key=private_key,
        **chosen,
    )


def _run_with_new_token(settings: WebSettings, *, open_reading: bool) -> int:
    """Serve with a token for this run alone, which the link at the start shows."""
    from dataclasses import replace

    from stagepost.web.access.security import hash_of, new_token
    from stagepost.web.access.settings import require_safe_address

    require_safe_address(settings)  # the token of a run does not open an address to other machines
    token = new_token()
    return _run(replace(settings, token_hash=hash_of(token), open_reading=open_reading), token)


def _run(settings: WebSettings, token: str | None = None) -> int:
    server, listener = dashboard_server(settings, token)
    return _until_signal(lambda: server.run(sockets=[listener]))


def dashboard_server(
    settings: WebSettings, token: str | None, extend: Callable[[Any], None] = lambda app: None
) -> tuple[Any, Any]:
    """Return a server of the dashboard and the socket that it listens on; print its address. `extend` adds to the application."""
    from stagepost.errors import ConfigError

    try:
        import uvicorn

        from stagepost.web.access.places import placed_server
        from stagepost.web.app import create_app
    except ModuleNotFoundError as error:
        raise ConfigError(
            MISSING.format(name=error.name), advice="install the extra: pip install '.[web]'"
        ) from error
    app = create_app(settings)
    extend(app)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="on",
        http="h11",
        ws="none",
        h11_max_incomplete_event_size=HEADER_BYTES_MAX,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_WITHIN_S,
        ssl_certfile=None if settings.certificate is None else str(settings.certificate),
        ssl_keyfile=None if settings.private_key is None else str(settings.private_key),
    )
    server = placed_server(config, REQUESTS_AT_ONCE)
    listener = _listen(settings)
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    scheme = "https" if settings.has_tls else "http"
    click.echo(f"dashboard of {settings.data} at {scheme}://{shown}:{port}", err=True)
    if token is not None:
        purpose = "for actions" if settings.open_reading else "to read and act"
        click.echo(f"{purpose} open {scheme}://{shown}:{port}/login?token={token}", err=True)
    app.state.sources.pulse.ends_when = lambda: server.should_exit
    return server, listener


def _until_signal(run: Callable[[], None]) -> int:
    """The server stops by itself on a signal, and then sends it once more to whoever had listened before: to us."""
    import signal

    heard: list[int] = []
    before = {
        number: signal.signal(number, lambda found, _: heard.append(found))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return INTERRUPTED if signal.SIGINT in heard else 0


def _listen(settings: WebSettings) -> Any:
    import socket

    from stagepost.errors import ConfigError

    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen()  # whoever comes before the first page is ready waits for it
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen at {settings.host}:{settings.port}: {(error.strerror or str(error)).lower()}",
            advice="choose another --port, or 0 for a free one",
        ) from error
    return listener
