"""A collator that puts into its blocks what stands in earlier ones: each of them a candidate that nobody may vote for."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import msgspec

from stagepost.chain.accounts import EMPTY_ACCOUNT, Account
from stagepost.chain.hash_tree import HashTree
from stagepost.chain.ledger import EmbeddedLedger
from stagepost.chain.shard_blocks import make_block
from stagepost.remp.ledger import CollatedBlock
from stagepost.remp.message import ExternalMessage


def replay_everything(ledger: EmbeddedLedger, random: Random) -> None:
    """From now on every block that this ledger makes holds a message of an earlier one, once there is any."""
    honest = ledger.collate

    def collate(
        session: bytes, parent: bytes, messages: Iterable[ExternalMessage], now_ms: int
    ) -> CollatedBlock | None:
        chain = ledger.chain(session)
        state = None if chain is None else chain.state_after(parent)
        if chain is None or state is None or session not in ledger.following.view.sessions:
            return honest(session, parent, messages, now_ms)
        accounts = state.accounts
        given = list(messages)
        included = [
            message
            for final in ledger.history(0)
            for message in final.messages
            if state.shard.holds(message.workchain, message.account)
        ]
        earlier = included + [message for message in given if _is_remembered(accounts, message)]
        if not earlier:
            return honest(session, parent, given, now_ms)
        again = random.choice(earlier)
        account = accounts.get(again.account) or EMPTY_ACCOUNT
        forgetful = msgspec.structs.replace(account, recent=EMPTY_ACCOUNT.recent)
        forgotten = msgspec.structs.replace(state, accounts=accounts.with_value(again.account, forgetful))
        _, collated = make_block(
            forgotten, session, chain.configuration, ledger.following.view, [again], now_ms
        )
        return msgspec.structs.replace(collated, reports=())

    ledger.collate = collate  # type: ignore[method-assign]  # this one validator means harm


def _is_remembered(accounts: HashTree[Account], message: ExternalMessage) -> bool:
    account = accounts.get(message.account)
    return account is not None and account.recent.get(message.message_id) is not None
