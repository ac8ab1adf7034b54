"""Guard of every request: the right host name, a body that is not too large, who is asking, and the headers of
every answer. Plain ASGI, so that streams pass through without being collected."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from stagepost.errors import ErrorCode, StagepostError
from stagepost.ground.identifiers import LOOPBACK_HOST
from stagepost.ground.net.admission import USEFUL_WORTH
from stagepost.web.access.problems import problem_response
from stagepost.web.access.security import COOKIE, HEADERS, LoginLimit, Sessions, is_token
from stagepost.web.access.settings import WebSettings, is_loopback

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_BYTES_MAX = 64 * 1024
BODY_WITHIN_S = 15.0
ANSWER_WITHIN_S = 15.0
"""Seconds for which a stranger's request keeps its place before others. Streams and files may take longer, as long as there are
places."""
OPEN_PATHS = frozenset({"/login", "/healthz"})
OPEN_FOLDER = "/static/"
LOOPBACK_NAMES = frozenset({LOOPBACK_HOST, "localhost", "[::1]", "::1"})
BY_TOKEN = "stagepost.by_token"
"""Key in the scope of a request that showed the token."""
PLACE = "stagepost.place"
"""Key in the scope of a request of its connection's place (`stagepost.ground.net.admission.ConnectionPlace`), if the server counts places."""
HSTS = "max-age=31536000"


class RefusedRequest(StagepostError):
    """A request that is answered before anybody looks at what it wants."""

    def __init__(self, status: HTTPStatus, text: str, *, code: ErrorCode, advice: str = "") -> None:
        super().__init__(text, code=code, advice=advice)
        self.status = status


class Guard:
    def __init__(self, app: ASGIApp, settings: WebSettings, sessions: Sessions, limit: LoginLimit) -> None:
        self._app = app
        self._settings = settings
        self._sessions = sessions
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *self._headers(message["headers"])]}
            await send(message)

        try:
            self._check_host(headers)
            scope["stagepost.session"] = self._identify(scope, headers)
            length = headers.get("content-length", "0")
            if not length.isdigit() or int(length) > BODY_BYTES_MAX:
                raise _too_large()
            body = _Body(receive, partial(self._take_place, scope))
            if length == "0" and "transfer-encoding" not in headers:
                body.is_whole()
            await self._app(scope, body.receive, send_guarded)
        except RefusedRequest as refused:
            if refused.status is HTTPStatus.UNAUTHORIZED and wants_page(scope["path"], headers):
                await _to_login(scope, send_guarded)
                return
            response = problem_response(refused, refused.status)
            if isinstance(refused, TooManyLogins):
                response.headers["Retry-After"] = str(max(1, round(refused.wait_s)))
            await response(scope, receive, send_guarded)

    def _headers(self, given: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        names = {name.lower() for name, _ in given}
        found = dict(HEADERS)
        if self._settings.has_tls:
            found["Strict-Transport-Security"] = HSTS
        found["Cache-Control"] = "no-store"
        return [
            (encoded, value.encode())
            for name, value in found.items()
            if (encoded := name.lower().encode()) not in names
        ]

    def _take_place(self, scope: Scope) -> None:
        """Take a place behind the proof for a request that has come whole; a kept one for a token or its session."""
        place = scope.get(PLACE)
        if place is None:
            return  # a server that counts no connections, as in tests
        session = scope["stagepost.session"]
        is_known = bool(scope.get(BY_TOKEN)) or self._sessions.may_act(session)
        begun = time.monotonic()
        refusal = place.prove(
            is_known=is_known,
            worth=lambda: USEFUL_WORTH / 2 if time.monotonic() - begun < ANSWER_WITHIN_S else 0.0,
        )
        if refusal is not None:
            raise RefusedRequest(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"{refusal.why}: {refusal.found} requests are under way",
                code=ErrorCode.QUEUE_FULL,
                advice="try again soon; requests with the token have places of their own",
            )

    def _check_host(self, headers: dict[str, str]) -> None:
        """A page of another site must not reach us under a name that its owner points at this machine."""
        if not is_loopback(self._settings.host):
            return
        try:
            name = urlsplit(f"//{headers.get('host', '')}").hostname or ""
        except ValueError:
            name = ""
        if name not in LOOPBACK_NAMES and name != self._settings.host:
            raise RefusedRequest(
                HTTPStatus.MISDIRECTED_REQUEST,
                "this address serves this machine only",
                code=ErrorCode.PROTOCOL_REQUEST,
                advice="use 127.0.0.1 or localhost in the address",
            )

    def _identify(self, scope: Scope, headers: dict[str, str]) -> str | None:
        """The session that the cookie names, if it is one of ours."""
        session = _cookie(headers)
        known = session if self._sessions.is_known(session) else None
        path = scope["path"]
        if path in OPEN_PATHS or path.startswith(OPEN_FOLDER):
            return known
        kind, _, shown = headers.get("authorization", "").partition(" ")
        if (
            kind.lower() == "bearer"
            and self._settings.token_hash is not None
            and not self._sessions.may_act(known)
        ):
            self.check_token(shown.strip(), _address(scope))
            scope[BY_TOKEN] = True
            return None
        if not self._settings.reads_need_token or self._sessions.may_act(known):
            return known
        raise RefusedRequest(
            HTTPStatus.UNAUTHORIZED,
            "this address needs a token",
            code=ErrorCode.PROTOCOL_REQUEST,
            advice="send it as `Authorization: Bearer TOKEN`, or log in at /login",
        )

    def check_token(self, shown: str, address: str) -> None:
        """Return if `shown` is the token, however many wrong ones came before; count the failure if it is not."""
        wanted = self._settings.token_hash
        if wanted is None or not is_token(shown, wanted):
            wait_s = self._limit.wait_s(address)
            if wait_s > 0:
                raise TooManyLogins(wait_s)
            self._limit.failed(address)
            raise RefusedRequest(
                HTTPStatus.UNAUTHORIZED,
                "the token is not valid",
                code=ErrorCode.PROTOCOL_REQUEST,
                advice="`stagepost serve --new-token` makes a new token and prints it once",
            )


class TooManyLogins(RefusedRequest):
    def __init__(self, wait_s: float) -> None:
        super().__init__(
            HTTPStatus.TOO_MANY_REQUESTS,
            f"too many wrong tokens; try again in {wait_s:.0f} s",
            code=ErrorCode.MSG_TOO_FREQUENT,
        )
        self.wait_s = wait_s


class _Body:
    """Counts what comes; a body without a stated length must not be longer either, nor come more slowly."""

    def __init__(self, receive: Receive, when_whole: Callable[[], None]) -> None:
        self._receive = receive
        self._when_whole = when_whole
        self._bytes = 0
        self._is_whole = False
        self._ends = asyncio.get_running_loop().time() + BODY_WITHIN_S

    async def receive(self) -> Message:
        if self._is_whole:
            return await self._receive()  # streams wait here for the visitor to leave
        try:
            async with asyncio.timeout_at(self._ends):
                message = await self._receive()
        except TimeoutError:
            raise RefusedRequest(
                HTTPStatus.REQUEST_TIMEOUT,
                f"the body did not come within {BODY_WITHIN_S:g} s",
                code=ErrorCode.PROTOCOL_TIMEOUT,
            ) from None
        if message["type"] == "http.request":
            self._bytes += len(message.get("body", b""))
            if self._bytes > BODY_BYTES_MAX:
                raise _too_large()
            if not message.get("more_body", False):
                self.is_whole()
        return message

    def is_whole(self) -> None:
        self._is_whole = True
        self._when_whole()


def _too_large() -> RefusedRequest:
    return RefusedRequest(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"the body of a request has at most {BODY_BYTES_MAX} bytes here",
        code=ErrorCode.PROTOCOL_SIZE,
    )


def _cookie(headers: dict[str, str]) -> str | None:
    cookie: SimpleCookie = SimpleCookie()
    try:
        cookie.load(headers.get("cookie", ""))
    except CookieError:
        return None
    return cookie[COOKIE].value if COOKIE in cookie else None


def _address(scope: Scope) -> str:
    client: Any = scope.get("client")
    return client[0] if client else ""


def wants_page(path: str, headers: dict[str, str]) -> bool:
    return not path.startswith("/api/") and "text/html" in headers.get("accept", "")


async def _to_login(scope: Scope, send: Send) -> None:
    from starlette.responses import RedirectResponse

    async def nothing() -> Message:
        return {"type": "http.disconnect"}

    await RedirectResponse("/login", HTTPStatus.SEE_OTHER)(scope, nothing, send)
