"""`stagepost listen`: the messages that a node holds and gets, as they come."""

from __future__ import annotations

from pathlib import Path

import click

from stagepost.cli.durations import duration_given
from stagepost.cli.local_node_options import json_option, socket_and_magic, with_local_node


@click.command()
@with_local_node
@click.option("--topic", help="Only messages in the delivery envelope with this topic.")
@click.option("--count", type=click.IntRange(min=1), help="End after so many messages.")
@click.option(
    "--until-idle",
    "idle_timeout_s",
    metavar="DURATION",
    callback=duration_given,
    help="End when nothing has come for so long.",
)
@click.option(
    "--since",
    metavar="TIME",
    help="Leave out messages made earlier: ISO 8601, or how long ago (10m). Those that do not say are shown.",
)
@json_option
@click.pass_context
def listen(
    context: click.Context,
    socket: str | None,
    network_magic: int | None,
    profile: str,
    data: Path | None,
    topic: str | None,
    count: int | None,
    idle_timeout_s: float | None,
    since: str | None,
    as_json: bool,
) -> None:
    """Show every message of a node once: first those that it holds, then each as it comes.

    Goes on after the node was restarted. Exit code 1 if --until-idle ended it before --count was reached.

    \b
    Example:
      stagepost listen --topic demo --count 10 --until-idle 5s
    """
    import asyncio

    socket_path, magic = socket_and_magic(socket, network_magic, data)
    since_unix_s = _since(since)

    async def run() -> int:
        import time

        from stagepost.cli.heard_message import HeardMessage
        from stagepost.client import AsyncClient

        shown = 0
        async with AsyncClient.connect(socket_path, magic, profile) as client:
            async for message in client.listen(idle_timeout_s=idle_timeout_s):
                heard = HeardMessage.of(message, time.time())
                if not heard.is_wanted(topic, since_unix_s):
                    continue
                click.echo(heard.json_line() if as_json else heard.text_line())
                shown += 1
                if shown == count:
                    break
        return shown

    shown = asyncio.run(run())
    if count is not None and shown < count:
        context.exit(1)


def _since(text: str | None) -> float | None:
    import time

    from stagepost.cli.durations import parse_moment

    if text is None:
        return None
    try:
        return parse_moment(text, time.time())
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--since") from None
