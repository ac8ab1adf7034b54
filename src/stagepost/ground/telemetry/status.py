"""Pages that a running node serves over HTTP on loopback, each declared once for servers and readers.

    /status     DmqNodePage, FullNodePage or ValidatorPage
    /mempool    HeldMessages of a DMQ node, QueuedMessages of a full node or validator

Fields stand in the order in which a node writes them. A field with a default may be missing in a reader's page: the node may be
of another version.
"""

from __future__ import annotations

import msgspec

KES_PERIOD_S = 129_600.0
"""Seconds of a KES period, as on the public networks."""


# A DMQ node


class MempoolStatus(msgspec.Struct, frozen=True):
    messages: int = 0
    bytes: int = 0
    messages_max: int = 0
    bytes_max: int = 0
    oldest_ms: int | None = None


class PeerStatus(msgspec.Struct, frozen=True):
    """Connection with another node. `connected_s` is left out where a node of an earlier version left it out."""

    address: str
    direction: str = ""
    state: str = ""
    version: int | None = None
    profile: str | None = None
    flavour: str | None = None
    connected_s: float | msgspec.UnsetType = msgspec.UNSET
    unacknowledged: int = 0
    in_flight_bytes: int = 0
    score: float = 0.0
    first_announcer: int = 0
    round_trip_ms: float | None = None
    last_violation: str | None = None


class EquivocatingPool(msgspec.Struct, frozen=True):
    """Pool that signed two bodies for one slot: how often, and the latest pair of message ids."""

    count: int
    pool_id: str
    first: str
    second: str
    expires_at: int
    refused: bool


class EquivocationStatus(msgspec.Struct, frozen=True):
    count: int = 0
    refused: int = 0
    pools: tuple[EquivocatingPool, ...] = ()


class PoolsStatus(msgspec.Struct, frozen=True):
    """Pools that a node knows. `fault`: why there is no newer distribution. `works_with`: the present one, in
    words."""

    count: int = 0
    fault: str | None = None
    works_with: str = ""


class DmqNodePage(msgspec.Struct, frozen=True):
    """`/status` of a DMQ node. `parts`: None for a part that is ready, otherwise the reason."""

    version: str
    uptime_s: float
    network_magic: int
    ready: bool
    mempool: MempoolStatus
    peers: tuple[PeerStatus, ...] = ()
    accepted: int = 0
    expired_unseen: int = 0
    rejections: dict[str, int] = {}
    last_message_ms: int | None = None
    storage_fault: str | None = None
    clock_behind_s: float = 0.0
    kes_periods_remaining: int | None = None
    equivocations: EquivocationStatus = EquivocationStatus()
    pools: PoolsStatus = PoolsStatus()
    parts: dict[str, str | None] = {}
    kes_period_s: float = KES_PERIOD_S


class HeldMessage(msgspec.Struct, frozen=True):
    """Entry of a mempool, without its body. `expires_at` is the message's own field, in Unix seconds."""

    index: int
    message_id: str
    pool_id: str
    expires_at: int
    received_ms: int
    source: str
    bytes: int


class HeldMessages(msgspec.Struct, frozen=True):
    entries: tuple[HeldMessage, ...]
    next: int | None = None


# A full node or a validator


class MemberStatus(msgspec.Struct, frozen=True):
    """Validator of the present sessions, by its name in the network file. `silent_since_ms`: since when there has been no
    link to it; None while there is one."""

    name: str
    address: str = ""
    key_id: str = ""
    linked: bool = False
    silent_since_ms: int | None = None

    @property
    def text(self) -> str:
        return f"{self.name} ({self.address})" if self.address else self.name


class SessionStatus(msgspec.Struct, frozen=True):
    """Session at work: `members` by name; `needed` of them decide. `ends_ms`: when another one is to follow, 0 if that is not
    told."""

    shard: str
    session: str
    members: tuple[str, ...]
    needed: int
    ends_ms: int = 0


class NetworkStatus(msgspec.Struct, frozen=True):
    """State of agreement as one node sees it. `last_final_ms`: time in the last final master block. `oldest_open_ms`: since
    when the oldest message without an end has waited, None if none waits. `halted`: why this validator votes no more."""

    members: tuple[MemberStatus, ...]
    sessions: tuple[SessionStatus, ...]
    height: int
    last_final_ms: int
    open: int = 0
    oldest_open_ms: int | None = None
    blamed: tuple[str, ...] = ()
    halted: str | None = None


class DiskStatus(msgspec.Struct, frozen=True):
    """`fault`: why the data folder cannot be written; `free_bytes` is None if the system did not tell, for the reason `unread`."""

    fault: str | None = None
    free_bytes: int | None = None
    unread: str | None = None


class FullNodePage(msgspec.Struct, frozen=True):
    """`/status` of a full node. `receipts_refused`: how many, by error code; `unproved`: messages whose end is not known."""

    kind: str
    version: str = ""
    uptime_s: float = 0.0
    validators_linked: int = 0
    messages: int = 0
    finalized: int = 0
    rejected: int = 0
    receipts: int = 0
    receipts_refused: dict[str, int] = {}
    open: int = 0
    unproved: int = 0
    statuses: int = 0
    statuses_waiting: int = 0
    parts: dict[str, str | None] = {}
    network: NetworkStatus | None = None
    disk: DiskStatus | None = None


class ListeningStatus(msgspec.Struct, frozen=True):
    """Session in which a validator listens and does not speak yet. `answered`: members, by index."""

    session: str
    part: str
    answered: tuple[int, ...]
    needed: int


class ValidatorPage(msgspec.Struct, frozen=True):
    """`/status` of a validator. `refused`: messages, by reason. `in_set`: whether it is in the validator set in force."""

    kind: str
    version: str = ""
    uptime_s: float = 0.0
    full_nodes_linked: int = 0
    master_block: int = 0
    shards: tuple[str, ...] = ()
    sessions: tuple[str, ...] = ()
    listening: tuple[ListeningStatus, ...] = ()
    messages: int = 0
    refused: dict[str, int] = {}
    parts: dict[str, str | None] = {}
    network: NetworkStatus | None = None
    disk: DiskStatus | None = None
    full_nodes: tuple[MemberStatus, ...] = ()
    in_set: bool = True


class QueuedMessage(msgspec.Struct, frozen=True):
    """Message without an end. `status`: the last kind of receipt at a validator, the last stage at a full node."""

    index: int
    message_id: str
    shard: str
    status: str
    received_ms: int


class QueuedMessages(msgspec.Struct, frozen=True):
    entries: tuple[QueuedMessage, ...]
    next: int | None = None
