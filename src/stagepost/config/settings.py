"""Every setting of `stagepost.toml`: its name, what it may be, its default and one line for people who read the file.

The file that `config init` writes, the checks of `config check` and the list of `config show` all come from here.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stagepost.dmq.node.config import NodeConfig
from stagepost.dmq.profiles import DEFAULT_PROFILE, PROFILES
from stagepost.errors import ConfigError
from stagepost.ground.crypto.hashing import parse_pool_id
from stagepost.ground.files.durations import parse_duration
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
from stagepost.ground.identifiers import LOOPBACK_HOST, MESSAGES_TOPIC, STATUSES_TOPIC, LinkEncryption
from stagepost.ground.net.network import TcpAddress, parse_address
from stagepost.topics.kafka.access import PASSWORD_VARIABLE, SASL_MECHANISMS, SECURITY_PROTOCOLS

COUNT_MAX = 1_000_000
MEMPOOL_BYTES_MAX = 64 * 1024**3
PROCESSES_MAX = 256
KEEP_S_MIN = 86_400.0
"""Seconds, at least, for which tables are kept: they are dropped by whole days."""
METRICS_OFF = "off"
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("auto", "text", "json")
LOG_OUTPUTS = ("stderr", "stdout")
CARDANO_MAINNET_MAGIC = 764_824_073
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

    return Expected("a loopback address", read, {"type": "string"})


def _port_or_off() -> Expected[int | None]:
    what = f'a number in 0..{PORT_MAX} or "{METRICS_OFF}"'

    def read(value: object) -> int | None:
        if value == METRICS_OFF:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= PORT_MAX:
            raise unfit(what, value)
        return value

    port = {"type": "integer", "minimum": 0, "maximum": PORT_MAX}
    return Expected(what, read, {"anyOf": [port, {"const": METRICS_OFF}]})


def _address() -> Expected[str]:
    """Expect HOST:PORT."""
    what = "HOST:PORT, as in 127.0.0.1:12000"

    def read(value: object) -> str:
        try:
            address = parse_address(value) if isinstance(value, str) else None
        except ConfigError:
            address = None
        if not isinstance(address, TcpAddress):
            raise unfit(what, value)
        return str(address)

    return Expected(what, read, {"type": "string", "pattern": ":[0-9]{1,5}$"})


def _pool_id() -> Expected[str]:
    """Expect a pool id in either form; return it as 56 hex digits."""
    what = "a pool id, as pool1… or 56 hex digits"

    def read(value: object) -> str:
        if not isinstance(value, str):
            raise unfit(what, value)
        try:
            return parse_pool_id(value).hex()
        except ConfigError:
            raise unfit(what, value) from None

    return Expected(what, read, {"type": "string", "pattern": "^(pool1[0-9a-z]+|[0-9a-fA-F]{56})$"})


def _days_kept() -> Expected[str]:
    what = "a duration of at least one day, as 30d"

    def read(value: object) -> str:
        try:
            if isinstance(value, str) and parse_duration(value) >= KEEP_S_MIN:
                return value
        except ValueError:
            pass
        raise unfit(what, value)

    return Expected(what, read, {"type": "string", "minLength": 2})


_COUNT = whole(1, COUNT_MAX)
_COUNT_OR_NONE = whole(0, COUNT_MAX)
_PATH = text("a path")
_PROFILE = one_of(tuple(PROFILES))
_PROFILES = list_of(_PROFILE, "a list of wire profiles", may_be_empty=False)
_POOL_IDS = list_of(_pool_id(), "a list of pool ids")
_MAGIC = whole(0, 2**32 - 1)

_NODE_DEFAULTS = NodeConfig(Path("stagepost-data"), Path("dmq-node.socket"), None)

# fmt: off
_NODE = (
    Setting("node", "data_dir", _PATH, str(_NODE_DEFAULTS.data_dir), "data folder of the node; holds the accepted messages across restarts", is_path=True),
    Setting("node", "local_socket", _PATH, str(_NODE_DEFAULTS.local_socket), "Unix socket for local programs; only its owner may write to its folder", is_path=True),
    Setting("node", "host_addr", ip_address(4), ABSENT, "IPv4 address to listen on; host_addr or host_ipv6_addr is required", example="127.0.0.1"),
    Setting("node", "host_ipv6_addr", ip_address(6), ABSENT, "IPv6 address to listen on", example="::1"),
    Setting("node", "port", PORT_OR_ANY, _NODE_DEFAULTS.port, "TCP port for other nodes; 0 takes a free port"),
    Setting("node", "topology", _PATH, "dmq.topology.json", "topology file: the peers to connect to, in cardano-node's syntax", is_path=True),
    Setting("node", "pools", _PATH, ABSENT, "pools file of a private network: the pools that may send, with their stake; replaces the cardano-node", example="pools.json", is_path=True),
    Setting("node", "cardano_node_socket", _PATH, "cardano-node.socket", "local socket of the cardano-node that is asked for the stake", is_path=True),
    Setting("node", "cardano_network_magic", _MAGIC, CARDANO_MAINNET_MAGIC, "magic number of that cardano-node's network"),
    Setting("node", "shelley_genesis_file", _PATH, "mainnet-shelley-genesis.json", "genesis file of that network; without it the cardano-node is asked", is_path=True),
    Setting("node", "shelley_genesis_hash", text("64 hexadecimal digits", 64), ABSENT, "BLAKE2b-256 hash that the genesis file must have", example="1a3be38bcbb7911969283716ad7aa550250226b76a61fc51cc9a9a35d9276d81"),
    Setting("node", "dmq_config", _PATH, "dmq.config.json", "dmq-node's JSON configuration; the file may be missing", is_path=True),
    Setting("node", "network_magic", _MAGIC, _NODE_DEFAULTS.network_magic, "magic number of the DMQ network"),
    Setting("node", "wire_profile", _PROFILE, DEFAULT_PROFILE.name, "wire profile for peers that this node connects to"),
    Setting("node", "profiles", _PROFILES, tuple(PROFILES), "wire profiles that this node accepts from peers and programs"),
    Setting("node", "min_sig_delay_s", seconds(above_zero=False), ABSENT, "seconds that a pool must wait between two messages; may not be set on public networks", example=0.0),
    Setting("node", "refuse_equivocation", BOOLEAN, False, "refuse a second body of one pool with the same certificate number, KES period and expiry"),
    Setting("node", "peer_sharing", BOOLEAN, True, "exchange addresses of other peers with peers"),
    Setting("node", "private_peers", BOOLEAN, ABSENT, "dial private and loopback addresses that peers share or pools publish; absent: on private networks only, if this node listens at such addresses alone", example=False),
    Setting("node", "ledger_peers", BOOLEAN, False, "dial pools that registered SRV relays on the chain, if useLedgerAfterSlot of the topology allows it"),
    Setting("node", "initiator_only", BOOLEAN, False, "connect to other nodes, accept no connection from them"),
    Setting("node", "connections_soft", _COUNT, _NODE_DEFAULTS.admission.soft_max, "open connections from which on a new one is served after a delay"),
    Setting("node", "connections_hard", _COUNT, _NODE_DEFAULTS.admission.hard_max, "open connections at most; further ones are refused"),
    Setting("node", "connections_delay_s", seconds(above_zero=False), _NODE_DEFAULTS.admission.delay_s, "seconds of that delay"),
    Setting("node", "connections_per_address", _COUNT, _NODE_DEFAULTS.admission.per_source_max, "open connections from one source address at most"),
    Setting("node", "known_peers", _COUNT_OR_NONE, _NODE_DEFAULTS.targets.known, "addresses of peers to remember"),
    Setting("node", "established_peers", _COUNT_OR_NONE, _NODE_DEFAULTS.targets.established, "peers to keep connected (warm or hot), local roots not counted"),
    Setting("node", "active_peers", _COUNT_OR_NONE, _NODE_DEFAULTS.targets.active, "peers to exchange messages with (hot), local roots not counted"),
    Setting("node", "mempool_messages", _COUNT, _NODE_DEFAULTS.mempool_messages_max, "unexpired messages in the mempool at most"),
    Setting("node", "mempool_bytes", whole(1, MEMPOOL_BYTES_MAX), _NODE_DEFAULTS.mempool_bytes_max, "bytes of these messages at most; the limit reached first counts"),
    Setting("node", "mempool_pool_percent", whole(1, 100), _NODE_DEFAULTS.mempool_pool_percent, "percent of the mempool that the messages of one pool may use; the rest is room for other pools"),
    Setting("node", "protocol_idle_timeout_s", seconds(), _NODE_DEFAULTS.protocol_idle_timeout_s, "seconds after which a connection that uses no mini-protocol is closed"),
    Setting("node", "churn_interval_s", seconds(), _NODE_DEFAULTS.churn_interval_s, "seconds between two replacements of the peer that supplies least"),
    Setting("node", "verification_processes", whole(0, PROCESSES_MAX), 0, "processes that check signatures; 0: one for each core but the first"),
    Setting("node", "metrics_port", _port_or_off(), 0, 'port of metrics, health and status on 127.0.0.1; 0 takes a free port (node.json names it), "off" serves none'),
    Setting("node", "prometheus", _address(), ABSENT, "address of a second server with /metrics alone, which may be reached from other machines", example="127.0.0.1:12000"),
    Setting("node", "metrics_prefix", text("a prefix of metric names", 64), "dmq_node_", "beginning of the metric names that dmq-node has too"),
    Setting("node", "unsafe_accept_stored_time", BOOLEAN, False, "start even if the store holds a time more than an hour ahead of the clock"),
    Setting("node", "unsafe_loopback_unlimited", BOOLEAN, False, "do not apply connections_per_address to loopback; for tests on one machine"),
)
_DELIVERY = (
    Setting("delivery", "queue_size", _COUNT, 1000, "messages in the outbox at most"),
    Setting("delivery", "flush_interval_s", seconds(), 1.0, "seconds between two looks for a connection while messages wait"),
    Setting("delivery", "flush_batch_size", _COUNT, 10, "messages handed to the network before other work gets its turn"),
    Setting("delivery", "enable_ack", BOOLEAN, False, "allow publishing with acknowledgements"),
    Setting("delivery", "ack_timeout_s", seconds(), 5.0, "seconds to wait for acknowledgements after each attempt"),
    Setting("delivery", "max_retries", _COUNT_OR_NONE, 3, "attempts to send after the first one"),
    Setting("delivery", "critical_peers", _POOL_IDS, (), "pools whose acknowledgement counts"),
    Setting("delivery", "require_all_acks", BOOLEAN, False, "require an acknowledgement of every critical peer, not of any one"),
)
_REMP = (
    Setting("remp", "message_timeout_s", seconds(), 240, "seconds after which a message that is not final expires; --message-timeout of `node full` and `node validator` overrides it"),
)
def _member(section: str, name: str) -> tuple[Setting, ...]:
    """Return the settings that validators and full nodes share; the options of `node NAME` override them."""
    return (
        Setting(section, "network", _PATH, ABSENT, f"network file of `node {name}`: keys and addresses of all members, and the first block", example="network.json", is_path=True),
        Setting(section, "genesis", text("64 hexadecimal digits", 64), ABSENT, "hash of the genesis that the operators agreed on; a network file with another one is refused", example="00" * 32),
        Setting(section, "key", _PATH, ABSENT, "Ed25519 signing key of the node, mode 600", example="member.skey", is_path=True),
        Setting(section, "data_dir", _PATH, ABSENT, "data folder of the node", example="data", is_path=True),
        Setting(section, "metrics_port", _port_or_off(), 0, 'port of metrics, health and status on 127.0.0.1; 0 takes a free port, "off" serves none'),
        Setting(section, "prometheus", _address(), ABSENT, "address of a second server with /metrics alone, which may be reached from other machines", example="127.0.0.1:12001"),
        Setting(section, "link_encryption", one_of(tuple(map(str, LinkEncryption))), str(LinkEncryption.REQUIRED), "links to other members: required; preferred: plain ones only to members of the former release; off: none is encrypted"),
    )


_VALIDATOR = (
    *_member("validator", "validator"),
    Setting("validator", "shards", whole(1, 16), ABSENT, "number of shards, the same for all validators; the validator wants splits and merges until there are as many", example=1),
)
_FULL_NODE = (
    *_member("full_node", "full"),
    Setting("full_node", "http", _address(), ABSENT, "address at which messages are accepted by HTTP as well", example="127.0.0.1:8140"),
    Setting("full_node", "http_certificate", _PATH, ABSENT, "PEM: TLS certificate for an address that other machines can reach", example="server.pem", is_path=True),
    Setting("full_node", "http_private_key", _PATH, ABSENT, "PEM: private key of http_certificate", example="server.key", is_path=True),
    Setting("full_node", "dmq_keys", _PATH, ABSENT, "folder with a pool's keys: take messages from a DMQ network, and acknowledge them as this pool", example="my-pool", is_path=True),
    Setting("full_node", "dmq_data", _PATH, ABSENT, "data folder of the DMQ node on this machine", example="stagepost-data", is_path=True),
    Setting("full_node", "dmq_socket", _PATH, ABSENT, "local socket of the DMQ node; without it from dmq_data", example="dmq-node.socket", is_path=True),
    Setting("full_node", "dmq_magic", _MAGIC, ABSENT, "magic number of the DMQ network; without it from dmq_data", example=2147483690),
    Setting("full_node", "dmq_profile", _PROFILE, DEFAULT_PROFILE.name, "wire profile of the connection to the DMQ node"),
)
_KAFKA = (
    Setting("kafka", "bootstrap", text("HOST:PORT of brokers, with commas"), ABSENT, "brokers for statuses and messages; without them topics stay in the data folder only", example="127.0.0.1:9092"),
    Setting("kafka", "security_protocol", one_of(SECURITY_PROTOCOLS), "plaintext", ", ".join(SECURITY_PROTOCOLS)),
    Setting("kafka", "sasl_mechanism", one_of(SASL_MECHANISMS), "SCRAM-SHA-512", ", ".join(SASL_MECHANISMS)),
    Setting("kafka", "username", text("a user's name"), ABSENT, f"user for SASL; {PASSWORD_VARIABLE} in the environment is the password", example="stagepost"),
    Setting("kafka", "ca_file", _PATH, ABSENT, "PEM: certificate authorities of the brokers; without it those of the system", example="ca.pem", is_path=True),
    Setting("kafka", "certificate_file", _PATH, ABSENT, "PEM: client certificate, if the brokers ask for one", example="client.pem", is_path=True),
    Setting("kafka", "key_file", _PATH, ABSENT, "PEM: key of the client certificate; mode 600, not encrypted", example="client.key", is_path=True),
    Setting("kafka", "statuses_topic", text("a topic's name", 249), STATUSES_TOPIC, "topic that statuses are written to"),
    Setting("kafka", "messages_topic", text("a topic's name", 249), MESSAGES_TOPIC, "topic that messages are read from"),
    Setting("kafka", "group", text("a group's name", 249), "full-node", "consumer group for the topic of messages; each full node needs its own"),
    Setting("kafka", "create_topics", BOOLEAN, True, "create topics that do not exist"),
    Setting("kafka", "partitions", whole(1, 64), 4, "partitions of a created topic"),
    Setting("kafka", "replication", whole(1, 32), ABSENT, "replicas of a created topic; without it the broker's default", example=3),
    Setting("kafka", "retention_hours", whole(1, COUNT_MAX), 168, "hours that a created topic keeps its records"),
)
_PIPELINE = (
    Setting("pipeline", "keep", _days_kept(), ABSENT, "time for which `pipeline run` keeps whole days of the tables; without it every day is kept", example="30d"),
)
_WEBHOOK = (
    Setting("webhook", "url", text("an https address", 2_000), ABSENT, "receiver of status changes of deliveries, as CloudEvents; STAGEPOST_WEBHOOK_TOKEN and STAGEPOST_WEBHOOK_SECRET in the environment protect them", example="https://example.org/hook"),
    Setting("webhook", "allow_private", BOOLEAN, False, "allow http, and addresses of private networks and of this machine"),
)
_TELEMETRY = (
    Setting("telemetry", "otlp_endpoint", text("an address as http://HOST:4318", 2_000), ABSENT, "OpenTelemetry collector that `stagepost telemetry` sends traces to, by OTLP over HTTP", example="http://127.0.0.1:4318"),
)
_WEB = (
    Setting("web", "host", _loopback_only(), LOOPBACK_HOST, "address that the dashboard listens on"),
    Setting("web", "port", PORT, 8137, "port that the dashboard listens on"),
    Setting("web", "open_reading", BOOLEAN, True, "without a token of yours, let everybody on this machine read the dashboard; actions need the token of the run in either case"),
    Setting("web", "live_rows_max", _COUNT, 500, "rows that the live page shows at most"),
    Setting("web", "page_rows", _COUNT, 50, "rows on one page of a list"),
    Setting("web", "query_timeout_s", seconds(), 10, "seconds after which a query of the tables is given up"),
)
_LOG = (
    Setting("log", "level", one_of(LOG_LEVELS), "info", ", ".join(LOG_LEVELS)),
    Setting("log", "format", one_of(LOG_FORMATS), "auto", "auto: text on a terminal, json otherwise"),
    Setting("log", "output", one_of(LOG_OUTPUTS), "stderr", "stderr or stdout; dmq-node's trace options choose stdout"),
)
# fmt: on

SETTINGS: Mapping[str, Setting] = {
    setting.key: setting
    for setting in (
        *_NODE,
        *_DELIVERY,
        *_REMP,
        *_VALIDATOR,
        *_FULL_NODE,
        *_KAFKA,
        *_PIPELINE,
        *_WEBHOOK,
        *_TELEMETRY,
        *_WEB,
        *_LOG,
    )
}
SECTIONS: Mapping[str, Mapping[str, Setting]] = {
    section: {setting.name: setting for setting in SETTINGS.values() if setting.section == section}
    for section in dict.fromkeys(setting.section for setting in SETTINGS.values())
}


def settings_schema() -> dict[str, Any]:
    """Return the JSON Schema of stagepost.toml, read as JSON: every section, and named contexts that override them."""
    sections: dict[str, Any] = {name: _section_schema(section) for name, section in SECTIONS.items()}
    context = {"type": "object", "properties": sections, "additionalProperties": False}
    named = {"type": "object", "additionalProperties": context, "description": "settings of --context NAME"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "stagepost.toml",
        "type": "object",
        "properties": {**sections, "contexts": named},
        "additionalProperties": False,
    }


def _section_schema(section: Mapping[str, Setting]) -> dict[str, Any]:
    properties = {}
    for name, setting in section.items():
        default = list(setting.default) if isinstance(setting.default, tuple) else setting.default
        properties[name] = {
            **setting.expected.schema,
            "description": setting.about,
            **({} if setting.default is ABSENT else {"default": default}),
        }
    return {"type": "object", "properties": properties, "additionalProperties": False}
