"""Bytes of other implementations (genuine) and bytes built from their rules, as each entry of the vectors says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from fractions import Fraction
from hashlib import sha256
from typing import Any

import cbor2
import pytest

from stagepost.dmq.cardano import queries, state_query
from stagepost.dmq.cardano.answers import EraMismatch, StakeSnapshots, decode_answer
from stagepost.dmq.cardano.era_history import ERAS_MAX, EraHistory
from stagepost.dmq.cardano.genesis import ShelleyGenesis, genesis_hash, parse_genesis
from stagepost.dmq.cardano.ledger_peers import RELAYS_MAX, LedgerPeers
from stagepost.dmq.cardano.peer_snapshot import parse_peer_snapshot
from stagepost.dmq.cardano.queries import Era, LedgerQuery, encode_query
from stagepost.dmq.cardano.state_query import (
    ANSWER_BYTES_MAX,
    ANSWER_DEPTH_MAX,
    ANSWER_ITEMS_MAX,
    LOCAL_STATE_QUERY,
    state_query_codec,
)
from stagepost.dmq.pools import POOLS_MAX
from stagepost.errors import ConfigFaults, DecodeError, RemoteProtocolError
from stagepost.ground.net import handshake
from stagepost.ground.net.conversation import HANDSHAKE_CODEC
from stagepost.ground.net.handshake import Terms
from stagepost.ground.net.version_data import CARDANO_QUERY_VERSIONS, ConnectionKind, VersionData
from stagepost.ground.wire.codec import Codec
from stagepost.ground.wire.framing import Framer, ItemLimits, ItemScanner
from tests.worlds.dmq.cardano_answers import generated_pools, indefinite, stake_answer, vectors

MESSAGES = vectors("lsq-messages")
QUERIES = vectors("lsq-queries")
TIME = {vector["id"]: vector for vector in vectors("lsq-results-time")["vectors"]}
STAKE_FILE = vectors("lsq-results-stake")
STAKE = {vector["id"]: vector for vector in STAKE_FILE["vectors"]}
PEERS_FILE = vectors("lsq-results-ledger-peers")
PEERS = {vector["id"]: vector for vector in PEERS_FILE["vectors"]}
CLOCK = vectors("genesis-and-clock")
HANDSHAKES = {vector["id"]: vector for vector in vectors("n2c-handshake")["vectors"]}


def marked(entry: Mapping[str, Any]) -> str:
    """The name under which a vector appears in reports: with its mark."""
    return f"{entry['id']}-{'genuine' if entry['genuine'] else 'built'}"


def each(entries: Iterable[Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("vector", list(entries), ids=marked)


# Handshake


def _said(vector: Mapping[str, Any]) -> tuple[Codec, Any]:
    codec = Codec(HANDSHAKE_CODEC, handshake.DIALECT.name)
    state = "Propose" if vector["cbor_value"][0] == 0 else "Confirm"
    return codec, codec.decode(bytes.fromhex(vector["cbor_hex"]), state)


@each(HANDSHAKES.values())
def test_every_handshake_vector_is_read_and_written_back(vector: Mapping[str, Any]) -> None:
    codec, message = _said(vector)

    assert codec.encode(message).hex() == vector["cbor_hex"]


@pytest.mark.parametrize(
    ("network", "magic"), [("mainnet", 764824073), ("preprod", 1), ("preview", 2), ("mithril-devnet", 42)]
)
def test_our_proposal_is_versions_16_to_23_and_the_answer_settles_on_23(network: str, magic: int) -> None:
    terms = Terms(ConnectionKind.CLIENT, VersionData(magic), CARDANO_QUERY_VERSIONS)
    codec, accepted = _said(HANDSHAKES[f"accept-23-{network}"])

    assert codec.encode(terms.proposal()).hex() == HANDSHAKES[f"propose-16-23-{network}"]["cbor_hex"]
    assert handshake.conclude(accepted, terms).version == 32791


def test_our_proposal_is_that_of_cardano_cli() -> None:
    terms = Terms(ConnectionKind.CLIENT, VersionData(1), CARDANO_QUERY_VERSIONS)
    vector = HANDSHAKES["propose-cardano-cli-10.16-preprod"]
    codec, _ = _said(vector)

    assert codec.encode(terms.proposal()).hex() == vector["cbor_hex"]


# Messages


def _kind(vector: Mapping[str, Any]) -> str:
    return str(
        vector.get("state") or {"Result": "Querying", "Query": "Acquired"}.get(vector.get("message", ""), "")
    )


STATES_OF = {
    "acquire-immutable-tip": "Idle",
    "reacquire-immutable-tip": "Acquired",
    "acquire-point": "Idle",
    "failure-too-old": "Acquiring",
}
WITH_STATE = [vector for vector in MESSAGES["vectors"] if _kind(vector) or vector["id"] in STATES_OF]


def test_only_a_bare_query_is_left_out_of_the_messages() -> None:
    left_out = {vector["id"] for vector in MESSAGES["vectors"]} - {vector["id"] for vector in WITH_STATE}

    assert left_out == {"query-captured-current-era"}


@each(WITH_STATE)
def test_every_message_is_read_in_its_state_and_nowhere_else(vector: Mapping[str, Any]) -> None:
    data = bytes.fromhex(vector["cbor_hex"])
    state = _kind(vector) or STATES_OF[vector["id"]]
    codec = state_query_codec()

    message = codec.decode(data, state)

    assert codec.encode(message) == data
    target = LOCAL_STATE_QUERY.next_state(LOCAL_STATE_QUERY.state(state), message)
    assert target is not None
    assert target.name == vector.get("next", target.name)
    for other in LOCAL_STATE_QUERY.states:
        if other.name != state:
            with pytest.raises(RemoteProtocolError):
                state_query_codec().decode(data, other.name)


@each(MESSAGES["malformed"])
def test_every_malformed_message_is_refused(vector: Mapping[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError):
        state_query_codec().decode(bytes.fromhex(vector["hex"]), vector["state"])


# Queries


MAKERS: Mapping[str, Callable[[int], LedgerQuery]] = {
    "GetSystemStart": lambda _: queries.GetSystemStart(),
    "GetCurrentEra": lambda _: queries.GetCurrentEra(),
    "GetInterpreter": lambda _: queries.GetEraHistory(),
    "GetEpochNo": queries.GetEpochNumber,
    "GetGenesisConfig": queries.GetGenesisConfig,
    "GetStakeSnapshots": queries.GetStakeSnapshots,
    "GetLedgerPeerSnapshot(all)": queries.GetLedgerPeers,
    "GetLedgerPeerSnapshot(big)": lambda era: queries.GetLedgerPeers(era, is_big_only=True),
}
# A DMQ node never asks these: other questions, through GetCBOR, or the form before version 23.
NOT_ASKED = {
    "chain-block-no-query", "chain-point-query", "era-start-golden-byron", "era-start-golden-shelley",
    "stake-snapshots-cli-one-pool", "stake-snapshots-cli-all", "ledger-peers-golden-n2c19",
    "ledger-peers-golden-n2c22", "ledger-peers-legacy-pallas", "chain-dep-state-gouroboros", "ledger-tip-golden",
    "pool-distr2-pallas",
}  # fmt: skip


def _layers(query: LedgerQuery) -> dict[str, bytes]:
    """The bytes of a query with fewer and fewer layers."""
    whole = encode_query(query)
    layers = {"message": state_query_codec().encode(state_query.StateQuery(whole)), "query": whole}
    if whole[:2] == b"\x82\x00":
        layers["block-query"] = whole[2:]
    if whole[:4] == b"\x82\x00\x82\x00":
        layers["leaf"] = whole[6:]
    return layers


@each(vector for vector in QUERIES["vectors"] if vector["id"] not in NOT_ASKED)
def test_every_query_that_we_ask_has_the_published_bytes(vector: Mapping[str, Any]) -> None:
    query = MAKERS[vector["query"]](vector.get("era", 6))

    assert _layers(query)[vector["level"]].hex() == vector["cbor_hex"]


def test_the_queries_left_out_are_in_the_file() -> None:
    assert {vector["id"] for vector in QUERIES["vectors"]} >= NOT_ASKED


@each(vector for vector in QUERIES["vectors"] if vector["id"] in NOT_ASKED)
def test_queries_of_other_programs_are_carried_unchanged(vector: Mapping[str, Any]) -> None:
    """A server reads any query; one that a DMQ node never asks is passed on byte for byte."""
    data = bytes.fromhex(vector["cbor_hex"])
    message = data if vector["level"] == "message" else b"\x82\x03" + data

    decoded = state_query_codec().decode(message, "Acquired")

    assert decoded == state_query.StateQuery(message[2:])
    assert state_query_codec().encode(decoded) == message


@each(QUERIES["malformed"])
def test_a_query_that_no_node_can_read_is_none_of_ours(vector: Mapping[str, Any]) -> None:
    asked = {encode_query(make(era)) for make in MAKERS.values() for era in range(1, 8)}
    leaves = {layer.hex() for make in MAKERS.values() for layer in _layers(make(6)).values()}

    assert bytes.fromhex(vector["cbor_hex"]) not in asked
    assert vector["cbor_hex"] not in leaves


def test_an_era_without_a_name_is_asked_by_its_number() -> None:
    assert encode_query(queries.GetEpochNumber(24)).hex() == "82008200821818" + "8101"
    assert queries.era_name(24) == "era 24"
    assert queries.era_name(Era.CONWAY) == "Conway"


# Answers about time


def answer_of(vector: Mapping[str, Any], query: LedgerQuery) -> Any:
    return decode_answer(query, bytes.fromhex(vector["cbor_hex"]))


@each(
    vector for vector in TIME.values() if vector["query"] == "GetSystemStart" and "utc" in vector["expected"]
)
def test_a_system_start_is_the_stated_moment(vector: Mapping[str, Any]) -> None:
    wanted, _, fraction = vector["expected"]["utc"].rstrip("Z").partition(".")
    seconds = int(datetime.fromisoformat(wanted).replace(tzinfo=UTC).timestamp())

    picoseconds = answer_of(vector, queries.GetSystemStart())

    assert picoseconds == seconds * 10**12 + int((fraction or "0").ljust(12, "0"))
    assert seconds == vector["expected"].get("unix", seconds)


def test_a_system_start_that_is_no_date_is_refused() -> None:
    with pytest.raises(DecodeError, match="not a possible date"):
        answer_of(TIME["system-start-random-big"], queries.GetSystemStart())


@each(vector for vector in TIME.values() if vector["query"] == "GetCurrentEra")
def test_an_era_is_a_bare_number(vector: Mapping[str, Any]) -> None:
    era = answer_of(vector, queries.GetCurrentEra())

    assert queries.era_name(era) == vector["expected"].get("era", "era 24")


def test_epochs_are_read() -> None:
    query = queries.GetEpochNumber(6)

    assert answer_of(TIME["epoch-no-golden"], query) == 10
    assert answer_of(TIME["epoch-no-gouroboros"], query) == 123456
    # Three answers in one list, each without the wrapping.
    examples = bytes.fromhex(TIME["epoch-no-ledger-examples"]["cbor_hex"])
    cuts = (examples[1:2], examples[2:5], examples[5:])
    wanted = TIME["epoch-no-ledger-examples"]["expected"]["epochs"]
    assert [decode_answer(query, b"\x81" + cut) for cut in cuts] == wanted


@pytest.mark.parametrize("name", ["era-mismatch-byron", "era-mismatch-shelley"])
@pytest.mark.parametrize(
    "query",
    [
        queries.GetEpochNumber(1),
        queries.GetStakeSnapshots(1),
        queries.GetGenesisConfig(1),
        queries.GetLedgerPeers(1),
    ],
)
def test_a_mismatch_names_both_eras(name: str, query: LedgerQuery) -> None:
    wanted = TIME[name]["expected"]

    assert answer_of(TIME[name], query) == EraMismatch(
        tuple(wanted["era_of_query"]), tuple(wanted["era_of_ledger"])
    )


HISTORIES = [
    vector for vector in TIME.values() if vector["query"] == "GetInterpreter" and "cbor_hex" in vector
]


@each(HISTORIES)
def test_every_era_history_is_read(vector: Mapping[str, Any]) -> None:
    history = answer_of(vector, queries.GetEraHistory())

    assert isinstance(history, EraHistory)
    assert len(history.eras) >= 2


def test_the_captured_beginning_of_a_history_is_read() -> None:
    vector = TIME["interpreter-capture-preprod-byron-prefix"]

    history = decode_answer(queries.GetEraHistory(), bytes.fromhex(vector["cbor_hex_prefix"]) + b"\xff")

    era = history.eras[0]
    start, end, parameters = vector["cbor_value_of_first_element"]
    assert [era.start.time_ps, era.start.slot, era.start.epoch] == start
    assert era.end is not None
    assert [era.end.time_ps, era.end.slot, era.end.epoch] == end
    assert [era.epoch_slots, era.slot_ps] == [parameters[0], parameters[1] * 10**9]


@pytest.mark.parametrize(
    "name", ["genesis-config-legacy", "genesis-config-n2c21", "genesis-config-gouroboros-values"]
)
def test_a_genesis_answer_is_read_up_to_its_ninth_field(name: str) -> None:
    wanted = TIME[name]["expected"]

    genesis = answer_of(TIME[name], queries.GetGenesisConfig(6))

    assert isinstance(genesis, ShelleyGenesis)
    assert genesis.network_magic == wanted["network_magic"]
    assert genesis.slots_per_kes_period == wanted["slots_per_kes_period"]
    assert genesis.kes_evolutions_max == wanted["max_kes_evolutions"]
    assert genesis.epoch_slots == wanted.get("epoch_length", genesis.epoch_slots)
    assert genesis.slot_us == wanted.get("slot_length_us", genesis.slot_us)


def test_the_mainnet_genesis_is_the_same_by_answer_and_by_file() -> None:
    head = bytes.fromhex(TIME["genesis-config-mainnet-head"]["cbor_hex_of_first_eleven"])

    asked = decode_answer(queries.GetGenesisConfig(6), b"\x81\x8b" + head)

    assert asked == parse_genesis(CLOCK["genesis_files"][0]["file_text"].encode(), "mainnet")


# Answers about stake


def wrapped(vector: Mapping[str, Any]) -> bytes:
    data = bytes.fromhex(vector["cbor_hex"])
    return b"\x81" + data if vector.get("level", "").startswith("ledger value") else data


@each(vector for vector in STAKE.values() if "cbor_hex" in vector and "getcbor" not in vector["id"])
def test_stake_is_read_by_column(vector: Mapping[str, Any]) -> None:
    found = decode_answer(queries.GetStakeSnapshots(6), wrapped(vector))
    wanted = vector["expected"]

    assert isinstance(found, StakeSnapshots)
    eligible = {pool_id.hex() for pool_id, stake in found.set_stakes().items() if stake}
    if isinstance(wanted.get("eligible_by_set"), list):
        assert eligible == set(wanted["eligible_by_set"])
    elif "eligible_by_set" in wanted:
        assert len(eligible) == wanted["eligible_by_set"]
    if isinstance(wanted.get("pools"), dict):
        columns = ("mark", "set", "go")
        assert {
            pool_id.hex(): dict(zip(columns, stakes, strict=True)) for pool_id, stakes in found.pools.items()
        } == wanted["pools"]
        assert dict(zip(columns, found.totals, strict=True)) == wanted["total"]


@pytest.mark.parametrize("is_indefinite", [None, False, True])
@pytest.mark.parametrize("count", [0, 1, 23, 24, 256, 3000, 3100, 5000])
def test_generated_stake_is_read_in_both_forms_of_maps(count: int, is_indefinite: bool | None) -> None:
    pools = generated_pools(count)
    data = stake_answer(pools, is_indefinite=is_indefinite)
    wanted = STAKE.get(f"stake-generated-{count}", {"expected": {}})["expected"]

    found = decode_answer(queries.GetStakeSnapshots(6), data)

    assert found.pools == pools
    assert sum(1 for stake in found.set_stakes().values() if stake) == wanted.get(
        "eligible_by_set", count * 9 // 10 if count else 0
    )
    if "sha256" in wanted:
        assert list(found.totals) == wanted["totals"]
        if is_indefinite is None:
            assert sha256(data).hexdigest() == wanted["sha256"]


@each(STAKE_FILE["malformed"])
def test_malformed_stake_is_refused(vector: Mapping[str, Any]) -> None:
    with pytest.raises(DecodeError):
        decode_answer(queries.GetStakeSnapshots(6), bytes.fromhex(vector["cbor_hex"]))


@pytest.mark.parametrize("count", [2, 24])
def test_stake_that_is_cut_anywhere_is_refused(count: int) -> None:
    data = stake_answer(generated_pools(count))
    for end in range(len(data)):
        with pytest.raises(DecodeError):
            decode_answer(queries.GetStakeSnapshots(6), data[:end])


def test_an_answer_that_comes_byte_by_byte_is_framed_once_it_is_whole() -> None:
    message = b"\x82\x04" + stake_answer(generated_pools(24))
    framer = Framer()
    limits = ItemLimits(ANSWER_BYTES_MAX, ANSWER_ITEMS_MAX, ANSWER_DEPTH_MAX, any_type=True)
    for index in range(len(message)):
        assert framer.next_item(limits) is None
        framer.feed(message[index : index + 1])

    assert framer.next_item(limits) == message


# Ledger peers


@each(PEERS.values())
def test_ledger_peers_are_read_in_all_three_versions(vector: Mapping[str, Any]) -> None:
    data = bytes.fromhex(vector["cbor_hex"])
    found = decode_answer(queries.GetLedgerPeers(6), data if data[0] == 0x81 else b"\x81" + data)
    wanted = vector["expected"]

    assert isinstance(found, LedgerPeers)
    assert (found.version, found.slot) == (wanted["internal_version"], wanted["slot"])
    assert found.network_magic == wanted.get("magic", found.network_magic)
    pools = wanted["pools"]
    if isinstance(pools, int):
        assert len(found.pools) == pools
    else:
        assert [pool.stake for pool in found.pools] == [Fraction(*pool["relative"]) for pool in pools]
        assert [[(relay.host, relay.port) for relay in pool.relays] for pool in found.pools] == [
            [(relay["address"], relay["port"]) for relay in pool["relays"]] for pool in pools
        ]
    if "dmq_usable_pools" in wanted:
        assert sum(1 for pool in found.pools if pool.srv_names) == wanted["dmq_usable_pools"]
    if "big_pools_by_90_percent" in wanted:
        assert len(found.big_pools()) == wanted["big_pools_by_90_percent"]
        assert sum(1 for pool in found.big_pools() if pool.srv_names) == wanted["big_and_srv"]


@each(PEERS_FILE["malformed"])
def test_malformed_ledger_peers_are_refused(vector: Mapping[str, Any]) -> None:
    with pytest.raises(DecodeError):
        decode_answer(queries.GetLedgerPeers(6), bytes.fromhex(vector["cbor_hex"]))


SNAPSHOTS = vectors("peer-snapshot-files")["files"]


@each(SNAPSHOTS)
def test_every_peer_snapshot_file_is_read(vector: Mapping[str, Any]) -> None:
    file, wanted = vector["file"], vector["expected"]

    found = parse_peer_snapshot(json.dumps(file).encode(), "snapshot")

    listed = file["bigLedgerPools"]
    assert found.slot == wanted.get("slot", file.get("slotNo"))
    assert found.network_magic == file.get("NetworkMagic")
    assert len(found.pools) == wanted.get("pools", len(listed))
    assert sum(len(pool.srv_names) for pool in found.pools) == wanted.get("srv_relays", 0)
    assert [[(relay.host, relay.port) for relay in pool.relays] for pool in found.pools] == [
        [(relay[wanted.get("relay_key", "address")], relay.get("port")) for relay in pool["relays"]]
        for pool in listed
    ]
    assert [float(pool.stake) for pool in found.pools] == [pool["relativeStake"] for pool in listed]


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ({}, "version"),
        ({"version": 3, "slotNo": 1, "bigLedgerPools": []}, "version"),
        ({"version": 2, "bigLedgerPools": []}, "slotNo"),
        ({"version": 2, "slotNo": -1, "bigLedgerPools": []}, "slotNo"),
        ({"version": 2, "slotNo": 1}, "bigLedgerPools"),
        ({"version": 2, "slotNo": 1, "bigLedgerPools": [{"relativeStake": 2, "relays": []}]}, "relativeStake"),
        ({"version": 2, "slotNo": 1, "bigLedgerPools": [{"relativeStake": 0.1, "relays": [{}]}]}, "address"),
    ],
)  # fmt: skip
def test_a_peer_snapshot_file_with_a_fault_is_refused_by_place(file: Mapping[str, Any], words: str) -> None:
    with pytest.raises(ConfigFaults, match=words):
        parse_peer_snapshot(json.dumps(file).encode(), "snapshot")


# Clock and genesis


HISTORY_OF = {
    "mainnet": ("system-start-mainnet", "interpreter-mainnet-bignum"),
    "preprod": ("system-start-preprod", "interpreter-preprod-two-eras"),
}


def history_of(network: str) -> tuple[int, EraHistory]:
    """The system start and the history of a network; preview began in Shelley, with slots of a second."""
    if network == "preview":
        head = "9f8383000000f6841a000151801903e883001965408100196540ff"
        start = answer_of(TIME["system-start-preview"], queries.GetSystemStart())
        return start, decode_answer(queries.GetEraHistory(), bytes.fromhex(head))
    start_name, history_name = HISTORY_OF[network]
    start = answer_of(TIME[start_name], queries.GetSystemStart())
    return start, answer_of(TIME[history_name], queries.GetEraHistory())


@pytest.mark.parametrize(
    "point", CLOCK["clock"]["points"], ids=lambda point: f"{point['network']}-{point['slot']}"
)
def test_the_clock_is_that_of_public_explorers(point: Mapping[str, Any]) -> None:
    start_ps, history = history_of(point["network"])
    time_ps = point["unix"] * 10**12 - start_ps

    if point["network"] == "preprod" and point["slot"] == 38580791:
        # The stored history ends before: the slot is beyond the horizon, the epoch follows from the last era's lengths.
        assert history.slot_at(time_ps) is None
    else:
        slot = history.slot_at(time_ps)
        assert slot is not None
        assert slot == point["slot"]
        assert slot // 129_600 == point["kes_period"]
    last_s = history.epoch_length_ps(point["epoch"]) // 10**12 - 1
    begins_ps = history.estimated_epoch_end_ps(point["epoch"]) - history.epoch_length_ps(point["epoch"])
    assert 0 <= (time_ps - begins_ps) // 10**12 <= last_s


@pytest.mark.parametrize("example", CLOCK["kes_examples"], ids=lambda example: str(example["slot"]))
def test_kes_periods_begin_at_the_stated_second(example: Mapping[str, Any]) -> None:
    start_ps, history = history_of(example["network"])
    at_ps = example["unix"] * 10**12 - start_ps

    assert history.slot_at(at_ps) == example["slot"]
    before = history.slot_at(at_ps - 1)
    assert before is not None
    assert before // 129_600 == example["kes_period"] - 1


@each(CLOCK["genesis_files"])
def test_the_public_genesis_files_are_read_and_known_by_their_hash(vector: Mapping[str, Any]) -> None:
    content, wanted = vector["file_text"].encode(), vector["expected"]
    start = int(datetime.fromisoformat(wanted["systemStart"]).timestamp())

    assert genesis_hash(content) == vector["blake2b_256"]
    assert parse_genesis(content, "x", vector["blake2b_256"].upper()) == ShelleyGenesis(
        network_magic=wanted["networkMagic"],
        system_start_ps=start * 10**12,
        epoch_slots=wanted["epochLength"],
        slot_us=wanted["slotLength"] * 1_000_000,
        slots_per_kes_period=wanted["slotsPerKESPeriod"],
        kes_evolutions_max=wanted["maxKESEvolutions"],
    )
    with pytest.raises(ConfigFaults, match="BLAKE2b-256"):
        parse_genesis(content + b" ", "x", vector["blake2b_256"])


# Limits


@pytest.mark.parametrize(
    ("at_the_limit", "beyond"),
    [
        (
            b"\x5a" + (ANSWER_BYTES_MAX - 5).to_bytes(4, "big") + bytes(ANSWER_BYTES_MAX - 5),
            b"\x5a" + (ANSWER_BYTES_MAX - 4).to_bytes(4, "big"),
        ),
        (b"\x9f" + bytes(ANSWER_ITEMS_MAX - 1) + b"\xff", b"\x9f" + bytes(ANSWER_ITEMS_MAX)),
        (b"\x81" * ANSWER_DEPTH_MAX + b"\x00", b"\x81" * (ANSWER_DEPTH_MAX + 1)),
    ],
    ids=["bytes", "items", "depth"],
)
def test_limits_of_an_answer_hold_at_their_edge(at_the_limit: bytes, beyond: bytes) -> None:
    limits = ItemLimits(ANSWER_BYTES_MAX, ANSWER_ITEMS_MAX, ANSWER_DEPTH_MAX, any_type=True)

    assert ItemScanner(limits).scan(at_the_limit) == len(at_the_limit)
    with pytest.raises(DecodeError, match="limit"):
        ItemScanner(limits).scan(beyond)


def _eras(count: int) -> bytes:
    """Eras of no length, one after the other: a history may have such."""
    return indefinite([bytes.fromhex("8383000000830000008301190 3e88100".replace(" ", ""))] * count)


def _relays(count: int) -> bytes:
    pool = cbor2.dumps([1, 2]) + indefinite([b"\x82\x03\x41a"] * count)
    return bytes.fromhex("8182038381000 1".replace(" ", "")) + indefinite([b"\x82" + pool])


@pytest.mark.parametrize(
    ("query", "make", "limit"),
    [
        (queries.GetStakeSnapshots(6), lambda count: stake_answer(generated_pools(count)), POOLS_MAX),
        (queries.GetEraHistory(), _eras, ERAS_MAX),
        (queries.GetLedgerPeers(6), _relays, RELAYS_MAX),
    ],
    ids=["pools", "eras", "relays"],
)
def test_counts_in_answers_hold_at_their_edge(
    query: LedgerQuery, make: Callable[[int], bytes], limit: int
) -> None:
    assert decode_answer(query, make(limit))
    with pytest.raises(DecodeError, match=f"the limit is {limit}"):
        decode_answer(query, make(limit + 1))
