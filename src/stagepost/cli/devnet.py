"""`stagepost devnet`: validators and a full node on this machine, from one seed."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stagepost.cli.exit_codes import INTERRUPTED, NOT_THAT_OUTCOME
from stagepost.cli.options.http import http_flags, http_settings, serving_http, with_http
from stagepost.cli.options.node_flags import KafkaWay, with_kafka
from stagepost.cli.options.shared import duration_option, json_option, path_option

if TYPE_CHECKING:
    from stagepost.devnet.devnet import Devnet, DevnetPlan
    from stagepost.devnet.messages import DevnetMessages
    from stagepost.web.access.settings import WebSettings

FAULTY_FROM = 4
FULL_NODE_WITHIN_S = 60.0


@click.command()
@click.option(
    "--validators", default=7, show_default=True, type=click.IntRange(1, 64), help="Number of validators."
)
@click.option("--shards", default=1, show_default=True, type=click.IntRange(1, 16), help="Number of shards.")
@click.option("--seed", default=7, show_default=True, type=int, help="Seed of all keys and accounts.")
@path_option(
    "--data",
    default="stagepost-devnet",
    show_default=True,
    metavar="DIR",
    help="Data folder of the network; a network that is in it continues.",
)
@click.option(
    "--messages",
    "count",
    type=click.IntRange(min=1),
    help="Send this number of messages, wait until each has ended, and stop.",
)
@click.option(
    "--rate", default=50.0, show_default=True, type=click.FloatRange(min=0.01), help="Messages per second."
)
@duration_option(
    "--message-timeout",
    "timeout_s",
    default="4m",
    help="Time after which a message that is not final expires.",
)
@duration_option(
    "--session-lifetime",
    "lifetime_s",
    default="250s",
    help="Time after which the next session of validators takes over.",
)
@click.option(
    "--faults",
    is_flag=True,
    help="Drop some traffic between validators, let fewer than a third of them break the rules, and kill members now and then.",
)
@click.option("--one-process", is_flag=True, help="Run all members in this process, over loopback sockets.")
@with_kafka
@path_option(
    "--config",
    "kafka_config",
    metavar="FILE",
    help="Settings file; its section [kafka] says how to reach the broker. [stagepost.toml, if it exists]",
)
@with_http
@json_option
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
    kafka: str | None,
    kafka_config: Path | None,
    http: tuple[str, int] | None,
    http_certificate: Path | None,
    http_private_key: Path | None,
    as_json: bool,
) -> int:
    """Run a whole network on this machine: validators with their queues and their chain, and a full node.

    With --messages the command sends messages that add sums of primes to accounts of all shards, waits until each message
    has ended, compares the balances of the accounts with the messages, and ends with exit code 0 if they agree. Without
    --messages the network runs until Ctrl-C, and accepts messages from `stagepost submit --wait final --data DIR`, from
    programs, and by HTTP with --http.

    With --faults the summary names the validators that broke the rules (silent, equivocating or lying, chosen by the seed),
    how often members were killed while messages were sent, and the offences that the full node can prove. With
    --one-process only validators are stopped, and they end normally; otherwise validators and the full node are killed
    without warning.

    \b
    Example:
      stagepost devnet --validators 7 --shards 2 --seed 7 --data devnet --messages 200 --one-process
      stagepost topic dump stagepost.remp.statuses --data devnet --out statuses.jsonl
      stagepost sets export --data devnet --out sets.json
      stagepost verify statuses.jsonl --validator-sets sets.json
    """
    import asyncio

    from stagepost.devnet.devnet import DevnetPlan
    from stagepost.devnet.member import LOG_FILE
    from stagepost.devnet.messages import MESSAGES_MAX
    from stagepost.ground.files.data_folder import make_private
    from stagepost.ground.telemetry.logs import configure_logs

    if faults and validators < FAULTY_FROM:
        raise click.UsageError(
            f"--faults needs {FAULTY_FROM} validators: with fewer, none may be faulty", context
        )
    if count is not None and count > MESSAGES_MAX:
        raise click.UsageError(f"--messages is at most {MESSAGES_MAX}", context)
    plan = DevnetPlan(validators, shards, seed, timeout_s, lifetime_s)
    way = KafkaWay.given(kafka, kafka_config)
    settings = http_settings(http, http_certificate, http_private_key, data)
    make_private(data, "data folder", advice="choose another folder with --data")
    with (data / LOG_FILE).open("a") as log:
        # What members report is for a log; whoever looks at this command wants to see how messages fare.
        configure_logs("INFO", "json", log)
        return asyncio.run(
            _run(
                plan,
                data,
                count,
                rate,
                one_process=one_process,
                faults=faults,
                kafka=way,
                http=settings,
                as_json=as_json,
            )
        )


async def _run(
    plan: DevnetPlan,
    data: Path,
    count: int | None,
    rate: float,
    *,
    one_process: bool,
    faults: bool,
    kafka: KafkaWay,
    http: WebSettings | None,
    as_json: bool,
) -> int:
    import asyncio
    import signal
    from contextlib import AsyncExitStack

    from stagepost.devnet.devnet import devnet as running
    from stagepost.devnet.faults import told_of, with_faults
    from stagepost.devnet.messages import DevnetMessages, StatusBook
    from stagepost.ground.files.running_nodes import full_node_told
    from stagepost.ground.loop.load import look_less_often

    begun_ms = int(time.time() * 1_000)
    book = StatusBook()
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    if faults:
        plan = with_faults(plan)
    async with (
        running(
            plan,
            data,
            one_process=one_process,
            full_node_here=one_process,
            on_status=book,
            kafka=kafka.settings,
            full_node_flags=(*kafka.flags, *http_flags(http)),
        ) as network,
        AsyncExitStack() as beside,
    ):
        await network.ready()
        if http is not None and one_process:
            await beside.enter_async_context(serving_http(network.node, http))
        facts = await full_node_told(data, begun_ms, with_http=http is not None, within_s=FULL_NODE_WITHIN_S)
        look_less_often()
        shown = f"devnet ready: {plan.validators} validators, {network.front.shards} shards, data in {data}"
        click.echo(shown, err=True)
        if http is not None:
            click.echo(f"messages by HTTP at {facts.http}", err=True)
        if count is None:
            await stopped.wait()
            return 0
        messages = DevnetMessages(network, book, count)
        sending = asyncio.create_task(_send(network, messages, rate, faults=faults))
        waiting = asyncio.create_task(stopped.wait())
        await asyncio.wait({sending, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not sending.done():
            sending.cancel()
            return INTERRUPTED
        waiting.cancel()
        killed = sending.result()
        if faults:
            _show_faults(plan, killed, told_of(network, data), as_json=as_json)
        return _show(messages, count, as_json=as_json)


async def _send(network: Devnet, messages: DevnetMessages, rate: float, *, faults: bool) -> Mapping[str, int]:
    """Send the messages; return which validators were killed meanwhile, and how often. Kills stop when all is sent, since every
    message must reach its end."""
    from stagepost.devnet.faults import faults_in

    killed: Mapping[str, int] = {}
    if faults:
        async with faults_in(network) as killed:
            await messages.send(rate)
    else:
        await messages.send(rate)
    await messages.ends(_progress if sys.stderr.isatty() else lambda ended: None)
    return killed


def _progress(ended: int) -> None:
    click.echo(f"\r{ended} have ended", nl=False, err=True)


def _show_faults(
    plan: DevnetPlan,
    killed: Mapping[str, int],
    complaints: Mapping[str, Mapping[str, int]],
    *,
    as_json: bool,
) -> None:
    if as_json:
        behaviours = {name: str(behaviour) for name, behaviour in plan.behaviours.items()}
        proved = {name: dict(kinds) for name, kinds in complaints.items()}
        facts = {"killed": dict(killed), "loss": plan.loss, "behaviours": behaviours, "proved": proved}
        click.echo(json.dumps(facts))
        return
    click.echo(f"{'killed':<22} {sum(killed.values())}{_named(killed)}")
    click.echo(f"{'lost between members':<22} {plan.loss:.0%}")
    for name, behaviour in sorted(plan.behaviours.items()):
        click.echo(f"{name:<22} {behaviour}")
    for name, kinds in sorted(complaints.items()):
        click.echo(f"{'proved against ' + name:<22} {_listed(kinds)}")
    if not complaints:
        click.echo(f"{'proved':<22} nothing against anybody")


def _named(killed: Mapping[str, int]) -> str:
    return f" ({_listed(killed)})" if killed else ""


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def _show(messages: DevnetMessages, count: int, *, as_json: bool) -> int:
    wrong = messages.wrong_sums()
    accounts = len({message.account for message in messages.messages})
    for sentence in wrong:
        click.echo(sentence, err=True)
    if as_json:
        facts = {"messages": count, "verdicts": dict(messages.verdicts()), "accounts": accounts}
        click.echo(json.dumps({**facts, "sums_exact": accounts - len(wrong)}))
        return NOT_THAT_OUTCOME if wrong else 0
    for name, number in sorted(messages.verdicts().items()):
        click.echo(f"{name:<22} {number}")
    click.echo(f"{count} messages to {accounts} accounts · {accounts - len(wrong)} sums exact")
    return NOT_THAT_OUTCOME if wrong else 0
