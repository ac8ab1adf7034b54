"""dmq-node's trace options, as far as they say where logs and metrics go: standard output, severity, Prometheus."""

from __future__ import annotations

from collections.abc import Mapping

from stagepost.ground.files.documents import DocumentPart
from stagepost.ground.files.expected import PORT_MAX, found
from stagepost.ground.identifiers import LOOPBACK_HOST

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


def read_trace_options(
    options: DocumentPart, values: dict[str, object], places: dict[str, str], notes: list[str]
) -> None:
    """Add the settings that the root namespace gives, and a note for each part without effect."""
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
    if not 1 <= len(words) <= 2 or not (words[-1].isascii() and words[-1].isdecimal()):
        return None
    host = words[0] if len(words) == 2 else LOOPBACK_HOST
    return f"{host}:{int(words[-1])}" if int(words[-1]) <= PORT_MAX else None


def _set(key: str, value: object, place: str, values: dict[str, object], places: dict[str, str]) -> None:
    values[key] = value
    places[key] = place
