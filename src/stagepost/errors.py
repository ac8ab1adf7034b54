"""The whole error family on one screen.

    StagepostError
    ├── ProtocolError
    │   ├── RemoteProtocolError      the peer broke a rule: close, count
    │   │   ├── DecodeError          its bytes are not what the layout says
    │   │   │   └── TlDecodeError    the same, for objects in TL and messages in cells
    │   │   ├── ProtocolTimeout      it was silent for too long
    │   │   ├── LimitExceeded        it sent more than a named limit allows
    │   │   └── HandshakeRefused     the two sides cannot speak with each other
    │   └── LocalProtocolError       we broke a rule: a bug here
    ├── TransportError               the network failed: retried by policy
    ├── StorageError                 a file could not be read or written
    ├── SigningError                 the key cannot sign what was asked
    │   └── KesExhausted             the last period of a KES key is over
    └── ConfigError                  the operator must fix something: one sentence, exit code 2
        ├── KeyFileError             a key or certificate file cannot be used
        └── ConfigFaults             every fault of every file at once

What a protocol foresees (a rejected message, a full queue) is a value, not an exception.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple


class ErrorCode(StrEnum):
    """Stable codes that people search for; the same in library, logs, CLI and on the wire."""

    MUX_UNKNOWN_PROTOCOL = "MUX_UNKNOWN_PROTOCOL"
    MUX_TOO_LARGE = "MUX_TOO_LARGE"
    MUX_TIMEOUT = "MUX_TIMEOUT"
    MUX_INGRESS_OVERFLOW = "MUX_INGRESS_OVERFLOW"
    HANDSHAKE_WRONG_NETWORK = "HANDSHAKE_WRONG_NETWORK"
    HANDSHAKE_NO_VERSION = "HANDSHAKE_NO_VERSION"
    CBOR_TRUNCATED = "CBOR_TRUNCATED"
    CBOR_LIMIT = "CBOR_LIMIT"
    CBOR_INVALID = "CBOR_INVALID"
    TL_TRUNCATED = "TL_TRUNCATED"
    TL_LIMIT = "TL_LIMIT"
    TL_INVALID = "TL_INVALID"
    PROTOCOL_STATE = "PROTOCOL_STATE"
    PROTOCOL_REQUEST = "PROTOCOL_REQUEST"
    PROTOCOL_WINDOW = "PROTOCOL_WINDOW"
    PROTOCOL_SIZE = "PROTOCOL_SIZE"
    PROTOCOL_TIMEOUT = "PROTOCOL_TIMEOUT"
    MSG_BODY_SIZE = "MSG_BODY_SIZE"
    MSG_BAD_ID = "MSG_BAD_ID"
    MSG_EXPIRED = "MSG_EXPIRED"
    MSG_EXPIRY_TOO_FAR = "MSG_EXPIRY_TOO_FAR"
    MSG_DUPLICATE = "MSG_DUPLICATE"
    MSG_TOO_FREQUENT = "MSG_TOO_FREQUENT"
    POOL_UNKNOWN = "POOL_UNKNOWN"
    POOL_NOT_ELIGIBLE = "POOL_NOT_ELIGIBLE"
    NOT_READY = "NOT_READY"
    OPCERT_SIGNATURE = "OPCERT_SIGNATURE"
    OPCERT_COUNTER = "OPCERT_COUNTER"
    KES_PERIOD = "KES_PERIOD"
    KES_SIGNATURE = "KES_SIGNATURE"
    QUEUE_FULL = "QUEUE_FULL"
    STORAGE_UNAVAILABLE = "STORAGE_UNAVAILABLE"
    NO_CONNECTED_PEERS = "NO_CONNECTED_PEERS"
    ACK_TIMEOUT = "ACK_TIMEOUT"
    NO_QUORUM = "NO_QUORUM"
    PROOF_INVALID = "PROOF_INVALID"
    RECEIPT_FORMAT = "RECEIPT_FORMAT"
    RECEIPT_KIND = "RECEIPT_KIND"
    RECEIPT_UNSIGNED = "RECEIPT_UNSIGNED"
    RECEIPT_SOURCE = "RECEIPT_SOURCE"
    RECEIPT_ROLE = "RECEIPT_ROLE"
    RECEIPT_FUTURE = "RECEIPT_FUTURE"
    RECEIPT_SIGNATURE = "RECEIPT_SIGNATURE"
    KEY_PERMISSIONS = "KEY_PERMISSIONS"
    CONFIG_INVALID = "CONFIG_INVALID"


class WireRule(StrEnum):
    """Name of a rule of the wire that a peer broke. People can search for it; the error's code alone is too coarse."""

    TOO_DEEP = "TooDeep"
    TOO_MANY_ITEMS = "TooManyItems"
    LIST_TOO_LONG = "ListTooLong"
    MESSAGE_TOO_LONG = "MessageTooLong"
    FORBIDDEN_TYPE = "ForbiddenType"
    LONGER_THAN_NEEDED = "LongerThanNeeded"
    OLDER_MESSAGE_LAYOUT = "OlderMessageLayout"
    UNKNOWN_MESSAGE = "UnknownMessage"
    EMPTY_BLOCKING_REPLY = "EmptyBlockingReply"
    WRONG_ELEMENT_COUNT = "WrongElementCount"
    WRONG_LENGTH = "WrongLength"
    INDEFINITE_FORM = "IndefiniteForm"
    OUT_OF_RANGE = "OutOfRange"
    WRONG_TYPE = "WrongType"
    NOT_UTF8 = "NotUtf8"
    LEFTOVER_BYTES = "LeftoverBytes"
    MALFORMED = "Malformed"
    BODY_SIZE = "BodySize"
    COMPACT_SUM_SIGNATURE = "CompactSumSignature"
    OUT_OF_TURN = "OutOfTurn"
    NOT_PIPELINED = "NotPipelined"
    COOKIE_MISMATCH = "CookieMismatch"
    NOT_IN_THIS_STATE = "NotInThisState"


class StagepostError(Exception):
    """`str(error)` says what is wrong, where and with which value; `advice` says what to do."""

    default_code: ErrorCode = ErrorCode.CONFIG_INVALID

    def __init__(
        self,
        text: str,
        *,
        code: ErrorCode | None = None,
        advice: str = "",
        message_id: bytes | None = None,
        reason: str | None = None,
        limit: int | None = None,
        found: object = None,
        peer: str | None = None,
        state: str | None = None,
        offset: int | None = None,
        rule: WireRule | None = None,
    ) -> None:
        super().__init__(text)
        self.text = text
        self.code = code or self.default_code
        self.advice = advice
        self.message_id = message_id
        self.reason = reason
        self.limit = limit
        self.found = found
        self.peer = peer
        self.state = state
        self.offset = offset
        self.rule = rule


class ProtocolError(StagepostError):
    """A rule of a protocol was broken; the subclass says by whom."""

    default_code = ErrorCode.PROTOCOL_STATE


class RemoteProtocolError(ProtocolError):
    """The peer broke a rule."""


class DecodeError(RemoteProtocolError):
    """Bytes that are not what the layout says; `offset` is where the first fault lies."""

    default_code = ErrorCode.CBOR_INVALID


class TlDecodeError(DecodeError):
    """Bytes that are not the TL object, or the bag of cells, that the schema says."""

    default_code = ErrorCode.TL_INVALID


class ProtocolTimeout(RemoteProtocolError):
    """The peer had the word and did not use it in time."""

    default_code = ErrorCode.PROTOCOL_TIMEOUT


class LimitExceeded(RemoteProtocolError):
    """The peer sent more than a named limit allows."""

    default_code = ErrorCode.CBOR_LIMIT


class HandshakeRefused(RemoteProtocolError):
    """No version, or no network, in common."""

    default_code = ErrorCode.HANDSHAKE_NO_VERSION


class LocalProtocolError(ProtocolError):
    """We broke a rule: a bug on this side."""


class TransportError(StagepostError):
    """The connection failed or was closed under us."""

    default_code = ErrorCode.NO_CONNECTED_PEERS


class StorageError(StagepostError):
    """A file could not be read or written."""

    default_code = ErrorCode.STORAGE_UNAVAILABLE


class SigningError(StagepostError):
    """The key at hand cannot sign what was asked."""

    default_code = ErrorCode.KES_PERIOD


class KesExhausted(SigningError):
    """The KES key has used its last period."""


class ConfigError(StagepostError):
    """The operator must fix something before anything can start."""

    default_code = ErrorCode.CONFIG_INVALID


class KeyFileError(ConfigError):
    """A key or certificate file cannot be used as it is."""


FAULTS_SHOWN_MAX = 100
"""Per file: a file of the wrong kind altogether must not fill the screen."""


class FileFault(NamedTuple):
    """Fault in a file: `where` is the key or the path to it, `text` says what was expected and found."""

    where: str
    text: str


class ConfigFaults(ConfigError):
    """Everything that is wrong, file by file, so that one look is enough to repair it."""

    def __init__(self, faults: Mapping[str, Iterable[FileFault]], *, advice: str = "") -> None:
        self.faults = {file: tuple(found) for file, found in faults.items()}
        self.faults = {file: found for file, found in self.faults.items() if found}
        super().__init__(
            "\n".join(line for file, found in self.faults.items() for line in _listed(file, found)),
            advice=advice,
        )


def _listed(file: str, faults: tuple[FileFault, ...]) -> list[str]:
    shown = faults[:FAULTS_SHOWN_MAX]
    width = max(len(fault.where) for fault in shown)
    lines = [f"{file}: {len(faults)} problem{'s' if len(faults) > 1 else ''}"]
    lines += [f"  {fault.where:<{width}}   {fault.text}" for fault in shown]
    if len(faults) > len(shown):
        lines.append(f"  and {len(faults) - len(shown)} more")
    # Files come from strangers, too: their bytes must not steer the terminal.
    return ["".join(one if one.isprintable() or one == "\n" else "·" for one in line) for line in lines]
