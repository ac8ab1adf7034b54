"""Runs a peer program: commands go in as lines, what it saw comes out as one JSON object per line."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from stagepost.dmq.message import DmqMessage, sign_message, write_certificate
from stagepost.ground.wire.cbor import write_array, write_bytes, write_unsigned
from tests.worlds.dmq.node_processes import NETWORK_MAGIC, TTL_S, Pool

# Generous: the machine may be busy, and nothing here is about speed.
SAID_WITHIN_S = 60.0
ENDED_WITHIN_S = 60.0
LINE_BYTES_MAX = 16 * 1024 * 1024


class PeerProgram:
    """A running peer, ended by its id when the context is left."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log
        self.said: list[dict[str, Any]] = []

    @classmethod
    @asynccontextmanager
    async def started(
        cls, program: Path, role: str, place: str | Path = "", *, log: Path, magic: int = NETWORK_MAGIC
    ) -> AsyncIterator[PeerProgram]:
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                program,
                role,
                str(magic),
                str(place),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                limit=LINE_BYTES_MAX,
            )
        try:
            yield cls(process, log)
        finally:
            assert process.stdin is not None
            process.stdin.close()  # a peer ends with its input
            try:
                async with asyncio.timeout(ENDED_WITHIN_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()

    async def do(self, *words: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(words).encode() + b"\n")
        await self._process.stdin.drain()

    async def hear(self, event: str) -> dict[str, Any]:
        """The next event of this name. Other events before it are passed over, an error is not."""
        assert self._process.stdout is not None
        while True:
            try:
                async with asyncio.timeout(SAID_WITHIN_S):
                    line = await self._process.stdout.readline()
            except TimeoutError:
                raise AssertionError(f"no {event} within {SAID_WITHIN_S:g} s; {self._story}") from None
            assert line, f"the peer ended before {event}; {self._story}"
            said: dict[str, Any] = json.loads(line)
            self.said.append(said)
            if said["event"] == event:
                return said
            assert said["event"] not in ("error", "send-failed", "refused-here", "not-connected"), self._story

    async def hear_messages(self, count: int) -> list[bytes]:
        """As many messages as this, in one reply or in several, as the peer would forward them."""
        heard: list[bytes] = []
        while len(heard) < count:
            reply = await self.hear("messages")
            heard += [bytes.fromhex(message) for message in reply["messages"]]
        return heard

    @property
    def _story(self) -> str:
        return f"it said {self.said[-10:]} and logged:\n{self._log.read_text()[-4000:]}"


class InteropPool(Pool):
    """Signs both layouts: the older one, of 4 elements, is the only one that the documents' library knows."""

    def sign(self, *, older: bool, body_bytes: int = 120, ttl_s: int = TTL_S) -> DmqMessage:
        body = secrets.token_bytes(body_bytes)
        expires_at = int(time.time()) + ttl_s
        new = sign_message(
            body,
            key=self._key,
            certificate=self._certificate,
            cold_verification_key=self.cold_verification_key,
            kes_period=0,
            expires_at=expires_at,
        )
        if not older:
            return new
        payload = write_array(
            write_bytes(new.message_id), write_bytes(body), write_unsigned(0), write_unsigned(expires_at)
        )
        raw = write_array(
            payload,
            write_bytes(self._key.sign(payload)),
            write_certificate(self._certificate),
            write_bytes(self.cold_verification_key),
        )
        return DmqMessage.decode(raw, profile="seed")
