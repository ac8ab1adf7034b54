"""Validators that hold real keys and break the rules of agreement, each in one way."""

from __future__ import annotations

from functools import partial

from rigs.agreement_keys import seed_of
from stagepost.chain.agreement.candidate import Candidate
from stagepost.chain.agreement.certificate import Certificate
from stagepost.chain.agreement.effects import Ask, Broadcast, Effect, Reply
from stagepost.chain.agreement.messages import Proposal, Want, decode_message
from stagepost.chain.agreement.queries import Progress, decode_answer
from stagepost.chain.agreement.votes import NO_BLOCK, Vote, VoteKind, quorum, signed_bytes
from stagepost.errors import DecodeError
from stagepost.ground.crypto import ed25519
from tests.worlds.chain.agreement_world import SESSION_ID, Peer, World, payload_of


class Attacker(Peer):
    """Honest in all but what a subclass changes."""

    is_honest = False

    def start(self) -> None:
        super().start()
        # An honest core would stop when it hears of what it never signed.
        setattr(self.member, "_take_back", lambda vote: None)  # noqa: B010

    def signed(self, slot: int, kind: VoteKind, block: bytes) -> Vote:
        signature = ed25519.sign(seed_of(self.index), signed_bytes(SESSION_ID, slot, kind, block))
        return Vote(self.index, slot, kind, block, signature)

    def other_proposal(self, candidate: Candidate, payload: bytes) -> Proposal:
        other = Candidate(candidate.slot, candidate.parent, payload)
        return Proposal(other, self.signed(other.slot, VoteKind.PROPOSE, other.hash).signature)

    def accomplices(self) -> list[Attacker]:
        return [peer for peer in self.world.peers if isinstance(peer, Attacker)]


class TwoFacedLeader(Attacker):
    """Shows one half one candidate and the other half another, and all who are with it vote for both."""

    def broadcast(self, frame: bytes) -> None:
        message = decode_message(frame)
        if not isinstance(message, Proposal):
            super().broadcast(frame)
            return
        candidate = message.candidate
        other = self.other_proposal(candidate, candidate.payload + b"!")
        votes = [
            peer.signed(candidate.slot, kind, block)
            for peer in self.accomplices()
            for kind in (VoteKind.NOTARISE, VoteKind.FINALISE)
            for block in (candidate.hash, other.candidate.hash)
        ]
        for peer in self.others():
            is_odd = peer % 2 == 1
            self.send_frame(
                peer,
                (Proposal(other.candidate, other.signature, message.proofs) if is_odd else message).encode(),
            )
            wanted = other.candidate.hash if is_odd else candidate.hash
            for vote in votes:
                if vote.block == wanted:
                    self.send_frame(peer, vote.encode())


class SignsEverything(Attacker):
    """Votes for every candidate, for skipping every slot, and calls all of them final."""

    def __init__(self, world: World, index: int) -> None:
        super().__init__(world, index)
        self.signed_for: set[bytes] = set()

    def frame_came(self, sender: int, frame: bytes) -> None:
        try:
            message = decode_message(frame)
        except DecodeError:
            return
        if isinstance(message, Proposal) and message.candidate.hash not in self.signed_for:
            slot, block = message.candidate.slot, message.candidate.hash
            self.signed_for.add(block)
            for kind, subject in (
                (VoteKind.NOTARISE, block), (VoteKind.FINALISE, block), (VoteKind.SKIP, NO_BLOCK),
            ):  # fmt: skip
                for peer in self.others():
                    self.send_frame(peer, self.signed(slot, kind, subject).encode())
        super().frame_came(sender, frame)


class TwoFacedVoter(Attacker):
    """Tells one half that it skips what it calls final before the other half, and a block that nobody proposed."""

    def broadcast(self, frame: bytes) -> None:
        message = decode_message(frame)
        if not isinstance(message, Vote):
            super().broadcast(frame)
            return
        lie = {
            VoteKind.FINALISE: (VoteKind.SKIP, NO_BLOCK),
            VoteKind.SKIP: (VoteKind.FINALISE, bytes([7]) * 32),
        }.get(message.kind, (VoteKind.NOTARISE, bytes([9]) * 32))
        for peer in self.others():
            told = message if peer % 2 else self.signed(message.slot, *lie)
            self.send_frame(peer, told.encode())


class CandidateWithholder(Attacker):
    """Shows its candidates to just so many that they can be notarised, and to nobody who asks."""

    def broadcast(self, frame: bytes) -> None:
        if not isinstance(decode_message(frame), Proposal):
            super().broadcast(frame)
            return
        size = self.world.session.size
        for peer in self.world.random.sample(self.others(), min(size - 1, quorum(size) - 1)):
            self.send_frame(peer, frame)

    def reply(self, peer: int, number: int, answer: bytes) -> None:
        progress = decode_answer(answer)
        kept = tuple(one for one in progress.frames if not isinstance(decode_message(one), Proposal))
        super().reply(peer, number, Progress(progress.slot, kept).encode())


class Hoarder(Attacker):
    """Gives its votes to a single one, certificates to nobody, and answers nothing."""

    def broadcast(self, frame: bytes) -> None:
        if not isinstance(decode_message(frame), Certificate):
            self.send_frame((self.index + 1) % self.world.session.size, frame)

    def reply(self, peer: int, number: int, answer: bytes) -> None:
        pass


class FinaliseWithholder(Attacker):
    """Attacker that votes as an honest validator does, but sends neither its FINALISE votes nor certificates of them."""

    def broadcast(self, frame: bytes) -> None:
        message = decode_message(frame)
        if isinstance(message, Proposal):
            proofs = tuple(one for one in message.proofs if not self.is_withheld(one))
            super().broadcast(Proposal(message.candidate, message.signature, proofs).encode())
        elif not self.is_withheld(message):
            super().broadcast(frame)

    def reply(self, peer: int, number: int, answer: bytes) -> None:
        progress = decode_answer(answer)
        kept = tuple(one for one in progress.frames if not self.is_withheld(decode_message(one)))
        super().reply(peer, number, Progress(progress.slot, kept).encode())

    def is_withheld(self, message: object) -> bool:
        return (
            isinstance(message, Vote | Certificate)
            and message.kind is VoteKind.FINALISE
            and (isinstance(message, Certificate) or message.validator == self.index)
        )


class Mute(Attacker):
    """Takes everything in and says nothing."""

    def perform(self, effects: list[Effect]) -> None:
        super().perform([one for one in effects if not isinstance(one, Broadcast | Ask | Reply)])


class Laggard(Attacker):
    """Says everything long after it is due, and not in the order in which it was meant."""

    def send_frame(self, peer: int, frame: bytes) -> None:
        late = self.world.random.uniform(0.3, 3.0)
        self.world.after(late, partial(super().send_frame, peer, frame))


class Skipper(Attacker):
    """Gives up on every slot at once, and wants the next."""

    def perform(self, effects: list[Effect]) -> None:
        before = self.member.slot
        super().perform(effects)
        if self.is_up and self.member.slot != getattr(self, "skipped", 0):
            self.skipped = before
            for peer in self.others():
                self.send_frame(peer, self.signed(before, VoteKind.SKIP, NO_BLOCK).encode())
                self.send_frame(peer, Want(before).encode())


class BadBuilder(Attacker):
    """Builds where it must not: beside the block before it, on nothing, on itself; or what nobody accepts."""

    def broadcast(self, frame: bytes) -> None:
        message = decode_message(frame)
        if not isinstance(message, Proposal):
            super().broadcast(frame)
            return
        candidate, below = message.candidate, self.grandparent_of(message.candidate)
        way = self.world.random.randrange(4)
        if below is not None and way < 2:
            bad = Candidate(candidate.slot, below, payload_of(self.heights[below] + 1, b"a fork"))
        elif way == 2:
            bad = Candidate(candidate.slot, candidate.parent, payload_of(1_000_000, b"too high"))
        elif way == 3:
            bad = Candidate(candidate.slot, bytes([3]) * 32, candidate.payload)
        else:
            bad = Candidate(candidate.slot, candidate.hash, b"")
        proposal = Proposal(bad, self.signed(bad.slot, VoteKind.PROPOSE, bad.hash).signature, message.proofs)
        for accomplice in self.accomplices():
            for kind in (VoteKind.NOTARISE, VoteKind.FINALISE):
                super().broadcast(accomplice.signed(bad.slot, kind, bad.hash).encode())
        super().broadcast(proposal.encode())

    def grandparent_of(self, candidate: Candidate) -> bytes | None:
        """What the candidate's parent stands upon, if that one is not final yet."""
        book = self.member.book
        slot = book.get(book.slot_of(candidate.parent) or 0)
        parent = slot.candidates.get(candidate.parent) if slot is not None else None
        return parent.candidate.parent if parent is not None else None


class Forger(Attacker):
    """Certificates of too few, votes with others' names, halves of frames, and answers full of them."""

    def forgeries(self, frame: bytes) -> list[bytes]:
        message = decode_message(frame)
        slot = self.member.slot
        mine = self.signed(slot, VoteKind.SKIP, NO_BLOCK)
        victim = (self.index + 1) % self.world.session.size
        forged = [
            Certificate(SESSION_ID, slot, VoteKind.SKIP, NO_BLOCK, ((self.index, mine.signature),)).encode(),
            Certificate(
                SESSION_ID,
                slot,
                VoteKind.SKIP,
                NO_BLOCK,
                tuple((who, mine.signature) for who in range(self.world.session.size)),
            ).encode(),
            Vote(victim, slot, VoteKind.SKIP, NO_BLOCK, mine.signature).encode(),
            frame[: len(frame) // 2],
            frame + b"\0\0\0\0",
        ]
        if isinstance(message, Certificate):
            forged.append(
                Certificate(bytes(32), message.slot, message.kind, message.block, message.signatures).encode()
            )
        return forged

    def broadcast(self, frame: bytes) -> None:
        super().broadcast(frame)
        for forged in self.forgeries(frame):
            for peer in self.world.random.sample(self.others(), 2):
                self.send_frame(peer, forged)

    def reply(self, peer: int, number: int, answer: bytes) -> None:
        progress = decode_answer(answer)
        forged = self.forgeries(Want(1).encode())
        super().reply(peer, number, Progress(2**31 - 1, (*forged, *progress.frames)).encode())


class Hurrier(Attacker):
    """Wants blocks all the time although it has nothing to say."""

    def start(self) -> None:
        super().start()
        self.hurry(self.life)

    def hurry(self, life: int) -> None:
        if self.is_up and life == self.life:
            for peer in self.others():
                self.send_frame(peer, Want(self.member.slot).encode())
            self.world.after(0.03, partial(self.hurry, life))


ATTACKERS: tuple[type[Attacker], ...] = (
    TwoFacedLeader, SignsEverything, TwoFacedVoter, CandidateWithholder, Hoarder, FinaliseWithholder, Mute, Laggard, Skipper, BadBuilder,
    Forger, Hurrier,
)  # fmt: skip


def world_with(size: int, seed: int, attackers: dict[int, type[Attacker]], loss: float) -> World:
    def make(world: World, index: int) -> Peer:
        return attackers.get(index, Peer)(world, index)

    return World(size, seed, loss=loss, make_peer=make)
