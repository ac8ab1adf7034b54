"""Messages as the chain reads them: one strict form of its own, and bags of cells with the ids that TON gives them."""

from __future__ import annotations

import json
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytoniq_core.boc import Builder, Cell

from rigs.chain_messages import address
from stagepost.chain.cell_messages import CELLS_MAX, DEPTH_MAX
from stagepost.chain.contracts import ContractKind, transfer_body
from stagepost.chain.message_values import NEVER
from stagepost.chain.messages import (
    LIFE_S_MAX,
    REMEMBERED_BYTES_MAX,
    CanonicalMessage,
    MessageDraft,
    draft_of,
    read_message,
    stamped_draft,
    with_expiry,
)
from stagepost.errors import DecodeError, ErrorCode
from stagepost.remp.message import MESSAGE_BYTES_MAX

VECTOR = Path(__file__).parents[2] / "vectors" / "remp" / "message_id_uid.json"
ACCOUNT = address(ContractKind.BALANCE)

MESSAGES = st.builds(
    CanonicalMessage,
    st.binary(min_size=32, max_size=32),
    st.binary(max_size=300),
    st.integers(0, 2**32 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**31), 2**31 - 1),
)


@given(MESSAGES)
def test_a_message_is_read_as_it_was_written(message: CanonicalMessage) -> None:
    data = message.encode()
    read = read_message(data, takes_cells=False)

    assert CanonicalMessage.decode(data) == message
    assert read.external.message_id == sha256(data).digest()
    assert read.external.uid == message.uid
    assert (read.external.workchain, read.external.account) == (message.workchain, message.account)
    assert read.external.body == data
    assert read.content == message.body
    assert read.parsed.expires_at_s == (message.expires_at_s or None)


@given(MESSAGES, st.data())
def test_no_other_bytes_are_that_message(message: CanonicalMessage, data: st.DataObject) -> None:
    good = message.encode()
    cut = data.draw(st.integers(0, len(good) - 1))

    with pytest.raises(DecodeError):
        read_message(good[:cut], takes_cells=False)
    with pytest.raises(DecodeError):
        read_message(good + b"\0", takes_cells=False)


def test_salt_makes_another_id_and_leaves_the_uid() -> None:
    one = read_message(CanonicalMessage(ACCOUNT, b"body").encode(), takes_cells=False).external
    other = read_message(CanonicalMessage(ACCOUNT, b"body", salt=1).encode(), takes_cells=False).external

    assert one.message_id != other.message_id
    assert one.uid == other.uid


def test_short_messages_are_remembered_and_long_ones_are_not() -> None:
    size = REMEMBERED_BYTES_MAX - len(CanonicalMessage(bytes(32), bytes(800)).encode()) + 800
    short, long = (CanonicalMessage(bytes(32), bytes(length)).encode() for length in (size, size + 4))
    assert (len(short), len(long)) == (REMEMBERED_BYTES_MAX, REMEMBERED_BYTES_MAX + 4)
    assert read_message(short, takes_cells=False) is read_message(bytes(bytearray(short)), takes_cells=False)
    first, again = (read_message(long, takes_cells=False) for _ in range(2))
    assert first is not again
    assert first == again


def test_a_message_has_at_most_65535_bytes() -> None:
    frame = len(CanonicalMessage(ACCOUNT, bytes(300)).encode()) - 300
    fits = CanonicalMessage(ACCOUNT, bytes(MESSAGE_BYTES_MAX - 3 - frame)).encode()

    assert len(fits) == MESSAGE_BYTES_MAX - 3  # TL pads to four bytes
    read_message(fits, takes_cells=False)
    with pytest.raises(DecodeError, match="65536 bytes") as caught:
        read_message(
            CanonicalMessage(ACCOUNT, bytes(MESSAGE_BYTES_MAX + 1 - frame)).encode(), takes_cells=False
        )
    assert caught.value.code is ErrorCode.MSG_BODY_SIZE


# Bags of cells


def bag(
    *,
    kind: int = 0b10,
    source: str = "00",
    destination: str = "100",
    account: bytes = ACCOUNT,
    body: Cell | None = None,
    inline: bytes | None = None,
    state: str = "0",
) -> bytes:
    builder = Builder().store_uint(kind, 2)
    for bit in source + destination:
        builder.store_bit(int(bit))
    builder.store_uint(0, 8).store_bytes(account).store_coins(0)
    for bit in state:
        builder.store_bit(int(bit))
    if body is not None:
        builder.store_bit(1).store_ref(body)
    else:
        builder.store_bit(0).store_bytes(inline or b"")
    return bytes(builder.end_cell().to_boc())


def chain_of(depth: int) -> Cell:
    cell = Builder().store_uint(0, 32).end_cell()
    for number in range(depth):
        cell = Builder().store_uint(number, 32).store_ref(cell).end_cell()
    return cell


def many_cells(count: int) -> Cell:
    """So many, in a broad tree."""
    row = [Builder().store_uint(number, 32).end_cell() for number in range(count)]
    made = 0
    while len(row) > 1:
        made += len(row)
        parents = []
        for at in range(0, len(row), 4):
            builder = Builder().store_uint(made + at, 32)
            for child in row[at : at + 4]:
                builder.store_ref(child)
            parents.append(builder.end_cell())
        row = parents
    return row[0]


def test_ids_of_cells_are_those_of_the_public_vector() -> None:
    (item,) = json.loads(VECTOR.read_text())["items"]
    read = read_message(bytes.fromhex(item["boc"]), takes_cells=True)

    assert read.external.message_id.hex() == item["message_id"]
    assert read.external.uid.hex() == item["message_uid"]
    assert read.expires_at_s == NEVER


def test_a_body_has_the_same_uid_inline_and_by_reference() -> None:
    content = transfer_body(ACCOUNT, 5)
    inline = read_message(bag(inline=content), takes_cells=True)
    referenced = read_message(bag(body=Builder().store_bytes(content).end_cell()), takes_cells=True)

    assert inline.external.uid == referenced.external.uid
    assert inline.external.message_id != referenced.external.message_id
    assert inline.content == referenced.content == content
    assert inline.external.account == ACCOUNT
    assert inline.external.workchain == 0


def test_a_source_outside_and_an_initial_state_are_passed_over() -> None:
    read = read_message(bag(source="01" + "000000100" + "1010", state="10" + "00000"), takes_cells=True)

    assert read.external.account == ACCOUNT


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (bag(kind=0b11), "not an external inbound one"),
        (bag(source="10"), "source must be absent"),
        (bag(destination="110"), "standard address"),
        (bag(destination="101"), "without anycast"),
        (bag(inline=b"x")[:-1], "cannot be unpacked"),
        (bag(inline=b"x") + b"\0", "cannot be unpacked"),
        (bytes(Builder().store_uint(0b1000, 4).end_cell().to_boc()), "more bits"),
        (bytes(Builder().store_uint(0b1000, 4).end_cell().to_boc())[:5], "begins with b5ee9c72"),
        (bag(body=chain_of(DEPTH_MAX)), f"{DEPTH_MAX + 1} cells deep"),
        (bag(body=many_cells(CELLS_MAX)), rf"\d+ cells; at most {CELLS_MAX}"),
    ],
)
def test_every_other_bag_is_refused_with_a_reason(data: bytes, text: str) -> None:
    with pytest.raises(DecodeError, match=text):
        read_message(data, takes_cells=True)


def test_a_message_may_be_511_cells_deep() -> None:
    assert read_message(bag(body=chain_of(DEPTH_MAX - 1)), takes_cells=True).external.account == ACCOUNT


def test_a_bag_has_one_root_and_nothing_absent() -> None:
    good = bytearray(bag(inline=b"x"))
    roots_at = 6 + good[4] % 8
    for at in (roots_at, roots_at + good[4] % 8):
        changed = bytearray(good)
        changed[at] += 1
        with pytest.raises(DecodeError, match="one root and no absent"):
            read_message(bytes(changed), takes_cells=True)


def test_a_chain_without_cells_says_so() -> None:
    with pytest.raises(DecodeError, match="takes none"):
        read_message(bag(inline=b"x"), takes_cells=False)


@given(st.binary(max_size=60), st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4))
def test_altered_bags_are_read_or_refused_and_nothing_else(
    content: bytes, changes: list[tuple[int, int]]
) -> None:
    data = bytearray(bag(body=Builder().store_bytes(content).end_cell()))
    for at, value in changes:
        data[at % len(data)] = value
    with suppress(DecodeError):
        assert len(read_message(bytes(data), takes_cells=True).external.account) == 32


# Drafts


def test_a_draft_expires_its_life_after_the_second_of_its_first_transmission_rounded_up() -> None:
    draft = MessageDraft(bytes(32), b"body", 60, salt=7)
    assert MessageDraft.decode(draft.encode()) == draft
    for first_sent_ms, expires_at_s in ((1_000_000, 1_060), (1_000_001, 1_061), (1_001_000, 1_061)):
        wanted = CanonicalMessage(bytes(32), b"body", expires_at_s, 7)
        assert draft.stamped(first_sent_ms) == wanted
        assert stamped_draft(draft.encode(), first_sent_ms) == wanted.encode()


def test_a_draft_lives_a_second_at_least_and_a_week_at_most() -> None:
    for life_s in (1, LIFE_S_MAX):
        assert MessageDraft.decode(MessageDraft(bytes(32), b"", life_s).encode()).life_s == life_s
    for life_s in (0, LIFE_S_MAX + 1):
        with pytest.raises(DecodeError, match="not a valid life"):
            MessageDraft.decode(MessageDraft(bytes(32), b"", life_s).encode())


def test_only_a_message_of_the_own_form_without_expiry_gets_one() -> None:
    without, having = CanonicalMessage(bytes(32), b"x"), CanonicalMessage(bytes(32), b"x", 5)
    assert with_expiry(without.encode(), 1_000_000) == CanonicalMessage(bytes(32), b"x", 1_060).encode()
    for data in (having.encode(), b"no message", MessageDraft(bytes(32), b"x", 9).encode()):
        assert with_expiry(data, 1_000_000) == data
        assert draft_of(data, 60) is None
    assert stamped_draft(having.encode(), 1_000_000) == having.encode()


def test_a_draft_is_not_a_message_and_a_cut_one_is_refused() -> None:
    data = MessageDraft(bytes(32), b"body", 60).encode()
    with pytest.raises(DecodeError):
        read_message(data, takes_cells=False)
    for size in range(4, len(data)):
        with pytest.raises(DecodeError):
            stamped_draft(data[:size], 1_000_000)
