"""A small devnet whose topic holds what a pipeline meets: messages that become final, some given back, one refused."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rigs.chain_messages import expires_soon_s
from stagepost.chain.contracts import ContractKind, primes_body
from stagepost.chain.messages import CanonicalMessage
from stagepost.devnet.devnet import Devnet, DevnetPlan, devnet
from stagepost.devnet.messages import ACCOUNTS, StatusBook, account_of

WITHIN_S = 240.0
LOOK_EVERY_S = 0.05
HEAVY = 3
"""Each fills a block by itself: those that are taken for the same block are given back to the queue."""


async def play(data: Path, messages: int, seed: int) -> StatusBook:
    """Heavy messages, sums, and one that its contract rejects; returns when each has its end."""
    book = StatusBook()
    async with devnet(DevnetPlan(validators=4, seed=seed), data, on_status=book) as network:
        await network.ready()
        sent = {_send(network, number, ContractKind.HEAVY) for number in range(HEAVY)}
        sent |= {_send(network, number, ContractKind.SUM_OF_PRIMES) for number in range(messages - HEAVY - 1)}
        refused = _send(network, 0, ContractKind.ALWAYS_REJECTS)
        async with asyncio.timeout(WITHIN_S):
            while not book.final >= sent or refused not in book.receipts:
                await asyncio.sleep(LOOK_EVERY_S)
    return book


def _send(network: Devnet, number: int, kind: ContractKind) -> bytes:
    account = account_of(b"pipeline", number % ACCOUNTS)[:-1] + bytes([kind])
    return network.full_node.submit(
        CanonicalMessage(account, primes_body(2 + number), expires_soon_s()).encode()
    )
