"""What must hold for bodies of Mithril: a value within its limits, or a refusal, and the same value when written again."""

from __future__ import annotations

from functools import partial

from stagepost.dmq.mithril.body import EPOCH_MAX, INDEX_MAX, NUMBER_MAX, decode_body
from stagepost.dmq.mithril.observatory import entity_names
from stagepost.dmq.mithril.stake_parts import STAKE_PART_BYTES_MAX, decode_stake_part, joined_stake
from stagepost.errors import DecodeError
from tests.fuzz.harness import Verdict, attempt, require
from tests.worlds.dmq.cardano_answers import vectors
from tests.worlds.dmq.mithril_bodies import body, framed, sigma_of


def check_mithril(data: bytes) -> Verdict:
    part = attempt(partial(decode_stake_part, data), min(len(data), STAKE_PART_BYTES_MAX), DecodeError)
    if part is not None:
        _ = joined_stake([part, part])
    found = attempt(partial(decode_body, data), len(data), DecodeError)
    if found is None:
        return Verdict.REFUSED if part is None else Verdict.ACCEPTED
    require(found.entity.numbers[0] <= EPOCH_MAX, "an epoch above its limit")
    require(max(found.entity.numbers) <= NUMBER_MAX, "a number above its limit")
    require(all(index <= INDEX_MAX for index in found.indexes), "an index above its limit")
    require(len(found.sigma) == 48, "a signature of another length")
    _ = entity_names(found.entity)
    again = body(found.entity, found.sigma, found.indexes, found.signer_index, found.form.value)
    if len(again) <= 2_000:
        require(decode_body(again) == found, "another value when written again")
    return Verdict.ACCEPTED


def mithril_samples() -> tuple[bytes, ...]:
    known = vectors("mithril-body")
    whole = [bytes.fromhex(one["hex"]) for one in known["vectors"] if one["id"].startswith("body-")]
    signatures = [bytes.fromhex(one["hex"]) for one in known["vectors"] if one["id"].startswith("signature-")]
    refused = [bytes.fromhex(one["hex"]) for one in known["malformed"]]
    stake = (
        b'{"network_magic":2,"era":6,"epoch":7,"from_ms":1,"to_ms":9,"taken_ms":3,"kes_evolutions_max":62,"digest":"'
        + b"0" * 32
        + b'","part":0,"parts":1,"pools":1,"total_stake":5,"stakes":{"'
        + b"ab" * 28
        + b'":5},"k":10,"m":100,"phi_f":0.2}'
    )
    return (
        *whole,
        *refused,
        *(framed(b"\x02\x0a\xfb\xc0\x06", one) for one in signatures),
        body((4, (640, 13_000_039, 15)), sigma_of(1), range(200)),
        stake,
    )
