"""What must hold for what people hand in as text, key files, pool ids, genesis and peer files, and for a KES agent's key."""

from __future__ import annotations

import json
from random import Random

from stagepost.dmq import key_texts as text_envelope
from stagepost.dmq.cardano.genesis import parse_genesis
from stagepost.dmq.cardano.ledger_peers import RELAYS_MAX, srv_domains
from stagepost.dmq.cardano.peer_snapshot import parse_peer_snapshot
from stagepost.dmq.key_texts import (
    ColdSigningKey,
    ColdVerificationKey,
    Content,
    EvolvedSigningKey,
    IssuedCertificate,
    KesVerificationKey,
)
from stagepost.dmq.keys.kes_agent import KEY_MESSAGE, read_key
from stagepost.dmq.keys.kes_clock import schedule_of_genesis
from stagepost.errors import ConfigError
from stagepost.ground.crypto import bech32
from stagepost.ground.crypto.hashing import format_pool_id, parse_pool_id
from stagepost.ground.crypto.kes import SigningKey
from tests.fuzz.harness import Verdict, attempt, require
from tests.fuzz.samples import COLD_KEY, COLD_SEED, certificate, signing_key
from tests.worlds.dmq.cardano_answers import vectors
from tests.worlds.dmq.kes_agent import key_message

# Late in its life a KES key holds few seeds, and so costs little to check: more inputs in the same time.
_LATE_PERIOD = 60


def check_texts(data: bytes) -> Verdict:
    """As a text, and as what stands in hex inside an envelope of each kind."""
    verdict = _check_envelope(data)
    for kind in text_envelope.KINDS.values():
        verdict = max(verdict, _check_envelope(_envelope(kind.type_name, data)))
    verdict = max(verdict, _check_network_files(data), _check_agent_key(data))
    # The way arguments reach a program: bytes that are no text become lone surrogates.
    return max(verdict, _check_pool_id(data.decode("utf-8", "surrogateescape")))


def _check_envelope(text: bytes) -> Verdict:
    content = attempt(lambda: text_envelope.decode(text, source="input"), len(text), ConfigError)
    if content is None:
        return Verdict.REFUSED
    if isinstance(content, SigningKey) and content.period:
        content = EvolvedSigningKey(content)  # the type line of other programs is for keys at period 0 alone
    again = text_envelope.decode(text_envelope.encode(content), source="again")
    require(text_envelope.encode(again) == text_envelope.encode(content), "the envelope says another thing")
    return Verdict.ACCEPTED


def _check_network_files(text: bytes) -> Verdict:
    genesis = attempt(lambda: parse_genesis(text, "input"), len(text), ConfigError)
    peers = attempt(lambda: parse_peer_snapshot(text, "input"), len(text), ConfigError)
    if genesis is not None:
        require(genesis.fault() is None, "a genesis that no network can have is taken")
        schedule = schedule_of_genesis(genesis)
        require(schedule.period_at(2e9) >= 0, "the genesis has no KES period")
    if peers is not None:
        require(
            all(0 <= pool.stake <= 1 and len(pool.relays) <= RELAYS_MAX for pool in peers.pools),
            "beyond limits",
        )
        require(len(srv_domains(peers, 20, Random(1))) <= 20, "more peers are drawn than were asked for")
    return Verdict.REFUSED if genesis is None and peers is None else Verdict.ACCEPTED


def _check_agent_key(data: bytes) -> Verdict:
    if len(data) != KEY_MESSAGE.size:
        return Verdict.REFUSED
    found = attempt(lambda: read_key(data), len(data), ConfigError)
    if found is None:
        return Verdict.REFUSED
    key, certificate = found
    require(key.period == int.from_bytes(data[616:620], "big"), "the key is at another period than stated")
    require(certificate.kes_verification_key == data[620:652], "the certificate names another key")
    return Verdict.ACCEPTED


def _check_pool_id(text: str) -> Verdict:
    pool_id = attempt(lambda: parse_pool_id(text), len(text), ConfigError)
    found = attempt(lambda: bech32.decode(text), len(text), ConfigError)
    if found is not None:
        prefix, content = found
        require(bech32.encode(prefix, content) == text.lower(), "the bech32 text has a second form")
    if pool_id is not None:
        require(text.lower() in (pool_id.hex(), format_pool_id(pool_id)), "the pool id has a third form")
    return Verdict.REFUSED if pool_id is None and found is None else Verdict.ACCEPTED


def _envelope(type_name: str, content: bytes) -> bytes:
    text = f'{{"type": "{type_name}", "description": "", "cborHex": "{content.hex()}"}}'
    return text.encode()


def text_samples() -> tuple[bytes, ...]:
    contents: tuple[Content, ...] = (
        EvolvedSigningKey(signing_key(_LATE_PERIOD)),
        KesVerificationKey(signing_key().verification_key),
        ColdSigningKey(COLD_SEED),
        ColdVerificationKey(COLD_KEY),
        IssuedCertificate(certificate(), COLD_KEY),
    )
    envelopes = [text_envelope.encode(content) for content in contents]
    inner = [bytes.fromhex(text.split(b'"')[-2].decode()) for text in envelopes]
    pool_id = bytes(range(28))
    return (
        *envelopes,
        *inner,
        vectors("genesis-and-clock")["genesis_files"][2]["file_text"].encode(),
        *(json.dumps(entry["file"]).encode() for entry in vectors("peer-snapshot-files")["files"]),
        key_message(signing_key(_LATE_PERIOD), COLD_SEED)[1:],
        format_pool_id(pool_id).encode(),
        format_pool_id(pool_id).upper().encode(),
        pool_id.hex().encode(),
        bech32.encode("stake_test", b"another").encode(),
    )
