"""A link between two members of a session: objects pushed, queries asked and answered."""

from __future__ import annotations

import asyncio
from functools import partial

from stagepost.catchain.overlay_protocol import OBJECT_BYTES_MAX, Answer, Ask, Push, check_frame
from stagepost.catchain.query_window import QUERY_LIFE_S, Asked, Held
from stagepost.errors import LocalProtocolError
from stagepost.ground.loop.clock import Clock
from stagepost.ground.net.bearer import Bearer
from stagepost.ground.wire.tl import CONSTRUCTOR_BYTES
from stagepost.remp.links.authentication import LinkTerms
from stagepost.remp.links.link import Link, LinkCounts
from stagepost.remp.links.overlay import Answered, OverlayEvents


class OverlayLink(Link):
    """`peer` is the member's index."""

    def __init__(
        self,
        bearer: Bearer,
        terms: LinkTerms,
        clock: Clock,
        counts: LinkCounts,
        peer: int,
        events: OverlayEvents,
        *,
        dialled: bool,
    ) -> None:
        super().__init__(bearer, terms, clock, counts, dialled=dialled)
        self.peer = peer
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._asked = Asked()
        self._held = Held()
        self._awaited: dict[int, tuple[Answered, asyncio.TimerHandle]] = {}

    def push(self, frame: bytes) -> bool:
        check_object(frame)
        return self.say(Push(frame))

    def ask(self, query: bytes, answered: Answered, timeout_s: float) -> None:
        check_object(query)
        now = self._loop.time()
        number = None
        # Whether there is room is seen first: a number that was given out must be used.
        if not self.is_over and self._speaking.has_room:
            number = self._asked.number_for_next(now)
        if number is None or not self.say(Ask(number, query)):
            self.counts.queries_unasked += 1
            self._loop.call_soon(answered, None)
            return
        timer = self._loop.call_later(min(timeout_s, QUERY_LIFE_S), self._give_up, number)
        self._awaited[number] = answered, timer

    def heard(self, message: object) -> None:
        match message:
            case Push(frame):
                check_frame(frame)
                self._events.pushed(self.peer, frame)
            case Ask(number, query):
                self._held.take(number, self._loop.time())
                self._events.asked(self.peer, query, partial(self._reply, number))
            case Answer(number, answer):
                self._asked.answered(number)
                awaited = self._awaited.pop(number, None)
                if awaited is None:
                    self.counts.answers_late += 1
                else:
                    answered, timer = awaited
                    timer.cancel()
                    answered(answer)

    def lost(self) -> None:
        awaited, self._awaited = self._awaited, {}
        for answered, timer in awaited.values():
            timer.cancel()
            self.counts.queries_unanswered += 1
            answered(None)

    def _give_up(self, number: int) -> None:
        awaited = self._awaited.pop(number, None)
        if awaited is not None:
            self.counts.queries_unanswered += 1
            awaited[0](None)

    def _reply(self, number: int, answer: bytes) -> None:
        check_object(answer)
        if self.is_over or not self._held.may_answer(number, self._loop.time()):
            self.counts.answers_late += 1
            return
        self.say(Answer(number, answer))


def check_object(data: bytes) -> None:
    """Our own mistakes are found here, not by the peer."""
    if not CONSTRUCTOR_BYTES <= len(data) <= OBJECT_BYTES_MAX:
        raise LocalProtocolError(
            f"a TL object on a link has {CONSTRUCTOR_BYTES} to {OBJECT_BYTES_MAX} bytes, not {len(data)}",
            limit=OBJECT_BYTES_MAX,
            found=len(data),
        )
