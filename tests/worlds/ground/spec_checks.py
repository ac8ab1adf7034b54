"""Checks of protocol specs and codecs, each a function that returns the faults it found.

They take the spec or codec as an argument, so that planted defects can prove each of them able to fail.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from copy import deepcopy
from random import Random
from typing import Any

import cbor2

from stagepost.dmq.announcements import Announcements, Violation
from stagepost.dmq.submission import MessageIdAndSize, RequestMessageIds, RequestMessages
from stagepost.errors import DecodeError, LocalProtocolError, ProtocolError, RemoteProtocolError
from stagepost.ground.identifiers import MessageId
from stagepost.ground.statemachine.referee import Referee
from stagepost.ground.statemachine.spec import ProtocolSpec, Role, State
from stagepost.ground.wire.codec import Codec
from stagepost.ground.wire.framing import Framer, ItemLimits
from tests.worlds.ground.strategies import an_example, examples_of
from tests.worlds.pipeline.published_tables import MAY_BE_SENT_AHEAD, PublishedProtocol, plain


class Stranger:
    """A message of no protocol at all."""


# The graph


def graph_faults(spec: ProtocolSpec) -> list[str]:
    """Unreachable states, dead ends, and edges that compete for one message."""
    faults = [f"{state.name} cannot be reached" for state in spec.states if path_to(spec, state) is None]
    faults += [f"{state.name} cannot end" for state in spec.states if not _can_end(spec, state)]
    for index, edge in enumerate(spec.edges):
        if edge.source.speaker is None:
            faults.append(f"{edge.source.name} is final but goes on")
        for other in spec.edges[index + 1 :]:
            if edge.source == other.source and edge.message is other.message:
                told_apart = any(
                    name in other.where and other.where[name] != value for name, value in edge.where.items()
                )
                if not told_apart:
                    faults.append(
                        f"two edges from {edge.source.name} accept the same {edge.message.__name__}"
                    )
    return faults


def path_to(spec: ProtocolSpec, wanted: State) -> list[Any] | None:
    """Messages that lead from the initial state to `wanted`, fewest first."""
    queue: deque[tuple[State, list[Any]]] = deque([(spec.initial, [])])
    seen = {spec.initial}
    while queue:
        state, said = queue.popleft()
        if state == wanted:
            return said
        for edge in spec.edges_from(state):
            if edge.target not in seen:
                seen.add(edge.target)
                queue.append((edge.target, [*said, an_example(edge)]))
    return None


def _can_end(spec: ProtocolSpec, start: State) -> bool:
    seen, todo = {start}, [start]
    while todo:
        state = todo.pop()
        if state.speaker is None:
            return True
        fresh = [edge.target for edge in spec.edges_from(state) if edge.target not in seen]
        seen.update(fresh)
        todo += fresh
    return False


def published_faults(spec: ProtocolSpec, published: PublishedProtocol) -> list[str]:
    """Every difference between a spec and the table that was typed in from the sources."""
    faults = []
    found_states = {
        state.name: (None if state.speaker is None else state.speaker.value, state.timeout_s, state.id)
        for state in spec.states
    }
    wanted_states = {state.name: (state.speaker, state.timeout_s, state.id) for state in published.states}
    if spec.initial.name != published.states[0].name:
        faults.append(f"begins in {spec.initial.name}")
    for name in sorted(found_states.keys() | wanted_states.keys()):
        found, wanted = found_states.get(name), wanted_states.get(name)
        if found != wanted:
            faults.append(f"state {name} is {found}, published as {wanted}")
    for state in spec.states:
        limit = published.state(state.name).bytes_max if state.name in wanted_states else None
        if state.speaker is not None and limit not in (None, state.message_bytes_max):
            faults.append(f"{state.name} takes {state.message_bytes_max} bytes, published are {limit}")
    found_edges = {
        (edge.source.name, edge.message.__name__, edge.target.name, *edge.where.items())
        for edge in spec.edges
    }
    wanted_edges = {(edge.source, edge.message, edge.target, *edge.where.items()) for edge in published.edges}
    faults += [f"transition {edge} is not published" for edge in sorted(found_edges - wanted_edges)]
    faults += [f"transition {edge} is missing" for edge in sorted(wanted_edges - found_edges)]
    ahead = {state.name for state in spec.pipelined}
    if ahead != MAY_BE_SENT_AHEAD & found_states.keys():
        faults.append(f"may be sent ahead in {sorted(ahead)}")
    return faults


# The referee


def referee_in(spec: ProtocolSpec, role: Role, state: State) -> Referee:
    """A referee that was led to `state` by legal messages."""
    referee = Referee(spec, role, now=0.0)
    for message in path_to(spec, state) or []:
        ours = referee.state.speaker is role
        (referee.sent if ours else referee.received)(message, now=0.0)
    assert referee.state == state
    return referee


def refusal_faults(
    spec: ProtocolSpec, published: PublishedProtocol, strangers: Iterable[object] = (Stranger(),)
) -> list[str]:
    """Say everything in every state, on either side: only what is published may pass, and blame must be right."""
    faults = []
    messages = [message for kind in spec.messages for message in examples_of(kind)]
    # What may be asked ahead has tests of its own.
    may_be_ahead = {edge.message for edge in spec.edges if edge.target in spec.pipelined}
    for state in spec.states:
        if state.name not in {known.name for known in published.states}:
            continue
        speaker = published.state(state.name).speaker
        for role in Role:
            for message in [*messages, *strangers]:
                for ours in (True, False):
                    if ours and state in spec.pipelined and type(message) in may_be_ahead:
                        continue
                    # Message types of different protocols share names, so strangers are known by type.
                    known = type(message) in spec.messages
                    target = published.target(state.name, message) if known else None
                    wanted_by = role.value if ours else role.other.value
                    allowed = target is not None and wanted_by == speaker
                    faults += _one_saying(spec, role, state, message, ours, target if allowed else None)
    return faults


def _one_saying(
    spec: ProtocolSpec, role: Role, state: State, message: object, ours: bool, target: str | None
) -> list[str]:
    said = f"{type(message).__name__} {'sent' if ours else 'received'} by the {role.value} in {state.name}"
    referee = referee_in(spec, role, state)
    deadline = referee.deadline
    blame = LocalProtocolError if ours else RemoteProtocolError
    try:
        (referee.sent if ours else referee.received)(message, now=1.0)
    except ProtocolError as error:
        if target is not None:
            return [f"{said}: refused"]
        if type(error) is not blame:
            return [f"{said}: {type(error).__name__} blames the wrong side"]
        if referee.state != state or referee.deadline != deadline or referee.speaking_from != state:
            return [f"{said}: refused, but the state moved"]
        return []
    if target is None:
        return [f"{said}: accepted"]
    return [] if referee.state.name == target else [f"{said}: led to {referee.state.name}, not {target}"]


# Bytes


def split_faults(
    data: bytes,
    limits: ItemLimits,
    positions: Iterable[int] | None = None,
    headless_third: bytes | None = None,
) -> list[str]:
    """The framer must give exactly these bytes back, wherever they are cut, and not before all have come."""
    faults = []
    for position in range(1, len(data)) if positions is None else positions:
        framer = Framer()
        framer.feed(data[:position])
        if framer.next_item(limits, headless_third=headless_third) is not None:
            faults.append(f"complete after {position} of {len(data)} bytes")
            continue
        framer.feed(data[position:])
        try:
            whole = framer.next_item(limits, headless_third=headless_third)
        except DecodeError as error:
            faults.append(f"refused when cut at {position}: {error.text}")
            continue
        if whole != data or framer.buffered:
            faults.append(f"damaged when cut at {position}")
    return faults


def drip_faults(data: bytes, limits: ItemLimits, headless_third: bytes | None = None) -> list[str]:
    """As `split_faults`, one byte at a time."""
    framer = Framer()
    whole = None
    for position in range(len(data)):
        if whole is not None:
            return [f"complete after {position} of {len(data)} bytes"]
        framer.feed(data[position : position + 1])
        try:
            whole = framer.next_item(limits, headless_third=headless_third)
        except DecodeError as error:
            return [f"refused byte by byte: {error.text}"]
    return [] if whole == data and not framer.buffered else ["damaged byte by byte"]


def writing_faults(codec: Codec, message: Any, tag: int, indefinite: bool | None = None) -> list[str]:
    """Another CBOR library must read what the published table says, lists in the published form."""
    data = codec.encode(message)
    faults = []
    found, wanted = cbor2.loads(data), plain(message, tag)
    if found != wanted:
        faults.append(f"{type(message).__name__} is written as {found!r}, published as {wanted!r}")
    if indefinite is not None and data[2:3] != b"\x9f" and indefinite:
        faults.append(f"{type(message).__name__} has a definite list")
    if indefinite is False and data[2] >> 5 != 4:
        faults.append(f"{type(message).__name__} has no definite list")
    if indefinite is False and data[2] == 0x9F:
        faults.append(f"{type(message).__name__} has an indefinite list")
    return faults


def reading_faults(codec: Codec, state: State, message: Any, data: bytes) -> list[str]:
    """What was written must be read back to the same value, and keep the very bytes of signed messages."""
    found = codec.decode(data, state.name)
    if found != message or type(found) is not type(message):
        return [f"{type(message).__name__} is read back as {found!r}"]
    return [] if codec.encode(found) == data else [f"{type(message).__name__} is written differently again"]


# The window


def window_faults(
    puller: Announcements, supplier: Announcements, random: Random, *, steps: int = 40, ahead_max: int = 4
) -> list[str]:
    """Let a puller and a supplier talk at random, each with a window of its own: they may never disagree.

    The puller asks ahead without waiting; the supplier takes its questions one by one. Whatever the puller's own
    window allows must be allowed by the supplier's, and the other way round; when nothing is under way, both must
    give the same verdict on any question, also on forbidden ones.
    """
    run = _WindowRun(puller, supplier, random)
    for _ in range(steps):
        if run.under_way and (len(run.under_way) >= ahead_max or random.random() < 0.5):
            run.answer_oldest()
        else:
            run.ask()
    while run.under_way:
        run.answer_oldest()
    if puller.unacknowledged != supplier.unacknowledged:
        run.faults.append(f"{puller.unacknowledged} ids held here, {supplier.unacknowledged} there")
    return run.faults


class _WindowRun:
    def __init__(self, puller: Announcements, supplier: Announcements, random: Random) -> None:
        self.puller = puller
        self.supplier = supplier
        self.random = random
        self.under_way: deque[RequestMessageIds | RequestMessages] = deque()
        self.faults: list[str] = []
        self._known: list[MessageIdAndSize] = []
        self._counter = 0

    def ask(self) -> None:
        question = self._some_question()
        quiet = not self.under_way
        here = _asked(self.puller, question)
        if quiet:
            there = _asked(deepcopy(self.supplier), question)
            if (here and here.rule) != (there and there.rule):
                self.faults.append(f"{question}: the puller's window says {here}, the supplier's {there}")
        if here is None:
            self.under_way.append(question)

    def _some_question(self) -> RequestMessageIds | RequestMessages:
        random = self.random
        if random.random() < 0.3:
            recent = [entry.message_id for entry in self._known[-6:]]
            return RequestMessages(tuple(random.sample(recent, random.randint(0, len(recent)))))
        # Blocking questions are never sent ahead; that is the referee's rule.
        blocking = not self.under_way and random.random() < 0.5
        acknowledged = random.randint(0, min(self.puller.unacknowledged + 1, 40))
        return RequestMessageIds(blocking, acknowledged, random.choice((0, 1, 5, 33, 100, 132)))

    def answer_oldest(self) -> None:
        question = self.under_way.popleft()
        verdict = _asked(self.supplier, question)
        if verdict is not None:
            self.faults.append(
                f"{question}: allowed by the puller's window, refused by the supplier: {verdict}"
            )
            self.under_way.clear()
            return
        if isinstance(question, RequestMessageIds):
            self._answer_ids(question)
        else:
            wanted = [self._size_of(entry) for entry in question.ids if self.random.random() < 0.8]
            self._same_verdict(
                "messages", self.supplier.reply_messages(wanted), self.puller.reply_messages(wanted)
            )

    def _answer_ids(self, question: RequestMessageIds) -> None:
        if question.blocking and self.random.random() < 0.2:
            self.supplier.reply_no_ids()
            self.puller.reply_no_ids()
            return
        least = 1 if question.blocking else 0
        count = self.random.randint(least, max(least, min(question.requested, 40)))
        fresh = [self._fresh_id() for _ in range(count)]
        self._known += fresh
        self._same_verdict("ids", self.supplier.reply_ids(fresh), self.puller.reply_ids(fresh))

    def _fresh_id(self) -> MessageIdAndSize:
        self._counter += 1
        if self._known and self.random.random() < 0.1:
            return self.random.choice(self._known)  # nobody is stopped from announcing an id twice
        return MessageIdAndSize(MessageId(self._counter.to_bytes(32, "big")), 700 + self._counter % 2_000)

    def _size_of(self, message_id: MessageId) -> MessageIdAndSize:
        announced = next(entry for entry in self._known if entry.message_id == message_id)
        real = announced.size_in_bytes + self.random.randint(-32, 32)
        return MessageIdAndSize(message_id, real)

    def _same_verdict(self, what: str, there: Violation | None, here: Violation | None) -> None:
        if there is not None or here is not None:
            self.faults.append(f"a proper reply with {what}: the supplier says {there}, the puller {here}")


def _asked(window: Announcements, question: RequestMessageIds | RequestMessages) -> Violation | None:
    if isinstance(question, RequestMessages):
        return window.request_messages(question.ids)
    return window.request_ids(
        blocking=question.blocking, acknowledged=question.acknowledged, requested=question.requested
    )
