"""Rights to look and to change something: the token, sessions of browsers, and forms that only our own pages send.

The token has 256 random bits, is shown once and kept as a hash. A browser trades it for a cookie of one site that scripts
cannot read; programs send it with each request. Every change needs a word that stands only in our own pages.
"""

from __future__ import annotations

import hmac
import json
import secrets
from collections import OrderedDict, deque
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from stagepost.errors import ConfigError, StorageError
from stagepost.ground.files.small_files import replace_file

TOKEN_BYTES = 32
TOKEN_FILE = "web-token.json"
TOKEN_FILE_MODE = 0o600
TOKEN_FILE_BYTES_MAX = 4_096
TOKEN_CHARACTERS_MAX = 256
"""Of what somebody shows: more is refused unread."""
TOKEN_CHARACTERS_MIN = 16
"""Characters of a token that an operator chooses: right tokens are never throttled, so a short one could be guessed."""

SESSION_BYTES = 32
SESSION_LIFE_S = 12 * 3_600.0
SESSIONS_MAX = 1_024
LOGIN_FAILURES_MAX = 5
"""From one address, within the window; from all addresses together ten times as many."""
LOGIN_WINDOW_S = 60.0
ADDRESSES_MAX = 4_096

COOKIE = "stagepost_session"
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # With no-referrer browsers send "Origin: null" with our own forms, which then look like those of a stranger.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def new_token() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)


def hash_of(token: str) -> bytes:
    """A random token of 256 bits cannot be guessed from it, so one plain hash is enough."""
    return sha256(token.encode()).digest()


def chosen_token_hash(token: str) -> bytes:
    """Return the hash of a token from the environment; `ConfigError` if it can be guessed."""
    if len(token) < TOKEN_CHARACTERS_MIN:
        raise ConfigError(
            f"a token of {len(token)} characters is too short: it can be guessed",
            advice=f"use {TOKEN_CHARACTERS_MIN} or more random characters",
            limit=TOKEN_CHARACTERS_MIN,
        )
    return hash_of(token)


def is_token(shown: str, token_hash: bytes) -> bool:
    return len(shown) <= TOKEN_CHARACTERS_MAX and hmac.compare_digest(hash_of(shown), token_hash)


def write_token(data: Path) -> str:
    """A new token; whoever was told the one before is shut out when the dashboard starts again."""
    token = new_token()
    path = data / TOKEN_FILE
    try:
        replace_file(path, json.dumps({"sha256": hash_of(token).hex()}).encode() + b"\n", TOKEN_FILE_MODE)
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written: {error.strerror}", advice="check the data folder"
        ) from error
    return token


def read_token_hash(data: Path) -> bytes | None:
    """None where no token was ever made."""
    path = data / TOKEN_FILE
    try:
        with path.open("rb") as file:
            content = file.read(TOKEN_FILE_BYTES_MAX)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(
            f"{path} cannot be read: {error.strerror}", advice="run as the owner of the data folder"
        ) from error
    try:
        found = bytes.fromhex(json.loads(content)["sha256"])
        if len(found) != sha256().digest_size:
            raise ValueError("not 32 bytes")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"{path} does not hold the hash of a token", advice="make a new one: stagepost serve --new-token"
        ) from error
    return found


class Sessions:
    """Browsers that may look, and those of them that may act because they have shown the token. Kept in memory as hashes,
    and only so many of either kind; the oldest goes first."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._lookers: OrderedDict[bytes, float] = OrderedDict()
        self._actors: OrderedDict[bytes, float] = OrderedDict()

    def begin(self, *, may_act: bool) -> str:
        session = secrets.token_urlsafe(SESSION_BYTES)
        sessions = self._actors if may_act else self._lookers
        sessions[hash_of(session)] = self._clock() + SESSION_LIFE_S
        while len(sessions) > SESSIONS_MAX:
            sessions.popitem(last=False)
        return session

    def is_known(self, session: str | None) -> bool:
        return self._is_in(self._lookers, session) or self.may_act(session)

    def may_act(self, session: str | None) -> bool:
        return self._is_in(self._actors, session)

    def _is_in(self, sessions: OrderedDict[bytes, float], session: str | None) -> bool:
        if not session or len(session) > TOKEN_CHARACTERS_MAX:
            return False
        ends = sessions.get(hash_of(session))
        return ends is not None and self._clock() < ends

    def end(self, session: str) -> None:
        self._lookers.pop(hash_of(session), None)
        self._actors.pop(hash_of(session), None)

    def form_word(self, session: str) -> str:
        """Return the word that a form of this session must carry: another site can neither read nor guess it."""
        return hmac.new(self._key, session.encode(), sha256).hexdigest()

    def is_form_word(self, session: str | None, word: str) -> bool:
        return self.is_known(session) and hmac.compare_digest(
            self.form_word(session or "").encode(), word.encode("utf-8", "replace")
        )


class LoginLimit:
    """Failed logins within the last minute. Beyond the limit wrong tokens are answered with a time to wait; the right token
    always passes, so nobody can lock out its owner. Guessing is hopeless without this limit, too: a token of ours has 256
    random bits, and `TOKEN_CHARACTERS_MIN` bounds the others."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._all: deque[float] = deque()
        self._by_address: OrderedDict[str, deque[float]] = OrderedDict()

    def wait_s(self, address: str) -> float:
        """0 if a login may be tried now."""
        now = self._clock()
        limits = (
            (self._by_address.get(address, deque()), LOGIN_FAILURES_MAX),
            (self._all, 10 * LOGIN_FAILURES_MAX),
        )
        waits = [0.0]
        for failures, limit in limits:
            _forget(failures, now)
            if len(failures) >= limit:
                waits.append(failures[-limit] + LOGIN_WINDOW_S - now)
        return max(waits)

    def failed(self, address: str) -> None:
        now = self._clock()
        self._all.append(now)
        failures = self._by_address.setdefault(address, deque(maxlen=LOGIN_FAILURES_MAX))
        failures.append(now)
        self._by_address.move_to_end(address)
        while len(self._by_address) > ADDRESSES_MAX:
            self._by_address.popitem(last=False)


def _forget(failures: deque[float], now: float) -> None:
    while failures and failures[0] <= now - LOGIN_WINDOW_S:
        failures.popleft()
