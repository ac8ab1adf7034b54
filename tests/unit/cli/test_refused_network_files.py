"""Files and addresses of an operator that are wrong: each is refused with what, where and what to do; nothing is started and
nothing is made.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stagepost.chain.node.store import open_chain_store
from stagepost.cli.main import run
from stagepost.dmq.key_texts import ColdSigningKey
from stagepost.dmq.keys import key_files
from stagepost.full_node.network import load_network
from stagepost.ground.files.audit import AUDIT_FILE
from stagepost.ground.files.data_folder import own_folder
from stagepost.network.cards import load_card, make_card
from stagepost.network.founding import FoundingTerms, found_network

NOW_MS = 1_790_000_000_000
NAMES = ("v1", "v2", "v3", "v4", "full", "stranger")

Change = Callable[[Path], Any]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folder with four validators, a full node, a stranger and their network file. Nothing may start in it."""
    cards = {}
    for place, name in enumerate(NAMES):
        seed = sha256(name.encode()).digest()
        (tmp_path / name).mkdir(mode=0o700)
        key_files.save(tmp_path / name / "member.skey", ColdSigningKey(seed))
        card = make_card(seed, name, "127.0.0.1", 5_100 + place, is_validator=name != "full")
        (tmp_path / name / "member.json").write_bytes(msgspec.json.encode(card))
        cards[name] = card
    del cards["stranger"]
    found_network(cards, FoundingTerms(name="n", network_magic=7, begins_ms=NOW_MS)).write(
        tmp_path / "net.json"
    )

    def never(*_: object, **__: object) -> None:
        raise AssertionError("a node was started")

    monkeypatch.setattr("stagepost.validator.process.start_validator", never)
    monkeypatch.setattr("stagepost.full_node.process.start_full_node", never)
    monkeypatch.chdir(tmp_path)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        monkeypatch.setenv("TAKEN", str(other.getsockname()[1]))
        yield tmp_path


def refused(folder: Path, capfd: pytest.CaptureFixture[str], *words: str) -> str:
    """Run a command that must be refused; return what it says."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    status = run([word.replace("TAKEN", os.environ["TAKEN"]) for word in words])
    said = capfd.readouterr().err
    assert status in (2, 3), said
    assert "Traceback" not in said
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    return said


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


def network_with(change: Callable[[Any], Any]) -> Change:
    return lambda folder: edit(folder / "net.json", change)


def member_with(place: int, **fields: object) -> Change:
    def change(content: Any) -> Any:
        content["members"][place] |= fields
        return content

    return network_with(change)


def network_of(content: bytes) -> Change:
    return lambda folder: (folder / "net.json").write_bytes(content)


def cut(share: float) -> Change:
    def change(folder: Path) -> None:
        content = (folder / "net.json").read_bytes()
        (folder / "net.json").write_bytes(content[: int(share * len(content))])

    return change


def key_of(cbor: str) -> Change:
    def change(folder: Path) -> None:
        edit(folder / "v1" / "member.skey", lambda content: {**content, "cborHex": cbor})

    return change


def nothing(_: Path) -> None:
    return None


VALIDATOR = ("node", "validator", "--network", "net.json", "--key", "v1/member.skey", "--data", "data")
MADE_BY = "get the file anew from the operator who made it"

FILES: dict[str, tuple[Change, str, str]] = {
    "empty": (network_of(b""), "net.json", MADE_BY),
    "half": (cut(0.5), "net.json", MADE_BY),
    "last byte missing": (cut(0.999), "net.json", MADE_BY),
    "a list": (network_of(b"[]"), "Expected `object`", MADE_BY),
    "no text": (network_of(os.urandom(2_000)), "net.json", MADE_BY),
    "another alphabet": (network_of("{}".encode("utf-16")), "net.json", MADE_BY),
    "deep": (network_of(b"[" * 100_000), "net.json", MADE_BY),
    "an unknown field": (network_with(lambda one: {**one, "x": 1}), "`x`", MADE_BY),
    "members of a wrong type": (network_with(lambda one: {**one, "members": "v1"}), "$.members", MADE_BY),
    "no members": (network_with(lambda one: {**one, "members": []}), "not among the validators", MADE_BY),
    "port in letters": (member_with(0, port="4001"), "$.members[0].port", MADE_BY),
    "port that is none": (member_with(1, port=70_000), "members[1].port", MADE_BY),
    "no host": (member_with(1, host=""), "members[1].host", MADE_BY),
    "one name twice": (member_with(0, name="v2"), "v2 is that of two members", MADE_BY),
    "one address twice": (member_with(0, port=5_101), "127.0.0.1:5101 is that of v1 and of v2", MADE_BY),
    "a short key": (member_with(2, public_key="ab"), "members[2].public_key", MADE_BY),
    "a full node in the first set": (member_with(0, is_validator=False), "genesis", MADE_BY),
    "magic below 0": (network_with(lambda one: {**one, "network_magic": -1}), "network_magic", MADE_BY),
    "genesis cut": (network_with(lambda one: {**one, "genesis": one["genesis"][:-2]}), "genesis", MADE_BY),
    "genesis with half a byte": (
        network_with(lambda one: {**one, "genesis": one["genesis"][:-1]}),
        "two for each byte",
        MADE_BY,
    ),
    "genesis with more": (
        network_with(lambda one: {**one, "genesis": one["genesis"] + "00"}),
        "genesis",
        MADE_BY,
    ),
    "a key that others read": (
        lambda folder: (folder / "v1/member.skey").chmod(0o644),
        "v1/member.skey holds a secret key",
        "chmod 600 v1/member.skey",
    ),
    "a key that is too short": (key_of("581f" + "00" * 31), "31 bytes", "take it from its origin again"),
    "a key that is too long": (key_of("5821" + "00" * 33), "33 bytes", "take it from its origin again"),
    "a key that ends early": (key_of("5820" + "00" * 31), "member.skey", "take it from its origin again"),
    "a key without text": (
        lambda folder: (folder / "v1/member.skey").write_bytes(b""),
        "v1/member.skey",
        "`stagepost network join`",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_no_node_starts_with_a_file_that_is_wrong(
    folder: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    change, what, advice = FILES[name]
    change(folder)
    said = refused(folder, capfd, *VALIDATOR)
    assert what in said
    assert advice in said
    assert not (folder / "data").exists()


STARTS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "no network file": (
        (*VALIDATOR[:3], "none.json", *VALIDATOR[4:]),
        "none.json",
        "expected a network file",
    ),
    "a folder for a file": ((*VALIDATOR[:3], "v1", *VALIDATOR[4:]), "v1", "not a regular file"),
    "no key": ((*VALIDATOR[:5], "none.skey", *VALIDATOR[6:]), "none.skey", "give a folder or file with keys"),
    "a card for a key": (
        (*VALIDATOR[:5], "v1/member.json", *VALIDATOR[6:]),
        "v1/member.json is not a text envelope",
        "`stagepost network join`",
    ),
    "the key of a stranger": (
        (*VALIDATOR[:5], "stranger/member.skey", *VALIDATOR[6:]),
        "is not the key of a member",
        "give the key of a member",
    ),
    "a validator with the key of a full node": (
        (*VALIDATOR[:5], "full/member.skey", *VALIDATOR[6:]),
        "full/member.skey is the key of full, which is a full node",
        "stagepost node full",
    ),
    "a full node with the key of a validator": (
        ("node", "full", *VALIDATOR[2:]),
        "v1/member.skey is the key of v1, which is a validator",
        "stagepost node validator",
    ),
    "another genesis": (
        (*VALIDATOR, "--genesis", "ab" * 32),
        f"not {'ab' * 32}, on which you agreed",
        MADE_BY,
    ),
    "a hash that is none": (
        (*VALIDATOR, "--genesis", "xyz"),
        "'xyz' is not the hash",
        "stagepost network show",
    ),
    "a port of metrics that is taken": (
        (*VALIDATOR, "--metrics-port", "TAKEN"),
        "cannot listen at 127.0.0.1:",
        "stop the other server or choose another port",
    ),
    "an address of metrics that is taken": (
        (*VALIDATOR, "--prometheus", "127.0.0.1:TAKEN"),
        "cannot listen at 127.0.0.1:",
        "stop the other server or choose another port",
    ),
    "an address of another machine": (
        (*VALIDATOR, "--prometheus", "192.0.2.1:9100"),
        "this machine has no such address",
        "one of its own addresses",
    ),
}


@pytest.mark.parametrize("name", STARTS)
def test_no_node_starts_with_options_that_are_wrong(
    folder: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    words, what, advice = STARTS[name]
    said = refused(folder, capfd, *words)
    assert what in said
    assert advice in said
    assert not (folder / "data").exists()


def test_a_full_node_does_not_start_where_its_http_port_is_taken(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("uvicorn")
    words = ("node", "full", *VALIDATOR[2:4], "--key", "full/member.skey", "--data", "data", "--http")
    said = refused(folder, capfd, *words, "127.0.0.1:TAKEN")
    assert "the port is in use" in said
    assert not (folder / "data").exists()


INIT = ("network", "init", "v1/member.json", "v2/member.json", "full/member.json", "--name", "n", "--out")
JOIN = ("network", "join", "new", "--name", "new", "--address")

COMMANDS: dict[str, tuple[Change, tuple[str, ...], str]] = {
    "no folder for the network file": (nothing, (*INIT, "none/o.json"), "none/o.json cannot be used"),
    "a network file that exists": (nothing, (*INIT, "net.json"), "a network is founded once"),
    "one card twice": (nothing, (*INIT[:3], *INIT[2:], "o.json"), "v1/member.json: given more than once"),
    "a secret for a card": (
        nothing,
        ("network", "init", "v1/member.skey", *INIT[5:], "o.json"),
        "not a member card",
    ),
    "a network for a card": (
        nothing,
        ("network", "init", "net.json", *INIT[5:], "o.json"),
        "not a member card",
    ),
    "a card with an unknown version": (
        lambda folder: edit(folder / "v1/member.json", lambda one: {**one, "stagepost_member": 2}),
        (*INIT, "o.json"),
        "this release reads version 1",
    ),
    "no validator": (
        nothing,
        ("network", "init", "full/member.json", *INIT[5:], "o.json"),
        "0 are validators",
    ),
    "no full node": (nothing, (*INIT[:4], *INIT[5:], "o.json"), "none is a full node"),
    "no name": (nothing, (*INIT[:6], "", "--out", "o.json"), "has 0 bytes"),
    "sessions that are too short": (
        nothing,
        (*INIT, "o.json", "--session-lifetime", "1ms"),
        "a session lives at least",
    ),
    "an address without a port": (nothing, (*JOIN, "10.0.0.1"), "write HOST:PORT"),
    "an address for everything": (nothing, (*JOIN, "0.0.0.0:4001"), "give one that others reach"),
    "port 0": (nothing, (*JOIN, "10.0.0.1:0"), "0 is not 1 to 65535"),
    "a name with blanks": (
        nothing,
        ("network", "join", "new", "--name", "A b", *JOIN[5:], "h:1"),
        "'A b' is not",
    ),
    "a member made twice": (
        nothing,
        ("network", "join", "v1", *JOIN[3:], "h:1"),
        "a member's key is made once",
    ),
    "a folder without a card": (
        nothing,
        ("network", "join", "none", "--network", "net.json"),
        "none/member.json",
    ),
    "a card that is in no network": (
        nothing,
        ("network", "join", "stranger", "--network", "net.json"),
        "stranger with the key and address of stranger/member.json is missing",
    ),
    "a key that is not the card's": (
        lambda folder: (folder / "v2/member.skey").replace(folder / "v1/member.skey"),
        ("network", "join", "v1", "--network", "net.json"),
        "is not the secret of v1/member.json",
    ),
    "a proposal of no kind": (
        lambda folder: (folder / "p.json").write_text("{}"),
        ("network", "set", "members", "p.json", "--network", "net.json"),
        "p.json",
    ),
    "a data folder without a chain": (
        nothing,
        ("network", "show", "--network", "net.json", "--data", "v1"),
        "v1",
    ),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_makes_anything_of_input_that_is_wrong(
    folder: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    change, words, what = COMMANDS[name]
    change(folder)
    said = refused(folder, capfd, *words)
    assert what in said
    assert not (folder / "new").exists()


CHANGE = ("--network", "net.json", "--data", "v1/data", "--key", "v1/member.skey")
PROPOSE = ("network", "set", "propose", *CHANGE, "--out")
APPROVE = ("network", "set", "approve", "p.json", *CHANGE)


@pytest.fixture
def proposed(folder: Path) -> Path:
    """Folder with the data of a validator whose chain has begun, and with a proposal in p.json."""

    async def begin() -> None:
        store = open_chain_store(folder / "v1/data/chain", load_network(folder / "net.json").chain)
        store.begin()
        await asyncio.sleep(0)
        await store.close()

    (folder / "v1/data").mkdir(mode=0o700)
    asyncio.run(begin())
    own_folder(folder / "v1/data", load_card(folder / "v1/member.json").key)
    assert run([*PROPOSE, "p.json", "--remove", "v4"]) == 0
    return folder


def out_is(name: str) -> Change:
    return lambda folder: (folder / "linked").symlink_to(folder / name)


OUTPUTS: dict[str, tuple[Change, tuple[str, ...], str]] = {
    "a proposal over a key": (nothing, (*PROPOSE, "v2/member.skey", "--remove", "v3"), "v2/member.skey exists"),
    "a proposal over the network file": (nothing, (*PROPOSE, "net.json", "--remove", "v3"), "net.json exists"),
    "a proposal over another one": (nothing, (*PROPOSE, "p.json", "--remove", "v3"), "p.json exists"),
    "a proposal through a link": (
        out_is("v2/member.skey"),
        (*PROPOSE, "linked", "--remove", "v3"),
        "linked exists",
    ),
    "a proposal through a link to nothing": (
        out_is("none"),
        (*PROPOSE, "linked", "--remove", "v3"),
        "linked exists",
    ),
    "a network through a link to nothing": (out_is("none"), (*INIT, "linked"), "a network is founded once"),
    "an approval over its proposal": (nothing, (*APPROVE, "--out", "p.json"), "p.json exists"),
    "an approval over a key": (nothing, (*APPROVE, "--out", "v2/member.skey"), "v2/member.skey exists"),
    "an approval in the folder of another member": (
        nothing,
        (*APPROVE[:-1], "v2/member.skey"),
        "data folder v1/data is that of the member with key",
    ),
    "a validator in the folder of another member": (
        nothing,
        (*VALIDATOR[:5], "v2/member.skey", "--data", "v1/data"),
        "data folder v1/data is that of the member with key",
    ),
    "a replacement without a card": (nothing, (*PROPOSE, "o.json", "--replace", "v2\x1b="), "'v2\\x1b' is not NAME"),
    "a replacement by itself": (
        nothing,
        (*PROPOSE, "o.json", "--replace", "v2=v2/member.json"),
        "v2 is in the validator set already",
    ),
    "two replacements of one": (
        nothing,
        (*PROPOSE, "o.json", *("--replace", "v2=stranger/member.json") * 2),
        "v2 leaves more than once",
    ),
    "a name of bytes that are no text": (
        nothing,
        (*INIT[:6], "a\udcff", "--out", "o.json"),
        "'a\\udcff' has characters that cannot be printed",
    ),
    "a member with such a name": (
        nothing,
        ("network", "join", "new", "--name", "a\udcff", *JOIN[5:], "h:1"),
        "'a\\udcff' is not 1 to 40",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OUTPUTS)
def test_no_command_writes_over_a_file_or_takes_a_wish_that_is_wrong(
    proposed: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    change, words, what = OUTPUTS[name]
    change(proposed)
    capfd.readouterr()
    said = refused(proposed, capfd, *words)
    assert what in said
    assert not (proposed / "v1/data/approved").exists()
    assert not (proposed / "none").exists()


def test_an_approval_may_be_written_again_and_says_if_it_does_not_count(
    proposed: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert run([*APPROVE, "--out", "a.json"]) == 0
    assert "does not count" not in capfd.readouterr().out
    (proposed / "v1/data/owner.json").unlink()
    edit(
        proposed / "net.json",
        lambda one: {
            **one,
            "members": [
                *one["members"],
                msgspec.to_builtins(load_card(proposed / "stranger/member.json").member),
            ],
        },
    )
    assert run([*APPROVE[:-1], "stranger/member.skey"]) == 0
    assert "stranger is not in the set in force: this approval does not count" in capfd.readouterr().out


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_an_approval_that_the_validator_could_not_read_is_refused(
    proposed: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    os.chown(proposed / "v1/data", 65_534, 65_534)
    said = refused(proposed, capfd, *APPROVE)
    assert "belongs to user 65534" in said
    assert "run this command as the user that runs the validator" in said
    assert not (proposed / "v1/data/approved").exists()


def test_new_members_reach_the_file_that_a_link_names(proposed: Path) -> None:
    (proposed / "linked.json").symlink_to("net.json")
    card = make_card(bytes(32), "full-2", "127.0.0.1", 6_000, is_validator=False)
    (proposed / "full-2.json").write_bytes(msgspec.json.encode(card))
    assert run(["network", "set", "members", "full-2.json", "--network", "linked.json"]) == 0
    assert (proposed / "linked.json").is_symlink()
    assert load_network(proposed / "net.json").members[-1] == card.member


def test_what_an_operator_does_to_a_network_is_recorded_before_it_is_done(
    proposed: Path,
) -> None:
    def recorded(folder: Path) -> list[str]:
        path = folder / AUDIT_FILE
        return [json.loads(line)["what"] for line in path.read_text().splitlines()] if path.exists() else []

    assert run([*APPROVE]) == 0
    assert run(["network", "set", "withdraw", "p.json", "--data", "v1/data"]) == 0
    approved, withdrawn = recorded(proposed / "v1/data")
    assert approved.startswith("network set approve ")
    assert withdrawn.startswith("network set withdraw ")
    assert approved.split()[-1] == withdrawn.split()[-1]
    card = make_card(bytes(32), "full-2", "127.0.0.1", 6_000, is_validator=False)
    (proposed / "full-2.json").write_bytes(msgspec.json.encode(card))
    assert run(["network", "set", "members", "full-2.json", "--network", "net.json"]) == 0
    assert recorded(proposed) == ["network set members full-2"]
    # An action that cannot be recorded is not begun.
    (proposed / "v1/data" / AUDIT_FILE).unlink()
    (proposed / "v1/data" / AUDIT_FILE).mkdir()
    assert run([*APPROVE]) == 3
    (proposed / "v1/data" / AUDIT_FILE).rmdir()
    assert run(["network", "set", "withdraw", "p.json", "--data", "v1/data"]) == 1
