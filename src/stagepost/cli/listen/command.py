"""`stagepost listen`: the messages of a DMQ node, or the receipts of a full node, as they come."""

from __future__ import annotations

from pathlib import Path

import click

from stagepost.cli.exit_codes import NOT_THAT_OUTCOME
from stagepost.cli.options.shared import (
    duration_option,
    json_option,
    path_option,
    socket_and_magic,
    with_local_node,
)


def _kinds_given(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> frozenset[str]:
    if not values:
        return frozenset()
    from stagepost.remp.receipts.status import KINDS

    known = {kind.name.lower(): kind.name for kind in KINDS if kind.is_emitted}
    for value in values:
        if value.lower() not in known:
            raise click.BadParameter(
                f"{value!r} is not a valid kind of receipt; give one of: {', '.join(known.values())}",
                context,
                parameter,
            )
    return frozenset(known[value.lower()] for value in values)


@click.command()
@with_local_node
@click.option("--topic", help="Show only messages with this topic in the delivery envelope.")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    metavar="KIND",
    callback=_kinds_given,
    help="At a full node: show only receipts of this kind, such as Finalized; may be repeated.",
)
@click.option("--count", type=click.IntRange(min=1), help="End after this number of messages or receipts.")
@duration_option(
    "--until-idle",
    "idle_timeout_s",
    default=None,
    help="End when nothing has come for this time.",
)
@click.option(
    "--since",
    metavar="TIME",
    help="Leave out what was made before: ISO 8601, or a time ago (10m). Messages without a time are shown.",
)
@click.option("--ack", is_flag=True, help="Acknowledge messages that ask for it; needs --keys and --topic.")
@path_option("--keys", "folder", help="With --ack: folder with the keys of the pool that acknowledges.")
@path_option(
    "--inbox", help="With --ack: folder that records which messages were shown, for after a restart."
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
    kinds: frozenset[str],
    count: int | None,
    idle_timeout_s: float | None,
    since: str | None,
    ack: bool,
    folder: Path | None,
    inbox: Path | None,
    as_json: bool,
) -> None:
    """Show every message of a DMQ node once: first those that it holds, then each as it comes.

    With the --data of a full node or devnet, show receipts instead: those since --since, then each as it comes.

    The command continues after a restart of the node. Exit code 1 if --until-idle ended it before --count was reached.

    With --ack, a message that asks this pool for an acknowledgement gets it as soon as it is shown. When a publisher sends
    such a message again, because the acknowledgement was lost, it is acknowledged again and not shown again.

    \b
    Example:
      stagepost listen --topic demo --count 10 --until-idle 5s
      stagepost listen --topic demo --ack --keys my-pool --inbox my-inbox
      stagepost listen --data stagepost-devnet --kind Finalized --since 10m --until-idle 5s
    """
    import asyncio

    _require_fitting_options(context, ack, folder, inbox, topic, since)
    since_unix_s = _since(since)
    if data is not None and _is_full_node(context, data, kinds, topic, ack):
        from stagepost.cli.listen.receipts import tail_receipts

        receipts = tail_receipts(
            data,
            kinds=kinds,
            since_unix_s=since_unix_s,
            count=count,
            idle_timeout_s=idle_timeout_s,
            as_json=as_json,
        )
        context.exit(1 if count is not None and receipts < count else 0)
    if kinds:
        raise click.UsageError("--kind needs --data, the folder of a full node or devnet", context)
    socket_path, magic = socket_and_magic(socket, network_magic, data)
    if ack:
        from stagepost.cli.listen.acknowledging import Listening, listen_and_acknowledge
        from stagepost.cli.options.shared import disable_core_dumps

        assert folder is not None
        assert topic is not None
        disable_core_dumps()
        listening = Listening(
            socket_path, magic, profile, folder, data, topic, inbox, count, idle_timeout_s, as_json
        )
        seen = asyncio.run(listen_and_acknowledge(listening))
        context.exit(1 if count is not None and seen < count else 0)

    async def run() -> int:
        import time

        from stagepost.cli.listen.acknowledging import HeardMessage
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
        context.exit(NOT_THAT_OUTCOME)


def _is_full_node(
    context: click.Context, data: Path, kinds: frozenset[str], topic: str | None, ack: bool
) -> bool:
    """Return whether the folder is a full node's. Options of the other kind are refused."""
    from stagepost.cli.listen.receipts import has_receipts
    from stagepost.ground.files.data_folder import NODE_FILE

    is_dmq_node = (data / NODE_FILE).exists() and not kinds
    if is_dmq_node or not has_receipts(data):
        if kinds:
            raise click.UsageError(
                f"--kind selects receipts, and no full node writes receipts to {data}", context
            )
        return False
    if topic is not None or ack:
        wrong = "--topic" if topic is not None else "--ack"
        raise click.UsageError(
            f"{wrong} is for DMQ messages, and {data} is the folder of a full node", context
        )
    return True


def _require_fitting_options(
    context: click.Context,
    ack: bool,
    folder: Path | None,
    inbox: Path | None,
    topic: str | None,
    since: str | None,
) -> None:
    if not ack:
        if folder is not None or inbox is not None:
            raise click.UsageError(f"{'--keys' if folder else '--inbox'} is for --ack", context)
        return
    if folder is None or topic is None:
        missing = "--keys" if folder is None else "--topic"
        raise click.UsageError(
            f"--ack needs {missing}: acknowledgements are signed, and only for messages of one topic", context
        )
    if since is not None:
        raise click.UsageError(
            "--since cannot be used with --ack: messages that are left out are not processed", context
        )


def _since(text: str | None) -> float | None:
    import time

    from stagepost.ground.files.durations import parse_moment

    if text is None:
        return None
    try:
        return parse_moment(text, time.time())
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--since") from None
