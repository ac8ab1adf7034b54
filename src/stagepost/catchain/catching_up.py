"""The exchange of missed blocks: a member gets those that it missed, and gives others those that they missed.

Our own blocks go to everybody at once. To find lost ones we ask one member after another, now and then, for
the blocks that it has beyond ours. A block whose ancestors are missing makes us ask for these at once.

At the start a member asks everybody, because others may hold blocks of its own that its disk lost: it may
speak when a quorum has really answered. A query that failed, timed out or was dropped is not an answer. A
member answers before it has started itself, so members that start together do not wait for each other for
ever.
"""

from __future__ import annotations

from collections.abc import Collection
from random import Random

import msgspec

from stagepost.catchain.block import Block
from stagepost.catchain.effects import Ask, Effect, Send
from stagepost.catchain.graph import Graph, State, Vertex
from stagepost.catchain.payloads import ForkProof
from stagepost.catchain.queries import (
    BLAMED_HEIGHT,
    BLOCKS_ASKED_MAX,
    Answer,
    BlockNotFound,
    BlockResult,
    Difference,
    DifferenceFork,
    GetBlock,
    GetBlockHistory,
    GetBlocks,
    GetDifference,
    Query,
    Sent,
    encode_answer,
    encode_query,
)
from stagepost.ground.statemachine.lifecycle import StartAnswers

SYNC_MIN_S, SYNC_MAX_S = 0.1, 0.2
CALM_MAX = 3
"""Doublings of the pause between questions, where blocks come to us anyway and nobody has one that we lack."""
ROTATE_MIN_S, ROTATE_MAX_S = 60.0, 120.0
QUERY_TIMEOUT_S = 2.0
ASKED_AT_ONCE_MAX = 16
DIFFERENCE_BLOCKS_MAX = 100
HEIGHTS_LOOKED_AT = 256
"""Heights above an asker's last delivered block at which we look for its blocks that wait here."""


def quorum_of(members: int) -> int:
    """Return the smallest number that is more than two thirds of `members`."""
    return 2 * members // 3 + 1


class SyncOptions(msgspec.Struct, frozen=True):
    """Options of the exchange.

    With `neighbours` None our blocks go to every member, and nobody passes on the blocks of others. With a
    number, every delivered block goes on to so many members, chosen anew now and then, as older networks do.
    """

    neighbours: int | None = None
    sync_min_s: float = SYNC_MIN_S
    sync_max_s: float = SYNC_MAX_S
    rotate_min_s: float = ROTATE_MIN_S
    rotate_max_s: float = ROTATE_MAX_S
    query_timeout_s: float = QUERY_TIMEOUT_S


class BlockSync:
    """Record of the queries under way; nothing here outlives a restart.

    `current` are the members whose answers count at the start, by index; where the answers of all are needed, every
    member counts. `answered_by` are those of them that have shown all the blocks of ours that they hold.
    """

    def __init__(
        self,
        graph: Graph,
        index: int,
        random: Random,
        now: float,
        options: SyncOptions,
        current: Collection[int],
        *,
        is_starting: bool,
        answers: StartAnswers = StartAnswers.QUORUM,
    ) -> None:
        self._graph = graph
        self._index = index
        self._random = random
        self._options = options
        self._numbers = 0
        self._asked: dict[int, tuple[int, Query, float]] = {}
        self._blocks_asked: dict[bytes, int] = {}
        self._calm = 0
        self._next_sync = now + self._pause()
        self._neighbours: list[int] = []
        self._rotate_at = now
        self._to_pass_on: list[Vertex] = []
        self._answers = answers
        self._current = frozenset(current) - {index}
        everybody = frozenset(range(graph.size)) - {index}
        self._counted = tuple(sorted(self._current if answers is StartAnswers.QUORUM else everybody))
        self._quorum = quorum_of(len(current)) - (index in current)
        self.is_starting = is_starting
        self.answered_by: set[int] = set()

    @property
    def has_quorum(self) -> bool:
        """Return whether enough members have answered that this member knows all that can be known of its own
        past. No answers fill a gap: the member waits for the next session."""
        if self._answers is StartAnswers.GAP:
            return False
        if self._needs_all:
            return len(self.answered_by) == len(self._counted)
        return len(self.answered_by & self._current) >= self._quorum

    @property
    def answers_needed(self) -> int:
        """Number of other members whose answers are needed before this member speaks."""
        return len(self._counted) if self._needs_all else self._quorum

    @property
    def _needs_all(self) -> bool:
        if self._answers is StartAnswers.FOUNDING:
            return any(self._graph.received_height(source) for source in range(self._graph.size))
        return self._answers is StartAnswers.GAP

    @property
    def next_wake(self) -> float:
        return 0.0 if self._to_pass_on else self._next_sync

    # Sending on

    def audience(self, now: float) -> list[int]:
        """Return the members to which a block of ours goes."""
        others = [peer for peer in range(self._graph.size) if peer != self._index]
        if self._options.neighbours is None:
            return others
        if now >= self._rotate_at or any(peer in self._graph.blamed for peer in self._neighbours):
            trusted = [peer for peer in others if peer not in self._graph.blamed]
            count = min(len(trusted), self._options.neighbours)
            self._neighbours = sorted(self._random.sample(trusted, count))
            self._rotate_at = now + self._random.uniform(
                self._options.rotate_min_s, self._options.rotate_max_s
            )
        return self._neighbours

    def delivered(self, vertex: Vertex, now: float) -> None:
        if self._options.neighbours is not None and vertex.source != self._index:
            self._to_pass_on.append(vertex)

    # Asking

    def helped(self, now: float) -> None:
        """Ask again soon: a block came from a member other than its author, so more may have got lost."""
        self._calm = 0
        self._next_sync = min(self._next_sync, now + self._pause())

    def tick(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for vertex in self._to_pass_on:
            assert vertex.block is not None, "only what is here is passed on"
            effects += [
                Send(peer, vertex.block.encode()) for peer in self.audience(now) if peer != vertex.source
            ]
        self._to_pass_on = []
        for number in [number for number, (_, _, until) in self._asked.items() if now >= until]:
            self._forget(number)
            self._calm = 0
        if now >= self._next_sync:
            self._next_sync = now + self._pause()
            for peer in self._peers_to_ask():
                effects.append(self._ask(peer, GetDifference(self._heights()), now))
                effects += self._ask_again(peer, now)
        return effects

    def ask_for_missing(self, vertex: Vertex, peer: int, now: float) -> list[Effect]:
        """Ask `peer`, which sent this block, for its missing ancestors: an honest sender has them."""
        missing = self._graph.missing_parents(vertex)
        if missing:
            self._calm = 0
        return [
            self._ask(peer, GetBlock(one.hash), now)
            for one in missing[:ASKED_AT_ONCE_MAX]
            if one.hash not in self._blocks_asked
        ]

    def _ask_again(self, peer: int, now: float) -> list[Effect]:
        """Ask `peer` for the ancestors that nobody has given us yet."""
        effects: list[Effect] = []
        for vertex in self._graph.undelivered():
            if len(effects) >= ASKED_AT_ONCE_MAX:
                break
            effects += self.ask_for_missing(vertex, peer, now)
        return effects[:ASKED_AT_ONCE_MAX]

    def _ask(self, peer: int, query: Query, now: float) -> Ask:
        self._numbers += 1
        self._asked[self._numbers] = peer, query, now + self._options.query_timeout_s
        if isinstance(query, GetBlock):
            self._blocks_asked[query.block_hash] = self._numbers
        return Ask(peer, self._numbers, encode_query(query))

    def answered(self, peer: int, number: int, answer: Answer | None) -> bool:
        """Return whether `answer` can answer the query of that number. Late answers and missing ones are
        nobody's fault."""
        asked = self._asked.get(number)
        if asked is None:
            return True
        whom, query, _ = asked
        self._forget(number)
        if answer is None:
            self._calm = 0  # with silent members it takes longer to find one that has our missing blocks
            return True
        if whom != peer:
            return False
        match query, answer:
            case GetDifference(heights), Difference(sent_up_to):
                # The blocks that `peer` sent ahead of its answer came before it, and have reset the pause if
                # they were new.
                self._calm = min(self._calm + 1, CALM_MAX)
                self._note_answer(peer, heights, sent_up_to)
                return True
            case GetDifference(), DifferenceFork():
                self._calm = min(self._calm + 1, CALM_MAX)
                return True
            case GetBlock(block_hash), BlockResult(block):
                graph = self._graph
                if not 0 <= block.source < graph.size or block.height < 1:
                    return False
                return graph.hash_of(graph.reference_of(block)) == block_hash
            case GetBlock(), BlockNotFound():
                return True
            case GetBlocks() | GetBlockHistory(), Sent():
                return True
            case _:
                return False

    @staticmethod
    def proof_in(answer: Answer) -> ForkProof | None:
        return ForkProof(answer.left, answer.right) if isinstance(answer, DifferenceFork) else None

    def _forget(self, number: int) -> None:
        _, query, _ = self._asked.pop(number)
        if isinstance(query, GetBlock) and self._blocks_asked.get(query.block_hash) == number:
            del self._blocks_asked[query.block_hash]

    def _heights(self) -> tuple[int, ...]:
        graph = self._graph
        return tuple(
            BLAMED_HEIGHT if source in graph.blamed else graph.received_height(source)
            for source in range(graph.size)
        )

    def _note_answer(self, peer: int, heights: tuple[int, ...], sent_up_to: tuple[int, ...]) -> None:
        """Count the answer of `peer` at the start, unless `peer` holds more of our own blocks than we asked
        from.

        Those blocks may be on their way or lost, so `peer` is asked again.
        """
        if (
            self.is_starting
            and peer in self._counted
            and len(sent_up_to) == len(heights)
            and sent_up_to[self._index] <= heights[self._index]
        ):
            self.answered_by.add(peer)

    def _peers_to_ask(self) -> list[int]:
        """Return all members whose answers are missing at the start, and one random member afterwards."""
        if self.is_starting:
            waiting = {peer for peer, query, _ in self._asked.values() if isinstance(query, GetDifference)}
            left = [one for one in self._counted if one not in self.answered_by and one not in waiting]
            if left:
                return self._random.sample(left, min(len(left), ASKED_AT_ONCE_MAX))
        peer = self._random_peer()
        return [] if peer is None else [peer]

    def _random_peer(self) -> int | None:
        graph = self._graph
        others = [peer for peer in range(graph.size) if peer != self._index and peer not in graph.blamed]
        return self._random.choice(others) if others else None

    def _pause(self) -> float:
        """Return the seconds until the next question. Where blocks go to a few members only, questions spread
        them; where they go to all, questions only find lost ones."""
        options = self._options
        factor = 1 << self._calm if options.neighbours is None else 1
        return factor * self._random.uniform(options.sync_min_s, options.sync_max_s)

    # Answering

    def answer(self, query: Query, asker: int) -> tuple[list[Block], bytes]:
        """Return the blocks to send ahead, and the answer to send after them."""
        match query:
            case GetBlock(block_hash):
                found = self._with_body(block_hash)
                return [], encode_answer(BlockNotFound() if found is None else BlockResult(found))
            case GetBlocks(block_hashes):
                blocks = [block for block in map(self._with_body, block_hashes) if block is not None]
                return blocks, encode_answer(Sent(len(blocks)))
            case GetBlockHistory(block_hash, count, stop_at):
                history = self._history(block_hash, count, frozenset(stop_at))
                return history, encode_answer(Sent(len(history)))
            case GetDifference(heights):
                return self._difference(heights, asker)

    def _with_body(self, block_hash: bytes) -> Block | None:
        vertex = self._graph.get(block_hash)
        is_sound = vertex is not None and vertex.state in (State.RECEIVED, State.DELIVERED)
        return vertex.block if vertex is not None and is_sound else None

    def _history(self, block_hash: bytes, count: int, stop_at: frozenset[bytes]) -> list[Block]:
        found: list[Block] = []
        vertex = self._graph.get(block_hash)
        while vertex is not None and vertex.block is not None and vertex.hash not in stop_at:
            if len(found) >= min(count, BLOCKS_ASKED_MAX):
                break
            found.append(vertex.block)
            vertex = vertex.previous
        return found[::-1]

    def _newest(self, source: int) -> int:
        """Return the height of the last block that we can show of a member: of a blamed one, the block that convicts it,
        so that an asker who still believes that member judges for itself; 0 without any.
        """
        graph = self._graph
        if source not in graph.blamed:
            return graph.top(source).height
        evidence = graph.evidence(source)
        return 0 if evidence is None else evidence.height

    def _shown(self, source: int, heights: range) -> list[Vertex]:
        evidence = self._graph.evidence(source)
        found = self._graph.delivered(source, heights)
        if evidence is not None and source in self._graph.blamed and evidence.height in heights:
            found = [one for one in found if one.height < evidence.height] + [evidence]
        return found

    def _difference(self, heights: tuple[int, ...], asker: int) -> tuple[list[Block], bytes]:
        """Return blocks that the asker lacks. The cost is bounded by the answer, however much the asker lacks."""
        graph = self._graph
        if len(heights) != graph.size:
            return [], encode_answer(Difference(()))
        for source, proof in graph.blamed.items():
            if proof is not None and heights[source] != BLAMED_HEIGHT:
                return [], encode_answer(DifferenceFork(proof.left, proof.right))
        wanted = {
            source: self._newest(source) - height
            for source, height in enumerate(heights)
            if 0 <= height < self._newest(source)
        }
        blocks: list[Block] = []
        sent_up_to = list(heights)
        for source, share in _even_share(wanted, DIFFERENCE_BLOCKS_MAX).items():
            first = heights[source] + 1
            for vertex in self._shown(source, range(first, first + share)):
                assert vertex.block is not None, "delivered and ill blocks are here"
                blocks.append(vertex.block)
                sent_up_to[source] = vertex.height
        # Blocks of the asker itself that wait for their ancestors here: it may have forgotten them.
        first = max(graph.top(asker).height, heights[asker], 0) + 1
        waiting = graph.waiting(asker, range(first, first + HEIGHTS_LOOKED_AT))
        blocks += [one.block for one in waiting if one.block is not None][:ASKED_AT_ONCE_MAX]
        return blocks, encode_answer(Difference(tuple(sent_up_to)))


def _even_share(wanted: dict[int, int], total: int) -> dict[int, int]:
    """Return a share for each source, none larger than wanted, so that none is served at another's cost."""
    share = dict.fromkeys(wanted, 0)
    left = total
    while left > 0:
        hungry = [source for source in wanted if share[source] < wanted[source]]
        if not hungry:
            break
        each = max(1, left // len(hungry))
        for source in hungry:
            given = min(each, wanted[source] - share[source], left)
            share[source] += given
            left -= given
    return share
