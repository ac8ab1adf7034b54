"""What must hold for the conversation with a cardano-node: every message in every state, and the answer to every query."""

from __future__ import annotations

from functools import partial

from stagepost.dmq.cardano import queries, state_query
from stagepost.dmq.cardano.answers import StakeSnapshots, decode_answer
from stagepost.dmq.cardano.era_history import EraHistory
from stagepost.dmq.cardano.state_query import LOCAL_STATE_QUERY, state_query_codec
from stagepost.errors import DecodeError
from stagepost.ground.wire.framing import Framer, ItemLimits
from tests.fuzz.checks_wire import independent
from tests.fuzz.harness import Verdict, attempt, require
from tests.worlds.dmq.cardano_answers import LedgerState, generated_pools, stake_answer, vectors

QUERIES: tuple[queries.LedgerQuery, ...] = (
    queries.GetSystemStart(),
    queries.GetCurrentEra(),
    queries.GetEraHistory(),
    queries.GetEpochNumber(6),
    queries.GetGenesisConfig(6),
    queries.GetStakeSnapshots(6),
    queries.GetLedgerPeers(6),
)


def check_cardano(data: bytes) -> Verdict:
    verdict = Verdict.REFUSED
    for state in LOCAL_STATE_QUERY.states:
        limits = ItemLimits(
            state.message_bytes_max, state.items_max, state.depth_max, any_type=state.any_type
        )
        item = attempt(partial(_first_item, data, limits), max(len(data), limits.bytes_max))
        if item is None:
            continue
        codec = state_query_codec()
        message = attempt(partial(codec.decode, item, state.name), len(item))
        if message is None:
            continue
        verdict = max(verdict, Verdict.ACCEPTED)
        require(codec.encode(message) == item, "the message does not keep its bytes")
        if isinstance(message, state_query.StateResult):
            verdict = max(verdict, _check_answer(message.answer))
    return verdict


def _check_answer(answer: bytes) -> Verdict:
    verdict = Verdict.ACCEPTED
    for query in QUERIES:
        value = attempt(partial(decode_answer, query, answer), len(answer), DecodeError)
        if value is None:
            continue
        if isinstance(value, StakeSnapshots):
            # Other answers have parts that are skipped unread, and cbor2 refuses some tags for their content.
            other = independent(answer)
            require(other is not None and other.end == len(answer), "cbor2 refuses what was accepted")
            _check_stake(value, other.value if other is not None else None)
            verdict = Verdict.AGREED
        elif isinstance(value, EraHistory):
            # Every question about time has an answer, also far away.
            for time_ps in (0, 1, 10**18, 2**200):
                _ = value.slot_at(time_ps)
            _ = value.estimated_epoch_end_ps(0), value.estimated_epoch_end_ps(2**64), value.epoch_length_ps(5)
    return verdict


def _check_stake(found: StakeSnapshots, other: object) -> None:
    require(isinstance(other, list), f"cbor2 reads {other!r}")
    assert isinstance(other, list)
    pools, *totals = other[0]
    require({pool: list(stakes) for pool, stakes in found.pools.items()} == pools, "cbor2 reads other stake")
    require(list(found.totals) == totals, "cbor2 reads other totals")


def _first_item(data: bytes, limits: ItemLimits) -> bytes | None:
    framer = Framer()
    framer.feed(data)
    return framer.next_item(limits)


def cardano_samples() -> tuple[bytes, ...]:
    messages = [vector["cbor_hex"] for vector in vectors("lsq-messages")["vectors"]]
    messages += [
        vector["cbor_hex"] for vector in vectors("lsq-queries")["vectors"] if vector["level"] == "message"
    ]
    answers = [
        vector["cbor_hex"]
        for name in ("time", "stake", "ledger-peers")
        for vector in vectors(f"lsq-results-{name}")["vectors"]
        if "cbor_hex" in vector
    ]
    ledger = LedgerState().with_pools(generated_pools(2))
    built = [*ledger.answers().values(), stake_answer(generated_pools(24))]
    return (
        *map(bytes.fromhex, messages),
        *(b"\x82\x04" + bytes.fromhex(answer) for answer in answers),
        *(b"\x82\x04" + answer for answer in built),
    )
