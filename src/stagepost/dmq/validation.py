"""Validation: accept or reject a message, in the order of running nodes: cheap checks first, signatures last.

There are three steps, because signatures are checked elsewhere while other messages arrive: `check_cheaply`
before, `check_signatures` (or `claims` and `conclude`) meanwhile, `commit` after. Only `commit` changes the
memory by which later messages are judged, and only for a message that passed; where the message cannot be
kept after all, `pools_remembered.put_back` undoes it.

`check_proof` checks what a message proves by itself, without a clock or a list of pools: id, certificate,
period and signature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec

from stagepost.dmq.equivocation import Equivocations
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.outcome import Rejected, rejected
from stagepost.dmq.pool_memory import PoolMemories
from stagepost.errors import ErrorCode
from stagepost.ground.crypto import ed25519, kes
from stagepost.ground.crypto.bounded_cache import BoundedCache
from stagepost.ground.identifiers import PoolId
from stagepost.ground.net.version_data import NETWORK_MAGICS

KES_EVOLUTIONS_MAX = 62
"""Periods that a certificate serves on the public networks; the construction itself would allow 64."""
SLOTS_PER_KES_PERIOD = 129_600
"""Slots in a KES period of the public networks; slots take one second, so a period takes 36 hours."""


def check_id(message: DmqMessage) -> Rejected | None:
    if message.has_valid_id:
        return None
    return rejected(ErrorCode.MSG_BAD_ID, "the message id is not the hash of the signed bytes")


def check_period(message: DmqMessage, kes_evolutions_max: int = KES_EVOLUTIONS_MAX) -> Rejected | None:
    first = message.start_kes_period
    last = first + kes_evolutions_max - 1
    if first <= message.kes_period <= last:
        return None
    text = f"KES period {message.kes_period} is outside of the certificate's {first} to {last}"
    return rejected(ErrorCode.KES_PERIOD, text)


def check_certificate(message: DmqMessage) -> Rejected | None:
    if message.operational_certificate.verify(message.cold_verification_key):
        return None
    return rejected(ErrorCode.OPCERT_SIGNATURE, "the cold key did not sign this operational certificate")


def check_kes_signature(message: DmqMessage) -> Rejected | None:
    if kes.verify(
        message.kes_verification_key, message.kes_evolution, message.signed_bytes, message.kes_signature
    ):
        return None
    return rejected(
        ErrorCode.KES_SIGNATURE, f"the KES signature does not hold at evolution {message.kes_evolution}"
    )


def check_proof(message: DmqMessage, kes_evolutions_max: int = KES_EVOLUTIONS_MAX) -> Rejected | None:
    """Return the first fault, with cheap checks before signatures; None if the proof is valid."""
    return (
        check_id(message)
        or check_period(message, kes_evolutions_max)
        or check_certificate(message)
        or check_kes_signature(message)
    )


TTL_MAX_S = 1_800
MESSAGE_GAP_S = 60
SKEW_S = 5
CERTIFICATES_CACHED_MAX = 8_192
SIGNERS_CACHED_MAX = 8_192

PUBLIC_MAGICS = frozenset(
    NETWORK_MAGICS[name] for name in ("mithril-mainnet", "mithril-preprod", "mithril-preview")
)


@dataclass(frozen=True, slots=True)
class ValidationRules:
    """Rules of a network. `skew_s` is the difference of clocks up to which an honest message is not refused. `expires_after` is
    0, or the time in Unix seconds after which a message must expire: a node that was restored may have accepted earlier
    ones, and its memory does not know."""

    ttl_max_s: float = TTL_MAX_S
    message_gap_s: float = MESSAGE_GAP_S
    skew_s: float = 0
    expires_after: float = 0


def rules_for(network_magic: int) -> ValidationRules:
    """Return the rules of running nodes for public networks; elsewhere pools may send freely and clocks may
    differ a little."""
    if network_magic in PUBLIC_MAGICS:
        return ValidationRules()
    return ValidationRules(message_gap_s=0, skew_s=SKEW_S)


class Pools(Protocol):
    """Stake distribution, wherever it comes from: it says who may send."""

    @property
    def is_ready(self) -> bool:
        """Return whether the first distribution has arrived."""
        ...

    @property
    def kes_evolutions_max(self) -> int: ...

    def stake(self, pool_id: PoolId) -> int | None:
        """Return the pool's stake; None for a pool that is not in the distribution."""
        ...


def check_expiry(expires_at: int, now: float, rules: ValidationRules | None = None) -> Rejected | None:
    """Return why a message with this expiry is not valid at `now`, in Unix seconds with fractions; None if it
    is."""
    rules = rules or ValidationRules()
    if now - rules.skew_s > expires_at:
        text = f"expired at {expires_at}, it is {now:.0f} now{_allowance(rules)}"
        return rejected(ErrorCode.MSG_EXPIRED, text)
    if expires_at >= now + rules.ttl_max_s + rules.skew_s:
        text = (
            f"expires at {expires_at}, {expires_at - now:.0f} s from now; "
            f"the network allows less than {rules.ttl_max_s:g} s{_allowance(rules)}"
        )
        return rejected(ErrorCode.MSG_EXPIRY_TOO_FAR, text)
    if expires_at <= rules.expires_after:
        text = (
            f"expires at {expires_at}; this node was restored, may have accepted the message before, and takes "
            f"messages that expire after {rules.expires_after:.0f}"
        )
        return rejected(ErrorCode.NOT_READY, text, retry_after_s=max(1.0, rules.expires_after - expires_at))
    return None


def rules_after_restore(rules: ValidationRules, restored_at: float) -> ValidationRules:
    """Return the rules of a node that was restored at that time, in Unix seconds: a message that it accepted before expires
    within the longest life of a message."""
    return replace(rules, expires_after=restored_at + rules.ttl_max_s + rules.skew_s)


def _allowance(rules: ValidationRules) -> str:
    return f", and clocks may differ by {rules.skew_s:g} s" if rules.skew_s else ""


class _Signer(msgspec.Struct, frozen=True, gc=False):
    """Pool with the key that it signs with in one period. `proof` are all bytes that the key follows from."""

    pool_id: PoolId
    proof: bytes
    kes_period: int
    leaf_key: bytes


class MessageValidator:
    """Judge of messages for one node. The mempool finds duplicates; all other checks are here.

    `equivocations`: where it is given, the judge takes one body for each slot. That is checked after the
    signatures, so that each refusal is a proof.
    """

    def __init__(
        self, rules: ValidationRules, pools: Pools, equivocations: Equivocations | None = None
    ) -> None:
        self.rules = rules
        self._pools = pools
        self._equivocations = equivocations
        if equivocations is None:
            self.pools_remembered = PoolMemories(rules.message_gap_s)
        else:
            self.pools_remembered = PoolMemories(rules.message_gap_s, on_put_back=equivocations.release)
        # The key is the whole certificate and the cold key: a remembered result must not stand for anything
        # else.
        self._certificates: BoundedCache[bytes, bool] = BoundedCache(CERTIFICATES_CACHED_MAX)
        # By cold key. A pool that signs one message signs more, and their certificate and path need no second
        # check. Only signers of valid messages are kept: others would cost their sender nothing and us the
        # memory.
        self._signers: BoundedCache[bytes, _Signer] = BoundedCache(SIGNERS_CACHED_MAX)

    def pool_of(self, message: DmqMessage) -> PoolId:
        """Return the pool's id, hashed once for all messages of a pool that proved valid before."""
        known = self._signers.get(message.cold_verification_key)
        return message.pool_id if known is None else known.pool_id

    def check_cheaply(
        self, message: DmqMessage, now: float, mono: float, pool_id: PoolId | None = None
    ) -> Rejected | None:
        """Make checks 1 to 8, none of which costs a signature; return the first fault."""
        pool_id = pool_id or self.pool_of(message)
        if self._is_faultless(message, now, pool_id):
            return None
        return (
            check_expiry(message.expires_at, now, self.rules)
            or self.pools_remembered.check_gap(pool_id, mono)
            or check_id(message)
            or check_period(message, self._pools.kes_evolutions_max or KES_EVOLUTIONS_MAX)
            or self._check_pool(pool_id)
            or self.pools_remembered.check_counter(pool_id, message.issue_number)
        )

    def _is_faultless(self, message: DmqMessage, now: float, pool_id: PoolId) -> bool:
        """Make the same checks in one go, for nearly all messages pass them. False means only that each check
        has to be made by itself."""
        rules, memory = self.rules, self.pools_remembered.get(pool_id)
        evolution = message.kes_period - message.start_kes_period
        return (
            now - rules.skew_s <= message.expires_at < now + rules.ttl_max_s + rules.skew_s
            and message.expires_at > rules.expires_after
            and (memory is None or (rules.message_gap_s <= 0 and message.issue_number >= memory.issue_number))
            and message.has_valid_id
            and 0 <= evolution < (self._pools.kes_evolutions_max or KES_EVOLUTIONS_MAX)
            and (self._pools.stake(pool_id) or 0) > 0
        )

    def check_signatures(self, message: DmqMessage) -> Rejected | None:
        """Make checks 9 and 10; return the first fault."""
        known = leaf_key = self._known_leaf_key(message)
        if known is None:
            if not self._is_issued(message):
                return _not_issued()
            leaf_key = kes.leaf_key(message.kes_verification_key, message.kes_evolution, message.kes_path)
        if leaf_key is None or not ed25519.verify_signed(leaf_key, message.leaf_signed):
            return _not_signed(message)
        if known is None:
            self._remember_signer(message, leaf_key)
        return None

    def claims(self, message: DmqMessage) -> Sequence[ed25519.Claim] | None:
        """Return the signatures that `check_signatures` would check, so that another process can; None if
        they cannot be valid."""
        leaf_key = self._known_leaf_key(message)
        if leaf_key is not None:
            return ((leaf_key, message.leaf_signed),)
        leaf_key = kes.leaf_key(message.kes_verification_key, message.kes_evolution, message.kes_path)
        issued = message.operational_certificate.claim(message.cold_verification_key)
        if leaf_key is None or issued is None:
            return None
        # Include the certificate even if it was seen before with another path: two claims say that the signer
        # is new.
        return issued, (leaf_key, message.leaf_signed)

    def conclude(
        self, message: DmqMessage, claims: Sequence[ed25519.Claim], holds: Sequence[bool]
    ) -> Rejected | None:
        """Return the verdict of `check_signatures`, from the result `holds` for each of the message's
        `claims`."""
        if len(holds) > 1 and not holds[0]:
            return _not_issued()
        if not holds[-1]:
            return _not_signed(message)
        if len(holds) > 1:
            self._certificates.put(message.certificate_and_cold_key, True)
            self._remember_signer(message, claims[-1][0])
        return None

    def _known_leaf_key(self, message: DmqMessage) -> bytes | None:
        """Return the leaf's key if the same certificate and path, byte for byte, were valid before; else
        None."""
        known = self._signers.get(message.cold_verification_key)
        if known is None or known.kes_period != message.kes_period or not message.has_proof(known.proof):
            return None
        return known.leaf_key

    def _remember_signer(self, message: DmqMessage, leaf_key: bytes) -> None:
        signer = _Signer(message.pool_id, message.proof, message.kes_period, leaf_key)
        self._signers.put(message.cold_verification_key, signer)

    def _is_issued(self, message: DmqMessage) -> bool:
        entry = message.certificate_and_cold_key
        if self._certificates.get(entry):
            return True
        if not message.operational_certificate.verify(message.cold_verification_key):
            return False
        self._certificates.put(entry, True)
        return True

    def commit(self, message: DmqMessage, mono: float, pool_id: PoolId | None = None) -> Rejected | None:
        """Record a valid message, unless one that was committed meanwhile stands against it."""
        pool_id = pool_id or self.pool_of(message)
        equivocations = self._equivocations
        if equivocations is None:
            return self.pools_remembered.commit(pool_id, message.issue_number, mono)
        fault = equivocations.check(message) or self.pools_remembered.commit(
            pool_id, message.issue_number, mono
        )
        if fault is None:
            equivocations.claim(message, pool_id)
        return fault

    def _check_pool(self, pool_id: PoolId) -> Rejected | None:
        stake = self._pools.stake(pool_id)
        if stake is None:
            if not self._pools.is_ready:
                return rejected(ErrorCode.NOT_READY, "the stake distribution has not arrived yet")
            return rejected(ErrorCode.POOL_UNKNOWN, f"pool {pool_id.hex()} is not in the stake distribution")
        if stake == 0:
            return rejected(ErrorCode.POOL_NOT_ELIGIBLE, f"pool {pool_id.hex()} has no stake")
        return None


def _not_issued() -> Rejected:
    return rejected(ErrorCode.OPCERT_SIGNATURE, "the cold key did not sign this operational certificate")


def _not_signed(message: DmqMessage) -> Rejected:
    text = f"the KES signature does not hold at evolution {message.kes_evolution}"
    return rejected(ErrorCode.KES_SIGNATURE, text)
