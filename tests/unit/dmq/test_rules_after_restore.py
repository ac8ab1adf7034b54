"""A DMQ node that was restored refuses every message that it may have accepted before, and no other."""

from __future__ import annotations

import pytest

from stagepost.dmq.outcome import Rejected
from stagepost.dmq.validation import (
    SKEW_S,
    TTL_MAX_S,
    ValidationRules,
    check_expiry,
    rules_after_restore,
    rules_for,
)
from stagepost.errors import ErrorCode

RESTORED = 1_000_000.0


@pytest.mark.parametrize("magic", [1, 2_912_307_721])
def test_what_could_be_accepted_before_the_restore_is_refused_after_it(magic: int) -> None:
    """Whatever the life of a message, one that was valid at any moment up to the restore is refused from then on."""
    before = rules_for(magic)
    after = rules_after_restore(before, RESTORED)
    for accepted_at in (RESTORED, RESTORED - 1, RESTORED - 900, RESTORED - TTL_MAX_S):
        for life_s in (1, 60, 900, TTL_MAX_S - 1, TTL_MAX_S + SKEW_S - 1):
            expires_at = int(accepted_at) + life_s
            if check_expiry(expires_at, accepted_at, before) is not None:
                continue
            for now in (RESTORED, RESTORED + 10, expires_at):
                found = check_expiry(expires_at, max(now, RESTORED), after)
                assert isinstance(found, Rejected)
                assert found.code in (ErrorCode.NOT_READY, ErrorCode.MSG_EXPIRED)


def test_new_messages_of_the_usual_life_are_taken_soon_and_all_after_half_an_hour() -> None:
    rules = rules_after_restore(ValidationRules(), RESTORED)
    assert check_expiry(int(RESTORED) + 11 + TTL_MAX_S - 10, RESTORED + 11, rules) is None
    refused = check_expiry(int(RESTORED) + 11 + 60, RESTORED + 11, rules)
    assert refused is not None
    assert refused.is_transient
    assert check_expiry(int(RESTORED) + TTL_MAX_S + 1, RESTORED + TTL_MAX_S, rules) is None
