"""A CIP-0137 node: listens for peers and programs, dials the peers it knows, and holds what they bring."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from stagepost import __version__
from stagepost.dmq.mempool import Entry, Mempool
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.outcome import Rejected
from stagepost.dmq.peer_sharing import PeerAddress
from stagepost.dmq.profiles import Profile, profile_named
from stagepost.dmq.validation import Pools, Validator, rules_for
from stagepost.dmq.version_data import ConnectionKind, VersionData
from stagepost.errors import HandshakeRefused, LocalProtocolError, RemoteProtocolError, StagepostError, TransportError
from stagepost.node.admission import Admission, Refusal
from stagepost.node.config import NodeConfig
from stagepost.node.local_service import LocalService, owner_and_root
from stagepost.node.peer_book import Origin, PeerBook
from stagepost.node.peer_link import Direction, LinkParts, PeerLink
from stagepost.runtime.bearer import Bearer
from stagepost.runtime.clock import Clock
from stagepost.runtime.connection import initiate, respond
from stagepost.runtime.intake import Intake
from stagepost.runtime.mempool_feed import MempoolFeed
from stagepost.runtime.message_store import MessageStore
from stagepost.runtime.network import Listener, Network, TcpAddress, UnixAddress
from stagepost.runtime.verifier import Verifier

log = logging.getLogger(__name__)

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1"})
"""Everybody on this machine shares these, so one program's faults must not shut out the others."""

DIAL_POLL_S = 1.0
VIOLATIONS_REMEMBERED = 100
STOP_GRACE_S = 5.0


@dataclass(frozen=True)
class _Violation:
    peer: str
    code: str
    text: str
    at_unix_s: float
