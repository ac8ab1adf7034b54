"""The client of a KES agent: it fetches a pool's key and certificate over a Unix socket, so that no key lies on disk.

The agent keeps the key evolved and erases earlier periods. The key comes evolved to the present period, lives in this
process's memory, and evolves on there; the agent is asked again now and then, for a renewed pair. The cold
verification key is not part of the protocol: the operator names its file. Integers are big-endian.
"""

from __future__ import annotations

import socket
import struct
import time
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from stagepost.dmq.key_texts import ColdVerificationKey, IssuedCertificate
from stagepost.dmq.keys import key_files
from stagepost.errors import ErrorCode, KeyFileError, StagepostError, TransportError
from stagepost.ground.crypto.kes import SigningKey
from stagepost.ground.crypto.operational_certificate import OperationalCertificate

NAME_BYTES = 32
"""Bytes of a version name, filled with zeros."""
VERSION = b"Service:2.0".ljust(NAME_BYTES, b"\0")
VERSIONS_MAX = 16
"""Versions that an agent offers; known agents offer three."""
KEY_BYTES = 608
KEY_MESSAGE = struct.Struct(f">Q{KEY_BYTES}sI32sQQ64s")
"""After the tag: time in microseconds, key, relative period, and the certificate's four fields."""
DROP_MESSAGE = struct.Struct(">Q")
ANSWERS_WITHIN_S = 10.0
"""Seconds for the whole conversation. An agent without a key says nothing."""
_KEY, _DROP = 0, 1
_ACCEPT, _NO_COMMON_VERSION = b"\x01", b"\x00"


class AgentResult(IntEnum):
    """Answer of the client to a key or to the order to forget one."""

    TAKEN = 0
    OUTDATED = 1
    BAD_CERTIFICATE = 2
    NO_KEY = 3
    UNSUPPORTED = 4
    OTHER = 0xFFFF

    def encode(self) -> bytes:
        return self.to_bytes(4, "big")


def choose_version(offer: bytes) -> bytes:
    """Return the client's answer to the offered version names: the one that this client speaks, or none."""
    names = {offer[at : at + NAME_BYTES] for at in range(0, len(offer), NAME_BYTES)}
    return _ACCEPT + VERSION if VERSION in names else _NO_COMMON_VERSION


def read_key(content: bytes) -> tuple[SigningKey, OperationalCertificate]:
    """Return key and certificate of a key message without its tag; raise `KeyFileError` if they cannot be used."""
    _, raw, period, verification_key, number, start, signature = KEY_MESSAGE.unpack(content)
    # The form with the period behind the key makes the two be compared.
    key = SigningKey.from_bytes(raw + period.to_bytes(4, "big"))
    return key, OperationalCertificate(verification_key, number, start, signature)


@dataclass(frozen=True)
class KesAgent:
    """KES agent at a socket, and the pool whose key it keeps."""

    socket: Path
    cold_verification_key: bytes
    answers_within_s: float = ANSWERS_WITHIN_S

    @classmethod
    def named(cls, socket_path: Path, cold_key_file: Path) -> KesAgent:
        """Return the agent at `socket_path`; the file holds the pool's cold verification key, as cardano-cli writes it."""
        return cls(socket_path, key_files.load_as(ColdVerificationKey, cold_key_file).verification_key)

    def fetch(self) -> tuple[SigningKey, IssuedCertificate]:
        """Return the present key and certificate, which fit together; raise `StagepostError` if there are none."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                talk = _Talk(connection, time.monotonic() + self.answers_within_s)
                talk.set_time_left()
                connection.connect(str(self.socket))
                return self._converse(talk)
        except TimeoutError:
            raise self._fault(
                f"it sent no key within {self.answers_within_s:g} s",
                "install a key in the agent; an agent without one says nothing",
            ) from None
        except OSError as error:
            raise self._fault(f"{error.strerror or error}", "check that the agent runs") from error

    def _converse(self, talk: _Talk) -> tuple[SigningKey, IssuedCertificate]:
        count = int.from_bytes(talk.take(4), "big")
        if not 1 <= count <= VERSIONS_MAX:
            raise self._fault(f"it offers {count} versions", "check that the socket is a KES agent's")
        answer = choose_version(talk.take(count * NAME_BYTES))
        talk.put(answer)
        if answer == _NO_COMMON_VERSION:
            raise self._fault("it does not offer Service:2.0", "use a kes-agent of 2025 or later")
        if talk.take(NAME_BYTES) != VERSION:
            raise self._fault("it began another version than it was asked for", "report this")
        while True:
            tag = talk.take(1)[0]
            if tag == _KEY:
                return self._taken(talk, talk.take(KEY_MESSAGE.size))
            if tag != _DROP:
                talk.put(AgentResult.UNSUPPORTED.encode())
                raise self._fault(f"it sent a message of kind {tag}", "known kinds are 0 and 1")
            # Its former key was removed; a new one may follow.
            talk.take(DROP_MESSAGE.size)
            talk.put(AgentResult.TAKEN.encode())

    def _taken(self, talk: _Talk, content: bytes) -> tuple[SigningKey, IssuedCertificate]:
        try:
            key, certificate = read_key(content)
            issued = IssuedCertificate(certificate, self.cold_verification_key)
            if certificate.kes_verification_key != key.verification_key:
                raise KeyFileError("its certificate was issued for another KES key than it sent")
            if not issued.is_valid:
                raise KeyFileError(
                    "its certificate was not signed by the cold key that was named",
                    code=ErrorCode.OPCERT_SIGNATURE,
                )
        except StagepostError as error:
            talk.put(AgentResult.BAD_CERTIFICATE.encode())
            raise KeyFileError(
                f"KES agent at {self.socket}: {error.text}",
                code=error.code,
                advice="check --cold-vkey, and the key and certificate in the agent",
            ) from error
        talk.put(AgentResult.TAKEN.encode())
        return key, issued

    def _fault(self, text: str, advice: str) -> TransportError:
        return TransportError(f"KES agent at {self.socket}: {text}", advice=advice)


class _Talk:
    """Byte stream with one deadline for all of it."""

    def __init__(self, connection: socket.socket, deadline_s: float) -> None:
        self._connection = connection
        self._deadline_s = deadline_s

    def set_time_left(self) -> None:
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._connection.settimeout(left_s)

    def take(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            self.set_time_left()
            part = self._connection.recv(count - len(parts))
            if not part:
                raise ConnectionResetError(f"it closed the connection after {len(parts)} of {count} bytes")
            parts += part
        return bytes(parts)

    def put(self, content: bytes) -> None:
        self.set_time_left()
        self._connection.sendall(content)
