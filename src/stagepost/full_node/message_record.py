"""Record of one message at a full node, and the table of the states that the record goes through.

    UNSENT ─ SENDING ─ SENT ─ SETTLED ─┬─ FINAL ─ ENDED
      │                                │
      ├─ IN_BLOCK ─────────────────────┤
      └────────────────────────────────┘

The table holds for a running node and for the replay of the statuses topic, which rebuilds what an earlier life of the
node left. Two facts are not in the table: staged sending counts who has answered, and the disk may lag behind the state.
"""

from __future__ import annotations

from enum import Enum

from stagepost.full_node.status_topic import EarlierIds
from stagepost.ground.statemachine.lifecycle import Lifecycle
from stagepost.remp.message import ExternalMessage
from stagepost.remp.receipts.message_status import Accepted
from stagepost.remp.receipts.receipt import Receipt
from stagepost.remp.receipts.statements import PlacedLink


class RecordState(Enum):
    UNSENT = "this node has sent the message to nobody, or its life is over"
    INTERRUPTED = "an earlier life of the node sent the message, and too few validators answered"
    SENDING = "the node sends the message, and has not published SentToValidators"
    SENT = "SentToValidators is published, and too few validators have answered"
    ANSWERED = "a validator has the message from an earlier life, and the account refuses it now: nobody can send it again"
    IN_BLOCK = "a shard block holds the message, and no master block does; the topic may not know the message"
    SETTLED = "more than a third of the validators have answered; the end is to come"
    FINAL = "a master block holds the message, and Finalized is not published: nobody has submitted it here"
    ENDED = "Finalized is published"


class RecordEvent(Enum):
    SENDING_BEGINS = "the node begins to send the message"
    SENT_REPORTED = "the node publishes SentToValidators"
    ENOUGH_ANSWERED = "more than a third of the validators have answered"
    FOUND_IN_BLOCK = "the message is submitted, and a shard block holds it"
    REFUSED_BY_ACCOUNT = (
        "the message is submitted, its account refuses it, and a validator has it from an earlier life"
    )
    FINALIZED = "a master block holds the message"
    END_REPORTED = "the node publishes Finalized"
    LIFE_OVER = "nothing more is expected of the message"
    FORGOTTEN = "newer final messages need the place of the message"
    RESTARTED = "the process ended, and the next one has read the topic"


_S, _E = RecordState, RecordEvent
IN_PROCESS = frozenset({_S.SENDING, _S.SENT, _S.ANSWERED, _S.IN_BLOCK, _S.SETTLED})
"""States in which staged sending knows the message; a second submission is refused as a duplicate."""
SUBMIT_AGAIN = frozenset({_S.SENDING, _S.SENT, _S.IN_BLOCK})
"""States in which a crash may lose the message: whoever submitted it must be able to submit it again."""
FINALS = frozenset({_S.FINAL, _S.ENDED})

MESSAGE_LIFE = Lifecycle(
    _S.UNSENT,
    {
        (_S.UNSENT, _E.SENDING_BEGINS): _S.SENDING,
        (_S.INTERRUPTED, _E.SENDING_BEGINS): _S.SENDING,
        (_S.SENDING, _E.SENT_REPORTED): _S.SENT,
        (_S.SENT, _E.ENOUGH_ANSWERED): _S.SETTLED,
        (_S.UNSENT, _E.FOUND_IN_BLOCK): _S.IN_BLOCK,
        (_S.INTERRUPTED, _E.FOUND_IN_BLOCK): _S.IN_BLOCK,
        (_S.INTERRUPTED, _E.REFUSED_BY_ACCOUNT): _S.ANSWERED,
        (_S.UNSENT, _E.FINALIZED): _S.FINAL,
        (_S.INTERRUPTED, _E.FINALIZED): _S.FINAL,
        (_S.SENDING, _E.FINALIZED): _S.FINAL,
        (_S.SENT, _E.FINALIZED): _S.FINAL,
        (_S.ANSWERED, _E.FINALIZED): _S.FINAL,
        (_S.IN_BLOCK, _E.FINALIZED): _S.FINAL,
        (_S.SETTLED, _E.FINALIZED): _S.FINAL,
        (_S.FINAL, _E.END_REPORTED): _S.ENDED,
        (_S.INTERRUPTED, _E.LIFE_OVER): _S.UNSENT,
        (_S.SENDING, _E.LIFE_OVER): _S.UNSENT,
        (_S.SENT, _E.LIFE_OVER): _S.UNSENT,
        (_S.ANSWERED, _E.LIFE_OVER): _S.UNSENT,
        (_S.IN_BLOCK, _E.LIFE_OVER): _S.UNSENT,
        (_S.SETTLED, _E.LIFE_OVER): _S.UNSENT,
        (_S.FINAL, _E.FORGOTTEN): _S.UNSENT,
        (_S.ENDED, _E.FORGOTTEN): _S.UNSENT,
        # Bytes in a socket die with the process, so SentToValidators alone settles nothing.
        (_S.SENDING, _E.RESTARTED): _S.INTERRUPTED,
        (_S.SENT, _E.RESTARTED): _S.INTERRUPTED,
    },
)


class MessageRecord:
    """`account` is None for a message of an earlier life, whose bytes are not kept. `end` is the block that holds a final
    message. `frame` is what validators get. `unstored` counts statuses that settle the message, or refuse it, and that
    the disk does not hold yet. `waiting` are receipts that come behind SentToValidators."""

    __slots__ = ("account", "earlier_ids", "end", "frame", "state", "unstored", "waiting", "workchain")

    def __init__(self, earlier_ids: EarlierIds | None = None) -> None:
        self.state = MESSAGE_LIFE.initial
        self.earlier_ids = earlier_ids or EarlierIds()
        self.workchain = 0
        self.account: bytes | None = None
        self.end: Accepted | None = None
        self.frame: bytes | None = None
        self.unstored = 0
        self.waiting: list[tuple[Receipt, PlacedLink | None]] = []

    def step(self, event: RecordEvent) -> bool:
        """Move to the state that the table gives; return False, and stay, if the table has no row for `event`."""
        target = MESSAGE_LIFE.next_status(self.state, event)
        if target is None:
            return False
        self.state = target
        return True

    def describe(self, message: ExternalMessage, earlier_ids: EarlierIds | None) -> None:
        """Note where `message` goes, and the ids under which it came, unless an earlier life has other ids on the topic."""
        self.workchain = message.workchain
        self.account = message.account
        if self.state is not RecordState.INTERRUPTED:
            self.earlier_ids = earlier_ids or EarlierIds()

    @property
    def is_in_process(self) -> bool:
        return self.state in IN_PROCESS

    @property
    def is_final(self) -> bool:
        return self.state in FINALS

    @property
    def is_settled(self) -> bool:
        """Return whether the statuses topic holds on disk that more than a third of the validators have the message, or
        its end."""
        return self.state in (RecordState.SETTLED, RecordState.ENDED) and not self.unstored

    @property
    def is_under_way(self) -> bool:
        """Return True until the statuses topic holds on disk that more than a third of the validators have the message, or
        its end, or its refusal. Until then the caller must be able to submit it again."""
        return self.state in SUBMIT_AGAIN or self.unstored > 0
