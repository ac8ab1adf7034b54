"""`stagepost.toml`: what one file sets, with every fault of it; and the commented file that `config init` writes.

Faults of several files and of the command line, collected before anything is started.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from stagepost.config.settings import ABSENT, SECTIONS, Setting
from stagepost.errors import ConfigFaults, FileFault
from stagepost.ground.files.documents import WHOLE_FILE, did_you_mean
from stagepost.ground.files.expected import UnexpectedValue, found

SETTINGS_FILE = "stagepost.toml"
SETTINGS_FILE_BYTES_MAX = 1_048_576
CONTEXTS = "contexts"
RETIRED: Mapping[str, str] = {
    "node.root_peers": "it never had an effect, for every root peer of the topology is used: remove the line",
}
"""Settings that earlier versions accepted, and what to do about each."""

_PLACE = re.compile(r"^(?P<text>.*) \(at (?P<where>line \d+, column \d+|end of document)\)$")

Settings = dict[str, object]
"""Values by key (`node.port`), checked."""


def parse_settings(content: bytes, folder: Path) -> tuple[Settings, dict[str, Settings], list[FileFault]]:
    """Return the settings at the top of the file, those of each context, and all faults of both."""
    try:
        document = tomllib.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        return (
            {},
            {},
            [FileFault(f"byte {error.start}", "expected UTF-8 text, found a byte that is not valid UTF-8")],
        )
    except tomllib.TOMLDecodeError as error:
        return {}, {}, [_syntax_fault(str(error))]
    except (RecursionError, ValueError):
        return (
            {},
            {},
            [FileFault(WHOLE_FILE, "expected TOML, found a number or a nesting that is too large to read")],
        )
    faults: list[FileFault] = []
    contexts = document.pop(CONTEXTS, {})
    settings = _read_sections(document, "", folder, faults)
    by_context: dict[str, Settings] = {}
    if not isinstance(contexts, dict):
        faults.append(
            FileFault(CONTEXTS, f"expected named parts such as [contexts.preview], found {found(contexts)}")
        )
        contexts = {}
    for name, part in contexts.items():
        path = f"{CONTEXTS}.{name}"
        if isinstance(part, dict):
            by_context[name] = _read_sections(part, f"{path}.", folder, faults)
        else:
            faults.append(FileFault(path, f"expected settings such as node.port, found {found(part)}"))
    return settings, by_context, faults


def _read_sections(
    document: Mapping[str, object], path: str, folder: Path, faults: list[FileFault]
) -> Settings:
    settings: Settings = {}
    for section, fields in document.items():
        known = SECTIONS.get(section)
        if known is None:
            choices = [*SECTIONS, CONTEXTS] if not path else [*SECTIONS]
            hint = did_you_mean(section, choices) or f"; the sections are {', '.join(choices)}"
            faults.append(FileFault(path + section, f"unknown section{hint}"))
        elif not isinstance(fields, dict):
            faults.append(FileFault(path + section, f"expected a section, found {found(fields)}"))
        else:
            for name, value in fields.items():
                _read_setting(known, section, name, value, path, folder, faults, settings)
    return settings


def _read_setting(
    known: Mapping[str, Setting],
    section: str,
    name: str,
    value: object,
    path: str,
    folder: Path,
    faults: list[FileFault],
    settings: Settings,
) -> None:
    where = f"{path}{section}.{name}"
    setting = known.get(name)
    if setting is None:
        retired = RETIRED.get(f"{section}.{name}")
        hint = did_you_mean(name, known) if retired is None else f"; {retired}"
        faults.append(FileFault(where, f"unknown key{hint}"))
        return
    try:
        checked = setting.expected.read(value)
    except UnexpectedValue as error:
        faults.append(FileFault(where, str(error)))
        return
    settings[setting.key] = str(folder / str(checked)) if setting.is_path else checked


def _syntax_fault(message: str) -> FileFault:
    match = _PLACE.match(message)
    where, text = (match["where"], match["text"]) if match else (WHOLE_FILE, message)
    return FileFault(where, f"expected TOML, found a fault: {text}")


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────


_HEAD = """\
# Settings of Stagepost. Every line shows a default or an example: remove the # from a line that you change.
# Flags override this file; this file overrides dmq-node's JSON configuration. Unknown keys are errors.
# Relative paths count from the folder of this file. Secrets do not belong here.
"""
_TAIL = """\
# Named parts: with --context NAME, the part [contexts.NAME] overrides the settings above.
#
# [contexts.preview]
# node.network_magic = 2147483650
"""
_ABOUT_COLUMN = 42


def initial_file() -> str:
    """A file that sets nothing and shows everything: each setting with its default, commented out.

    A default that is written down would win over dmq-node's own configuration file.
    """
    blocks = [_HEAD]
    for section, settings in SECTIONS.items():
        lines = [f"[{section}]", *(_initial_line(setting) for setting in settings.values())]
        blocks.append("\n".join(lines) + "\n")
    return "\n".join([*blocks, _TAIL])


def _initial_line(setting: Setting) -> str:
    shown = toml_value(setting.example if setting.default is ABSENT else setting.default)
    line = f"# {setting.name} = {shown}"
    return f"{line:<{_ABOUT_COLUMN}} # {setting.about}"


def toml_value(value: object) -> str:
    """TOML and JSON write these values alike; None has no TOML, and stands here only for a port that is off."""
    if value is None:
        return '"off"'
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)


COMMAND_LINE = "command line"


class FaultsByFile:
    """In the order in which the files were looked at."""

    def __init__(self) -> None:
        self._faults: dict[str, list[FileFault]] = {}

    def __bool__(self) -> bool:
        return bool(self._faults)

    def add(self, file: str, *faults: FileFault) -> None:
        if faults:
            self._faults.setdefault(file, []).extend(faults)

    def extend(self, other: ConfigFaults) -> None:
        for file, faults in other.faults.items():
            self.add(file, *faults)

    def of(self, file: str) -> Iterable[FileFault]:
        return self._faults.get(file, [])

    def error(self) -> ConfigFaults:
        return ConfigFaults(self._faults)

    def raise_if_any(self) -> None:
        if self._faults:
            raise self.error()
