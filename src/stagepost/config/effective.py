"""Which value holds, and where it comes from: flags, then `stagepost.toml`, then dmq-node's JSON, then defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stagepost.config.config_faults import COMMAND_LINE, FaultsByFile
from stagepost.config.dmq_node_json import DMQ_CONFIG_FILE_BYTES_MAX, parse_dmq_config
from stagepost.config.settings import SETTINGS
from stagepost.config.settings_file import CONTEXTS, SETTINGS_FILE, SETTINGS_FILE_BYTES_MAX, parse_settings
from stagepost.dmq.validation import PUBLIC_MAGICS
from stagepost.errors import ConfigFaults, Fault
from stagepost.ground.files.documents import did_you_mean
from stagepost.ground.files.expected import Unfit
from stagepost.ground.files.small_files import read_small_file

DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Flag:
    """A setting given on the command line; `name` is how the command spells it."""

    name: str
    value: object


@dataclass(frozen=True, slots=True)
class ConfigRequest:
    """What the command line says. `config_file` None means `stagepost.toml` here, if there is one."""

    flags: Mapping[str, Flag] = field(default_factory=dict)
    config_file: Path | None = None
    context: str | None = None
    notes: tuple[str, ...] = ()
    """What was said on the command line without effect."""


@dataclass(frozen=True, slots=True)
class Value:
    """`source` is the file, the command line or `default`; `where` is the place inside it."""

    value: object
    source: str = DEFAULT
    where: str = ""

    @property
    def is_default(self) -> bool:
        return self.source == DEFAULT

    @property
    def origin(self) -> str:
        """For people: where to go to change it."""
        return f"{self.source}: {self.where}" if self.where else self.source


@dataclass
class EffectiveConfig:
    """Every setting with its value, everything that is wrong, and everything that is said in vain."""

    values: dict[str, Value]
    faults: FaultsByFile
    notes: list[str]

    def __getitem__(self, key: str) -> object:
        return self.values[key].value

    def number(self, key: str) -> int:
        value = self[key]
        assert isinstance(value, int)
        return value

    def seconds(self, key: str) -> float:
        value = self[key]
        assert isinstance(value, int | float)
        return float(value)

    def text(self, key: str) -> str:
        value = self[key]
        assert isinstance(value, str)
        return value

    def flag(self, key: str) -> bool:
        value = self[key]
        assert isinstance(value, bool)
        return value

    def path(self, key: str) -> Path:
        return Path(self.text(key))

    def words(self, key: str) -> tuple[str, ...]:
        value = self[key]
        assert isinstance(value, tuple)
        return value

    def fault(self, key: str, text: str) -> None:
        """At the place that set the value, so that it is found there."""
        value = self.values[key]
        if value.is_default:
            self.faults.add(COMMAND_LINE, Fault(key, text))
        else:
            self.faults.add(value.source, Fault(value.where, text))


def effective_config(request: ConfigRequest) -> EffectiveConfig:
    config = EffectiveConfig(
        {key: Value(setting.default) for key, setting in SETTINGS.items()}, FaultsByFile(), [*request.notes]
    )
    from_file = _from_settings_file(request, config)
    from_flags = _from_flags(request, config)
    config.values.update(from_file)
    config.values.update(from_flags)
    # Only now is it known which JSON file is meant; what it says goes below the other two.
    config.values.update(_from_dmq_config(config))
    config.values.update(from_file)
    config.values.update(from_flags)
    _check_together(config)
    return config


def _from_flags(request: ConfigRequest, config: EffectiveConfig) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for key, flag in request.flags.items():
        try:
            values[key] = Value(SETTINGS[key].expected.read(flag.value), COMMAND_LINE, flag.name)
        except Unfit as error:
            config.faults.add(COMMAND_LINE, Fault(flag.name, str(error)))
    return values


def _from_settings_file(request: ConfigRequest, config: EffectiveConfig) -> dict[str, Value]:
    path = request.config_file or Path(SETTINGS_FILE)
    if request.config_file is None and not path.exists():
        if request.context is not None:
            text = f"expected a file with [{CONTEXTS}.{request.context}], found no {SETTINGS_FILE}"
            config.faults.add(COMMAND_LINE, Fault("--context", text))
        return {}
    try:
        content, _ = read_small_file(path, SETTINGS_FILE_BYTES_MAX, "a configuration file")
    except ConfigFaults as error:
        config.faults.extend(error)
        return {}
    settings, contexts, faults = parse_settings(content, path.parent)
    config.faults.add(str(path), *faults)
    values = {key: Value(value, str(path), key) for key, value in settings.items()}
    if request.context is None:
        return values
    chosen = contexts.get(request.context)
    if chosen is None:
        hint = did_you_mean(request.context, contexts) or f"; it has {', '.join(contexts) or 'none'}"
        config.faults.add(str(path), Fault(f"{CONTEXTS}.{request.context}", f"no such context{hint}"))
        return values
    prefix = f"{CONTEXTS}.{request.context}"
    return values | {key: Value(value, str(path), f"{prefix}.{key}") for key, value in chosen.items()}


def _from_dmq_config(config: EffectiveConfig) -> dict[str, Value]:
    path = config.path("node.dmq_config")
    if not path.exists():
        if not config.values["node.dmq_config"].is_default:
            config.notes.append(f"{path} does not exist; going on without it, as dmq-node does")
        return {}
    try:
        content, _ = read_small_file(path, DMQ_CONFIG_FILE_BYTES_MAX, "a configuration file of dmq-node")
    except ConfigFaults as error:
        config.faults.extend(error)
        return {}
    parsed = parse_dmq_config(content)
    config.faults.add(str(path), *parsed.faults)
    config.notes.extend(f"{path}: {note}" for note in parsed.notes)
    return {key: Value(value, str(path), parsed.places[key]) for key, value in parsed.values.items()}


def _check_together(config: EffectiveConfig) -> None:
    """Values that are each fine and do not fit one another."""
    pairs = (
        ("node.connections_soft", "node.connections_hard"),
        ("node.active_peers", "node.established_peers"),
        ("node.established_peers", "node.known_peers"),
        ("node.root_peers", "node.known_peers"),
    )
    for low, high in pairs:
        if config.number(low) > config.number(high):
            # Shown where somebody set something: a default is never to blame.
            blamed = high if config.values[low].is_default else low
            least, most = config.number(low), config.number(high)
            config.fault(blamed, f"expected {low} ({least}) to be at most {high} ({most})")
    magic = config.number("node.network_magic")
    if config["node.min_sig_delay_s"] is not None and magic in PUBLIC_MAGICS:
        config.fault(
            "node.min_sig_delay_s",
            f"expected none on a public network (magic {magic}), found {config.seconds('node.min_sig_delay_s'):g}",
        )
