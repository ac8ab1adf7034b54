"""`stagepost topic serve`: the topics of a data folder for readers elsewhere, beside the node that writes them."""

from __future__ import annotations

import json
from pathlib import Path

import click

TOKEN_VARIABLE = "STAGEPOST_TOKEN"


@click.command()
@click.option(
    "--data",
    required=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="The data folder of the node that writes the topics.",
)
@click.option(
    "--address",
    default="127.0.0.1:0",
    show_default=True,
    metavar="HOST:PORT|PATH",
    help="Where to listen; port 0 takes a free one. Beyond this machine only with STAGEPOST_TOKEN set.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def serve(data: Path, address: str, as_json: bool) -> None:
    """Serve topics to `stagepost pipeline --address` and other readers, until SIGTERM or Ctrl-C.

    Readers get what is durable, range by range, and the same range always gives the same records. With STAGEPOST_TOKEN set,
    only who knows the same token is answered.

    \b
    Example:
      stagepost topic serve --data stagepost-data --address 127.0.0.1:4200
    """
    import asyncio
    import os

    from stagepost.errors import ConfigError
    from stagepost.ground.net.network import parse_address

    if not data.is_dir():
        raise ConfigError(f"there is no data folder {data}", advice="give the folder of a node with --data")
    place = parse_address(address)

    async def run() -> None:
        import signal

        from stagepost.topics.remote.server import serve_topics

        stopped = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        listener = await serve_topics(data, place, token=os.environ.get(TOKEN_VARIABLE) or None)
        told = {"address": listener.address, "data": str(data)}
        click.echo(json.dumps(told) if as_json else f"topics of {data} at {listener.address}")
        await stopped.wait()
        await listener.close()

    asyncio.run(run())
