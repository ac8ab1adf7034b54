"""`stagepost serve`: the dashboard, its API and its metrics over one data folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stagepost.cli.exit_codes import INTERRUPTED
from stagepost.cli.main import file_and_context
from stagepost.cli.options.delivery import with_settings_file

if TYPE_CHECKING:
    from stagepost.web.access.settings import WebSettings

TOKEN_VARIABLE = "STAGEPOST_TOKEN"
HEADER_BYTES_MAX = 16_384
KEEP_ALIVE_S = 15
STOP_WITHIN_S = 5
MISSING = "the dashboard needs FastAPI, uvicorn, Jinja2 and DuckDB, and {name} is not installed"


@click.command()
@click.option(
    "--data", metavar="DIR", default="stagepost-data", show_default=True, type=click.Path(path_type=Path),
    help="Data folder of a full node, devnet or demo.",
)  # fmt: skip
@click.option("--tables", metavar="DIR", type=click.Path(path_type=Path), help="Spark tables. [DATA/tables]")
@click.option(
    "--outbox", metavar="DIR", type=click.Path(path_type=Path), help="Outbox of a publisher. [in DATA]"
)
@click.option("--keys", metavar="DIR", type=click.Path(path_type=Path), help="Keys to flush and replay with.")
@click.option("--host", help="Address to listen at. [127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65_535), help="Port; 0 takes a free one. [8137]")
@click.option(
    "--certificate", metavar="FILE", type=click.Path(path_type=Path), help="TLS certificate chain, PEM."
)
@click.option("--private-key", metavar="FILE", type=click.Path(path_type=Path), help="Its key, PEM.")
@click.option("--new-token", is_flag=True, help="Make a token, show it once, and end.")
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
    """Show a data folder in a browser: traces, live messages, queues, validators, peers, tables; and the same as an API.

    Only this machine can look, unless a token and a TLS certificate are there. A token is asked for once one was made
    with --new-token, or when STAGEPOST_TOKEN is set.

    \b
    Example:
      stagepost serve --data stagepost-demo
      stagepost serve --new-token --data stagepost-data
      stagepost serve --host 0.0.0.0 --certificate fullchain.pem --private-key key.pem
    """
    if new_token:
        from stagepost.web.access.security import write_token

        click.echo(write_token(data))
        click.echo("shown this once; it is asked for from the next start on", err=True)
        return 0
    chosen = _web_settings(config_file, config_context)
    settings = _settings(data, tables, outbox, keys, host, port, certificate, private_key, chosen)
    return _run(settings)


def _web_settings(config_file: Path | None, config_context: str | None) -> dict[str, Any]:
    from stagepost.config.effective import ConfigRequest, effective_config

    file, name = file_and_context(None if config_file is None else str(config_file), config_context)
    config = effective_config(ConfigRequest(config_file=None if file is None else Path(file), context=name))
    config.faults.raise_if_any()
    values = {key: value.value for key, value in config.values.items()}
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

    from stagepost.web.access.security import hash_of, read_token_hash
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
        token_hash=hash_of(token) if token else read_token_hash(data),
        certificate=certificate,
        private_key=private_key,
        **chosen,
    )


def _run(settings: WebSettings) -> int:
    from stagepost.errors import ConfigError

    try:
        import uvicorn

        from stagepost.web.app import create_app
    except ModuleNotFoundError as error:
        raise ConfigError(
            MISSING.format(name=error.name), advice="install the extra: pip install '.[web]'"
        ) from error
    app = create_app(settings)
    listener = _listen(settings)
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    scheme = "https" if settings.has_tls else "http"
    click.echo(f"dashboard of {settings.data} at {scheme}://{shown}:{port}", err=True)
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
    server = uvicorn.Server(config)
    app.state.sources.pulse.ends_when = lambda: server.should_exit
    return _until_signal(lambda: server.run(sockets=[listener]))


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
