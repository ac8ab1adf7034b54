"""`stagepost send` and `message send` against a small node on a real Unix socket."""

from __future__ import annotations

import json
import resource
import shlex
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from stagepost.cli import main as command
from stagepost.delivery.envelope import read_data_envelope
from stagepost.dmq.keys.kes_clock import kes_schedule_for
from stagepost.dmq.keys.pool_keys import make_keys
from stagepost.dmq.outcome import Reason, Rejected, rejected
from stagepost.dmq.validation import check_proof
from stagepost.errors import ErrorCode
from stagepost.ground.net.version_data import NETWORK_MAGICS
from tests.worlds.dmq.background_node import cardano_in_background, node_in_background, write_node_file
from tests.worlds.dmq.cardano_answers import LedgerState
from tests.worlds.dmq.cardano_node import PretendCardanoNode
from tests.worlds.dmq.small_node import MAGIC, SmallNode


@pytest.fixture(autouse=True)
def _core_dump_limit_is_restored() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_CORE)
    yield
    resource.setrlimit(resource.RLIMIT_CORE, before)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_keys(tmp_path / "keys", start_kes_period=3, issue_number=0)
    return tmp_path / "keys"


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "run" / "node.socket"


@pytest.fixture
def node(socket: Path) -> Iterator[SmallNode]:
    with node_in_background(socket) as started:
        yield started


def send_raw(keys: Path | None, socket: Path, *arguments: object) -> int:
    signing = () if keys is None else ("--keys", str(keys))
    reach = ("--socket", str(socket), "--network-magic", str(MAGIC))
    return command.run(["message", "send", *signing, *reach, *map(str, arguments)])


def send(keys: Path, socket: Path, *arguments: object, magic: int = MAGIC) -> int:
    return command.run(
        [
            "send",
            "--keys",
            str(keys),
            "--socket",
            str(socket),
            "--network-magic",
            str(magic),
            *map(str, arguments),
        ]
    )


def test_text_goes_out_in_the_delivery_envelope(
    node: SmallNode, keys: Path, socket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert send(keys, socket, "hello", "--topic", "demo") == 0

    (message,) = node.messages
    envelope = read_data_envelope(message.body)
    assert (envelope.topic, envelope.payload, envelope.attempt, envelope.ackers) == ("demo", b"hello", 0, ())
    assert len(message.body) == 90
    assert check_proof(message) is None
    assert message.kes_period == 3
    output = capsys.readouterr()
    shown_id = f"{message.message_id.hex()[:8]}…{message.message_id.hex()[-6:]}"
    assert output.out == f"sent     {shown_id}   the node holds it   expires in 29m 50s\n"
    assert output.err == ""


PUBLIC = NETWORK_MAGICS["mithril-preview"]


def public_period() -> int:
    schedule = kes_schedule_for(PUBLIC)
    assert schedule is not None
    return schedule.period_at(time.time())


def public_keys(tmp_path: Path, periods_ago: int) -> Path:
    folder = tmp_path / f"begun-{periods_ago}-periods-ago"
    make_keys(folder, start_kes_period=public_period() - periods_ago, issue_number=0)
    return folder


@pytest.mark.parametrize("periods_ago", [0, 5, 60])
def test_message_on_a_public_network_is_signed_for_the_present_period(
    periods_ago: int, socket: Path, tmp_path: Path
) -> None:
    keys = public_keys(tmp_path, periods_ago)
    before = public_period()

    with node_in_background(socket, magic=PUBLIC) as node:
        assert send(keys, socket, "hello", magic=PUBLIC) == 0

    (message,) = node.messages
    assert before <= message.kes_period <= public_period()
    assert message.kes_evolution in (periods_ago, periods_ago + 1)
    assert check_proof(message) is None


def private_ledger() -> LedgerState:
    """A chain of slots of a second and periods of 100, in its fourth epoch."""
    begun = int(time.time()) // 86_400 * 86_400 - 86_400
    return LedgerState(system_start_unix_s=begun, epoch=3, epoch_s=86_400)


@pytest.mark.parametrize("tier", [(), ("--tier", "best-effort"), ("--tier", "queued")])
@pytest.mark.parametrize("named_by", ["flags", "note", "genesis"])
def test_message_on_a_private_network_is_signed_for_the_period_of_its_chain(
    tier: tuple[str, ...], named_by: str, socket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ledger = private_ledger()
    cardano = tmp_path / "cardano.socket"
    keys = tmp_path / "private"

    def period() -> int:
        return int(time.time() - ledger.system_start_unix_s) // 100

    make_keys(keys, start_kes_period=period() - 7, issue_number=0)
    before = period()
    with (
        node_in_background(socket) as node,
        cardano_in_background(cardano, PretendCardanoNode(ledger)) as chain,
    ):
        named: tuple[object, ...] = (
            "--cardano-node-socket",
            cardano,
            "--cardano-network-magic",
            ledger.magic,
        )
        if named_by == "note":
            named = ("--data", tmp_path)
            facts = {"socket": str(cardano), "network_magic": ledger.magic}
            write_node_file(tmp_path, None, str(socket), cardano=facts)
        elif named_by == "genesis":
            named = ("--genesis", tmp_path / "genesis.json")
            began = datetime.fromtimestamp(ledger.system_start_unix_s, UTC)
            content = {
                "systemStart": f"{began:%Y-%m-%dT%H:%M:%SZ}", "networkMagic": ledger.magic, "slotLength": 1,
                "epochLength": 86_400, "slotsPerKESPeriod": 100, "maxKESEvolutions": 62,
            }  # fmt: skip
            (tmp_path / "genesis.json").write_text(json.dumps(content))
        assert send(keys, socket, "hello", *named, *tier) == 0
        assert (chain.connections > 0) is (named_by != "genesis")

    (message,) = node.messages
    assert before <= message.kes_period <= period()
    assert check_proof(message) is None


def test_a_cardano_node_that_is_away_is_named_and_nothing_is_sent(
    socket: Path, keys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    away = tmp_path / "away.socket"
    with node_in_background(socket) as node:
        status = send(keys, socket, "hello", "--cardano-node-socket", away, "--cardano-network-magic", 42)

    assert status != 0
    assert node.submissions == 0
    error = capsys.readouterr().err
    assert f"the present KES period is not known: cardano-node at {away}" in error
    assert error.splitlines()[-1] == "NOT_READY"


def test_a_magic_without_a_socket_is_refused(
    socket: Path, keys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert send(keys, socket, "hello", "--cardano-network-magic", 42) == 2
    assert "--cardano-network-magic needs --cardano-node-socket" in capsys.readouterr().err


@pytest.mark.parametrize(("periods_ago", "text"), [(62, "ended on 20"), (-2, "begins with period ")])
def test_certificate_of_another_time_is_refused_with_its_date_and_nothing_is_sent(
    periods_ago: int, text: str, socket: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = public_keys(tmp_path, periods_ago)

    with node_in_background(socket, magic=PUBLIC) as node:
        assert send(keys, socket, "hello", magic=PUBLIC) == 1

    assert node.submissions == 0
    error = capsys.readouterr().err
    assert text in error
    assert " UTC\n" in error
    assert error.splitlines()[-1] == "KES_PERIOD"


def test_another_period_than_the_present_one_is_refused_on_a_public_network(
    socket: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = public_keys(tmp_path, 5)

    with node_in_background(socket, magic=PUBLIC) as node:
        stale = public_period() - 4
        assert send(keys, socket, "hello", "--kes-period", stale, magic=PUBLIC) == 1

    assert node.submissions == 0
    assert f"period {stale} was asked for" in capsys.readouterr().err


def test_network_without_a_known_clock_takes_the_period_that_is_asked_for(
    node: SmallNode, keys: Path, socket: Path
) -> None:
    assert send(keys, socket, "hello", "--kes-period", 7) == 0

    assert (node.messages[0].kes_period, check_proof(node.messages[0])) == (7, None)


def test_json_tells_everything_in_one_object(
    node: SmallNode, keys: Path, socket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert send(keys, socket, "hello", "--json", "--ttl", "5m") == 0

    (message,) = node.messages
    facts = json.loads(capsys.readouterr().out)
    envelope = read_data_envelope(message.body)
    assert facts == {
        "message_id": message.message_id.hex(),
        "delivery_id": envelope.delivery_id(message.pool_id).hex(),
        "outcome": "accepted",
        "expires_at_ms": message.expires_at * 1_000,
        "reason": None,
        "text": None,
        "code": None,
    }
    assert abs(message.expires_at * 1_000 - 300_000 - envelope.created_ms) <= 1_000


def test_same_text_twice_is_two_messages(node: SmallNode, keys: Path, socket: Path) -> None:
    assert send(keys, socket, "again") == send(keys, socket, "again") == 0

    assert len({message.message_id for message in node.messages}) == 2


def test_file_is_sent_as_its_content_and_raw_without_envelope(
    node: SmallNode, keys: Path, socket: Path, tmp_path: Path
) -> None:
    file = tmp_path / "note.bin"
    file.write_bytes(b"\x00\x01" * 100)

    assert send(keys, socket, file) == 0
    assert send(keys, socket, file, "--raw") == 0
    first, second = node.messages
    assert read_data_envelope(first.body).payload == file.read_bytes()
    assert second.body == file.read_bytes()


def test_raw_content_of_the_wrong_size_is_refused_before_anything_is_sent(
    node: SmallNode, keys: Path, socket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert send(keys, socket, "too short", "--raw") == 1

    assert node.messages == []
    assert capsys.readouterr().err.splitlines()[-1] == "MSG_BODY_SIZE"


def test_message_send_signs_the_bytes_as_the_whole_body(
    node: SmallNode, keys: Path, socket: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "note.bin"
    file.write_bytes(b"\x00\x01" * 100)

    assert send_raw(keys, socket, file, "--ttl", "5m") == 0
    (message,) = node.messages
    assert message.body == file.read_bytes()
    assert check_proof(message) is None
    shown = capsys.readouterr()
    shown_id = f"{message.message_id.hex()[:8]}…{message.message_id.hex()[-6:]}"
    assert shown.out == f"sent     {shown_id}   the node holds it   expires in 5m\n"
    assert shown.err == ""
    assert send_raw(keys, socket, "too short") == 1
    assert capsys.readouterr().err.splitlines()[-1] == "MSG_BODY_SIZE"
    assert len(node.messages) == 1


def test_former_form_of_a_raw_message_says_the_present_one(
    node: SmallNode, keys: Path, socket: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "note.bin"
    file.write_bytes(b"\x00\x01" * 100)

    assert send(keys, socket, file, "--raw", "--topic", "ignored", "--json") == 0
    shown = capsys.readouterr()
    assert shown.err == (
        f"this form is now: stagepost message send --keys {keys} --socket {socket} --network-magic {MAGIC} "
        f"{file} --json\n"
    )
    line = shown.err.partition(": stagepost ")[2]
    assert (
        command.run([*shlex.split(line), "--ttl", "5m"]) == 0
    )  # another date: the node takes a message once
    again = capsys.readouterr()
    assert again.err == ""
    former, present = json.loads(shown.out), json.loads(again.out)
    assert former.keys() == present.keys()
    assert (former["outcome"], former["delivery_id"]) == (present["outcome"], present["delivery_id"])
    assert [message.body for message in node.messages] == [file.read_bytes()] * 2


def test_message_that_was_made_before_is_sent_as_it_stands(
    node: SmallNode, keys: Path, socket: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body, made = tmp_path / "body", tmp_path / "made.cbor"
    body.write_bytes(b"x" * 120)
    assert command.run(["message", "make", str(body), "--keys", str(keys), "--out", str(made)]) == 0
    capsys.readouterr()

    assert send_raw(None, socket, made, "--json") == 0
    (message,) = node.messages
    assert message.raw == made.read_bytes()
    assert json.loads(capsys.readouterr().out)["message_id"] == message.message_id.hex()
    (tmp_path / "made.hex").write_text(made.read_bytes().hex())
    assert send_raw(None, socket, tmp_path / "made.hex") == 1, "the node has this message"
    assert capsys.readouterr().err.splitlines()[-1] == "MSG_DUPLICATE"

    for flag, value in (("--ttl", "5m"), ("--kes-period", 3), ("--evolved-key", "k")):
        assert send_raw(None, socket, made, flag, value) == 2
        assert f"{flag} needs --keys" in capsys.readouterr().err
    assert send_raw(None, socket, body) == 1, "bytes that are not a message"


def test_rejected_raw_message_is_exit_1(keys: Path, socket: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with node_in_background(socket, refusal=rejected(ErrorCode.MSG_DUPLICATE, "held")):
        assert send_raw(keys, socket, "x" * 100) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "MSG_DUPLICATE"
    assert send_raw(keys, socket, "x" * 100) == 3, "the node is gone"


def test_mistyped_file_name_is_not_published(
    node: SmallNode, keys: Path, socket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("report.cbro", "folder/report"):
        assert send(keys, socket, name) == 3
        assert f"there is no file {name}\n" in capsys.readouterr().err
    assert send(keys, socket, "version 1.0 is out") == 0
    assert len(node.messages) == 1


@pytest.mark.parametrize(
    ("refusal", "lines"),
    [
        (
            rejected(
                ErrorCode.MSG_EXPIRY_TOO_FAR, "expires 1860 s from now; the network allows less than 1800 s"
            ),
            [
                "expires 1860 s from now; the network allows less than 1800 s",
                "  set --ttl to 29m or less; this machine's clock may also be ahead",
                "MSG_EXPIRY_TOO_FAR",
            ],
        ),
        (
            rejected(ErrorCode.MSG_DUPLICATE, "held"),
            [
                "the node holds this message already",
                "  nothing is left to do: the node has it",
                "MSG_DUPLICATE",
            ],
        ),
        (
            Rejected(Reason.INVALID, "InvalidSigId"),
            ["InvalidSigId", "  the node gave no reason that we know; its log may say more", "invalid"],
        ),
        (
            Rejected(Reason.OTHER, "TooFrequent 12"),
            ["TooFrequent 12", "  wait and send again; a pool may send only so often", "other"],
        ),
    ],
)
def test_rejection_is_one_sentence_advice_and_code(
    refusal: Rejected, lines: list[str], keys: Path, socket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with node_in_background(socket, refusal=refusal):
        assert send(keys, socket, "hello") == 1

    output = capsys.readouterr()
    first, *rest = output.err.splitlines()
    assert first.startswith("rejected ")
    assert [first.partition(": ")[2], *rest] == lines
    assert output.out == ""


def test_expired_names_both_views_of_the_clock(
    keys: Path, socket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with node_in_background(socket, refusal=rejected(ErrorCode.MSG_EXPIRED, "over")):
        assert send(keys, socket, "hello", "--ttl", "10m", "--json") == 1

    facts: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (facts["outcome"], facts["reason"], facts["code"]) == ("rejected", "expired", "MSG_EXPIRED")
    assert facts["text"].startswith("the node says that it has expired; by this machine's clock ")


def test_node_that_is_not_there_is_exit_3(
    keys: Path, socket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert send(keys, socket, "hello") == 3

    assert "there is no such socket" in capsys.readouterr().err


def test_wrong_network_names_both(
    node: SmallNode, keys: Path, socket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert send(keys, socket, "hello", magic=7) == 1

    error = capsys.readouterr().err
    assert error.splitlines()[-1] == "HANDSHAKE_WRONG_NETWORK"
    assert "7" in error
    assert str(MAGIC) in error


def test_socket_and_network_come_from_the_data_folder(
    node: SmallNode, keys: Path, socket: Path, tmp_path: Path
) -> None:
    write_node_file(tmp_path, None, str(socket))

    assert command.run(["send", "hello", "--keys", str(keys), "--data", str(tmp_path)]) == 0
    assert len(node.messages) == 1


def test_data_folder_without_a_node_is_told(
    tmp_path: Path, keys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.run(["send", "hello", "--keys", str(keys), "--data", str(tmp_path)]) == 3
    assert "no node runs in" in capsys.readouterr().err


@pytest.mark.parametrize("ttl", ["5", "soon", "0s"])
def test_bad_duration_is_a_usage_error(ttl: str, keys: Path, socket: Path) -> None:
    assert send(keys, socket, "hello", "--ttl", ttl) == 2


def test_payload_that_does_not_fit_is_refused_with_the_room_there_is(
    node: SmallNode, keys: Path, socket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert send(keys, socket, "x " * 990) == 1
    assert "fit into a message" in capsys.readouterr().err
    assert node.messages == []
