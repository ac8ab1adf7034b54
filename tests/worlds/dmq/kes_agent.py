"""A pretend KES agent on a Unix socket: it speaks from given bytes, and keeps what its clients say."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from stagepost.ground.crypto import ed25519, kes
from stagepost.ground.crypto.operational_certificate import issue

VERSION = b"Service:2.0".ljust(32, b"\0")
OFFER = (2).to_bytes(4, "big") + VERSION + b"Service:1.0".ljust(32, b"\0")
WITHIN_S = 30.0


def key_message(key: kes.SigningKey, cold_seed: bytes, *, number: int = 0, start: int = 0) -> bytes:
    """The message with which an agent hands out a key, built from the rules."""
    certificate = issue(
        key.verification_key, issue_number=number, start_kes_period=start, cold_seed=cold_seed
    )
    return b"".join(
        [
            b"\0",
            (1_790_000_000_000_000).to_bytes(8, "big"),
            key.to_bytes()[:608],
            key.period.to_bytes(4, "big"),
            certificate.kes_verification_key,
            number.to_bytes(8, "big"),
            start.to_bytes(8, "big"),
            certificate.cold_signature,
        ]
    )


@dataclass
class PretendKesAgent:
    """`says` holds what it sends: the first at once, each further part after the client has said something."""

    says: Sequence[bytes]
    closes: bool = False
    heard: list[bytes] = field(default_factory=list)
    visits: int = 0

    def serve(self, connection: socket.socket) -> None:
        self.visits += 1
        connection.settimeout(WITHIN_S)
        for index, part in enumerate(self.says):
            if index:
                self.heard.append(connection.recv(65_536))
            connection.sendall(part)
        if not self.closes:
            self.heard.append(connection.recv(65_536))


@contextmanager
def running(agent: PretendKesAgent, path: Path) -> Iterator[PretendKesAgent]:
    """The agent serves one client after the other until the context ends."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(path))
        listening.listen()

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    try:
                        agent.serve(connection)
                    except OSError:
                        continue

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield agent
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(WITHIN_S)
            path.unlink()


def verification_key(cold_seed: bytes) -> bytes:
    return ed25519.public_key(cold_seed)
