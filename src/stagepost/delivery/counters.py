"""What a publisher has done so far, in numbers that balance: published = acked + sent-final + failed + live."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    published: int = 0
    queued: int = 0
    sent: int = 0
    sent_final: int = 0
    acked: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    """By the name of the error."""
    evicted: int = 0
    retries: int = 0
    ack_timeouts: int = 0
    late_acks: int = 0
    bad_acks: int = 0
    outside_acks: int = 0
    """From nodes that were not asked."""
    duplicates_in: int = 0
    """Receipts that said nothing new."""

    def count_failure(self, name: str) -> None:
        self.failed[name] = self.failed.get(name, 0) + 1

    @property
    def ended(self) -> int:
        return self.acked + self.sent_final + sum(self.failed.values())
