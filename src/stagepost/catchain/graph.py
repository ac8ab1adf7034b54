"""The graph as one member knows it: which blocks exist, which have all their ancestors, and which members
lied.

Every decision here about a block depends on the block and its ancestors alone. So honest members, who see the
same blocks in different orders, agree about each of them: whether it is delivered or ill, and whom to blame.

A *fork* is two blocks of one author at one height. Branches get numbers as the member meets them; the numbers
are private to a member, their meaning is not: a branch is a chain, so "covers branch f up to height h" names
one set of blocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum

import msgspec

from stagepost.catchain.block import (
    BLOCK_BYTES_MAX,
    DEPENDENCIES_MAX,
    Block,
    Dependency,
    HashVersion,
    block_hash,
    block_id,
    root_reference,
)
from stagepost.catchain.budgets import AuthorAccount, Budget, PayloadContent
from stagepost.catchain.challenges import ChallengeBook, ChallengeFault, MemberChallenge, OpenChallenge
from stagepost.catchain.covers import NOTHING_COVERED
from stagepost.catchain.dates import BlockDates, DateRules, block_dates, first_dates
from stagepost.catchain.payloads import ForkProof, read_fork_proof, upper_part
from stagepost.errors import DecodeError
from stagepost.ground.crypto import ed25519
from stagepost.ground.wire.tl import key_id

HEIGHT_MAX = 100_000
RESTS_ON_ILL = "it rests on a block that breaks a rule"

Verify = Callable[[bytes, bytes, bytes], bool]
"""Check of a signature, with the arguments (public key, message, signature)."""


class GraphRules(msgspec.Struct, frozen=True):
    """Rules on which all members of one graph have agreed."""

    version: HashVersion = HashVersion.WITH_REFERENCES
    dependencies_max: int = DEPENDENCIES_MAX
    block_bytes_max: int = BLOCK_BYTES_MAX
    height_max: int = HEIGHT_MAX


class Refusal(msgspec.Struct, frozen=True):
    """Reason to refuse a block that no honest member sends: the name of the rule that it breaks, and the
    details."""

    rule: str
    text: str


class State(Enum):
    REFERENCED = "referenced"  # another block names it, it is not here
    RECEIVED = "received"  # it is here, something that it rests on is not
    DELIVERED = "delivered"
    ILL = "ill"  # its author broke a rule that all members can see


class Vertex:
    """Block in the graph, or the place of a block that is only known by reference."""

    __slots__ = (
        "account",
        "blamed_before",
        "block",
        "branch",
        "challenges",
        "covers",
        "data_hash",
        "dates",
        "dependants",
        "dependencies",
        "hash",
        "height",
        "is_continued",
        "is_stored",
        "open_challenges",
        "previous",
        "signature",
        "source",
        "state",
        "waits_for",
    )  # fmt: skip

    def __init__(self, hash: bytes, reference: Dependency) -> None:
        self.hash = hash
        self.source = reference.source
        self.height = reference.height
        self.data_hash = reference.data_hash
        self.signature = reference.signature
        self.state = State.REFERENCED
        self.block: Block | None = None
        self.is_stored = False
        self.previous: Vertex | None = None
        self.dependencies: tuple[Vertex, ...] = ()
        self.dependants: list[Vertex] = []
        self.waits_for = 0
        # Once delivered: its branch, the greatest height of each branch among its ancestors and itself, the
        # members that these blocks have proved to be forkers, its challenges, and those that its author has to answer.
        self.branch = 0
        self.is_continued = False
        self.covers = NOTHING_COVERED
        self.dates: BlockDates | None = None
        self.account = AuthorAccount()
        self.blamed_before: frozenset[int] = frozenset()
        self.challenges: tuple[MemberChallenge, ...] = ()
        self.open_challenges: tuple[OpenChallenge, ...] = ()

    @property
    def reference(self) -> Dependency:
        return Dependency(self.source, self.height, self.data_hash, self.signature)

    def is_covered_by(self, other: Vertex) -> bool:
        """Return whether this vertex is `other` or one of its ancestors; both are delivered."""
        return other.covers.height_of(self.branch) >= self.height


class Outcome(msgspec.Struct):
    """Result of one step: blocks newly delivered, in causal order, and members newly blamed."""

    delivered: list[Vertex] = msgspec.field(default_factory=list)
    blamed: list[int] = msgspec.field(default_factory=list)
    proofs: list[ForkProof] = msgspec.field(default_factory=list)


class Graph:
    """Graph with a fixed list of members, each known by a public key."""

    def __init__(
        self,
        incarnation: bytes,
        public_keys: Sequence[bytes],
        rules: GraphRules | None = None,
        *,
        verify: Verify = ed25519.verify,
        dates: DateRules | None = None,
    ) -> None:
        """`dates` is None where blocks have no dates."""
        self.incarnation = incarnation
        self.rules = rules or GraphRules()
        self.public_keys = tuple(public_keys)
        self.key_ids = tuple(key_id(key) for key in public_keys)
        self.dates = dates
        self._budget: Budget | None = None if dates is None else dates.budget
        self._verify = verify
        self._challenges = ChallengeBook(self.key_ids)
        self._root = Vertex(incarnation, root_reference(incarnation, len(public_keys)))
        self._root.state = State.DELIVERED
        self._root.is_stored = True
        if dates is not None:
            self._root.dates = first_dates(dates, len(public_keys))
        self._vertices: dict[bytes, Vertex] = {incarnation: self._root}
        self._at: dict[tuple[int, int], Vertex] = {}  # the first that was met at each place
        self._branch_sources: list[int] = [len(public_keys)]  # branch 0 is the root's
        self._branch_rows: dict[tuple[int, ...], tuple[int, ...]] = {}
        """Rows of branches that blocks cover, each once: most blocks share one."""
        self._tops: dict[int, Vertex] = {}
        self._blamed: dict[int, ForkProof | None] = {}
        self._faults: dict[int, str] = {}
        self._evidence: dict[int, Vertex] = {}  # the first ill block of each member that broke a rule itself
        self._waiting: dict[bytes, Vertex] = {}
        self._ready: deque[Vertex] = deque()
        self._last_reference: tuple[Block, Dependency] | None = None

    # Known blocks

    @property
    def size(self) -> int:
        return len(self.public_keys)

    def __len__(self) -> int:
        return len(self._vertices) - 1

    def get(self, block_hash: bytes) -> Vertex | None:
        return self._vertices.get(block_hash)

    @property
    def blamed(self) -> Mapping[int, ForkProof | None]:
        """Members that have broken a rule that all can see, with the proof if it was a fork."""
        return self._blamed

    def fault_of(self, source: int) -> str:
        """Return the rule that a blamed member broke, in words."""
        return self._faults.get(source, "two blocks at one height")

    def evidence(self, source: int) -> Vertex | None:
        """Return the block by which a member without a fork is blamed: with its ancestors it convinces everybody."""
        return self._evidence.get(source)

    def top(self, source: int) -> Vertex:
        """Return the highest delivered block of a member; the root if there is none."""
        return self._tops.get(source, self._root)

    def delivered_height(self, source: int) -> int:
        return 0 if source in self._blamed else self.top(source).height

    def received_height(self, source: int) -> int:
        """Return the height up to which a member's blocks are here, delivered or waiting for others or for
        the disk."""
        height = self.top(source).height
        while (vertex := self._at.get((source, height + 1))) is not None and vertex.block is not None:
            height += 1
        return height

    def delivered(self, source: int, heights: range) -> list[Vertex]:
        """Return the delivered blocks of a member without a fork at these heights: it costs what it returns."""
        places = (self._at.get((source, height)) for height in heights)
        return [one for one in places if one is not None and one.state is State.DELIVERED]

    def waiting(self, source: int, heights: range) -> list[Vertex]:
        """Return the received blocks of a member at these heights that wait for others."""
        places = (self._at.get((source, height)) for height in heights)
        return [one for one in places if one is not None and one.hash in self._waiting]

    def missing_parents(self, vertex: Vertex) -> list[Vertex]:
        """Return the parents of a block that nobody has given us yet. Blocks that are missing further below
        are parents of another waiting block."""
        return [parent for parent in self._parents(vertex) if parent.state is State.REFERENCED]

    def undelivered(self) -> list[Vertex]:
        """Return the received blocks that wait for others, in order of arrival."""
        return list(self._waiting.values())

    # Incoming blocks

    def hash_of(self, reference: Dependency) -> bytes:
        if reference.height == 0:
            return self.incarnation
        return block_hash(
            self.incarnation, self.key_ids[reference.source], reference.height, reference.data_hash
        )

    def reference_of(self, block: Block) -> Dependency:
        """Return the block's reference. The last one is cached: a received block is looked at several times
        in a row."""
        if self._last_reference is None or self._last_reference[0] is not block:
            self._last_reference = block, block.reference(self.rules.version)
        return self._last_reference[1]

    def check(self, block: Block) -> Refusal | None:
        """Return the first fault that the block itself shows; its signature, which costs most, is checked
        last."""
        refusal = self._check_shape(block)
        if refusal is not None:
            return refusal
        for dependency in block.dependencies:
            if not self._is_genuine(dependency):
                return Refusal(
                    "ForgedDependency", f"the reference to member {dependency.source} is not signed by it"
                )
        if block.height > 1 and not self._is_genuine(block.previous):
            return Refusal("ForgedPrevious", "the reference to the author's own last block is not signed")
        if not self._is_genuine(self.reference_of(block)):
            return Refusal("BadSignature", f"member {block.source} has not signed this block")
        return None

    def _check_shape(self, block: Block) -> Refusal | None:
        rules, size = self.rules, self.size
        previous = block.previous
        if block.incarnation != self.incarnation:
            return Refusal("WrongIncarnation", f"the block belongs to {block.incarnation.hex()}")
        if not 0 <= block.source < size:
            return Refusal("UnknownSource", f"the author is {block.source}, members are 0 to {size - 1}")
        if not 1 <= block.height <= rules.height_max:
            return Refusal("HeightOutOfRange", f"height {block.height}, expected 1 to {rules.height_max}")
        if not block.payload:
            return Refusal(
                "EmptyPayload", "the block has no payload; a block holds at least an empty payload record"
            )
        if len(block.payload) > rules.block_bytes_max:
            return Refusal(
                "TooLarge", f"the payload has {len(block.payload)} bytes, at most {rules.block_bytes_max} fit"
            )
        if len(block.dependencies) > rules.dependencies_max:
            return Refusal(
                "TooManyDependencies",
                f"{len(block.dependencies)} references, at most {rules.dependencies_max}",
            )
        expected_source = size if block.height == 1 else block.source
        if previous.source != expected_source or previous.height + 1 != block.height:
            return Refusal(
                "WrongPrevious",
                f"height {block.height} of member {block.source} follows height {previous.height} of "
                f"{previous.source}",
            )
        if block.height == 1 and previous.data_hash != self.incarnation:
            return Refusal("WrongPrevious", "the first block of a member follows the root, this one does not")
        sources = [dependency.source for dependency in block.dependencies]
        if len(set(sources)) < len(sources):
            return Refusal("RepeatedDependency", "two references to blocks of one member")
        for dependency in block.dependencies:
            if not 0 <= dependency.source < size or dependency.source == block.source:
                return Refusal("WrongDependency", f"a reference to member {dependency.source}")
            if not 1 <= dependency.height <= rules.height_max:
                return Refusal("WrongDependency", f"a reference to height {dependency.height}")
        return None

    def _is_genuine(self, reference: Dependency) -> bool:
        known = self._vertices.get(self.hash_of(reference))
        if known is not None and known.signature == reference.signature:
            return True
        signed = block_id(
            self.incarnation, self.key_ids[reference.source], reference.height, reference.data_hash
        )
        return self._verify(self.public_keys[reference.source], signed, reference.signature)

    def receive(self, block: Block) -> tuple[Vertex, Outcome]:
        """Take in a block that passed `check`. It waits until all its ancestors are here, and until it is
        stored."""
        outcome = Outcome()
        vertex = self._vertex(self.reference_of(block), outcome)
        if vertex.block is not None:
            return vertex, outcome
        vertex.block = block
        vertex.previous = self._vertex(block.previous, outcome)
        vertex.dependencies = tuple(self._vertex(one, outcome) for one in block.dependencies)
        vertex.state = State.RECEIVED
        self._waiting[vertex.hash] = vertex
        for parent in self._parents(vertex):
            if parent.state is not State.DELIVERED:
                parent.dependants.append(vertex)
                vertex.waits_for += 1
        if any(parent.state is State.ILL for parent in self._parents(vertex)):
            self._fall_ill(vertex, outcome, RESTS_ON_ILL)
        return vertex, outcome

    def stored(self, vertex: Vertex) -> Outcome:
        """Record that the block is on disk: after a restart, too, its descendants may now be believed."""
        outcome = Outcome()
        vertex.is_stored = True
        self._look_at(vertex)
        self._deliver_ready(outcome)
        return outcome

    def learn_fork(self, proof: ForkProof) -> Outcome | None:
        """Take in a proof from elsewhere; return None if it proves nothing."""
        left, right = proof.left, proof.right
        if not proof.is_contradictory or not 0 <= left.source < self.size or left.height < 1:
            return None
        if not (self._is_genuine(left) and self._is_genuine(right)):
            return None
        outcome = Outcome()
        self._blame(proof.source, proof, outcome)
        return outcome

    # Details

    def _parents(self, vertex: Vertex) -> tuple[Vertex, ...]:
        return () if vertex.previous is None else (vertex.previous, *vertex.dependencies)

    def _vertex(self, reference: Dependency, outcome: Outcome) -> Vertex:
        hash = self.hash_of(reference)
        vertex = self._vertices.get(hash)
        if vertex is None:
            vertex = self._vertices[hash] = Vertex(hash, reference)
            other = self._at.setdefault((vertex.source, vertex.height), vertex)
            if other is not vertex:
                self._blame(vertex.source, ForkProof(other.reference, vertex.reference), outcome)
        return vertex

    def _look_at(self, vertex: Vertex) -> None:
        if vertex.state is State.RECEIVED and vertex.is_stored and not vertex.waits_for:
            self._ready.append(vertex)

    def _deliver_ready(self, outcome: Outcome) -> None:
        while self._ready:
            vertex = self._ready.popleft()
            if vertex.state is not State.RECEIVED:
                continue
            try:
                proof = self._judge(vertex)
            except _IllBlock as ill:
                self._evidence.setdefault(vertex.source, vertex)
                self._fall_ill(vertex, outcome, str(ill))
                continue
            self._deliver(vertex, proof, outcome)

    def _judge(self, vertex: Vertex) -> ForkProof | None:
        """Return the fork proof in the block, if it holds one; raise `_IllBlock` unless the author, who had
        seen all ancestors of the block, could honestly write it."""
        previous = vertex.previous
        assert previous is not None, "only what is here is judged"
        for dependency in vertex.dependencies:
            if dependency.is_covered_by(previous) or dependency.source in previous.blamed_before:
                raise _IllBlock(f"it refers again to member {dependency.source}, whose blocks it knew")
            for branch, height in previous.covers.items():
                is_other_branch = self._branch_sources[branch] == dependency.source
                if is_other_branch and dependency.covers.height_of(branch) < height:
                    raise _IllBlock(f"it rests on both branches of member {dependency.source}")
        assert vertex.block is not None, "only what is here is judged"
        payload = vertex.block.payload
        if self.dates is not None and self._budget is not None:
            upper = upper_part(payload)
            content = None if upper is None else self.dates.content_of(upper)
            fault = self._budget.fault_in(previous.account, content)
            if fault is not None or content is None:
                raise _IllBlock(fault)
            vertex.account = self._budget.after(previous.account, content.totals)
            self._judge_challenges(vertex, previous, content)
        try:
            proof = read_fork_proof(payload)
        except DecodeError:
            raise _IllBlock("its fork proof cannot be read") from None
        if proof is None:
            return None
        if not 0 <= proof.source < self.size or proof.left.height < 1:
            raise _IllBlock("its fork proof is about nobody")
        if not (self._is_genuine(proof.left) and self._is_genuine(proof.right)):
            raise _IllBlock("its fork proof is forged")
        return proof

    def _judge_challenges(self, vertex: Vertex, previous: Vertex, content: PayloadContent) -> None:
        """Note what the block asks and answers; raise `_IllBlock` if it asks twice, or answers too late."""
        book, source = self._challenges, vertex.source
        try:
            book.refuse_repeated(previous.branch, previous.height, content.challenges)
            vertex.challenges = content.challenges
            if book.is_anybody_waiting_for(source):
                covers = previous.covers.joined([one.covers for one in vertex.dependencies])
                vertex.open_challenges = book.after(
                    source, vertex.height, previous.open_challenges, previous.covers, covers, content.answers
                )
        except ChallengeFault as fault:
            raise _IllBlock(str(fault)) from None

    def _deliver(self, vertex: Vertex, proof: ForkProof | None, outcome: Outcome) -> None:
        previous = vertex.previous
        assert previous is not None, "only what is here is delivered"
        vertex.branch = self._branch_for(vertex, previous)
        covers = previous.covers.joined([one.covers for one in vertex.dependencies])
        blamed_before = set(previous.blamed_before)
        for dependency in vertex.dependencies:
            blamed_before |= dependency.blamed_before
        if vertex.challenges:
            self._challenges.delivered(
                vertex.source, vertex.branch, vertex.height, vertex.hash, vertex.challenges
            )
        if proof is not None:
            blamed_before.add(proof.source)
        vertex.covers = covers.raised(vertex.branch, vertex.height)
        if vertex.covers.branches is not previous.covers.branches:
            row = vertex.covers.branches
            vertex.covers.branches = self._branch_rows.setdefault(row, row)
        vertex.dates = self._dates_of(vertex, previous)
        is_same = blamed_before == previous.blamed_before
        vertex.blamed_before = previous.blamed_before if is_same else frozenset(blamed_before)
        vertex.state = State.DELIVERED
        del self._waiting[vertex.hash]
        top = self._tops.get(vertex.source)
        if top is None or vertex.height > top.height:
            self._tops[vertex.source] = vertex
        outcome.delivered.append(vertex)
        if proof is not None:
            self._blame(proof.source, proof, outcome)
        dependants, vertex.dependants = vertex.dependants, []
        for dependant in dependants:
            dependant.waits_for -= 1
            self._look_at(dependant)

    def _dates_of(self, vertex: Vertex, previous: Vertex) -> BlockDates | None:
        if self.dates is None or previous.dates is None or vertex.block is None:
            return None
        others = [one.dates for one in vertex.dependencies if one.dates is not None]
        payload = upper_part(vertex.block.payload) or b""
        return block_dates(self.dates, vertex.source, payload, previous.dates, others)

    def _branch_for(self, vertex: Vertex, previous: Vertex) -> int:
        if previous is not self._root and not previous.is_continued:
            previous.is_continued = True
            return previous.branch
        self._branch_sources.append(vertex.source)
        branch = len(self._branch_sources) - 1
        self._challenges.forked(branch, previous.branch, previous.height)
        return branch

    def _fall_ill(self, vertex: Vertex, outcome: Outcome, fault: str) -> None:
        """Mark the block as ill, with all its descendants: their authors have seen what we see."""
        pending = [vertex]
        while pending:
            one = pending.pop()
            if one.state is State.ILL:
                continue
            one.state = State.ILL
            self._waiting.pop(one.hash, None)
            # Where the signature does not cover the references, anybody on the way may have changed them.
            if self.rules.version is not HashVersion.PAYLOAD_ONLY:
                self._faults.setdefault(
                    one.source, f"block {one.height}: {fault if one is vertex else RESTS_ON_ILL}"
                )
                self._blame(one.source, None, outcome)
            pending += one.dependants
            one.dependants = []

    def _blame(self, source: int, proof: ForkProof | None, outcome: Outcome) -> None:
        is_new = source not in self._blamed
        if is_new or (self._blamed[source] is None and proof is not None):
            self._blamed[source] = proof
            if proof is not None:
                outcome.proofs.append(proof)
        if is_new:
            outcome.blamed.append(source)


class _IllBlock(Exception):
    """Breach of a rule by the author that shows only with all ancestors at hand."""
