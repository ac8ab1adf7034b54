"""What is to be said comes together for a moment, so that members check fewer signatures; nothing is said for nothing."""

from __future__ import annotations

from random import Random

from rigs.catchain_keys import public_key_of, seed_of
from stagepost.catchain.block import decode_update
from stagepost.catchain.budgets import AuthorAccount
from stagepost.catchain.effects import Effect, Persist
from stagepost.catchain.graph import Graph, GraphRules
from stagepost.catchain.member import Member, MemberOptions
from tests.worlds.catchain.members_world import verify_once

PAUSE_S = MemberOptions().speak_pause_s


class Speaker:
    """A member whose disk is quick."""

    def __init__(self, pressure: float = 0.0) -> None:
        self.to_say: list[bytes] = []
        self.said: list[bytes] = []
        graph = Graph(
            bytes([7]) * 32, [public_key_of(one) for one in range(4)], GraphRules(), verify=verify_once
        )
        options = MemberOptions(start_wait_s=0.0)
        self.member = Member(
            graph, 0, seed_of(0), self._next, Random(1), 0.0, options, pressure=lambda: pressure
        )
        self.do(self.member.tick(0.0), 0.0)

    def _next(self, is_due: bool, account: AuthorAccount) -> bytes | None:
        payload, self.to_say = b"".join(self.to_say), []
        return payload or None

    def say(self, what: bytes, now: float) -> None:
        self.to_say.append(what)
        self.do(self.member.speak_soon(now), now)

    def do(self, effects: list[Effect], now: float) -> None:
        for effect in effects:
            if isinstance(effect, Persist):
                self.said.append(decode_update(effect.frame).payload)
                self.do(self.member.stored(effect.block_hash, now), now)


def test_after_a_silence_it_is_said_at_once_and_no_empty_block_follows() -> None:
    speaker = Speaker()
    speaker.say(b"a", 1.0)
    assert speaker.said == [b"a"]
    speaker.do(speaker.member.tick(1.0 + PAUSE_S), 1.0 + PAUSE_S)
    assert speaker.said == [b"a"]


def test_what_comes_right_after_is_said_together_when_the_pause_is_over() -> None:
    speaker = Speaker()
    speaker.say(b"a", 1.0)
    speaker.say(b"b", 1.0)
    speaker.say(b"c", 1.0 + PAUSE_S / 2)
    assert speaker.said == [b"a"]
    due = speaker.member.next_wake
    assert due <= 1.0 + PAUSE_S
    speaker.do(speaker.member.tick(1.0 + PAUSE_S), 1.0 + PAUSE_S)
    assert speaker.said == [b"a", b"bc"]


def test_under_pressure_more_is_said_together() -> None:
    options = MemberOptions()
    for pressure, pause_s in (
        (0.5, (PAUSE_S + options.speak_pause_max_s) / 2),
        (1.0, options.speak_pause_max_s),
    ):
        speaker = Speaker(pressure)
        speaker.say(b"a", 1.0)
        speaker.say(b"b", 1.0 + PAUSE_S)
        assert speaker.said == [b"a"]
        assert speaker.member.next_wake <= 1.0 + pause_s
        speaker.do(speaker.member.tick(1.0 + pause_s), 1.0 + pause_s)
        assert speaker.said == [b"a", b"b"]
