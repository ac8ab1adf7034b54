"""Challenges in the blocks of a graph: a member asks another for something that only the other can say, and the other's
own blocks convict it if it goes on without an answer.

A challenge counts from the first block of the accused that rests on it. The accused answers in that block or in one of
those that follow; its `BLOCKS_TO_ANSWER`th block on a challenge without an answer is ill. No clock takes part: a member
that makes no blocks is silent, which is no offence. All that is judged here depends on a block and its ancestors alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from stagepost.catchain.covers import Covers

BLOCKS_TO_ANSWER = 32
"""Own blocks of the accused that rest on a challenge: an answer in the last of them comes too late."""

OPEN_MAX = 4
"""Unanswered challenges of one member against another that count; further ones do not, so that nobody is asked for more
than its blocks can hold.
"""

ANSWERS_PER_BLOCK = 16
"""Answers, at most, that an honest member puts into one block, while others wait: `BLOCKS_TO_ANSWER` blocks hold those for
`OPEN_MAX` challenges of each of 120 other members.
"""


class MemberChallenge(msgspec.Struct, frozen=True):
    """`accused` is a key id; `subject` names what is asked for."""

    accused: bytes
    subject: bytes


class OpenChallenge(msgspec.Struct, frozen=True):
    """`since`: height of the first block of the accused that rests on the challenge."""

    challenger: int
    subject: bytes
    since: int


class PlacedChallenge(NamedTuple):
    """MemberChallenge with its place: the order in which challenges count is the same for all members."""

    height: int
    challenger: int
    block_hash: bytes
    place: int
    subject: bytes


class ChallengeFault(Exception):
    """Breach of a rule of challenges, in words."""


class ChallengeBook:
    """Challenges in the delivered blocks of a graph, by the branches of the graph. `key_ids` are those of the members."""

    def __init__(self, key_ids: Sequence[bytes]) -> None:
        self._places = {key_id: place for place, key_id in enumerate(key_ids)}
        self._against: dict[int, dict[int, list[PlacedChallenge]]] = {}
        """By accused and branch, heights ascending."""
        self._made: dict[int, dict[MemberChallenge, int]] = {}
        """By branch: the challenges of its author up to there, with their heights."""

    def refuse_repeated(self, branch: int, height: int, challenges: Sequence[MemberChallenge]) -> None:
        """Raise `ChallengeFault` if the author of `challenges`, whose chain ends at `height` of `branch`, makes one twice."""
        made = self._made.get(branch, {})
        for place, one in enumerate(challenges):
            if one in challenges[:place] or made.get(one, height + 1) <= height:
                raise ChallengeFault(f"it challenges {one.accused.hex()[:16]} twice about the same message")

    def is_anybody_waiting_for(self, source: int) -> bool:
        """Return whether any block challenges member `source`."""
        return source in self._against

    def after(
        self,
        source: int,
        height: int,
        before: tuple[OpenChallenge, ...],
        covered: Covers,
        covers: Covers,
        answers: Sequence[bytes],
    ) -> tuple[OpenChallenge, ...]:
        """Return the challenges that are open after the block of `source` at `height`, with `before` those after its last
        one. The last one has the ancestors `covered`, this one `covers`. Raise `ChallengeFault` if an answer comes too late.
        """
        still_open = list(before)
        for one in sorted(self._new_ones(source, covered, covers)):
            theirs = [other.subject for other in still_open if other.challenger == one.challenger]
            if len(theirs) < OPEN_MAX and one.subject not in theirs:
                still_open.append(OpenChallenge(one.challenger, one.subject, height))
        for late in still_open:
            if height - late.since >= BLOCKS_TO_ANSWER - 1:
                raise ChallengeFault(
                    f"it is block {BLOCKS_TO_ANSWER} of its author that rests on a challenge of member {late.challenger} "
                    f"about {late.subject.hex()[:16]}, and none before it has an answer"
                )
        return tuple(one for one in still_open if one.subject not in answers)

    def _new_ones(self, source: int, covered: Covers, covers: Covers) -> Iterator[PlacedChallenge]:
        for branch, placed in self._against.get(source, {}).items():
            heights = [one.height for one in placed]
            first = bisect_right(heights, covered.height_of(branch))
            yield from placed[first : bisect_right(heights, covers.height_of(branch))]

    def delivered(
        self, source: int, branch: int, height: int, block_hash: bytes, challenges: Sequence[MemberChallenge]
    ) -> None:
        """Note the challenges of a block. Those against nobody of this graph, or against their own author, do not count."""
        for place, one in enumerate(challenges):
            self._made.setdefault(branch, {})[one] = height
            accused = self._places.get(one.accused)
            if accused is not None and accused != source:
                placed = PlacedChallenge(height, source, block_hash, place, one.subject)
                self._against.setdefault(accused, {}).setdefault(branch, []).append(placed)

    def forked(self, branch: int, from_branch: int, height: int) -> None:
        """Begin `branch`, which leaves `from_branch` above `height`: its author has made the same challenges up to there."""
        made = self._made.get(from_branch, {})
        kept = {one: at for one, at in made.items() if at <= height}
        if kept:
            self._made[branch] = kept
