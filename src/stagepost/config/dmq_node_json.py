"""dmq-node's own configuration file, as operators have it: what it sets here, and what it says without effect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stagepost.config.settings import SETTINGS
from stagepost.dmq.topology import DIFFUSION_MODES, INITIATOR_ONLY
from stagepost.errors import FileFault
from stagepost.ground.files.documents import DocumentPart, NotADocument, did_you_mean, read_object
from stagepost.ground.files.expected import PORT_MAX, Expected, found, one_of, seconds, spelt_number, whole
from stagepost.ground.identifiers import LOOPBACK_HOST

DMQ_CONFIG_FILE_BYTES_MAX = 1_048_576
ACCEPTED_CONNECTIONS = "AcceptedConnectionsLimit"
TRACE_OPTIONS = ("TraceOptions", "TraceOptionMetricsPrefix")
NEW_TRACE_OPTIONS = ("Options", "MetricsPrefix")
"""Names of the same two keys in dmq-node from autumn 2026 on."""


@dataclass(frozen=True, slots=True)
class _Key:
    setting: str
    expected: Expected[object]


def _as_setting(setting: str) -> _Key:
    return _Key(setting, SETTINGS[setting].expected)


def _initiator_only() -> Expected[bool]:
    mode = one_of(DIFFUSION_MODES)
    return Expected(mode.what, lambda value: mode.read(value) == INITIATOR_ONLY)


_KEYS: Mapping[str, _Key] = {
    "IPv4": _as_setting("node.host_addr"),
    "IPv6": _as_setting("node.host_ipv6_addr"),
    "PortNumber": _as_setting("node.port"),
    "LocalAddress": _as_setting("node.local_socket"),
    "NetworkMagic": _as_setting("node.network_magic"),
    "CardanoNetworkMagic": _as_setting("node.cardano_network_magic"),
    "CardanoNodeSocket": _as_setting("node.cardano_node_socket"),
    "ShelleyGenesisFile": _as_setting("node.shelley_genesis_file"),
    "ShelleyGenesisHash": _as_setting("node.shelley_genesis_hash"),
    "DiffusionMode": _Key("node.initiator_only", _initiator_only()),
    "PeerSharing": _as_setting("node.peer_sharing"),
    "LedgerPeers": _as_setting("node.ledger_peers"),
    "ProtocolIdleTimeout": _as_setting("node.protocol_idle_timeout_s"),
    "ChurnInterval": _as_setting("node.churn_interval_s"),
    "TargetNumberOfKnownPeers": _as_setting("node.known_peers"),
    "TargetNumberOfEstablishedPeers": _as_setting("node.established_peers"),
    "TargetNumberOfActivePeers": _as_setting("node.active_peers"),
}


def _read_prefix(value: object) -> str:
    """Dots become underscores, as Prometheus wants it."""
    prefix = SETTINGS["node.metrics_prefix"].expected.read(value)
    return str(prefix).replace(".", "_")


_METRICS_PREFIX: Expected[str | None] = Expected("a prefix of metric names", _read_prefix)
_ACCEPTED_CONNECTIONS: Mapping[str, _Key] = {
    "hardLimit": _Key("node.connections_hard", whole(1, 2**32 - 1)),
    "softLimit": _Key("node.connections_soft", whole(1, 2**32 - 1)),
    "delay": _Key("node.connections_delay_s", seconds(above_zero=False)),
}
WITHOUT_EFFECT: Mapping[str, str] = {
    "TargetNumberOfRootPeers": "every root peer of the topology is used",
    **dict.fromkeys(
        (
            "TargetNumberOfKnownBigLedgerPeers",
            "TargetNumberOfEstablishedBigLedgerPeers",
            "TargetNumberOfActiveBigLedgerPeers",
        ),
        "ledger peers count among the other peers",
    ),
}


@dataclass(frozen=True, slots=True)
class DmqNodeSettings:
    """Values by our own key, where in the file each stands, and what the file says in vain."""

    values: Mapping[str, object]
    places: Mapping[str, str]
    notes: tuple[str, ...]
    faults: tuple[FileFault, ...]


def parse_dmq_config(content: bytes) -> DmqNodeSettings:
    faults: list[FileFault] = []
    try:
        file = DocumentPart(read_object(content), faults)
    except NotADocument as error:
        return DmqNodeSettings({}, {}, (), (error.fault,))
    values: dict[str, object] = {}
    places: dict[str, str] = {}
    _read(file, _KEYS, values, places)
    limits = file.part(ACCEPTED_CONNECTIONS)
    if limits is not None:
        _read(limits, _ACCEPTED_CONNECTIONS, values, places, is_required=True)
    notes: list[str] = []
    tracing, ignored = _tracing_keys(file)
    for name in ignored:
        notes.append(f"{name} has no effect here: {TRACE_OPTIONS[0]} is there, and goes before it")
    options = file.part(tracing[0])
    if options is not None:
        _read_trace_options(options, values, places, notes)
    prefix = file.optional(tracing[1], _METRICS_PREFIX, None)
    if prefix is not None:
        values["node.metrics_prefix"], places["node.metrics_prefix"] = prefix, file.where(tracing[1])
    notes += [_note(name) for name in file.unknown([*_KEYS, ACCEPTED_CONNECTIONS, *tracing, *ignored])]
    return DmqNodeSettings(values, places, tuple(notes), tuple(faults))


def _tracing_keys(file: DocumentPart) -> tuple[tuple[str, str], list[str]]:
    """Return the names of the two tracing keys in force, and those that are there in vain."""
    if file.has(TRACE_OPTIONS[0]) or not any(map(file.has, NEW_TRACE_OPTIONS)):
        return TRACE_OPTIONS, [name for name in NEW_TRACE_OPTIONS if file.has(name)]
    return NEW_TRACE_OPTIONS, [name for name in TRACE_OPTIONS if file.has(name)]


def _read(
    part: DocumentPart,
    keys: Mapping[str, _Key],
    values: dict[str, object],
    places: dict[str, str],
    *,
    is_required: bool = False,
) -> None:
    for name, key in keys.items():
        # A null leaves the setting open, as it does in dmq-node.
        if part.fields.get(name) is None:
            if is_required:
                part.fault(name, key.expected.missing())
            continue
        value = part.optional(name, key.expected, None)
        if value is not None:
            values[key.setting] = value
            places[key.setting] = part.where(name)


def _note(name: str) -> str:
    """dmq-node ignores keys that it does not know, so a file that works there works here."""
    why = WITHOUT_EFFECT.get(name)
    if why is not None:
        return f"{name} has no effect here: {why}"
    return f"{name} is not known and has no effect{did_you_mean(name, [*_KEYS, *TRACE_OPTIONS, *WITHOUT_EFFECT])}"


LEVELS: Mapping[str, str] = {
    "Debug": "debug",
    "Info": "info",
    "Notice": "info",
    "Warning": "warning",
    "Error": "error",
    "Critical": "error",
    "Alert": "error",
    "Emergency": "error",
    "Silence": "error",
}
"""Our log level for each severity of dmq-node."""
_FORMATS = {
    "Stdout MachineFormat": "json",
    "Stdout HumanFormatColoured": "text",
    "Stdout HumanFormatUncoloured": "text",
}
_OTHER_BACKENDS = ("EKGBackend", "Forwarder")
_PROMETHEUS = "PrometheusSimple"
_SUFFIXES = ("suffix", "nosuffix")


def _read_trace_options(
    options: DocumentPart, values: dict[str, object], places: dict[str, str], notes: list[str]
) -> None:
    """Add the settings that the root namespace of the trace options gives, and a note for each part without effect."""
    for name in options.unknown([""]):
        notes.append(
            f"{options.where(name)} has no effect here: one severity holds for all parts of the node"
        )
    root = options.part("")
    if root is None:
        return
    for name in root.unknown(("backends", "severity")):
        notes.append(f"{root.where(name)} has no effect here")
    severity = root.fields.get("severity")
    if isinstance(severity, str) and severity in LEVELS:
        _set("log.level", LEVELS[severity], root.where("severity"), values, places)
    elif severity is not None:
        root.fault("severity", f"expected one of {', '.join(LEVELS)}, found {found(severity)}")
    backends = root.fields.get("backends", [])
    if not isinstance(backends, list):
        root.fault("backends", f"expected a list of backends, found {found(backends)}")
        return
    for index, backend in enumerate(backends):
        place = f"backends[{index}]"
        if isinstance(backend, str) and backend in _FORMATS:
            _set("log.format", _FORMATS[backend], root.where(place), values, places)
            _set("log.output", "stdout", root.where(place), values, places)
        elif isinstance(backend, str) and backend.startswith(_PROMETHEUS):
            address = _prometheus_address(backend)
            if address is None:
                root.fault(
                    place, f"expected {_PROMETHEUS} [suffix|nosuffix] [HOST] PORT, found {found(backend)}"
                )
            else:
                _set("node.prometheus", address, root.where(place), values, places)
        elif backend in _OTHER_BACKENDS:
            notes.append(f"{root.where(place)} has no effect here: {backend} is not offered")
        else:
            notes.append(f"{root.where(place)} has no effect here: {found(backend)} is not a known backend")


def _prometheus_address(backend: str) -> str | None:
    """Return HOST:PORT. The suffix only chooses names of counters, which follow Prometheus' own rule here."""
    words = backend.split()[1:]
    if words and words[0] in _SUFFIXES:
        del words[0]
    port = spelt_number(words[-1], PORT_MAX) if 1 <= len(words) <= 2 else None
    host = words[0] if len(words) == 2 else LOOPBACK_HOST
    return None if port is None else f"{host}:{port}"


def _set(key: str, value: object, place: str, values: dict[str, object], places: dict[str, str]) -> None:
    values[key] = value
    places[key] = place
