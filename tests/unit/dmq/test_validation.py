"""Validation, named after the rows of the reference: each check at its edges, and all of them in order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from stagepost.dmq.message import DmqMessage, MessageLayout
from stagepost.dmq.outcome import Rejected
from stagepost.dmq.pool_memory import PoolMemories, PoolRecord
from stagepost.dmq.validation import (
    CERTIFICATES_CACHED_MAX,
    PUBLIC_MAGICS,
    SIGNERS_CACHED_MAX,
    MessageValidator,
    ValidationRules,
    check_expiry,
    rules_for,
)
from stagepost.errors import DecodeError, ErrorCode
from stagepost.ground.crypto.ed25519 import Claim
from stagepost.ground.identifiers import PoolId
from stagepost.ground.net.version_data import NETWORK_MAGICS
from stagepost.ground.signatures.verifier import Verifier
from tests.worlds.dmq.altered_messages import altered
from tests.worlds.dmq.pool_signers import NOW, KnownPools, Signer, decoded
from tests.worlds.ground.strategies import a_signed_legacy_message

PUBLIC = rules_for(NETWORK_MAGICS["mithril-mainnet"])
PRIVATE = rules_for(42)
MONO = 500.0


def judge(
    validator: MessageValidator, message: DmqMessage, now: float = NOW, mono: float = MONO
) -> Rejected | None:
    """All three steps, as the intake takes them."""
    return (
        validator.check_cheaply(message, now, mono)
        or validator.check_signatures(message)
        or validator.commit(message, mono)
    )


def code(verdict: Rejected | None) -> ErrorCode | None:
    return None if verdict is None else verdict.code


# 1 and 2: expiry


@pytest.mark.parametrize(
    ("now", "expected"),
    [(NOW, None), (NOW + 0.001, ErrorCode.MSG_EXPIRED), (NOW - 0.001, None)],
)
def test_row_1_a_message_may_be_as_old_as_its_expiry(now: float, expected: ErrorCode | None) -> None:
    assert code(check_expiry(NOW, now, PUBLIC)) is expected


@pytest.mark.parametrize(
    ("ahead_s", "expected"),
    [(1_799.999, None), (1_800, ErrorCode.MSG_EXPIRY_TOO_FAR), (1_800.001, ErrorCode.MSG_EXPIRY_TOO_FAR)],
)
def test_row_2_expiry_lies_less_than_half_an_hour_ahead(ahead_s: float, expected: ErrorCode | None) -> None:
    assert code(check_expiry(NOW, NOW - ahead_s, PUBLIC)) is expected


@pytest.mark.parametrize("skew_s", [0, 1, -1, 5, -5])
def test_clocks_that_differ_by_5_s_cause_no_rejection_on_private_networks(skew_s: float) -> None:
    for ttl_s in (0, 1, 600, 1_799):
        expires_at = NOW + ttl_s
        sent_at = NOW + skew_s
        assert check_expiry(expires_at, sent_at, PRIVATE) is None


@pytest.mark.parametrize("skew_s", [5.001, 30, 3_600])
def test_beyond_that_the_rejection_names_the_difference_allowed(skew_s: float) -> None:
    late = check_expiry(NOW, NOW + skew_s, PRIVATE)
    early = check_expiry(NOW + 1_800, NOW - skew_s, PRIVATE)

    assert (code(late), code(early)) == (ErrorCode.MSG_EXPIRED, ErrorCode.MSG_EXPIRY_TOO_FAR)
    for verdict in (late, early):
        assert verdict is not None
        assert "clocks may differ by 5 s" in verdict.text


def test_skew_and_gap_follow_the_network_magic() -> None:
    assert len(PUBLIC_MAGICS) == 3
    for magic in PUBLIC_MAGICS:
        assert rules_for(magic) == ValidationRules(ttl_max_s=1_800, message_gap_s=60, skew_s=0)
    for magic in (NETWORK_MAGICS["mithril-devnet"], 42):
        assert rules_for(magic) == ValidationRules(ttl_max_s=1_800, message_gap_s=0, skew_s=5)


def test_an_expired_message_says_both_times() -> None:
    verdict = check_expiry(NOW, NOW + 7, PUBLIC)

    assert verdict is not None
    assert str(NOW) in verdict.text
    assert str(NOW + 7) in verdict.text


# 3: the gap between messages of a pool


@pytest.mark.parametrize(
    ("later_s", "expected"),
    [(0, ErrorCode.MSG_TOO_FREQUENT), (59.999, ErrorCode.MSG_TOO_FREQUENT), (60, None)],
)
def test_row_3_a_pool_waits_60_s_after_its_last_valid_message(
    later_s: float, expected: ErrorCode | None
) -> None:
    validator = MessageValidator(PUBLIC, KnownPools())
    assert judge(validator, Signer().sign(1)) is None

    verdict = judge(validator, Signer().sign(2), mono=MONO + later_s)

    assert code(verdict) is expected
    if verdict is not None:
        assert verdict.retry_after_s == pytest.approx(60 - later_s)
        assert verdict.is_transient


def test_row_3_concerns_one_pool_only() -> None:
    validator = MessageValidator(PUBLIC, KnownPools())
    assert judge(validator, Signer(0).sign(1)) is None
    assert judge(validator, Signer(1).sign(1)) is None


def test_row_3_an_invalid_message_does_not_count() -> None:
    validator = MessageValidator(PUBLIC, KnownPools())
    forged = decoded(Signer().sign(1), flip_at=len(Signer().sign(1).raw) - 300)
    assert judge(validator, forged) is not None

    assert judge(validator, Signer().sign(2)) is None


def test_row_3_is_checked_again_when_another_message_was_faster() -> None:
    validator = MessageValidator(PUBLIC, KnownPools())
    first, second = Signer().sign(1), Signer().sign(2)
    assert validator.check_cheaply(first, NOW, MONO) is None
    assert validator.check_cheaply(second, NOW, MONO) is None

    assert validator.commit(second, MONO) is None
    assert code(validator.commit(first, MONO)) is ErrorCode.MSG_TOO_FREQUENT


def test_without_a_gap_messages_may_be_committed_out_of_order() -> None:
    validator = MessageValidator(PRIVATE, KnownPools())
    assert validator.commit(Signer().sign(1), MONO) is None
    assert validator.commit(Signer().sign(2), MONO - 3) is None


# 4: the id


def test_row_4_the_id_is_the_hash_of_the_signed_bytes() -> None:
    message = Signer().sign(1)
    other_id = decoded(message, flip_at=5)
    assert other_id.message_id != message.message_id

    assert code(judge(MessageValidator(PUBLIC, KnownPools()), other_id)) is ErrorCode.MSG_BAD_ID


def test_row_4_the_older_layout_signs_its_id_as_given() -> None:
    message = a_signed_legacy_message()
    assert message.layout is MessageLayout.FOUR

    assert judge(MessageValidator(PUBLIC, KnownPools()), message, now=message.expires_at - 5) is None


# 5 and 6: the period


@pytest.mark.parametrize(("evolution", "expected"), [(0, None), (61, None), (62, ErrorCode.KES_PERIOD)])
def test_row_5_a_certificate_serves_62_periods(evolution: int, expected: ErrorCode | None) -> None:
    message = Signer(start_kes_period=10).sign(1, evolution=evolution)

    assert code(judge(MessageValidator(PUBLIC, KnownPools()), message)) is expected


def test_row_5_the_number_of_periods_comes_with_the_pools() -> None:
    message = Signer().sign(1, evolution=3)

    assert judge(MessageValidator(PUBLIC, KnownPools(kes_evolutions_max=4)), message) is None
    assert (
        code(judge(MessageValidator(PUBLIC, KnownPools(kes_evolutions_max=3)), message))
        is ErrorCode.KES_PERIOD
    )


def test_row_6_a_message_is_not_older_than_its_certificate() -> None:
    message = Signer(start_kes_period=10).sign(1)
    certificate = msgspec.structs.replace(message.operational_certificate, start_kes_period=11)
    older = altered(message, operational_certificate=certificate)

    verdict = judge(MessageValidator(PUBLIC, KnownPools()), older)

    assert code(verdict) is ErrorCode.KES_PERIOD
    assert verdict is not None
    assert "11 to 72" in verdict.text


# 7: the pool


def test_row_7a_before_the_first_distribution_nobody_is_judged() -> None:
    verdict = judge(MessageValidator(PUBLIC, KnownPools({}, is_ready=False)), Signer().sign(1))

    assert code(verdict) is ErrorCode.NOT_READY
    assert verdict is not None
    assert verdict.is_transient


def test_row_7a_a_pool_that_is_known_already_is_served() -> None:
    pools = KnownPools({Signer().pool_id: 5}, is_ready=False)

    assert judge(MessageValidator(PUBLIC, pools), Signer().sign(1)) is None


def test_row_7b_an_unknown_pool_is_refused() -> None:
    assert code(judge(MessageValidator(PUBLIC, KnownPools({})), Signer().sign(1))) is ErrorCode.POOL_UNKNOWN


@pytest.mark.parametrize(("stake", "expected"), [(0, ErrorCode.POOL_NOT_ELIGIBLE), (1, None)])
def test_row_7c_a_pool_needs_stake(stake: int, expected: ErrorCode | None) -> None:
    pools = KnownPools({Signer().pool_id: stake})

    assert code(judge(MessageValidator(PUBLIC, pools), Signer().sign(1))) is expected


# 8: the certificate's number


@pytest.mark.parametrize(("number", "expected"), [(4, ErrorCode.OPCERT_COUNTER), (5, None), (9, None)])
def test_row_8_the_number_may_stay_or_grow_with_gaps_but_not_go_back(
    number: int, expected: ErrorCode | None
) -> None:
    validator = MessageValidator(PRIVATE, KnownPools())
    assert judge(validator, Signer(issue_number=5).sign(1)) is None

    assert code(judge(validator, Signer(issue_number=number).sign(2))) is expected


def test_row_8_is_checked_again_when_another_message_was_faster() -> None:
    validator = MessageValidator(PRIVATE, KnownPools())
    older, newer = Signer(issue_number=5).sign(1), Signer(issue_number=6).sign(2)
    assert validator.check_cheaply(older, NOW, MONO) is None
    assert validator.commit(newer, MONO) is None

    assert code(validator.commit(older, MONO)) is ErrorCode.OPCERT_COUNTER


@given(st.lists(st.integers(0, 2**64 - 1), max_size=20))
def test_row_8_the_number_remembered_never_goes_back(numbers: list[int]) -> None:
    memories = PoolMemories(message_gap_s=0)
    pool_id = PoolId(bytes(28))
    highest = 0
    for number in numbers:
        fault = memories.commit(pool_id, number, MONO)
        assert (fault is None) == (number >= highest)
        highest = max(highest, number)
        memory = memories.get(pool_id)
        assert memory is not None
        assert memory.issue_number == highest


# 9 and 10: signatures


def test_row_9_the_cold_key_signs_the_certificate() -> None:
    message = Signer().sign(1)
    certificate = msgspec.structs.replace(message.operational_certificate, cold_signature=bytes(64))
    forged = altered(message, operational_certificate=certificate)

    assert code(judge(MessageValidator(PUBLIC, KnownPools()), forged)) is ErrorCode.OPCERT_SIGNATURE


@pytest.mark.parametrize("place", [0, 63, 64, 447])
def test_row_10_the_kes_signature_covers_the_signed_bytes(place: int) -> None:
    message = Signer().sign(1)
    signature = bytearray(message.kes_signature)
    signature[place] ^= 1
    forged = altered(message, kes_signature=bytes(signature))

    assert code(judge(MessageValidator(PUBLIC, KnownPools()), forged)) is ErrorCode.KES_SIGNATURE


def test_row_10_a_signature_holds_at_its_own_period_only() -> None:
    message = Signer().sign(1, evolution=2)
    certificate = Signer(start_kes_period=1).certificate
    moved = altered(message, operational_certificate=certificate)
    assert moved.kes_evolution == 1

    assert code(judge(MessageValidator(PUBLIC, KnownPools()), moved)) is ErrorCode.KES_SIGNATURE


# The order


def test_the_rows_are_checked_in_order() -> None:
    """A message with every flaw at once, mended one by one: each row answers before the next."""
    good = Signer(issue_number=5, start_kes_period=10).sign(1)
    validator = MessageValidator(PUBLIC, pools := KnownPools({Signer().pool_id: 1}))
    assert judge(validator, Signer(issue_number=5, start_kes_period=10).sign(0)) is None
    pools.stakes, pools.is_ready = {}, False
    certificate = good.operational_certificate
    message = altered(
        good,
        message_id=bytes(32),
        operational_certificate=msgspec.structs.replace(
            certificate, issue_number=4, start_kes_period=11, cold_signature=bytes(64)
        ),
        kes_signature=bytes(448),
    )

    assert code(judge(validator, message, NOW + 601)) is ErrorCode.MSG_EXPIRED
    assert code(judge(validator, message, NOW - 1_200)) is ErrorCode.MSG_EXPIRY_TOO_FAR
    assert code(judge(validator, message)) is ErrorCode.MSG_TOO_FREQUENT
    later = MONO + 60
    assert code(judge(validator, message, mono=later)) is ErrorCode.MSG_BAD_ID
    message = altered(message, message_id=good.message_id)
    assert code(judge(validator, message, mono=later)) is ErrorCode.KES_PERIOD
    forged = msgspec.structs.replace(certificate, issue_number=4, cold_signature=bytes(64))
    message = altered(message, operational_certificate=forged)
    assert code(judge(validator, message, mono=later)) is ErrorCode.NOT_READY
    pools.is_ready = True
    assert code(judge(validator, message, mono=later)) is ErrorCode.POOL_UNKNOWN
    pools.stakes[Signer().pool_id] = 0
    assert code(judge(validator, message, mono=later)) is ErrorCode.POOL_NOT_ELIGIBLE
    pools.stakes[Signer().pool_id] = 1
    assert code(judge(validator, message, mono=later)) is ErrorCode.OPCERT_COUNTER
    forged = msgspec.structs.replace(certificate, cold_signature=bytes(64))
    message = altered(message, operational_certificate=forged)
    assert code(judge(validator, message, mono=later)) is ErrorCode.OPCERT_SIGNATURE
    message = altered(message, operational_certificate=certificate)
    assert code(judge(validator, message, mono=later)) is ErrorCode.KES_SIGNATURE
    assert judge(validator, good, mono=later) is None


# S2: a rejected message changes no state


def state_of(validator: MessageValidator) -> object:
    return (
        validator.pools_remembered.export(NOW, MONO),
        len(validator._certificates),
        len(validator._signers),
    )


@settings(max_examples=300)
@given(
    flip_at=st.integers(0, 800),
    offset_s=st.sampled_from((-1_300, -600, 0, 30, 60, 599, 600, 605, 606)),
    issue_number=st.integers(3, 7),
    pool=st.integers(0, 2),
    public=st.booleans(),
    is_flipped=st.booleans(),
)
def test_a_rejected_message_changes_no_state(
    flip_at: int, offset_s: int, issue_number: int, pool: int, public: bool, is_flipped: bool
) -> None:
    """The caches hold what proved valid: a certificate counts as soon as it is, whoever carries it."""
    pools = KnownPools({Signer(0).pool_id: 1, Signer(1).pool_id: 0})
    validator = MessageValidator(PUBLIC if public else PRIVATE, pools)
    for number in (3, 4, 5, 6, 7):
        validator.check_signatures(Signer(pool, number).sign(0))
    assert judge(validator, Signer(0, issue_number=5).sign(0), NOW, MONO) is None
    message = Signer(pool, issue_number).sign(1)
    if is_flipped:
        raw = bytearray(message.raw)
        raw[flip_at % len(raw)] ^= 1
        try:
            message = DmqMessage.decode(bytes(raw))
        except DecodeError:
            assume(False)
    before = state_of(validator)

    verdict = judge(validator, message, NOW + offset_s, MONO + offset_s)

    if verdict is not None:
        assert state_of(validator) == before


class Careful(MessageValidator):
    """Looks at every row one by one."""

    def _is_faultless(self, message: DmqMessage, now: float, pool_id: PoolId) -> bool:
        return False


@settings(max_examples=400)
@given(
    rules=st.sampled_from((PUBLIC, PRIVATE)),
    offset_s=st.sampled_from((-1_801, -1_800, -1_205, -1_200, 0, 59, 60, 599, 600, 601, 605, 606)),
    start_kes_period=st.integers(0, 2),
    evolution=st.sampled_from((0, 1, 3, 4)),
    issue_number=st.integers(4, 6),
    stake=st.sampled_from((None, 0, 1)),
    has_other_id=st.booleans(),
    is_known=st.booleans(),
)
def test_checks_in_one_go_say_the_same_as_one_by_one(
    rules: ValidationRules,
    offset_s: int,
    start_kes_period: int,
    evolution: int,
    issue_number: int,
    stake: int | None,
    has_other_id: bool,
    is_known: bool,
) -> None:
    pools = KnownPools({} if stake is None else {Signer().pool_id: stake}, kes_evolutions_max=4)
    message = Signer(issue_number=issue_number, start_kes_period=start_kes_period).sign(
        1, evolution=evolution
    )
    if has_other_id:
        message = altered(message, message_id=bytes(32))
    answers = []
    for kind in (MessageValidator, Careful):
        validator = kind(rules, pools)
        if is_known:
            validator.commit(Signer(issue_number=5).sign(0), MONO)
        answers.append(validator.check_cheaply(message, NOW + offset_s, MONO + offset_s))

    assert answers[0] == answers[1]


def test_another_process_judges_signatures_as_this_one_does() -> None:
    """Enough messages that the verifying process gets its part, a third of them forged in one way or another.

    What is wrong with the first ones shows without a check of signatures, and then the other process is not asked.
    """
    good = [Signer().sign(tag) for tag in range(120)]
    certificate = good[0].operational_certificate
    forgeries = (
        lambda message: altered(message, kes_signature=bytes(448)),
        lambda message: altered(
            message, operational_certificate=msgspec.structs.replace(certificate, issue_number=9)
        ),
        lambda message: altered(
            message, kes_signature=message.kes_signature[:-1] + bytes([message.kes_signature[-1] ^ 1])
        ),
    )
    unsigned = (
        forgeries[1],
        lambda message: altered(
            message, kes_signature=bytes([message.kes_signature[0] ^ 1]) + message.kes_signature[1:]
        ),
    )
    messages = [
        message
        if number % 3
        else (forgeries[number // 3 % 3] if number < 60 else unsigned[number // 3 % 2])(message)
        for number, message in enumerate(good)
    ]
    alone = MessageValidator(PRIVATE, KnownPools())
    expected = [code(alone.check_signatures(message)) for message in messages]
    beside = MessageValidator(PRIVATE, KnownPools())
    asked: list[int] = []
    concluded: list[bool] = []

    async def judged() -> list[Rejected | None]:
        verifier = Verifier(processes=1)
        try:
            await verifier.check(good[:9], beside.check_signatures, beside)
            async with asyncio.timeout(60):
                while not (verifier.helpers and all(helper.is_ready for helper in verifier.helpers)):
                    await asyncio.sleep(0.005)
            claims = beside.claims

            class Watched:
                def claims(self, message: DmqMessage) -> object:
                    asked.append(1)
                    return claims(message)

                def conclude(
                    self, message: DmqMessage, claims: Sequence[Claim], holds: Sequence[bool]
                ) -> Rejected | None:
                    concluded.append(all(holds))
                    return beside.conclude(message, claims, holds)

            return await verifier.check(messages, beside.check_signatures, Watched())  # type: ignore[arg-type]
        finally:
            await verifier.close()

    assert [code(verdict) for verdict in asyncio.run(judged())] == expected
    assert expected.count(None) == 80
    assert asked, "nothing was left to the other process"
    assert not all(concluded), "the other process has judged no forgery"


def test_caches_keep_successes_only_and_are_bounded() -> None:
    validator = MessageValidator(PRIVATE, KnownPools())
    message = Signer().sign(1)
    for place in range(20):
        certificate = msgspec.structs.replace(
            message.operational_certificate, cold_signature=bytes([place]) * 64
        )
        validator.check_signatures(altered(message, operational_certificate=certificate))
        signature = bytearray(message.kes_signature)
        signature[64 + place] ^= 1
        validator.check_signatures(altered(message, kes_signature=bytes(signature)))
    # Of all these only the one good certificate.
    assert (len(validator._certificates), len(validator._signers)) == (1, 0)

    assert validator.check_signatures(message) is None
    assert validator.check_signatures(Signer().sign(2)) is None
    assert (len(validator._certificates), len(validator._signers)) == (1, 1)

    for number in range(CERTIFICATES_CACHED_MAX + 10):
        validator._certificates.put(number.to_bytes(4, "big"), True)
    assert len(validator._certificates) <= CERTIFICATES_CACHED_MAX
    for number in range(SIGNERS_CACHED_MAX + 10):
        other = msgspec.structs.replace(message, cold_verification_key=number.to_bytes(32, "big"))
        validator._remember_signer(other, bytes(32))
    assert len(validator._signers) <= SIGNERS_CACHED_MAX
    assert validator.check_signatures(message) is None


def test_a_remembered_signer_speaks_for_no_other_byte_behind_the_leafs_signature() -> None:
    """Whatever is altered, a validator that knows the signer says the same as one that knows nobody."""
    message = Signer().sign(1)
    knowing = MessageValidator(PRIVATE, KnownPools())
    assert knowing.check_signatures(message) is None
    start = message.signed_until + message.spans.kes_signature
    answers = set()

    for at in range(start, len(message.raw)):
        raw = bytearray(message.raw)
        raw[at] ^= 1
        try:
            other = DmqMessage.decode(bytes(raw))
        except DecodeError:
            continue
        said = knowing.check_signatures(other)
        assert said is not None, f"byte {at}"
        assert said == MessageValidator(PRIVATE, KnownPools()).check_signatures(other), f"byte {at}"
        answers.add(said.code)

    assert answers == {ErrorCode.KES_SIGNATURE, ErrorCode.OPCERT_SIGNATURE}
    assert knowing.check_signatures(message) is None


def test_a_remembered_signer_does_not_speak_for_another_period() -> None:
    validator = MessageValidator(PRIVATE, KnownPools())
    message = Signer().sign(1)
    assert validator.check_signatures(message) is None

    other = msgspec.structs.replace(message, kes_period=message.kes_period + 1)

    assert code(validator.check_signatures(other)) is ErrorCode.KES_SIGNATURE


def test_a_remembered_certificate_does_not_speak_for_another_cold_key() -> None:
    validator = MessageValidator(PRIVATE, KnownPools())
    message = Signer(0).sign(1)
    assert validator.check_signatures(message) is None
    stolen = altered(message, cold_verification_key=Signer(1).cold_key)

    assert code(validator.check_signatures(stolen)) is ErrorCode.OPCERT_SIGNATURE


# Memory of pools across a restart


def test_the_gap_and_the_number_survive_a_restart() -> None:
    before = MessageValidator(PUBLIC, KnownPools())
    assert judge(before, Signer(issue_number=5).sign(1), NOW, mono=MONO) is None
    kept = before.pools_remembered.export(NOW + 20, mono=MONO + 20)
    assert kept == {Signer().pool_id: PoolRecord(NOW, 5)}

    # Another process, whose monotonic clock starts anew.
    after = MessageValidator(PUBLIC, KnownPools())
    after.pools_remembered.take_over(kept, now=NOW + 30, mono=2.0)

    early = judge(after, Signer(issue_number=5).sign(2), NOW + 59, mono=2.0 + 29)
    assert code(early) is ErrorCode.MSG_TOO_FREQUENT
    lower = judge(after, Signer(issue_number=4).sign(3), NOW + 60, mono=2.0 + 30)
    assert code(lower) is ErrorCode.OPCERT_COUNTER
    assert judge(after, Signer(issue_number=5).sign(2), NOW + 60, mono=2.0 + 30) is None


def test_a_time_from_the_future_costs_one_gap_at_most() -> None:
    validator = MessageValidator(PUBLIC, KnownPools())
    validator.pools_remembered.take_over({Signer().pool_id: PoolRecord(NOW + 9_999, 1)}, NOW, MONO)

    assert judge(validator, Signer().sign(1), mono=MONO + 59.9) is not None
    assert judge(validator, Signer().sign(1), mono=MONO + 60) is None


def test_what_is_imported_only_adds_to_what_is_known() -> None:
    validator = MessageValidator(PUBLIC, KnownPools())
    assert judge(validator, Signer(issue_number=5).sign(1)) is None

    validator.pools_remembered.take_over({Signer().pool_id: PoolRecord(NOW - 100, 9)}, NOW, MONO)

    assert validator.pools_remembered.export(NOW, MONO) == {Signer().pool_id: PoolRecord(NOW, 9)}


def test_a_commit_can_be_put_back() -> None:
    validator = MessageValidator(PUBLIC, KnownPools())
    memories = validator.pools_remembered
    for issue_number in (3, 4):
        signer = Signer(issue_number=issue_number)
        memory, exported = memories.get(signer.pool_id), memories.export(NOW, MONO)
        mono = MONO + 60 * issue_number
        assert judge(validator, signer.sign(1), mono=mono) is None
        memories.put_back(signer.pool_id, memory)
        assert memories.export(NOW, MONO) == exported
        assert judge(validator, signer.sign(1), mono=mono) is None


def test_the_number_of_pools_remembered_is_bounded() -> None:
    memories = PoolMemories(message_gap_s=0, pools_max=2)
    for number in (1, 2):
        assert memories.commit(PoolId(bytes([number]) * 28), 0, MONO) is None

    assert code(memories.commit(PoolId(bytes(28)), 0, MONO)) is ErrorCode.QUEUE_FULL
    assert memories.commit(PoolId(bytes([1]) * 28), 0, MONO) is None
    assert len(memories) == 2
