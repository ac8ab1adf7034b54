"""Wire profiles: the differences between the documents and the nodes that run today, as data.

Protocol numbers, tags, list forms, time limits and tolerances live here and in the specs; no handler asks
which profile it serves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from stagepost.dmq.announcements import WindowRules
from stagepost.dmq.message import LAYOUTS_BY_PROFILE, MessageLayout
from stagepost.dmq.submission import Flavour
from stagepost.errors import ConfigError
from stagepost.ground.net.handshake import HANDSHAKE_NUMBER, Terms
from stagepost.ground.net.version_data import (
    DMQ_NODE_V1,
    DMQ_NODE_V2,
    DMQ_VERSIONS,
    ConnectionKind,
    VersionData,
    VersionShape,
    known_versions,
)
from stagepost.ground.wire.layout import ListForm


class MiniProtocol(Enum):
    """Mini-protocol of a DMQ network. The value is its name in reports and metrics."""

    HANDSHAKE = "handshake"
    MESSAGE_SUBMISSION = "message-submission"
    KEEP_ALIVE = "keep-alive"
    PEER_SHARING = "peer-sharing"
    LOCAL_MESSAGE_SUBMISSION = "local-message-submission"
    LOCAL_MESSAGE_NOTIFICATION = "local-message-notification"


LOCAL_PROTOCOLS = frozenset({MiniProtocol.LOCAL_MESSAGE_SUBMISSION, MiniProtocol.LOCAL_MESSAGE_NOTIFICATION})


@dataclass(frozen=True, eq=False)
class Profile:
    """Published way of speaking, known by identity. `numbers` lacks the mini-protocols that such peers do not
    run."""

    name: str
    numbers: Mapping[MiniProtocol, int]
    flavour: Flavour
    list_form: ListForm
    message_layouts: frozenset[MessageLayout]
    follows_documents: bool
    node_versions_proposed: tuple[int, ...]
    window: WindowRules
    start_node_within_s: float
    start_local_within_s: float
    no_news_reply_s: float
    """Seconds after which a supplier without news answers a blocking request, so that the asker can act."""

    def protocol(self, number: int) -> MiniProtocol | None:
        return next((protocol for protocol, ours in self.numbers.items() if ours == number), None)

    def proposal_terms(self, kind: ConnectionKind, ours: VersionData) -> Terms:
        """Return the terms that an initiator with this profile proposes."""
        versions: dict[int, VersionShape] = dict(DMQ_VERSIONS[kind])
        if kind is ConnectionKind.NODE:
            versions = {number: versions[number] for number in self.node_versions_proposed}
        return Terms(kind, ours, versions)


_RUNNING_NUMBERS = {
    MiniProtocol.HANDSHAKE: HANDSHAKE_NUMBER,
    MiniProtocol.MESSAGE_SUBMISSION: 11,
    MiniProtocol.LOCAL_MESSAGE_SUBMISSION: 14,
    MiniProtocol.LOCAL_MESSAGE_NOTIFICATION: 15,
}

DMQ_NODE = Profile(
    name="dmq-node",
    numbers={**_RUNNING_NUMBERS, MiniProtocol.KEEP_ALIVE: 12, MiniProtocol.PEER_SHARING: 13},
    flavour=Flavour.HASKELL,
    list_form=ListForm.INDEFINITE,
    message_layouts=LAYOUTS_BY_PROFILE["dmq-node"],
    follows_documents=False,
    node_versions_proposed=(DMQ_NODE_V1, DMQ_NODE_V2),
    window=WindowRules(),
    start_node_within_s=5,
    start_local_within_s=2,
    no_news_reply_s=17,
)

GOUROBOROS = Profile(
    name="gouroboros",
    numbers=_RUNNING_NUMBERS,
    flavour=Flavour.CIP,
    list_form=ListForm.DEFINITE,
    message_layouts=LAYOUTS_BY_PROFILE["gouroboros"],
    follows_documents=False,
    # Its second version pulls from the other side, so the first is the one that both sides understand.
    node_versions_proposed=(DMQ_NODE_V1,),
    window=WindowRules(),
    start_node_within_s=5,
    start_local_within_s=2,
    no_news_reply_s=17,
)

SEED = Profile(
    name="seed",
    numbers={
        MiniProtocol.HANDSHAKE: HANDSHAKE_NUMBER,
        MiniProtocol.MESSAGE_SUBMISSION: 17,
        MiniProtocol.KEEP_ALIVE: 8,
        MiniProtocol.PEER_SHARING: 10,
        MiniProtocol.LOCAL_MESSAGE_SUBMISSION: 18,
        MiniProtocol.LOCAL_MESSAGE_NOTIFICATION: 19,
    },
    flavour=Flavour.CIP,
    list_form=ListForm.DEFINITE,
    message_layouts=LAYOUTS_BY_PROFILE["seed"],
    follows_documents=True,
    node_versions_proposed=(DMQ_NODE_V1,),
    window=WindowRules(blocking_follows_fill=False, blocking_reply_may_be_empty=True),
    # Seconds of the documents' Init and local Idle limits: a peer that follows them never starts later.
    start_node_within_s=30,
    start_local_within_s=300,
    no_news_reply_s=25,
)

PROFILES: Mapping[str, Profile] = {profile.name: profile for profile in (DMQ_NODE, GOUROBOROS, SEED)}
DEFAULT_PROFILE = DMQ_NODE


def profile_named(name: str) -> Profile:
    profile = PROFILES.get(name)
    if profile is None:
        raise ConfigError(
            f"there is no wire profile {name!r}", advice=f"choose one of {', '.join(PROFILES)}", found=name
        )
    return profile


def answer_terms(profiles: Iterable[Profile], kind: ConnectionKind, ours: VersionData) -> Terms:
    """Return the terms that a responder with these profiles accepts."""
    with_cardano = any(profile.follows_documents for profile in profiles)
    return Terms(kind, ours, known_versions(kind, with_cardano=with_cardano))


def start_within_s(profiles: Iterable[Profile], kind: ConnectionKind, idle_s: float | None = None) -> float:
    """Return the seconds in which a peer must start a mini-protocol after the handshake: the longest of the
    profiles. `idle_s`, if given, is the limit between nodes of all profiles but that of the documents."""
    if kind is ConnectionKind.NODE:
        return max(
            profile.start_node_within_s if idle_s is None or profile.follows_documents else idle_s
            for profile in profiles
        )
    return max(profile.start_local_within_s for profile in profiles)


def profile_of(number: int, profiles: Iterable[Profile]) -> tuple[Profile, MiniProtocol] | None:
    """Return the profile and mini-protocol of a number. The first profile wins where two share one:
    `dmq-node` and `gouroboros` differ by tags."""
    for profile in profiles:
        protocol = profile.protocol(number)
        if protocol is not None:
            return profile, protocol
    return None
