"""The validators of one session, in their order, and the start of their chain."""

from __future__ import annotations

import msgspec

from stagepost.chain.agreement.votes import VALIDATORS_MAX, faulty_max, quorum
from stagepost.errors import LocalProtocolError


class Session(msgspec.Struct, frozen=True):
    """`start_hash` stands for the block before the first one."""

    session_id: bytes
    public_keys: tuple[bytes, ...]
    start_hash: bytes

    def __post_init__(self) -> None:
        if not 1 <= len(self.public_keys) <= VALIDATORS_MAX:
            raise LocalProtocolError(
                f"a session has 1 to {VALIDATORS_MAX} validators, not {len(self.public_keys)}",
                limit=VALIDATORS_MAX,
                found=len(self.public_keys),
            )
        if len(set(self.public_keys)) != len(self.public_keys):
            raise LocalProtocolError(
                "two validators of a session have one key: nobody could count their votes"
            )

    @property
    def size(self) -> int:
        return len(self.public_keys)

    @property
    def quorum(self) -> int:
        return quorum(self.size)

    @property
    def faulty_max(self) -> int:
        return faulty_max(self.size)

    def leader_of(self, slot: int) -> int:
        """Return the leader of the slot: validators lead in turn, beginning with one that the session's id
        picks.
        """
        return (int.from_bytes(self.session_id[:4], "little") + slot) % self.size

    def next_led_by(self, validator: int, slot: int) -> int:
        """Return the first slot, from this one on, that the validator leads."""
        return slot + (validator - self.leader_of(slot)) % self.size
