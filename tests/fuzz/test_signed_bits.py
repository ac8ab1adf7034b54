"""A bit changed anywhere in a signed message is never accepted."""

from __future__ import annotations

import pytest

from tests.fuzz.signed_bits import Flips, Sample, count, flip_every_bit, sample_messages


@pytest.mark.parametrize("sample", sample_messages(), ids=lambda sample: sample.name)
def test_no_altered_bit_is_accepted(sample: Sample) -> None:
    found = flip_every_bit(sample)

    assert found.bits == 8 * len(sample.raw)
    assert found.accepted == []
    # Each check has work to do: none of them is idle because another comes first.
    assert found.undecodable
    assert found.wrong_certificate
    assert found.wrong_signature


@pytest.mark.parametrize("sample", sample_messages(), ids=lambda sample: sample.name)
def test_the_unaltered_message_is_accepted(sample: Sample) -> None:
    found = Flips()

    count(sample.raw, sample.profile, found, bit=-1)

    assert found.accepted == [-1]
