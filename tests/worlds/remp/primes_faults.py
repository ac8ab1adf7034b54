"""Collators that differ from an honest one: by an executor of their own mind, or by blocks that hold what stands in earlier
ones, each of them a candidate that nobody may vote for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random

import msgspec

from stagepost.chain.accounts import EMPTY_ACCOUNT, Account
from stagepost.chain.agreement.certificate import CERTIFICATE_ID, Certificate
from stagepost.chain.agreement.messages import decode_message
from stagepost.chain.agreement.votes import VOTE_ID, Vote, VoteKind
from stagepost.chain.configuration import Configuration
from stagepost.chain.hash_tree import HashTree
from stagepost.chain.ledger import EmbeddedLedger
from stagepost.chain.rotation import Plan
from stagepost.chain.shard_blocks import make_block
from stagepost.ground.wire.tl import constructor_bytes
from stagepost.remp.ledger import CollatedBlock
from stagepost.remp.links.switchboard import read_said
from stagepost.remp.message import ExternalMessage
from stagepost.remp.queue.collation import RefusedMessage

FOREDATED_MS = 60_000
_VOTE, _CERTIFICATE = constructor_bytes(VOTE_ID), constructor_bytes(CERTIFICATE_ID)
REFUSED_TEXT = "the contract says no"


def refuse_some(ledger: EmbeddedLedger, refuses: Callable[[bytes], bool]) -> None:
    """Let the executor of this ledger refuse the messages for which `refuses` is true. Candidates of others may hold them:
    an opinion of one collator is no rule of the chain.
    """
    honest = ledger.collate

    def collate(
        session: bytes, parent: bytes, messages: Iterable[ExternalMessage], now_ms: int
    ) -> CollatedBlock | None:
        given = list(messages)
        refused = [one.message_id for one in given if refuses(one.message_id)]
        if not refused:
            return honest(session, parent, given, now_ms)
        collated = honest(session, parent, [one for one in given if one.message_id not in refused], now_ms)
        if collated is None:
            return None
        reports = tuple((one, RefusedMessage(collated.block_id, REFUSED_TEXT)) for one in refused)
        return msgspec.structs.replace(collated, reports=collated.reports + reports)

    ledger.collate = collate  # type: ignore[method-assign]  # its executor is of another version


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


def backdate(ledger: EmbeddedLedger) -> None:
    """From now on every block that this ledger makes is a millisecond later than its parent, and holds every message that
    has ever waited here and still fits: expired ones, too, if no block has passed their expiry.
    """
    honest, known = ledger.collate, dict[bytes, ExternalMessage]()

    def collate(
        session: bytes, parent: bytes, messages: Iterable[ExternalMessage], now_ms: int
    ) -> CollatedBlock | None:
        known.update((one.message_id, one) for one in messages)
        return honest(session, parent, list(known.values()), 0)

    ledger.collate = collate  # type: ignore[method-assign]  # this one validator means harm


def revive(ledger: EmbeddedLedger) -> None:
    """From now on every block that this ledger makes holds every message that has ever waited here and still fits,
    whoever has rejected it.
    """
    honest, known = ledger.collate, dict[bytes, ExternalMessage]()

    def collate(
        session: bytes, parent: bytes, messages: Iterable[ExternalMessage], now_ms: int
    ) -> CollatedBlock | None:
        known.update((one.message_id, one) for one in messages)
        return honest(session, parent, list(known.values()), now_ms)

    ledger.collate = collate  # type: ignore[method-assign]  # this one validator means harm


def is_finalise(frame: bytes) -> bool:
    """Return whether a frame between validators is a vote or a certificate that makes a block final."""
    said = read_said(frame)
    if said is None or not said[1].startswith((_VOTE, _CERTIFICATE)):
        return False
    message = decode_message(said[1])
    return isinstance(message, Vote | Certificate) and message.kind is VoteKind.FINALISE


def foredate(ledger: EmbeddedLedger) -> None:
    """From now on every block that this ledger makes is a minute ahead."""
    honest, of_master = ledger.collate, ledger.collate_master

    def collate(
        session: bytes, parent: bytes, messages: Iterable[ExternalMessage], now_ms: int
    ) -> CollatedBlock | None:
        return honest(session, parent, messages, now_ms + FOREDATED_MS)

    def collate_master(
        session: bytes,
        parent: bytes,
        now_ms: int,
        *,
        plans: Sequence[Plan] = (),
        configuration: Configuration | None = None,
    ) -> bytes | None:
        ahead_ms = now_ms + FOREDATED_MS
        return of_master(session, parent, ahead_ms, plans=plans, configuration=configuration)

    ledger.collate = collate  # type: ignore[method-assign]  # this one validator means harm
    ledger.collate_master = collate_master  # type: ignore[method-assign]


def _is_remembered(accounts: HashTree[Account], message: ExternalMessage) -> bool:
    account = accounts.get(message.account)
    return account is not None and account.recent.get(message.message_id) is not None
