"""Keys from a KES agent: its bytes, its faults, and signatures with what it hands out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from stagepost.cli import main as command
from stagepost.dmq import key_texts
from stagepost.dmq.key_texts import ColdVerificationKey
from stagepost.dmq.keys.kes_agent import (
    KEY_MESSAGE,
    VERSIONS_MAX,
    AgentResult,
    KesAgent,
    choose_version,
    read_key,
)
from stagepost.dmq.keys.kes_clock import KesSchedule
from stagepost.dmq.keys.signer import AGENT_ASKED_EVERY_S, DmqSigner
from stagepost.dmq.keys.signing_pair import load_signing_pair
from stagepost.dmq.validation import check_proof
from stagepost.errors import StagepostError
from stagepost.ground.crypto.hashing import pool_id
from stagepost.ground.crypto.kes import SigningKey
from stagepost.ground.crypto.operational_certificate import OperationalCertificate
from tests.worlds.dmq.background_node import node_in_background
from tests.worlds.dmq.cardano_answers import vectors
from tests.worlds.dmq.kes_agent import OFFER, VERSION, PretendKesAgent, key_message, running, verification_key
from tests.worlds.dmq.small_node import MAGIC

FILE = vectors("keys-and-kes-agent")
BYTES = {entry["id"]: bytes.fromhex(entry["hex"]) for entry in FILE["kes_agent"]}
"""Built from the agent's source: no published bytes exist."""
COLD_SEED = bytes.fromhex("76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7")
"""Of the genuine certificate: what ChaCha20 draws first from a seed of 32 zero bytes."""
COLD = verification_key(COLD_SEED)
BODY = bytes(90)
TALK = (OFFER, VERSION + BYTES["key"])


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "agent.socket"


def agent_at(place: Path, cold: bytes = COLD, within_s: float = 20.0) -> KesAgent:
    return KesAgent(place, cold, within_s)


# Bytes


def test_the_genuine_key_and_certificate_are_read_in_both_lengths() -> None:
    pair = FILE["key_pair"]
    for name in ("rust_612_hex", "cardano_608_hex"):
        key = SigningKey.from_bytes(bytes.fromhex(pair[name]))
        assert key.verification_key.hex() == pair["kes_vk_hex"]
        assert key.period == 0
    raw = bytes.fromhex(FILE["opcert"]["cbor_hex_without_cold_vk"])
    # 84, a string of 32 bytes, two numbers below 24, a string of 64 bytes.
    certificate = OperationalCertificate(raw[3:35], raw[35], raw[36], raw[39:103])
    assert certificate.verify(COLD)
    assert pool_id(COLD).hex() == "d9899c574fd7a710732391706b59e878bfd416214c49d2b3841c5c8b"


def test_the_built_envelopes_are_read() -> None:
    found = key_texts.decode(json.dumps(FILE["envelopes"]["kes.skey"]).encode(), source="kes.skey")
    assert isinstance(found, SigningKey)
    assert found.verification_key.hex() == FILE["key_pair"]["kes_vk_hex"]


def test_every_built_message_of_the_agents_protocol_is_met() -> None:
    assert BYTES["offer"] == OFFER
    assert choose_version(BYTES["offer"][4:]) == BYTES["accept-2.0"]
    assert choose_version(BYTES["offer"][36:]) == BYTES["reject"]
    assert BYTES["version-again"] == VERSION
    assert len(BYTES["key"]) == 1 + KEY_MESSAGE.size == 733
    results = {
        "confirm": AgentResult.TAKEN, "decline-outdated": AgentResult.OUTDATED,
        "decline-bad-opcert": AgentResult.BAD_CERTIFICATE, "decline-no-key": AgentResult.NO_KEY,
        "decline-unsupported": AgentResult.UNSUPPORTED,
    }  # fmt: skip
    assert {name: BYTES[name] for name in results} == {name: one.encode() for name, one in results.items()}
    key, certificate = read_key(BYTES["key"][1:])
    assert key.verification_key == certificate.kes_verification_key
    assert key_message(SigningKey.generate(bytes(32)), COLD_SEED) == BYTES["key"]


# Conversations


@pytest.mark.parametrize("evolutions", [0, 1, 31, 61])
def test_an_evolved_key_signs_for_the_present_period_and_later_ones(place: Path, evolutions: int) -> None:
    key = SigningKey.generate(bytes(32))
    for _ in range(evolutions):
        key.evolve()
    says = (OFFER, VERSION + BYTES["drop"], key_message(key, COLD_SEED, start=100))
    with running(PretendKesAgent(says), place) as agent:
        pair = load_signing_pair(agent_at(place))

    assert agent.heard == [BYTES["accept-2.0"], BYTES["confirm"], BYTES["confirm"]]
    assert pair.earliest_period == 100 + evolutions
    message = pair.sign(BODY, kes_period=100 + evolutions, expires_at=1_900_000_000)
    assert check_proof(message) is None
    assert message.pool_id == pool_id(COLD)
    later = pair.sign(BODY, kes_period=100 + min(61, evolutions + 1), expires_at=1_900_000_000)
    assert check_proof(later) is None


def _spoilt(at: int) -> bytes:
    return BYTES["key"][:at] + bytes([BYTES["key"][at] ^ 1]) + BYTES["key"][at + 1 :]


FAULTS: dict[str, tuple[Sequence[bytes], str]] = {
    "no common version": ((b"\0\0\0\1" + b"Service:1.0".ljust(32, b"\0"),), "does not offer Service:2.0"),
    "no versions": ((b"\0\0\0\0",), "offers 0 versions"),
    "endless versions": (((VERSIONS_MAX + 1).to_bytes(4, "big") + VERSION * 17,), "offers 17 versions"),
    "another version": ((OFFER, b"Service:1.0".ljust(32, b"\0")), "another version"),
    "an unknown message": ((OFFER, VERSION + b"\x07"), "kind 7"),
    "a key of another period": ((OFFER, VERSION + _spoilt(1 + 8 + 608 + 3)), "period"),
    "a certificate of another key": ((OFFER, VERSION + _spoilt(1 + 8 + 608 + 4)), "another KES key"),
    "a forged certificate": ((OFFER, VERSION + _spoilt(732)), "not signed by the cold key"),
    "a spoilt key": ((OFFER, VERSION + _spoilt(200)), "KES agent at"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_agent_is_told_in_a_sentence(place: Path, name: str) -> None:
    says, words = FAULTS[name]
    with running(PretendKesAgent(says), place), pytest.raises(StagepostError, match=words):
        agent_at(place).fetch()


def test_an_agent_that_stops_anywhere_is_told(place: Path) -> None:
    whole = VERSION + BYTES["key"]
    for cut in (*range(0, 40, 7), 100, 700, len(whole) - 1):
        with (
            running(PretendKesAgent((OFFER, whole[:cut]), closes=True), place),
            pytest.raises(StagepostError, match="closed the connection"),
        ):
            agent_at(place).fetch()


def test_an_agent_without_a_key_costs_a_bounded_wait(place: Path) -> None:
    with (
        running(PretendKesAgent((OFFER, VERSION)), place),
        pytest.raises(StagepostError, match="no key within"),
    ):
        agent_at(place, within_s=0.2).fetch()


def test_an_agent_that_is_not_there_is_named(place: Path) -> None:
    with pytest.raises(StagepostError, match=f"KES agent at {place}"):
        agent_at(place).fetch()


def test_the_cold_key_of_another_pool_is_declined(place: Path) -> None:
    with (
        running(PretendKesAgent(TALK), place) as agent,
        pytest.raises(StagepostError, match="not signed by the cold key"),
    ):
        agent_at(place, verification_key(bytes([1] * 32))).fetch()
    assert agent.heard[-1] == BYTES["decline-bad-opcert"]


# Signer and command


class SteppedClock:
    now_s = 1_000_000.0

    def unix_s(self) -> float:
        return self.now_s

    def mono_s(self) -> float:
        return self.now_s


def test_a_signer_takes_a_renewed_pair_and_keeps_the_former_while_the_agent_is_away(place: Path) -> None:
    clock, schedule = SteppedClock(), KesSchedule(0.0, 20_000.0)
    renewed = key_message(SigningKey.generate(bytes([5] * 32)), COLD_SEED, number=1, start=50)
    first = key_message(SigningKey.generate(bytes(32)), COLD_SEED, start=49)

    async def scene() -> None:
        with running(PretendKesAgent((OFFER, VERSION + first)), place):
            signer = DmqSigner(agent_at(place), schedule=schedule, clock=clock)
            assert (await signer.sign(BODY, 1_900_000_000)).operational_certificate.issue_number == 0
        clock.now_s += AGENT_ASKED_EVERY_S
        assert (await signer.sign(BODY, 1_900_000_000)).operational_certificate.issue_number == 0
        clock.now_s += AGENT_ASKED_EVERY_S
        with running(PretendKesAgent((OFFER, VERSION + renewed)), place) as agent:
            for _ in range(3):
                message = await signer.sign(BODY, 1_900_000_000)
                assert message.operational_certificate.issue_number == 1
                assert check_proof(message) is None
            assert agent.visits == 1
        await signer.close()

    asyncio.run(scene())


@pytest.fixture
def cold_file(tmp_path: Path) -> Path:
    path = tmp_path / "cold.vkey"
    path.write_bytes(key_texts.encode(ColdVerificationKey(COLD)))
    return path


@pytest.mark.parametrize("tier", [(), ("--tier", "best-effort")])
def test_send_signs_with_the_agents_key(
    place: Path, cold_file: Path, tmp_path: Path, tier: tuple[str, ...]
) -> None:
    socket = tmp_path / "run" / "node.socket"
    reach = ["--socket", str(socket), "--network-magic", str(MAGIC)]
    keys = ["--kes-agent", str(place), "--cold-vkey", str(cold_file)]
    with node_in_background(socket) as node, running(PretendKesAgent(TALK), place):
        assert command.run(["send", "hello", *keys, *reach, *tier]) == 0

    (message,) = node.messages
    assert check_proof(message) is None
    assert message.pool_id == pool_id(COLD)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--kes-agent", "a"], "--kes-agent needs --cold-vkey"),
        (["--kes-agent", "a", "--cold-vkey", "c", "--keys", "k"], "--keys cannot be used with --kes-agent"),
        (["--keys", "k", "--cold-vkey", "c"], "--cold-vkey is for --kes-agent"),
        (["--kes-agent", "a", "--cold-vkey", "c", "--evolved-key", "e"], "--evolved-key cannot be used"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit_are_refused(
    flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.run(["send", "hello", *flags]) == 2
    assert words in capsys.readouterr().err
