"""The signed message: sizes at their edges, bytes kept as received, and no flipped bit accepted."""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b

import cbor2
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagepost.dmq.message import (
    FIVE_AND_FOUR,
    FIVE_ONLY,
    MESSAGE_BYTES_MAX,
    NETWORK_SIZES,
    DmqMessage,
    MessageLayout,
    MessageSizes,
    _read_any_shape,
    read_message,
    sign_message,
)
from stagepost.errors import DecodeError, ErrorCode, SigningError
from stagepost.ground.crypto import ed25519, kes
from stagepost.ground.wire.cbor import CborReader
from tests.worlds.dmq.message_checks import accepts, flips_accepted
from tests.worlds.ground.strategies import (
    COLD_SEED,
    EXPIRES_AT,
    KES_SEED,
    MessageParts,
    a_certificate,
    a_signed_legacy_message,
    a_signed_message,
    message_parts,
)
from tests.worlds.pipeline.published_tables import plain_message

PROFILE_NAMES = ("dmq-node", "gouroboros", "seed")
STRICT_PROFILES = ("dmq-node", "gouroboros")


def refused(data: bytes, profile: str = "dmq-node") -> DecodeError:
    with pytest.raises(DecodeError) as caught:
        DmqMessage.decode(data, profile=profile)
    return caught.value


# What is read


@pytest.mark.parametrize("profile", PROFILE_NAMES)
@given(parts=message_parts(5))
@settings(max_examples=50)
def test_every_field_is_read_and_the_bytes_are_kept(profile: str, parts: MessageParts) -> None:
    raw = parts.raw()

    message = DmqMessage.decode(raw, profile=profile)

    assert message.encode() == message.raw == raw
    assert message.signed_bytes == parts.payload()
    assert message.layout is MessageLayout.FIVE
    assert cbor2.loads(raw) == plain_message(message)
    assert plain_message(message) == [
        parts.message_id,
        [parts.body, parts.kes_period, parts.expires_at],
        parts.kes_signature,
        [parts.kes_verification_key, parts.issue_number, parts.start_kes_period, parts.cold_signature],
        parts.cold_verification_key,
    ]


@given(message_parts(4))
@settings(max_examples=50)
def test_the_older_layout_is_read_where_the_documents_are_followed(parts: MessageParts) -> None:
    raw = parts.raw()

    message = DmqMessage.decode(raw, profile="seed")

    assert message.encode() == raw
    assert message.layout is MessageLayout.FOUR
    assert message.signed_bytes == parts.payload()
    assert message.has_valid_id
    assert cbor2.loads(message.signed_bytes) == [
        parts.message_id,
        parts.body,
        parts.kes_period,
        parts.expires_at,
    ]
    assert cbor2.loads(raw) == plain_message(message)


@pytest.mark.parametrize("profile", STRICT_PROFILES)
def test_the_older_layout_is_refused_elsewhere(profile: str) -> None:
    fault = refused(MessageParts(elements=4).raw(), profile)

    assert (fault.code, fault.offset) == (ErrorCode.CBOR_INVALID, 0)


@pytest.mark.parametrize("profile", PROFILE_NAMES)
def test_the_flat_layout_of_seven_elements_is_refused(profile: str) -> None:
    parts = MessageParts()
    certificate = [parts.kes_verification_key, 1, 0, parts.cold_signature]
    flat = [parts.message_id, parts.body, 1, EXPIRES_AT, parts.kes_signature, certificate, b"\x66" * 32]

    assert refused(cbor2.dumps(flat), profile).code is ErrorCode.CBOR_INVALID


@pytest.mark.parametrize("elements", [0, 1, 2, 3, 6, 8])
def test_any_other_number_of_elements_is_refused(elements: int) -> None:
    raw = bytes([0x80 | elements]) + MessageParts().raw()[1:]

    for profile in PROFILE_NAMES:
        refused(raw, profile)


def test_messages_of_two_layouts_with_one_id_are_told_apart() -> None:
    five, four = MessageParts().decoded(), MessageParts(elements=4).decoded()

    assert five.message_id == four.message_id
    assert five.key != four.key


def test_the_pool_id_is_the_short_hash_of_the_cold_key() -> None:
    message = MessageParts().decoded()

    assert message.pool_id == blake2b(b"\x66" * 32, digest_size=28).digest()


# Longer forms and the two ways of reading


def outcome_of(data: bytes, layouts: frozenset[MessageLayout], *, long_way: bool, prefix: int = 0) -> object:
    reader = CborReader(data, offset=prefix)
    try:
        if long_way:
            message = _read_any_shape(reader, layouts, NETWORK_SIZES)
        else:
            message = read_message(reader, layouts)
    except DecodeError as fault:
        return fault.code, fault.text, fault.offset, fault.found, fault.advice
    return message, reader.offset


@given(message_parts(5, 4, any_width=True))
@settings(max_examples=200)
def test_longer_forms_inside_a_message_are_read_and_the_signed_bytes_kept(parts: MessageParts) -> None:
    raw = parts.raw()

    message = DmqMessage.decode(raw, profile="seed")

    assert message.raw == raw
    assert message.signed_bytes == parts.payload()
    assert message.kes_period == parts.kes_period
    assert message.body == parts.body
    assert cbor2.loads(raw) == plain_message(message)
    for layouts in (FIVE_ONLY, FIVE_AND_FOUR):
        assert outcome_of(raw, layouts, long_way=False) == outcome_of(raw, layouts, long_way=True)


@given(
    message_parts(5, 4, any_width=True),
    st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 255)), min_size=1, max_size=3),
    st.integers(0, 3_000),
    st.sampled_from(("change", "insert", "remove", "cut", "extend")),
)
@settings(max_examples=600)
def test_the_quick_and_the_long_way_answer_alike_on_damaged_messages(
    parts: MessageParts, places: list[tuple[int, int]], end: int, damage: str
) -> None:
    data = bytearray(parts.raw())
    heads = sorted({0, 1, 2, 35, 36, 37, 38, *range(len(data) - 160, len(data) - 100)})
    for place, byte in places:
        at = heads[place % len(heads)] if byte % 2 else place % len(data)
        if damage == "change":
            data[at] = byte
        elif damage == "insert":
            data.insert(at, byte)
        elif damage == "remove":
            del data[at]
    if damage == "cut":
        del data[end % len(data) :]
    elif damage == "extend":
        data += bytes(places[0][1])
    raw = bytes(data)

    for layouts in (FIVE_ONLY, FIVE_AND_FOUR):
        assert outcome_of(raw, layouts, long_way=False) == outcome_of(raw, layouts, long_way=True)


def test_both_ways_answer_alike_wherever_one_byte_of_a_message_changes() -> None:
    raw = MessageParts(kes_period=300, issue_number=70_000).raw()
    for at in range(len(raw)):
        is_content = 60 < at < 120 or 150 < at < 560 or 600 < at < 625
        for byte in (0x00, 0xFF) if is_content else range(256):
            changed = raw[:at] + bytes([byte]) + raw[at + 1 :]
            assert outcome_of(changed, FIVE_ONLY, long_way=False) == outcome_of(
                changed, FIVE_ONLY, long_way=True
            )


@given(message_parts(5), st.binary(max_size=10), st.binary(max_size=10))
@settings(max_examples=50)
def test_a_message_in_the_midst_of_others_ends_where_it_ends(
    parts: MessageParts, before: bytes, behind: bytes
) -> None:
    raw = parts.raw()
    data = before + raw + behind

    quick = outcome_of(data, FIVE_ONLY, long_way=False, prefix=len(before))

    assert quick == outcome_of(data, FIVE_ONLY, long_way=True, prefix=len(before))
    assert quick == (DmqMessage.decode(raw), len(before) + len(raw))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_decode_error(data: bytes) -> None:
    for profile in PROFILE_NAMES:
        refused(data, profile)


# Sizes


@pytest.mark.parametrize(
    ("size", "fits"), [(0, False), (89, False), (90, True), (2_000, True), (2_001, False)]
)
@pytest.mark.parametrize("elements", [5, 4])
def test_a_body_has_90_to_2000_bytes(elements: int, size: int, fits: bool) -> None:
    raw = MessageParts(body=bytes(size), elements=elements).raw()

    if fits:
        assert len(DmqMessage.decode(raw, profile="seed").body) == size
    else:
        fault = refused(raw, "seed")
        assert (fault.code, fault.found) == (ErrorCode.MSG_BODY_SIZE, size)
        assert str(size) in fault.text
        assert "90 to 2000" in fault.text


@pytest.mark.parametrize("size", [65_535, 65_536, 70_000])
def test_a_body_far_too_long_is_still_a_matter_of_body_size(size: int) -> None:
    assert refused(MessageParts(body=bytes(size)).raw()).code is ErrorCode.MSG_BODY_SIZE


def test_a_network_may_have_another_range_of_body_sizes() -> None:
    old_range = MessageSizes(body_bytes_min=360)

    assert read_message(CborReader(MessageParts(body=bytes(360)).raw()), FIVE_ONLY, old_range).body == bytes(
        360
    )
    with pytest.raises(DecodeError) as caught:
        read_message(CborReader(MessageParts(body=bytes(359)).raw()), FIVE_ONLY, old_range)
    assert caught.value.code is ErrorCode.MSG_BODY_SIZE


@pytest.mark.parametrize("size", [0, 63, 288, 447, 449, 512])
def test_a_kes_signature_has_exactly_448_bytes(size: int) -> None:
    fault = refused(MessageParts(kes_signature=bytes(size)).raw())

    assert (fault.code, fault.found, fault.limit) == (ErrorCode.CBOR_INVALID, size, 448)
    assert ("CompactSum" in fault.advice) == (size == 288)


@pytest.mark.parametrize(
    ("field", "right"),
    [
        ("message_id", 32),
        ("kes_verification_key", 32),
        ("cold_verification_key", 32),
        ("cold_signature", 64),
    ],
)
@pytest.mark.parametrize("elements", [5, 4])
def test_fields_of_fixed_size_are_refused_one_byte_off(elements: int, field: str, right: int) -> None:
    parts = MessageParts(elements=elements)
    for size in (0, right - 1, right + 1):
        fault = refused(replace(parts, **{field: bytes(size)}).raw(), "seed")  # type: ignore[arg-type]
        assert (fault.code, fault.found) == (ErrorCode.CBOR_INVALID, size)
    DmqMessage.decode(replace(parts, **{field: bytes(right)}).raw(), profile="seed")  # type: ignore[arg-type]


def test_the_expiry_has_32_bits_and_the_counters_64() -> None:
    most = MessageParts(
        expires_at=2**32 - 1, kes_period=2**64 - 1, issue_number=2**64 - 1, start_kes_period=2**64 - 1
    )

    message = DmqMessage.decode(most.raw())

    assert (message.expires_at, message.kes_period) == (2**32 - 1, 2**64 - 1)
    assert message.kes_evolution == 0
    assert refused(replace(most, expires_at=2**32).raw()).code is ErrorCode.CBOR_INVALID
    assert refused(replace(most, expires_at=2**32, elements=4).raw(), "seed").code is ErrorCode.CBOR_INVALID


def test_an_evolution_before_the_certificate_is_negative() -> None:
    assert MessageParts(kes_period=9, start_kes_period=10).decoded().kes_evolution == -1


def test_the_longest_possible_message_stays_below_the_limit_of_2800_bytes() -> None:
    longest = MessageParts(
        body=bytes(2_000),
        kes_period=2**64 - 1,
        expires_at=2**32 - 1,
        issue_number=2**64 - 1,
        start_kes_period=2**64 - 1,
        extra=(4,) * 13,
    )
    shortest_forms = replace(longest, extra=(0,) * 13)

    # 13 heads of at most 9 bytes, and contents of fixed size: no message can be longer.
    assert len(longest.raw()) == 13 * 9 + 32 + 2_000 + 448 + 32 + 64 + 32 == 2_725
    assert len(shortest_forms.raw()) - 2_000 <= 660
    assert len(DmqMessage.decode(longest.raw()).raw) < MESSAGE_BYTES_MAX == 2_800


# Strictness


def test_bytes_behind_a_message_are_refused() -> None:
    for rest in (b"\x00", b"\xff", MessageParts().raw()):
        assert refused(MessageParts().raw() + rest).code is ErrorCode.CBOR_INVALID


def test_every_cut_message_is_refused() -> None:
    for elements in (5, 4):
        raw = MessageParts(elements=elements).raw()
        for end in range(len(raw)):
            refused(raw[:end], "seed")


@pytest.mark.parametrize("elements", [5, 4])
def test_indefinite_arrays_and_strings_inside_a_message_are_refused(elements: int) -> None:
    parts = MessageParts(elements=elements)
    raw, payload = parts.raw(), parts.payload()
    certificate_at = raw.index(b"\x84\x58\x20" + b"\x44" * 32)
    certificate = raw[certificate_at : raw.index(b"\x58\x20" + b"\x66" * 32)]
    body = b"\x58\x5a" + parts.body
    broken = [
        b"\x9f" + raw[1:] + b"\xff",
        raw.replace(payload, b"\x9f" + payload[1:] + b"\xff"),
        raw.replace(certificate, b"\x9f" + certificate[1:] + b"\xff"),
        raw.replace(body, b"\x5f" + body + b"\xff"),
        raw.replace(b"\x58\x20" + b"\x11" * 32, b"\x5f\x58\x20" + b"\x11" * 32 + b"\xff"),
        raw.replace(b"\x58\x20" + b"\x66" * 32, b"\x5f\x58\x20" + b"\x66" * 32 + b"\xff"),
        raw.replace(b"\x59\x01\xc0", b"\x5f\x59\x01\xc0").replace(certificate, b"\xff" + certificate),
    ]

    for data in broken:
        assert cbor2.loads(data) == cbor2.loads(raw)
        refused(data, "seed")


@pytest.mark.parametrize("field", range(5))
def test_a_text_in_place_of_any_element_is_refused(field: int) -> None:
    value = plain_message(MessageParts().decoded())
    value[field] = "x" * 32

    refused(cbor2.dumps(value))


# Ids and signatures


def test_a_signed_message_is_accepted_in_every_profile() -> None:
    message = a_signed_message()

    for profile in PROFILE_NAMES:
        assert accepts(message.raw, profile)
        assert DmqMessage.decode(message.raw, profile=profile) == message


def test_the_id_is_the_hash_of_the_payload_as_it_was_written() -> None:
    message = a_signed_message()
    payload = cbor2.dumps([message.body, message.kes_period, message.expires_at])

    assert message.signed_bytes == payload
    assert message.message_id == blake2b(payload, digest_size=32).digest()
    assert message.has_valid_id
    assert not msgspec.structs.replace(message, message_id=bytes(32)).has_valid_id


def test_a_payload_signed_in_longer_forms_is_accepted_as_it_came() -> None:
    key = kes.SigningKey.generate(KES_SEED)
    certificate = a_certificate()
    parts = MessageParts(
        kes_period=0,
        kes_verification_key=key.verification_key,
        issue_number=certificate.issue_number,
        start_kes_period=certificate.start_kes_period,
        cold_signature=certificate.cold_signature,
        cold_verification_key=ed25519.public_key(COLD_SEED),
        extra=(1, 1, 1, 2, 3, 1, 1, 1, 1, 3, 3, 1, 1),
    )
    payload = parts.payload()
    signed = replace(
        parts,
        message_id=blake2b(payload, digest_size=32).digest(),
        kes_signature=key.sign(payload),
    )

    assert accepts(signed.raw(), "dmq-node")
    # The shortest forms of the same values have another hash and another signature.
    assert not accepts(replace(signed, extra=(0,) * 13).raw(), "dmq-node")


THREE_SIGNED_MESSAGES = {
    "the shortest body": (a_signed_message(bytes(range(90)), kes_period=23), "dmq-node"),
    "a middling body": (
        a_signed_message(bytes(range(250)) * 4, kes_period=70_000, start_kes_period=69_990),
        "dmq-node",
    ),
    "the older layout": (a_signed_legacy_message(), "seed"),
}


@pytest.mark.parametrize(("message", "profile"), THREE_SIGNED_MESSAGES.values(), ids=THREE_SIGNED_MESSAGES)
def test_a_bit_flipped_anywhere_is_never_accepted(message: DmqMessage, profile: str) -> None:
    assert accepts(message.raw, profile)
    assert flips_accepted(message.raw, lambda raw: accepts(raw, profile)) == []


# Signing


def a_key() -> kes.SigningKey:
    return kes.SigningKey.generate(KES_SEED)


def signed(body: bytes = b"b" * 90, *, kes_period: int = 0, expires_at: int = EXPIRES_AT) -> DmqMessage:
    return sign_message(
        body,
        key=a_key(),
        certificate=a_certificate(),
        cold_verification_key=ed25519.public_key(COLD_SEED),
        kes_period=kes_period,
        expires_at=expires_at,
    )


@pytest.mark.parametrize("size", [89, 2_001])
def test_a_body_of_wrong_size_is_not_signed(size: int) -> None:
    with pytest.raises(SigningError) as caught:
        signed(bytes(size))

    assert (caught.value.code, caught.value.found) == (ErrorCode.MSG_BODY_SIZE, size)


@pytest.mark.parametrize("size", [90, 2_000])
def test_a_body_at_the_edges_is_signed(size: int) -> None:
    assert accepts(signed(bytes(size)).raw, "dmq-node")


@pytest.mark.parametrize("expires_at", [-1, 2**32])
def test_an_expiry_beyond_32_bits_is_not_signed(expires_at: int) -> None:
    with pytest.raises(SigningError) as caught:
        signed(expires_at=expires_at)
    assert caught.value.code is ErrorCode.MSG_EXPIRY_TOO_FAR


def test_an_expiry_of_32_bits_is_signed() -> None:
    assert accepts(signed(expires_at=2**32 - 1).raw, "dmq-node")


def test_the_key_is_evolved_to_the_period_it_signs_for() -> None:
    key = a_key()
    certificate = a_certificate(start_kes_period=100)
    message = sign_message(
        b"b" * 90,
        key=key,
        certificate=certificate,
        cold_verification_key=ed25519.public_key(COLD_SEED),
        kes_period=105,
        expires_at=EXPIRES_AT,
    )

    assert key.period == message.kes_evolution == 5
    assert accepts(message.raw, "dmq-node")


@pytest.mark.parametrize("kes_period", [99, 164])
def test_a_period_that_the_key_cannot_reach_is_not_signed_for(kes_period: int) -> None:
    key = a_key()
    with pytest.raises(SigningError) as caught:
        sign_message(
            b"b" * 90,
            key=key,
            certificate=a_certificate(start_kes_period=100),
            cold_verification_key=ed25519.public_key(COLD_SEED),
            kes_period=kes_period,
            expires_at=EXPIRES_AT,
        )

    assert caught.value.code is ErrorCode.KES_PERIOD
    assert key.period == 0


def test_another_keys_certificate_is_not_used() -> None:
    with pytest.raises(SigningError) as caught:
        sign_message(
            b"b" * 90,
            key=kes.SigningKey.generate(bytes(32)),
            certificate=a_certificate(),
            cold_verification_key=ed25519.public_key(COLD_SEED),
            kes_period=0,
            expires_at=EXPIRES_AT,
        )
    assert caught.value.code is ErrorCode.OPCERT_SIGNATURE
