"""Filters that choose messages and receipts: one set of names for the command line, the query of a URL and the API.

    id         a message id, or the digits that it begins with
    outcome    verdicts, several with commas: `rejected,expired`
    kind       kinds of receipts, several with commas: `Finalized,RejectedByQueue`
    since      from this moment on: ISO 8601, Unix milliseconds, or how long ago (`10m`)
    until      before this moment
    topic      the topic of the delivery layer that the message was sent on
    pool       the pool that signed its DMQ message: 56 hexadecimal digits or pool1…
    validator  a validator's name, or its key id, or eight of the first digits of the key id and more, or V3 (the third of
               the session that decided)

Texts become conditions with parameters, so what a stranger writes is never part of a query. What a filter lets through can be
written as one file. Needs no Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec

from stagepost.errors import ConfigError
from stagepost.ground.crypto.hashing import parse_pool_id
from stagepost.ground.files.durations import parse_moment
from stagepost.ground.identifiers import INT64_MAX
from stagepost.pipeline.tables.reader import Reader, quoted
from stagepost.remp.receipts.status import KINDS
from stagepost.remp.verdict.verdict import Conclusion

NAMES = ("id", "outcome", "kind", "since", "until", "topic", "pool", "validator")
OUTCOMES = tuple(conclusion.value for conclusion in Conclusion)
KIND_NAMES = tuple(kind.name for kind in KINDS)
TEXT_CHARACTERS_MAX = 256
KEY_DIGITS_MIN = 8
NAMES_SHOWN = 4
"""Names of validators in an error, at most."""
TIME_MS_MAX = INT64_MAX

MESSAGE_TIME = (
    "least(m.sent_ms, m.queued_ms, m.included_ms, m.accepted_ms, m.finalized_ms, m.rejected_ms, m.timeout_ms)"
)
"""The moment of a message is the first that any receipt states of it."""

_NAMELESS: Mapping[bytes, str] = {}
_DIGITS = re.compile(r"[0-9a-f]{1,64}", re.ASCII)
_MEMBER = re.compile(r"[vV]([1-9][0-9]{0,4})", re.ASCII)


class Condition(NamedTuple):
    """Condition that follows WHERE, and its parameters in their order; `true` where everything is wanted."""

    text: str
    parameters: list[Any]


class MessageFilter(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything that is given must hold. `MessageFilter()` is everything."""

    id: str | None = None
    outcome: tuple[str, ...] = ()
    kind: tuple[str, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    topic: str | None = None
    pool: str | None = None
    validator: str | None = None
    validator_name: str | None = None
    """The name that stands for the key id in `validator`."""

    @classmethod
    def read(
        cls, given: Mapping[str, str | None], now_unix_s: float, names: Mapping[bytes, str] = _NAMELESS
    ) -> MessageFilter:
        """From texts by the names above; an empty text is none. `names` are the names of validators by their key ids.
        `ConfigError` names what cannot be understood."""
        unknown = sorted(given.keys() - set(NAMES))
        if unknown:
            raise ConfigError(f"there is no filter {unknown[0]!r}", advice=f"one of: {', '.join(NAMES)}")
        texts = {name: text.strip() for name, text in given.items() if text is not None and text.strip()}
        for name, text in texts.items():
            if len(text) > TEXT_CHARACTERS_MAX:
                raise ConfigError(
                    f"the filter {name} has {len(text)} characters",
                    advice=f"at most {TEXT_CHARACTERS_MAX}",
                    limit=TEXT_CHARACTERS_MAX,
                )
        validator, validator_name = _validator(texts.get("validator"), names)
        return cls(
            id=_id(texts.get("id")),
            outcome=_words("outcome", texts.get("outcome"), OUTCOMES),
            kind=_words("kind", texts.get("kind"), KIND_NAMES),
            since_ms=_moment("since", texts.get("since"), now_unix_s),
            until_ms=_moment("until", texts.get("until"), now_unix_s),
            topic=texts.get("topic"),
            pool=_pool(texts.get("pool")),
            validator=validator,
            validator_name=validator_name,
        )

    def texts(self) -> dict[str, str]:
        """Return the filter as a URL carries it: `read` gives the same filter back, at any later time."""
        found = {
            "id": self.id,
            "outcome": ",".join(self.outcome),
            "kind": ",".join(self.kind),
            "since": None if self.since_ms is None else moment_text(self.since_ms),
            "until": None if self.until_ms is None else moment_text(self.until_ms),
            "topic": self.topic,
            "pool": self.pool,
            "validator": self.validator_name or self.validator,
        }
        return {name: text for name, text in found.items() if text}

    def messages(self) -> Condition:
        """On the rows of `messages m`. Kind and validator: a receipt that counts is of that kind, or by that validator."""
        condition = _Conditions()
        if self.id is not None:
            condition.add("starts_with(m.message_id, ?)", self.id)
        condition.add_words("m.verdict", self.outcome)
        if self.since_ms is not None:
            condition.add(f"{MESSAGE_TIME} >= ?", self.since_ms)
        if self.until_ms is not None:
            condition.add(f"{MESSAGE_TIME} < ?", self.until_ms)
        self._add_layers_before(condition)
        if self.kind or self.validator is not None:
            inner = _Conditions()
            inner.add("r.message_id = m.message_id")
            inner.add_words("r.kind", self.kind)
            self._add_signer(inner)
            condition.add(f"EXISTS (SELECT 1 FROM receipts r WHERE {inner.text})", *inner.parameters)
        return condition.made()

    def receipts(self) -> Condition:
        """On the rows of `receipts r JOIN messages m USING (message_id)`: times, kinds and signers are the receipt's own."""
        condition = _Conditions()
        if self.id is not None:
            condition.add("starts_with(r.message_id, ?)", self.id)
        condition.add_words("m.verdict", self.outcome)
        condition.add_words("r.kind", self.kind)
        if self.since_ms is not None:
            condition.add("r.timestamp_ms >= ?", self.since_ms)
        if self.until_ms is not None:
            condition.add("r.timestamp_ms < ?", self.until_ms)
        self._add_layers_before(condition)
        self._add_signer(condition)
        return condition.made()

    def tables(self) -> tuple[str, ...]:
        """Return the tables that the two conditions look at, beside `messages` and `receipts`."""
        wanted = {
            "delivery_events": self.topic is not None,
            "dmq_messages": self.pool is not None,
            "validators": self.validator is not None and _MEMBER.fullmatch(self.validator) is not None,
        }
        return tuple(name for name, is_wanted in wanted.items() if is_wanted)

    def _add_layers_before(self, condition: _Conditions) -> None:
        if self.topic is not None:
            condition.add(
                "m.delivery_id IN (SELECT e.delivery_id FROM delivery_events e WHERE e.topic = ?)", self.topic
            )
        if self.pool is not None:
            condition.add(
                "m.dmq_id IN (SELECT d.dmq_id FROM dmq_messages d WHERE d.pool_id = ? AND d.valid)", self.pool
            )

    def _add_signer(self, condition: _Conditions) -> None:
        if self.validator is None:
            return
        member = _MEMBER.fullmatch(self.validator)
        if member is None:
            condition.add("r.role = 'validator'")
            condition.add("starts_with(r.source_id, ?)", self.validator)
        else:
            condition.add(
                "EXISTS (SELECT 1 FROM validators v WHERE v.session_id = m.session_id"
                " AND v.source_id = r.source_id AND v.validator = ?)",
                int(member[1]) - 1,
            )


class _Conditions:
    def __init__(self) -> None:
        self._parts: list[str] = []
        self.parameters: list[Any] = []

    @property
    def text(self) -> str:
        return " AND ".join(self._parts) or "true"

    def add(self, part: str, *parameters: Any) -> None:
        self._parts.append(part)
        self.parameters += parameters

    def add_words(self, column: str, words: Iterable[str]) -> None:
        if wanted := list(words):
            self.add(f"{column} IN ({', '.join('?' * len(wanted))})", *wanted)

    def made(self) -> Condition:
        return Condition(self.text, self.parameters)


def moment_text(time_ms: int) -> str:
    """ISO 8601 in UTC with milliseconds, where the calendar has the moment; else the milliseconds themselves."""
    try:
        return datetime.fromtimestamp(time_ms // 1_000, UTC).strftime(
            f"%Y-%m-%dT%H:%M:%S.{time_ms % 1_000:03d}Z"
        )
    except (ValueError, OverflowError, OSError):
        return str(time_ms)


def _id(text: str | None) -> str | None:
    if text is None:
        return None
    digits = text.lower()
    if _DIGITS.fullmatch(digits) is None:
        raise ConfigError(
            f"{text!r} is not a message id", advice="give the first of its 64 hexadecimal digits"
        )
    return digits


def _words(name: str, text: str | None, known: tuple[str, ...]) -> tuple[str, ...]:
    by_word = {word.lower(): word for word in known}
    found: list[str] = []
    for word in (text or "").split(","):
        if not word.strip():
            continue
        meant = by_word.get(word.strip().lower())
        if meant is None:
            raise ConfigError(f"{word.strip()!r} is not a known {name}", advice=f"one of: {', '.join(known)}")
        found.append(meant)
    return tuple(dict.fromkeys(found))


def _moment(name: str, text: str | None, now_unix_s: float) -> int | None:
    if text is None:
        return None
    if text.isascii() and text.isdigit():
        time_ms = int(text)
    else:
        try:
            time_ms = round(parse_moment(text, now_unix_s) * 1_000)
        except (ValueError, OverflowError, OSError) as error:
            raise ConfigError(
                f"the filter {name}: {error}", advice="write 2026-01-31T12:00:00Z, 10m, or Unix milliseconds"
            ) from None
    if not 0 <= time_ms <= TIME_MS_MAX:
        raise ConfigError(f"the filter {name} is {text}, out of range", advice="give a time after 1970")
    return time_ms


def _pool(text: str | None) -> str | None:
    return None if text is None else parse_pool_id(text).hex()


def _validator(text: str | None, names: Mapping[bytes, str]) -> tuple[str | None, str | None]:
    """Return the key id, its first digits or the place, and the name if the text is one."""
    if text is None:
        return None, None
    for key_id, name in names.items():
        if name == text:
            return key_id.hex(), name
    if _MEMBER.fullmatch(text) is not None:
        return text.upper(), None
    digits = text.lower()
    if len(digits) < KEY_DIGITS_MIN or _DIGITS.fullmatch(digits) is None:
        known = f"one of the names {', '.join(sorted(names.values())[:NAMES_SHOWN])}; or " if names else ""
        raise ConfigError(
            f"{text!r} is not a validator",
            advice=f"write {known}V1, V2, … for a place in the session, or {KEY_DIGITS_MIN} or more digits of the key id",
        )
    return digits, None


EXPORT_MEMORY_MAX = "512MB"
"""Bytes of memory of an export; DuckDB writes while it reads, and puts aside on the disk what does not fit."""


class Exported(StrEnum):
    MESSAGES = "messages"
    RECEIPTS = "receipts"


class FileFormat(StrEnum):
    CSV = "csv"
    JSONL = "jsonl"
    PARQUET = "parquet"


def query_of(what: Exported, wanted: MessageFilter) -> Condition:
    """Return the whole query, in a fixed order, and its parameters."""
    if what is Exported.MESSAGES:
        condition = wanted.messages()
        text = f"SELECT m.* FROM messages m WHERE {condition.text} ORDER BY m.message_id"
    else:
        condition = wanted.receipts()
        text = (
            "SELECT r.* FROM receipts r JOIN messages m ON m.message_id = r.message_id "
            f"WHERE {condition.text} ORDER BY r.message_id, r.timestamp_ms, r.source_id, r.kind"
        )
    return Condition(text, condition.parameters)


def require_tables(reader: Reader, wanted: MessageFilter) -> None:
    """Raise a `StorageError` that names a table which has not been made yet, if one is needed."""
    for name in (Exported.MESSAGES.value, Exported.RECEIPTS.value, *wanted.tables()):
        reader.known(name)


def export(reader: Reader, what: Exported, wanted: MessageFilter, to: FileFormat, out: str) -> int:
    """Write the rows that `wanted` lets through into one file, or to the standard output for `-`. Return their number."""
    require_tables(reader, wanted)
    query = query_of(what, wanted)
    # A cursor sees the same tables; the limits stay with this reader.
    with TemporaryDirectory(prefix="stagepost-export-") as spill, reader.cursor() as connection:
        connection.execute(f"SET temp_directory = {quoted(spill)}")
        connection.execute(f"SET memory_limit = '{EXPORT_MEMORY_MAX}'")
        return reader.copy(connection, what.value, query.text, query.parameters, f".{to.value}", out)
