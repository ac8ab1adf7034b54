"""Bodies of Mithril: genuine ones are read to the value, all others are refused in order, whatever comes."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from stagepost.dmq.message import BODY_BYTES_MAX
from stagepost.dmq.mithril.body import (
    BLOCKS_FROM,
    EPOCH_MAX,
    INDEX_MAX,
    INDEXES_MAX,
    KEYS_MAX,
    NUMBER_MAX,
    NamesAsOf,
    SignedEntity,
    decode_body,
)
from stagepost.dmq.mithril.observatory import entity_names
from stagepost.errors import DecodeError, ErrorCode
from tests.worlds.dmq.cardano_answers import vectors
from tests.worlds.dmq.mithril_bodies import body, framed, legacy_signature, newer_signature, sigma_of, varint

VECTORS: dict[str, Any] = {one["id"]: one for one in vectors("mithril-body")["vectors"]}
MALFORMED: dict[str, Any] = {one["id"]: one for one in vectors("mithril-body")["malformed"]}
ENTITY = b"\x02\x0a\xfb\xc0\x06"
SIGMA = sigma_of("any")


def raw(name: str) -> bytes:
    return bytes.fromhex(VECTORS[name]["hex"])


def test_the_golden_body_of_every_release_is_read_to_the_value() -> None:
    expected = VECTORS["body-golden-630"]["expected"]
    found = decode_body(raw("body-golden-630"))

    assert found.entity == SignedEntity(
        expected["entity_variant"], (expected["epoch"], expected["immutable"])
    )
    assert found.entity.name(NamesAsOf.SINCE_2630) == expected["entity_since_2630"]
    assert found.entity.name(NamesAsOf.UNTIL_2617) == expected["entity_until_2617"]
    assert found.form.value == expected["signature_format"]
    assert list(found.indexes) == expected["indexes"]
    assert (found.signer_index, found.sigma.hex()) == (expected["signer_index"], expected["sigma_hex"])


@pytest.mark.parametrize("name", [one for one in VECTORS if one.startswith("signature-")])
def test_signatures_of_both_forms_are_read_to_the_value(name: str) -> None:
    expected = VECTORS[name]["expected"]
    found = decode_body(framed(ENTITY, raw(name)))

    assert found.form.value == expected["format"]
    assert list(found.indexes) == expected["indexes"]
    if "sigma_hex" in expected:
        assert (found.signer_index, found.sigma.hex()) == (expected["signer_index"], expected["sigma_hex"])


def test_one_signature_in_two_forms_is_the_same_signature() -> None:
    legacy, newer = (
        decode_body(framed(ENTITY, raw(f"signature-{one}"))) for one in ("legacy-96", "cbor-131")
    )

    assert (legacy.sigma, legacy.indexes, legacy.signer_index) == (
        newer.sigma,
        newer.indexes,
        newer.signer_index,
    )


@pytest.mark.parametrize("name", [one for one in VECTORS if one.startswith("body-derived")])
def test_derived_bodies_are_read_to_the_value(name: str) -> None:
    expected = VECTORS[name]["expected"]
    found = decode_body(raw(name))

    assert found.entity.name(NamesAsOf.SINCE_2630) == expected["entity_since_2630"]
    assert list(found.entity.numbers) == expected["numbers"]
    assert found.form.value == expected["signature_format"]


@pytest.mark.parametrize("name", [one for one in VECTORS if one.startswith("bincode-varint")])
def test_integers_of_every_width_are_read(name: str) -> None:
    value = VECTORS[name]["expected"]["value"]
    assert varint(value) == raw(name)
    entity = framed(b"\x02\x05" + raw(name), legacy_signature(SIGMA, [1], 1))

    if value > NUMBER_MAX:
        with pytest.raises(DecodeError, match="a number of the beacon"):
            decode_body(entity)
    else:
        assert decode_body(entity).entity.numbers == (5, value)


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_bodies_are_refused(name: str) -> None:
    with pytest.raises(DecodeError):
        decode_body(bytes.fromhex(MALFORMED[name]["hex"]))


@pytest.mark.parametrize("name", [one for one in VECTORS if one.startswith("body-")])
def test_a_body_that_is_cut_or_lengthened_is_refused(name: str) -> None:
    whole = raw(name)
    for length in range(len(whole)):
        with pytest.raises(DecodeError):
            decode_body(whole[:length])
    with pytest.raises(DecodeError, match="left over"):
        decode_body(whole + b"\x00")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (framed(b"", legacy_signature(SIGMA, [1], 1)), "ends inside the entity"),
        (framed(b"\x00", legacy_signature(SIGMA, [1], 1)), "0 integers"),
        (framed(b"\x00\x05\x06", legacy_signature(SIGMA, [1], 1)), "2 integers"),
        (framed(b"\x06\x05", legacy_signature(SIGMA, [1], 1)), "no entity with the number 6"),
        (framed(b"\x00\xfb\x05\x00", legacy_signature(SIGMA, [1], 1)), "longer than needed"),
        (framed(b"\x00\xff", legacy_signature(SIGMA, [1], 1)), "begins with 0xff"),
        (framed(ENTITY, b"\x01\xa0"), "lacks"),
        (framed(ENTITY, newer_signature(SIGMA, [1], 1)[:-1] + b"\x65sigma\x80\xff"), "twice"),
        (framed(ENTITY, newer_signature(SIGMA[:47], [1], 1)), "sigma has 47"),
        (framed(ENTITY, newer_signature(SIGMA, [1], 1) + b"\x00"), "left over"),
        (framed(ENTITY, newer_signature(SIGMA, [-1], 1)), "expected"),
    ],
)
def test_a_refusal_says_what_is_wrong(content: bytes, text: str) -> None:
    with pytest.raises(DecodeError, match=text):
        decode_body(content)


def test_limits_hold_at_their_edges() -> None:
    def refused(content: bytes) -> None:
        with pytest.raises(DecodeError) as caught:
            decode_body(content)
        assert caught.value.code in (ErrorCode.CBOR_LIMIT, ErrorCode.CBOR_INVALID)

    assert decode_body(body((0, (EPOCH_MAX,)), SIGMA, [1])).entity.epoch == EPOCH_MAX
    refused(body((0, (EPOCH_MAX + 1,)), SIGMA, [1]))
    assert decode_body(body((2, (1, NUMBER_MAX)), SIGMA, [1])).entity.numbers[1] == NUMBER_MAX
    refused(body((2, (1, NUMBER_MAX + 1)), SIGMA, [1]))
    for form in ("legacy", "cbor"):
        assert decode_body(body((0, (1,)), SIGMA, [INDEX_MAX], form=form)).indexes == (INDEX_MAX,)
        refused(body((0, (1,)), SIGMA, [INDEX_MAX + 1], form=form))
        refused(body((0, (1,)), SIGMA, [1], INDEX_MAX + 1, form=form))
    refused(framed(b"\x00\x05", (INDEXES_MAX + 1).to_bytes(8, "big") + bytes(100)))
    more = {f"key {number}": number for number in range(KEYS_MAX - 3)}
    assert decode_body(framed(ENTITY, newer_signature(SIGMA, [1], 1, **more))).signer_index == 1
    refused(framed(ENTITY, newer_signature(SIGMA, [1], 1, **more, last=1)))
    fill = BODY_BYTES_MAX - len(framed(ENTITY, legacy_signature(SIGMA, [1], 1)))
    padded = legacy_signature(SIGMA, [1], 1) + bytes(fill)
    assert decode_body(framed(ENTITY, padded)).indexes == (1,)
    refused(framed(ENTITY, padded + b"\x00"))


@pytest.mark.parametrize(
    ("entity", "names"),
    [
        ((0, (640,)), ("MithrilStakeDistribution", None)),
        ((1, (639,)), ("CardanoStakeDistribution", None)),
        ((2, (640, 9_000)), ("CardanoDatabase", "CardanoImmutableFilesFull")),
        ((3, (640, 9_000)), ("CardanoTransactions", "CardanoDatabase")),
        ((3, (640, BLOCKS_FROM)), ("CardanoTransactions", None)),
        ((4, (640, 13_000_039, 15)), ("CardanoBlocksTransactions", None)),
        ((4, (640, 13_000_039)), ("CardanoTransactions", None)),
        ((5, (640, 13_000_039, 15)), ("CardanoBlocksTransactions", None)),
    ],
)
def test_both_numberings_are_named_while_both_are_plausible(
    entity: tuple[int, tuple[int, ...]], names: tuple[str, str | None]
) -> None:
    assert entity_names(SignedEntity(*entity)) == names


def test_a_stake_distribution_of_cardano_is_signed_in_the_epoch_after_its_own() -> None:
    assert SignedEntity(1, (639,)).epoch == 640
    assert SignedEntity(0, (640,)).epoch == 640
    assert SignedEntity(2, (640, 9_000)).epoch == 640


def test_changed_bytes_are_refused_in_order_or_read(run_seed: int) -> None:
    random = Random(run_seed)
    samples = [raw(one) for one in VECTORS if one.startswith("body-")]
    for _ in range(2_000):
        changed = bytearray(random.choice(samples))
        for _ in range(random.randrange(1, 4)):
            changed[random.randrange(len(changed))] = random.randrange(256)
        try:
            found = decode_body(bytes(changed))
        except DecodeError:
            continue
        assert len(found.sigma) == 48
        assert found.entity.numbers[0] <= EPOCH_MAX
