"""Budgets of members: how much one author may write into the graph of a session, proved by its own blocks.

Each dated payload says how many headers, digest ids and bytes its author has written so far. For any two blocks a
before b of one author: total(b) - total(a) <= burst + rate * (date(b) - date(a)). Two blocks that break this convict
their author before everybody, without any clock: whether b breaks it depends on its author's chain alone.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from stagepost.catchain.challenges import MemberChallenge

AMOUNTS = "headers", "digest ids", "bytes"
_THOUSANDTHS = 1_000


class Rates(msgspec.Struct, frozen=True):
    """Headers, digest ids and bytes that one member may write into a session's catchain: so many a second, and
    so many at once.
    """

    headers_per_s: int = 500
    headers_burst: int = 4_096
    digests_per_s: int = 5_000
    digests_burst: int = 65_536
    bytes_per_s: int = 1 << 20
    bytes_burst: int = 8 << 20

    @property
    def per_s(self) -> tuple[int, int, int]:
        return self.headers_per_s, self.digests_per_s, self.bytes_per_s

    @property
    def bursts(self) -> tuple[int, int, int]:
        return self.headers_burst, self.digests_burst, self.bytes_burst


class Totals(msgspec.Struct, frozen=True):
    """Date of a payload, and how many headers, ids in digests and bytes its author has written in this session, this
    payload included; each block counts some bytes more than its payload has. It is the first record of a payload, and stands nowhere else.
    """

    date_ms: int = 0
    headers: int = 0
    digests: int = 0
    payload_bytes: int = 0

    @property
    def amounts(self) -> tuple[int, int, int]:
        return self.headers, self.digests, self.payload_bytes

    def plus(self, amounts: tuple[int, int, int], date_ms: int) -> Totals:
        """Return the totals of the next payload, which holds `amounts`; dates do not fall."""
        headers, digests, payload_bytes = map(sum, zip(self.amounts, amounts, strict=True))
        return Totals(max(self.date_ms, date_ms), headers, digests, payload_bytes)


class PayloadContent(msgspec.Struct, frozen=True):
    """The totals that a payload states, and the headers, digest ids and bytes that it holds itself; its challenges, and
    the subjects of challenges that it answers.
    """

    totals: Totals
    amounts: tuple[int, int, int]
    challenges: tuple[MemberChallenge, ...] = ()
    answers: tuple[bytes, ...] = ()


ReadContent = Callable[[bytes], PayloadContent | None]
"""Function that reads the content of a payload; None for a payload of another form, or without totals."""


class AuthorAccount(msgspec.Struct, frozen=True):
    """Totals of one member up to a block. `used`: thousandths of each amount that its worst pair of blocks, of which
    this one is the later, takes out of the burst; below 0 if the rate allows more than was written.
    """

    totals: Totals = Totals()
    used: tuple[int, int, int] = (0, 0, 0)

    @property
    def is_new(self) -> bool:
        """Return whether no block has been written."""
        return not self.totals.payload_bytes


class Budget(msgspec.Struct, frozen=True):
    """Rule for all members of a graph. No date counts as earlier than `starts_ms`, the session's start: otherwise a
    chain of dates long past would allow any amount.
    """

    starts_ms: int
    rates: Rates

    def after(self, account: AuthorAccount, totals: Totals) -> AuthorAccount:
        """Return the account after a block with `totals`. The first block of a member is no pair's later one."""
        if account.is_new:
            return AuthorAccount(totals)
        elapsed_ms = self._elapsed_ms(account, totals.date_ms)
        used = tuple(
            _THOUSANDTHS * (new - old) - rate * elapsed_ms + max(0, before)
            for new, old, rate, before in zip(
                totals.amounts, account.totals.amounts, self.rates.per_s, account.used, strict=True
            )
        )
        return AuthorAccount(totals, (used[0], used[1], used[2]))

    def left(self, account: AuthorAccount, date_ms: int) -> tuple[int, int, int]:
        """Return the amounts that a block dated `date_ms` may hold, which follows the blocks of `account`."""
        elapsed_ms = self._elapsed_ms(account, date_ms)
        left = [
            (_THOUSANDTHS * burst + rate * elapsed_ms - max(0, before)) // _THOUSANDTHS
            for burst, rate, before in zip(self.rates.bursts, self.rates.per_s, account.used, strict=True)
        ]
        return left[0], left[1], left[2]

    def fault_in(self, before: AuthorAccount, content: PayloadContent | None) -> str | None:
        """Return why no honest member writes a block with `content` after the blocks of `before`; None if one may."""
        if content is None:
            return "the payload does not begin with date and totals, or cannot be read"
        said = content.totals
        if said.date_ms < before.totals.date_ms:
            return f"its date, {said.date_ms} ms, is before the date of the author's last block, {before.totals.date_ms} ms"
        expected = before.totals.plus(content.amounts, said.date_ms)
        if said != expected:
            return f"its totals are {said.amounts}, and with its own content they are {expected.amounts}"
        after = self.after(before, said)
        for name, used, burst, rate in zip(
            AMOUNTS, after.used, self.rates.bursts, self.rates.per_s, strict=True
        ):
            if used > _THOUSANDTHS * burst:
                return f"its author wrote {-(-used // _THOUSANDTHS)} {name} beyond {rate} a second, at most {burst} fit"
        return None

    def _elapsed_ms(self, account: AuthorAccount, date_ms: int) -> int:
        if account.is_new:
            return 0
        return max(0, max(date_ms, self.starts_ms) - max(account.totals.date_ms, self.starts_ms))
