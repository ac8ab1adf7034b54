"""The sender of events to a webhook: a bounded queue, one thread, repetitions with a back-off, and no way into private networks.

    sink = Webhook(WebhookConfig(url="https://example.org/hook", secret="…"))
    sink.put(WebhookEvent(id, body))
    sink.close()

Each event is one POST. An answer of the 2xx kind ends it; 5xx, 408, 429 and faults of the connection are tried again; any
other answer, a redirection among them, drops the event. 410 (gone) drops all events from then on, as the rules of webhooks
ask.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import logging
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from stagepost.errors import ConfigError, TransportError
from stagepost.ground.net.admission import is_global

EVENTS_WAITING_MAX = 10_000
"""Events, at most, that wait for the receiver; above it new events are counted and dropped."""
ATTEMPTS_MAX = 8
"""Attempts, at most, to send one event."""
FIRST_DELAY_S = 0.5
DELAY_S_MAX = 60.0
"""Seconds, at most, between two attempts, whatever the receiver asks for."""
ANSWER_BYTES_MAX = 65_536
"""Bytes of an answer's body, at most, that are read; the content is ignored."""
CLOSED_WITHIN_S = 5.0
"""Seconds, at most, that `close` waits for events that are not sent yet."""
TOKEN_VARIABLE = "STAGEPOST_WEBHOOK_TOKEN"
SECRET_VARIABLE = "STAGEPOST_WEBHOOK_SECRET"

_SPREAD = 0.2
_AGAIN = frozenset({408, 425, 429})
_GONE = 410

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class WebhookConfig:
    """Address of a receiver of events, and the protection of what is sent there. Faults are named at construction.

    `token` is sent as `Authorization: Bearer …`. With a `secret` each event carries the headers of Standard Webhooks:
    `webhook-id`, `webhook-timestamp` and `webhook-signature`, an HMAC-SHA256 over id, time and body. Only `https` and public
    addresses are allowed, unless `allow_private` is set: a receiver in one's own network, or on this machine.
    """

    url: str
    token: str | None = field(default=None, repr=False)
    secret: str | None = field(default=None, repr=False)
    allow_private: bool = False
    timeout_s: float = 10.0
    content_type: str = "application/cloudevents+json; charset=utf-8"

    def __post_init__(self) -> None:
        fault = self._fault()
        if fault is not None:
            raise ConfigError(
                f"webhook: {fault}", advice="correct [webhook] of the settings, or the arguments"
            )

    def _fault(self) -> str | None:
        try:
            parts = self.parts
            parts.port  # noqa: B018  # raises for a port that cannot be
        except ValueError as error:
            return f"{self.url!r} is not an address: {error}"
        if parts.scheme not in ("https", "http") or not parts.hostname:
            return f"{self.url!r} is not an address that begins with https://"
        if parts.scheme == "http" and not self.allow_private:
            return f"{self.url!r} is not protected: give an https address, or set allow_private"
        if parts.username is not None or parts.password is not None:
            return "the address holds a name or password: use the token"
        for name, value in (("token", self.token), ("secret", self.secret)):
            if value is not None and not (value and value.isascii() and value.isprintable()):
                return f"the {name} is empty, or holds characters that a header cannot carry"
        if not self.timeout_s > 0:
            return f"timeout_s is {self.timeout_s!r}, expected more than 0 seconds"
        return None

    @property
    def parts(self) -> SplitResult:
        return urlsplit(self.url)


class WebhookEvent(NamedTuple):
    """Request to post one event. `id` is the same in every attempt: receivers tell repetitions by it."""

    id: str
    body: bytes


@dataclass(slots=True)
class WebhookCounts:
    sent: int = 0
    repeated: int = 0
    refused: int = 0  # the receiver will not take the event
    dropped: int = 0  # the queue was full, the attempts were used up, or the sink was closed


def allowed_address(host: str, port: int, *, allow_private: bool) -> tuple[int, str]:
    """Return family and address of `host`; `TransportError` if it has none, or one that is not public.

    The caller connects to this very address: a name that resolves to another one a moment later changes nothing.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise TransportError(f"{host} has no address: {error}") from error
    for _, _, _, _, place in found:
        address = str(place[0])
        if not allow_private and not is_global(address):
            raise ConfigError(
                f"webhook: {host} has the address {address}, which is not public",
                advice="set allow_private for a receiver in your own network",
                found=address,
            )
    family, _, _, _, place = found[0]
    return family, str(place[0])


class _Connection(http.client.HTTPConnection):
    """A connection to the address that was checked, whatever the name says meanwhile."""

    def __init__(self, config: WebhookConfig, context: ssl.SSLContext | None) -> None:
        host = config.parts.hostname or ""
        port = config.parts.port or (443 if context is not None else 80)
        super().__init__(host, port, timeout=config.timeout_s)
        self._allow_private = config.allow_private
        self._tls = context

    def connect(self) -> None:
        _, address = allowed_address(self.host, self.port, allow_private=self._allow_private)
        self.sock = socket.create_connection((address, self.port), self.timeout)
        if self._tls is not None:
            self.sock = self._tls.wrap_socket(self.sock, server_hostname=self.host)


class Webhook:
    """A sink of events with a thread of its own; `put` returns at once and never raises."""

    def __init__(
        self,
        config: WebhookConfig,
        *,
        waiting_max: int = EVENTS_WAITING_MAX,
        first_delay_s: float = FIRST_DELAY_S,
        now: Callable[[], float] = time.time,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.counts = WebhookCounts()
        self._config = config
        self._waiting_max = waiting_max
        self._first_delay_s = first_delay_s
        self._now = now
        self._tls = (tls or ssl.create_default_context()) if config.parts.scheme == "https" else None
        self._random = Random()
        self._waiting: deque[WebhookEvent] = deque()
        self._change = threading.Condition()
        self._is_closed = self._is_gone = self._is_in_trouble = False
        self._thread = threading.Thread(target=self._run, name="stagepost-webhook", daemon=True)
        self._thread.start()

    def put(self, event: WebhookEvent) -> None:
        with self._change:
            if self._is_closed or self._is_gone or len(self._waiting) >= self._waiting_max:
                self.counts.dropped += 1
                return
            self._waiting.append(event)
            self._change.notify_all()

    def close(self, within_s: float = CLOSED_WITHIN_S) -> None:
        """Send the events that wait, for `within_s` seconds at most; the others are dropped. May be repeated."""
        until = time.monotonic() + within_s
        with self._change:
            self._change.wait_for(lambda: not self._waiting, max(0.0, until - time.monotonic()))
            self._is_closed = True
            self.counts.dropped += len(self._waiting)
            self._waiting.clear()
            self._change.notify_all()
        self._thread.join(self._config.timeout_s)

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return
                event = self._waiting[0]
            self._deliver(event)
            with self._change:
                if self._waiting and self._waiting[0] is event:
                    self._waiting.popleft()
                self._change.notify_all()

    def _deliver(self, event: WebhookEvent) -> None:
        for attempt in range(ATTEMPTS_MAX):
            if attempt:
                self.counts.repeated += 1
            try:
                status, asked_s, why = *self._post(event), ""
            except ConfigError as error:
                self._trouble(error.text)
                self.counts.refused += 1
                return
            except (OSError, http.client.HTTPException, TransportError) as error:
                status, asked_s, why = 0, None, str(error) or type(error).__name__
            if 200 <= status < 300:
                self.counts.sent += 1
                self._is_in_trouble = False
                return
            self._trouble(why or f"the receiver answered {status}")
            if status and status < 500 and status not in _AGAIN:
                self.counts.refused += 1
                if status == _GONE:
                    self._forget_all()
                return
            if self._is_over_after(self._delay(attempt, asked_s)):
                break
        with self._change:
            self.counts.dropped += not self._is_closed

    def _delay(self, attempt: int, asked_s: float | None) -> float:
        delay_s = self._first_delay_s * 2.0**attempt * self._random.uniform(1 - _SPREAD, 1 + _SPREAD)
        return min(max(delay_s, asked_s or 0.0), DELAY_S_MAX)

    def _is_over_after(self, delay_s: float) -> bool:
        with self._change:
            return self._change.wait_for(lambda: self._is_closed, delay_s)

    def _forget_all(self) -> None:
        with self._change:
            self._is_gone = True
            self.counts.dropped += max(0, len(self._waiting) - 1)
            while len(self._waiting) > 1:
                self._waiting.pop()

    def _post(self, event: WebhookEvent) -> tuple[int, float | None]:
        """Return the status of the answer, and the seconds that the receiver asked to wait."""
        parts = self._config.parts
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection = _Connection(self._config, self._tls)
        try:
            connection.request("POST", target, event.body, self._headers(event))
            answer = connection.getresponse()
            answer.read(ANSWER_BYTES_MAX)
            asked = answer.getheader("Retry-After", "")
            return answer.status, float(asked) if asked.isdecimal() and len(asked) < 6 else None
        finally:
            connection.close()

    def _headers(self, event: WebhookEvent) -> dict[str, str]:
        headers = {"Content-Type": self._config.content_type, "User-Agent": "stagepost"}
        if self._config.token is not None:
            headers["Authorization"] = f"Bearer {self._config.token}"
        if self._config.secret is not None:
            moment = str(int(self._now()))
            headers |= {
                "webhook-id": event.id,
                "webhook-timestamp": moment,
                "webhook-signature": signature_of(self._config.secret, event.id, moment, event.body),
            }
        return headers

    def _trouble(self, reason: str) -> None:
        """Log the first of several faults in a row."""
        if not self._is_in_trouble:
            self._is_in_trouble = True
            log.warning("webhook is not reached", extra={"url": self._config.url, "reason": reason})


def signature_of(secret: str, event_id: str, moment: str, body: bytes) -> str:
    """Return the value of `webhook-signature`: `v1,` and the base64 of HMAC-SHA256 over `id.timestamp.body`."""
    signed = f"{event_id}.{moment}.".encode() + body
    digest = hmac.new(secret.encode(), signed, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"
