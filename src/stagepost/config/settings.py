"""Every setting of `stagepost.toml`: its name, what it may be, its default and one line for people who read the file.

The file that `config init` writes, the checks of `config check` and the list of `config show` all come from here.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stagepost.dmq.node.config import NodeConfig
from stagepost.dmq.profiles import DEFAULT_PROFILE, PROFILES
from stagepost.ground.files.expected import (
    BOOLEAN,
    HOST,
    PORT,
    PORT_MAX,
    PORT_OR_ANY,
    Expected,
    ip_address,
    list_of,
    one_of,
    seconds,
    text,
    unfit,
    whole,
)
from stagepost.ground.identifiers import LOOPBACK_HOST, MESSAGES_TOPIC, STATUSES_TOPIC
from stagepost.topics.kafka.access import PASSWORD_VARIABLE, SASL_MECHANISMS, SECURITY_PROTOCOLS

COUNT_MAX = 1_000_000
MEMPOOL_BYTES_MAX = 64 * 1024**3
PROCESSES_MAX = 256
METRICS_OFF = "off"
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("auto", "text", "json")
ABSENT = None
"""The default of a setting that has none: the file that `config init` writes leaves it commented out."""


@dataclass(frozen=True, slots=True)
class Setting:
    section: str
    name: str
    expected: Expected[object]
    default: object
    about: str
    example: object = ABSENT
    """Shown, commented out, where there is no default."""
    is_path: bool = False
    """A relative one counts from the folder of the file that names it."""

    @property
    def key(self) -> str:
        return f"{self.section}.{self.name}"


def _loopback_only() -> Expected[str]:
    """Until a token and a certificate can be given, the dashboard is for this machine alone."""

    def read(value: object) -> str:
        host = HOST.read(value)
        if host != "localhost":
            try:
                is_loopback = ipaddress.ip_address(host).is_loopback
            except ValueError:
                is_loopback = False
            if not is_loopback:
                raise unfit("a loopback address (any other needs both a token and a TLS certificate)", value)
        return host

    return Expected("a loopback address", read)


def _port_or_off() -> Expected[int | None]:
    what = f'a number in 0..{PORT_MAX} or "{METRICS_OFF}"'

    def read(value: object) -> int | None:
        if value == METRICS_OFF:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= PORT_MAX:
            raise unfit(what, value)
        return value

    return Expected(what, read)


_COUNT = whole(1, COUNT_MAX)
_COUNT_OR_NONE = whole(0, COUNT_MAX)
_PATH = text("a path")
_PROFILE = one_of(tuple(PROFILES))
_PROFILES = list_of(_PROFILE, "a list of wire profiles", may_be_empty=False)
_PEER_IDS = list_of(text("a node id"), "a list of node ids")
_MAGIC = whole(0, 2**32 - 1)

_NODE_DEFAULTS = NodeConfig(Path("stagepost-data"), Path("dmq-node.socket"), Path())

# fmt: off
_NODE = (
    Setting("node", "data_dir", _PATH, str(_NODE_DEFAULTS.data_dir), "messages that were accepted, kept across restarts", is_path=True),
    Setting("node", "local_socket", _PATH, str(_NODE_DEFAULTS.local_socket), "Unix socket for local programs; its folder must be yours alone", is_path=True),
    Setting("node", "host_addr", ip_address(4), ABSENT, "IPv4 address to listen at; this or host_ipv6_addr is needed", example="127.0.0.1"),
    Setting("node", "host_ipv6_addr", ip_address(6), ABSENT, "IPv6 address to listen at", example="::1"),
    Setting("node", "port", PORT_OR_ANY, _NODE_DEFAULTS.port, "TCP port for other nodes; 0 takes a free one"),
    Setting("node", "topology", _PATH, "dmq.topology.json", "whom to connect to, in cardano-node's syntax", is_path=True),
    Setting("node", "pools", _PATH, ABSENT, "who may send: pools and their stake; needed", example="pools.json", is_path=True),
    Setting("node", "dmq_config", _PATH, "dmq.config.json", "dmq-node's own configuration file; may be missing", is_path=True),
    Setting("node", "network_magic", _MAGIC, _NODE_DEFAULTS.network_magic, "the DMQ network"),
    Setting("node", "wire_profile", _PROFILE, DEFAULT_PROFILE.name, "how to speak with peers that we connect to"),
    Setting("node", "profiles", _PROFILES, tuple(PROFILES), "how others may speak with us"),
    Setting("node", "min_sig_delay_s", seconds(above_zero=False), ABSENT, "least time between two messages of a pool; fixed on public networks", example=0.0),
    Setting("node", "refuse_equivocation", BOOLEAN, False, "refuse a pool's second body for one slot (same certificate number, KES period, expiry)"),
    Setting("node", "peer_sharing", BOOLEAN, True, "tell peers about other peers, and ask them"),
    Setting("node", "initiator_only", BOOLEAN, False, "connect to others, let no other node connect to us"),
    Setting("node", "connections_soft", _COUNT, _NODE_DEFAULTS.admission.soft_max, "from here on a new connection has to wait"),
    Setting("node", "connections_hard", _COUNT, _NODE_DEFAULTS.admission.hard_max, "from here on no connection is accepted"),
    Setting("node", "connections_delay_s", seconds(above_zero=False), _NODE_DEFAULTS.admission.delay_s, "how long it has to wait"),
    Setting("node", "connections_per_address", _COUNT, _NODE_DEFAULTS.admission.per_source_max, "connections from one source address"),
    Setting("node", "root_peers", _COUNT_OR_NONE, _NODE_DEFAULTS.targets.root, "how many of the topology's peers to keep in mind"),
    Setting("node", "known_peers", _COUNT_OR_NONE, _NODE_DEFAULTS.targets.known, "peers to know of"),
    Setting("node", "established_peers", _COUNT_OR_NONE, _NODE_DEFAULTS.targets.established, "peers to be connected with"),
    Setting("node", "active_peers", _COUNT_OR_NONE, _NODE_DEFAULTS.targets.active, "peers to exchange messages with"),
    Setting("node", "mempool_messages", _COUNT, _NODE_DEFAULTS.mempool_messages_max, "unexpired messages held at most"),
    Setting("node", "mempool_bytes", whole(1, MEMPOOL_BYTES_MAX), _NODE_DEFAULTS.mempool_bytes_max, "and their bytes, whichever is reached first"),
    Setting("node", "protocol_idle_timeout_s", seconds(), _NODE_DEFAULTS.protocol_idle_timeout_s, "a connection without any mini-protocol is closed after this"),
    Setting("node", "churn_interval_s", seconds(), _NODE_DEFAULTS.churn_interval_s, "how often a peer that brings little is replaced"),
    Setting("node", "verification_processes", whole(0, PROCESSES_MAX), 0, "processes that check signatures beside the loop; 0 means one per further core"),
    Setting("node", "metrics_port", _port_or_off(), 0, 'metrics, health and status on 127.0.0.1; 0 takes a free port (see node.json), "off" serves none'),
    Setting("node", "unsafe_accept_stored_time", BOOLEAN, False, "start although the store has a time more than an hour ahead of the clock"),
    Setting("node", "unsafe_loopback_unlimited", BOOLEAN, False, "connections_per_address does not count loopback: for tests on one machine"),
)
_DELIVERY = (
    Setting("delivery", "queue_size", _COUNT, 1000, "messages held until they are delivered"),
    Setting("delivery", "flush_interval_s", seconds(), 1.0, "how often the queue is looked at"),
    Setting("delivery", "flush_batch_size", _COUNT, 10, "messages per look"),
    Setting("delivery", "enable_ack", BOOLEAN, False, "publish with acknowledgement"),
    Setting("delivery", "ack_timeout_s", seconds(), 5.0, "wait after each attempt"),
    Setting("delivery", "max_retries", _COUNT_OR_NONE, 3, "attempts after the first one"),
    Setting("delivery", "critical_peers", _PEER_IDS, (), "node ids that must acknowledge"),
    Setting("delivery", "require_all_acks", BOOLEAN, False, "every critical peer instead of any"),
)
_REMP = (
    Setting("remp", "message_timeout_s", seconds(), 240, "how long validators keep a message"),
)
_KAFKA = (
    Setting("kafka", "bootstrap", text("HOST:PORT of brokers, with commas"), ABSENT, "brokers that statuses go to and messages come from; none: topics stay in the data folder", example="127.0.0.1:9092"),
    Setting("kafka", "security_protocol", one_of(SECURITY_PROTOCOLS), "plaintext", ", ".join(SECURITY_PROTOCOLS)),
    Setting("kafka", "sasl_mechanism", one_of(SASL_MECHANISMS), "SCRAM-SHA-512", ", ".join(SASL_MECHANISMS)),
    Setting("kafka", "username", text("a user's name"), ABSENT, f"for SASL; its password is {PASSWORD_VARIABLE} in the environment", example="stagepost"),
    Setting("kafka", "ca_file", _PATH, ABSENT, "PEM: who may sign the brokers' certificates; none: the system's own", example="ca.pem", is_path=True),
    Setting("kafka", "certificate_file", _PATH, ABSENT, "PEM: our own certificate, if brokers ask for one", example="client.pem", is_path=True),
    Setting("kafka", "key_file", _PATH, ABSENT, "PEM: its key; the file must be yours alone", example="client.key", is_path=True),
    Setting("kafka", "statuses_topic", text("a topic's name", 249), STATUSES_TOPIC, "where statuses go"),
    Setting("kafka", "messages_topic", text("a topic's name", 249), MESSAGES_TOPIC, "where messages come from"),
    Setting("kafka", "group", text("a group's name", 249), "full-node", "of readers of messages; each full node has its own"),
    Setting("kafka", "create_topics", BOOLEAN, True, "make topics that are not there"),
    Setting("kafka", "partitions", whole(1, 64), 4, "of a topic that is made"),
    Setting("kafka", "replication", whole(1, 32), ABSENT, "of a topic that is made; none: the broker's default", example=3),
    Setting("kafka", "retention_hours", whole(1, COUNT_MAX), 168, "of a topic that is made"),
)
_WEB = (
    Setting("web", "host", _loopback_only(), LOOPBACK_HOST, "address of the dashboard"),
    Setting("web", "port", PORT, 8137, "its port"),
    Setting("web", "live_rows_max", _COUNT, 500, "rows that the live page keeps"),
    Setting("web", "page_rows", _COUNT, 50, "rows per page of a list"),
    Setting("web", "query_timeout_s", seconds(), 10, "a query that takes longer is given up"),
)
_LOG = (
    Setting("log", "level", one_of(LOG_LEVELS), "info", ", ".join(LOG_LEVELS)),
    Setting("log", "format", one_of(LOG_FORMATS), "auto", "auto: text on a terminal, json otherwise"),
)
# fmt: on

SETTINGS: Mapping[str, Setting] = {
    setting.key: setting for setting in (*_NODE, *_DELIVERY, *_REMP, *_KAFKA, *_WEB, *_LOG)
}
SECTIONS: Mapping[str, Mapping[str, Setting]] = {
    section: {setting.name: setting for setting in SETTINGS.values() if setting.section == section}
    for section in dict.fromkeys(setting.section for setting in SETTINGS.values())
}
