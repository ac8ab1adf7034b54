"""`stagepost devnet`: validators and a full node on this machine, from one seed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stagepost.cli.durations import duration_option

if TYPE_CHECKING:
    from stagepost.node.devnet import DevnetPlan
    from stagepost.node.devnet_messages import DevnetMessages

NOT_THAT_OUTCOME = 1
INTERRUPTED = 130
FAULTY_FROM = 4


@click.command()
@click.option("--validators", default=7, show_default=True, type=click.IntRange(1, 64), help="How many.")
@click.option("--shards", default=1, show_default=True, type=click.IntRange(1, 16), help="How many.")
@click.option("--seed", default=7, show_default=True, type=int, help="Keys and accounts follow from it.")
@click.option(
    "--data", default="stagepost-devnet", show_default=True, metavar="DIR", type=click.Path(path_type=Path)
)
@click.option(
    "--messages", "count", type=click.IntRange(min=1), help="Send so many, wait for their ends, stop."
)
@click.option(
    "--rate", default=50.0, show_default=True, type=click.FloatRange(min=0.01), help="Messages per second."
)
@duration_option("--message-timeout", "timeout_s", default="4m", help="How long a message lives.")
@duration_option(
    "--session-lifetime",
    "lifetime_s",
    default="250s",
    help="How long validators work together before the next session takes over.",
)
@click.option("--faults", is_flag=True, help="Kill a validator now and then, and start it again.")
@click.option("--one-process", is_flag=True, help="All of them in this process, over loopback sockets.")
@click.pass_context
def devnet(
    context: click.Context,
    validators: int,
    shards: int,
    seed: int,
    data: Path,
    count: int | None,
    rate: float,
    timeout_s: float,
    lifetime_s: float,
    faults: bool,
    one_process: bool,
) -> int:
    """Run a whole network: validators, their queues and their chain, and a full node in front.

    With --messages it sends distinct sums of primes to accounts of all shards, waits until each message has its end,
    compares what the accounts hold, and ends with 0 if all is right. Otherwise it runs until Ctrl-C.

    \b
    Example:
      stagepost devnet --validators 7 --shards 2 --seed 7 --data devnet --messages 200 --one-process
      stagepost topic dump stagepost.remp.statuses --data devnet --out statuses.jsonl
      stagepost sets export --data devnet --out sets.json
      stagepost verify statuses.jsonl --validator-sets sets.json
    """
    import asyncio

    from stagepost.node.devnet import DevnetPlan
    from stagepost.node.devnet_messages import MESSAGES_MAX

    if faults and validators < FAULTY_FROM:
        raise click.UsageError(f"--faults needs {FAULTY_FROM} validators: fewer can spare none", context)
    if count is not None and count > MESSAGES_MAX:
        raise click.UsageError(f"--messages is at most {MESSAGES_MAX}", context)
    plan = DevnetPlan(validators, shards, seed, timeout_s, lifetime_s)
    return asyncio.run(_run(plan, data, count, rate, one_process=one_process, faults=faults))


async def _run(
    plan: DevnetPlan, data: Path, count: int | None, rate: float, *, one_process: bool, faults: bool
) -> int:
    import asyncio
    import signal

    from stagepost.node.devnet import devnet as running
    from stagepost.node.devnet_faults import faults_in
    from stagepost.node.devnet_messages import DevnetMessages, StatusBook

    book = StatusBook()
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with running(plan, data, one_process=one_process, on_status=book) as network:
        await network.ready()
        click.echo(
            f"devnet ready: {plan.validators} validators, {len(network.ledger.master.shards)} shards, data in {data}",
            err=True,
        )
        if count is None:
            await stopped.wait()
            return 0
        messages = DevnetMessages(network, book, count)
        async with faults_in(network, is_on=faults) as killed:
            sending = asyncio.create_task(_send(messages, rate))
            waiting = asyncio.create_task(stopped.wait())
            await asyncio.wait({sending, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                sending.cancel()
                return INTERRUPTED
            waiting.cancel()
            sending.result()
        if faults:
            click.echo(f"validators killed      {len(killed)}")
        return _show(messages, count)


async def _send(messages: DevnetMessages, rate: float) -> None:
    await messages.send(rate)
    await messages.ends(_progress if sys.stderr.isatty() else lambda ended: None)


def _progress(ended: int) -> None:
    click.echo(f"\r{ended} have ended", nl=False, err=True)


def _show(messages: DevnetMessages, count: int) -> int:
    for name, number in sorted(messages.verdicts().items()):
        click.echo(f"{name:<22} {number}")
    wrong = messages.wrong_sums()
    for sentence in wrong:
        click.echo(sentence, err=True)
    accounts = len({message.account for message in messages.messages})
    click.echo(f"{count} messages to {accounts} accounts · {accounts - len(wrong)} sums exact")
    return NOT_THAT_OUTCOME if wrong else 0
