"""HTTP connections of the dashboard and the intake: each has a place, and a short time for TLS and for the head of a request.

A connection without a whole request has a place before the proof. The guard takes a place behind the proof for a request
that has come whole, and a kept one for a request with the right token; afterwards the connection rests before the proof.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import Any, ClassVar

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from stagepost.errors import ConfigError
from stagepost.ground.net.admission import (
    LOOPBACK_HOSTS,
    Admission,
    AdmissionLimits,
    ConnectionPlace,
    Refusal,
)
from stagepost.ground.net.bearer import LOCAL_PEER
from stagepost.web.access.guard import PLACE


class PlacedConnection(H11Protocol):  # type: ignore[misc]  # uvicorn has no types here
    """HTTP connection of one server. `admission` has its places, `tls` its certificate; None serves plain HTTP."""

    admission: ClassVar[Admission]
    tls: ClassVar[ssl.SSLContext | None]
    app: Any

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._served = self.app
        self.app = self._serve
        self._place: ConnectionPlace | None = None
        self._late: asyncio.TimerHandle | None = None
        self._opening: asyncio.Task[None] | None = None
        self._early = b""

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        scope[PLACE] = self._place
        try:
            await self._served(scope, receive, send)
        finally:
            if self._place is not None:
                self._place.rest()

    def connection_made(self, transport: Any) -> None:
        if self._place is None:
            address = transport.get_extra_info("peername")
            source = address[0] if isinstance(address, tuple) else LOCAL_PEER
            found = self.admission.enter(source, lambda _: self._hang_up(transport))
            if isinstance(found, Refusal):
                transport.abort()
                return
            self._place = found
            if self.tls is not None:
                transport.pause_reading()  # the first bytes belong to TLS
                self._opening = self.loop.create_task(self._start_tls(transport, self.tls))
                return
        super().connection_made(transport)
        self._expect_head()

    async def _start_tls(self, transport: asyncio.Transport, context: ssl.SSLContext) -> None:
        within_s = self.admission.limits.proof_within_s
        try:
            secured = await self.loop.start_tls(
                transport, self, context, server_side=True, ssl_handshake_timeout=within_s
            )
        except (OSError, ConnectionError):
            secured = None  # not TLS, too slow, or gone
        if secured is None:
            transport.abort()
            self._leave()
            return
        self.connection_made(secured)
        if self._early:
            self.data_received(self._early)

    def _expect_head(self) -> None:
        within_s = self.admission.limits.proof_within_s
        self._late = self.loop.call_later(within_s, self.transport.close)

    def data_received(self, data: bytes) -> None:
        if self.transport is None:
            self._early += data  # came with the end of the TLS handshake, which is being reported
            return
        if self._late is None and self._is_idle:
            self._expect_head()
        super().data_received(data)
        if self._late is not None and not self._is_idle:
            self._late.cancel()
            self._late = None

    @property
    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        if self.transport is not None:
            super().connection_lost(exc)

    def _hang_up(self, transport: asyncio.Transport) -> None:
        (self.transport or transport).abort()

    def _leave(self) -> None:
        if self._late is not None:
            self._late.cancel()
        if self._place is not None:
            self._place.leave()


def placed_server(config: uvicorn.Config, requests_at_once: int) -> uvicorn.Server:
    """Return a server for `config`, loaded, that serves so many requests at a time; `ConfigError` if the certificate or its key
    cannot be used."""
    limits = AdmissionLimits(soft_max=requests_at_once, hard_max=requests_at_once, delay_s=0.0)
    try:
        config.load()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or getattr(error, "reason", None) or str(error)
        raise ConfigError(
            f"the certificate {config.ssl_certfile} with the key {config.ssl_keyfile} cannot be used: {reason}",
            advice="give PEM files that belong together",
        ) from error
    context, config.ssl = config.ssl, None
    named = {
        "admission": Admission(time.monotonic, limits, exempt=LOOPBACK_HOSTS | {LOCAL_PEER}),
        "tls": context,
    }
    config.http_protocol_class = type("PlacedConnection", (PlacedConnection,), named)
    return uvicorn.Server(config)
