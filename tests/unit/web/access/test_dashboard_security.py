"""Who may look and change: addresses, tokens, sessions, forms, limits; in the parts and through the whole application."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stagepost.errors import ConfigError, ErrorCode
from stagepost.ground.files.audit import AUDIT_FILE
from stagepost.web.access import security
from stagepost.web.access.settings import WebSettings, require_safe_address

pytest.importorskip("fastapi", reason="the extra web is not installed")
httpx = pytest.importorskip("httpx", reason="httpx is not installed")

from tests.browser.served import Served, served  # noqa: E402  # it imports what may be absent

TOKEN = "correct horse battery staple"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


# Addresses


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_nothing(host: str) -> None:
    require_safe_address(WebSettings(Path("data"), host=host))


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "example.org"])
@pytest.mark.parametrize(("has_token", "has_tls"), [(False, False), (True, False), (False, True)])
def test_any_other_address_needs_both_a_token_and_tls(host: str, has_token: bool, has_tls: bool) -> None:
    settings = WebSettings(
        Path("data"),
        host=host,
        token_hash=bytes(32) if has_token else None,
        certificate=Path("chain.pem") if has_tls else None,
        private_key=Path("key.pem") if has_tls else None,
    )
    with pytest.raises(ConfigError, match="can be reached by other machines") as caught:
        require_safe_address(settings)
    assert caught.value.code is ErrorCode.CONFIG_INVALID


def test_with_both_another_address_is_served() -> None:
    require_safe_address(
        WebSettings(
            Path("d"), host="0.0.0.0", token_hash=bytes(32), certificate=Path("c"), private_key=Path("k")
        )
    )


def test_a_certificate_without_its_key_is_refused() -> None:
    with pytest.raises(ConfigError, match="one is missing"):
        require_safe_address(WebSettings(Path("d"), certificate=Path("c")))


# Tokens, sessions, limits


def test_a_token_is_shown_once_and_kept_as_a_hash(tmp_path: Path) -> None:
    token = security.write_token(tmp_path)
    path = tmp_path / security.TOKEN_FILE
    assert len(token) >= 43  # 256 bits
    assert token not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    token_hash = security.read_token_hash(tmp_path)
    assert token_hash is not None
    assert security.is_token(token, token_hash)
    assert not security.is_token(token + "x", token_hash)
    assert security.write_token(tmp_path) != token


def test_no_token_is_none_and_a_damaged_one_is_an_error(tmp_path: Path) -> None:
    assert security.read_token_hash(tmp_path) is None
    for content in (b"", b"{}", b'{"sha256": "00"}', b'{"sha256": 5}'):
        (tmp_path / security.TOKEN_FILE).write_bytes(content)
        with pytest.raises(ConfigError, match="does not hold the hash of a token"):
            security.read_token_hash(tmp_path)


def test_a_session_ends_and_the_oldest_goes_first() -> None:
    clock = Clock()
    sessions = security.Sessions(clock)
    first = sessions.begin(may_act=True)
    assert sessions.is_known(first)
    for _ in range(security.SESSIONS_MAX - 1):
        last = sessions.begin(may_act=True)
    assert sessions.is_known(first)
    sessions.begin(may_act=False)
    assert sessions.is_known(first)  # nobody without the token displaces somebody with it
    sessions.begin(may_act=True)
    assert not sessions.is_known(first)
    clock.now += security.SESSION_LIFE_S
    assert not sessions.is_known(last)


def test_a_form_word_belongs_to_its_session() -> None:
    sessions = security.Sessions(Clock())
    mine, other = sessions.begin(may_act=True), sessions.begin(may_act=False)
    assert sessions.is_form_word(mine, sessions.form_word(mine))
    assert not sessions.is_form_word(other, sessions.form_word(mine))
    assert not sessions.is_form_word(None, sessions.form_word(mine))
    assert not sessions.is_form_word(mine, "ü")
    sessions.end(mine)
    assert not sessions.is_form_word(mine, sessions.form_word(mine))


def test_logins_are_limited_by_address_and_altogether() -> None:
    clock = Clock()
    limit = security.LoginLimit(clock)
    for _ in range(security.LOGIN_FAILURES_MAX):
        assert limit.wait_s("a") == 0
        limit.failed("a")
    assert limit.wait_s("a") == security.LOGIN_WINDOW_S
    assert limit.wait_s("b") == 0
    clock.now += security.LOGIN_WINDOW_S
    assert limit.wait_s("a") == 0
    for number in range(10 * security.LOGIN_FAILURES_MAX):
        limit.failed(f"host {number}")
    assert limit.wait_s("yet another") > 0


# Through the application


@pytest.fixture(scope="module")
def locked_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    data = tmp_path_factory.mktemp("locked")
    with served(WebSettings(data, token_hash=security.hash_of(TOKEN))) as found:
        yield found


@pytest.fixture(scope="module")
def free_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    settings = WebSettings(
        tmp_path_factory.mktemp("free"), token_hash=security.hash_of(TOKEN), open_reading=True
    )
    with served(settings) as found:
        yield found


@pytest.fixture
def locked(locked_server: Served) -> Iterator[Any]:
    with httpx.Client(base_url=locked_server.base, timeout=60) as found:
        yield found


@pytest.fixture
def free(free_server: Served) -> Iterator[Any]:
    with httpx.Client(base_url=free_server.base, timeout=60) as found:
        yield found


GUARDED = ("/", "/live", "/messages", "/queues", "/trace/" + "ab" * 32, "/analytics", "/readyz", "/metrics",
           "/openapi.json", "/api/v1/messages", "/api/v1/queues", "/api/v1/stream", "/api/v1/export")  # fmt: skip


@pytest.mark.parametrize("path", GUARDED)
def test_a_token_is_asked_for_everywhere(locked: Any, path: str) -> None:
    answer = locked.get(path)
    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "PROTOCOL_REQUEST"


def test_only_the_login_and_life_itself_are_open(locked: Any) -> None:
    assert locked.get("/healthz").json() == {"alive": True}
    assert "token" in locked.get("/login").text
    assert locked.get("/static/stagepost.css").status_code == 200
    assert locked.get("/", headers={"Accept": "text/html"}).headers["location"] == "/login"


def test_a_program_shows_its_token_with_each_request(locked: Any) -> None:
    good = {"Authorization": f"Bearer {TOKEN}"}
    assert locked.get("/api/v1/queues", headers=good).status_code == 200
    assert locked.get("/api/v1/queues", headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert locked.get("/api/v1/queues", headers={"Authorization": "Bearer " + "x" * 300}).status_code == 401


def test_a_browser_trades_the_token_for_a_cookie_that_scripts_cannot_read(locked: Any) -> None:
    answer = locked.post("/login", data={"token": TOKEN})
    assert answer.status_code == 303
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert TOKEN not in cookie
    assert locked.get("/api/v1/queues").status_code == 200
    word = locked.get("/queues").text.split('name="form_word" value="')[1].split('"')[0]
    assert locked.post("/logout", data={"form_word": word}).status_code == 303
    locked.cookies.clear()
    assert locked.get("/api/v1/queues").status_code == 401


def test_too_many_wrong_tokens_are_answered_with_the_time_to_wait(tmp_path: Path) -> None:
    settings = WebSettings(tmp_path, token_hash=security.hash_of(TOKEN))
    with served(settings) as server, httpx.Client(base_url=server.base, timeout=60) as own:
        for _ in range(security.LOGIN_FAILURES_MAX):
            assert own.post("/login", data={"token": "guess"}).status_code == 401
        answer = own.get("/api/v1/queues", headers={"Authorization": "Bearer guess"})
    assert answer.status_code == 429
    assert 0 < int(answer.headers["retry-after"]) <= security.LOGIN_WINDOW_S
    assert answer.json()["code"] == "MSG_TOO_FREQUENT"


def test_fifty_wrong_tokens_do_not_lock_out_the_right_one(tmp_path: Path) -> None:
    settings = WebSettings(tmp_path, token_hash=security.hash_of(TOKEN))
    with served(settings) as server, httpx.Client(base_url=server.base, timeout=60) as own:
        statuses = [own.post("/login", data={"token": f"guess {number}"}).status_code for number in range(50)]
        assert statuses == [401] * security.LOGIN_FAILURES_MAX + [429] * (50 - security.LOGIN_FAILURES_MAX)
        shown = own.get("/api/v1/queues", headers={"Authorization": f"Bearer {TOKEN}"})
        logged_in = own.post("/login", data={"token": TOKEN})
    assert (shown.status_code, logged_in.status_code) == (200, 303)


def test_a_short_token_of_the_operator_is_refused() -> None:
    security.chosen_token_hash("x" * security.TOKEN_CHARACTERS_MIN)
    with pytest.raises(ConfigError, match="can be guessed"):
        security.chosen_token_hash("x" * (security.TOKEN_CHARACTERS_MIN - 1))


def test_actions_need_the_token_where_reading_is_open(free: Any, free_server: Served) -> None:
    page = free.get("/queues")
    assert page.status_code == 200
    session = page.headers["set-cookie"].split("=")[1].split(";")[0]
    word = free_server.app.state.sessions.form_word(session)
    answer = free.post("/api/v1/queues/flush", data={"form_word": word})
    assert (answer.status_code, answer.json()["detail"]) == (403, "actions need the token of this dashboard")
    assert free.post("/queues/replay", data={"form_word": word}).status_code == 403
    by_token = free.post("/api/v1/queues/flush", headers={"Authorization": f"Bearer {TOKEN}"})
    assert (by_token.status_code, by_token.json()["code"]) == (503, "NOT_READY")  # there is no outbox


def test_every_action_through_api_and_page_leaves_an_audit_line(tmp_path: Path) -> None:
    settings = WebSettings(tmp_path, token_hash=security.hash_of(TOKEN), open_reading=True)
    with served(settings) as server, httpx.Client(base_url=server.base, timeout=60) as own:
        own.post("/api/v1/queues/flush", headers={"Authorization": "Bearer wrong"})
        own.post("/api/v1/queues/replay?delivery_id=ab", headers={"Authorization": f"Bearer {TOKEN}"})
        own.get("/login", params={"token": TOKEN})
        word = server.app.state.sessions.form_word(own.cookies[security.COOKIE])
        own.post("/queues/flush", data={"form_word": word})
        own.post("/queues/flush", data={"form_word": "wrong"})
        found = [json.loads(line) for line in (tmp_path / AUDIT_FILE).read_text().splitlines()]
        assert [(one["who"], one["through"], one["what"]) for one in found] == [
            ("token from 127.0.0.1", "api", "POST /api/v1/queues/replay ab"),
            ("browser with the token from 127.0.0.1", "page", "POST /queues/flush"),
        ]
        (tmp_path / AUDIT_FILE).unlink()
        (tmp_path / AUDIT_FILE).mkdir()
        refused = own.post("/api/v1/queues/flush", headers={"X-Form-Word": word})
        assert (refused.status_code, refused.json()["code"]) == (503, "STORAGE_UNAVAILABLE")


def test_a_dashboard_without_a_token_acts_for_nobody(tmp_path: Path) -> None:
    with served(WebSettings(tmp_path)) as server, httpx.Client(base_url=server.base, timeout=60) as own:
        session = own.get("/queues").headers["set-cookie"].split("=")[1].split(";")[0]
        word = server.app.state.sessions.form_word(session)
        assert own.post("/queues/flush", data={"form_word": word}).status_code == 403


def test_the_link_of_the_start_logs_a_browser_in(free: Any, free_server: Served) -> None:
    assert free.get("/login", params={"token": "wrong"}).status_code == 401
    answer = free.get("/login", params={"token": TOKEN})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert TOKEN not in answer.headers["set-cookie"]
    session = answer.headers["set-cookie"].split("=")[1].split(";")[0]
    assert free_server.app.state.sessions.may_act(session)


def test_changes_are_made_by_our_own_forms_only(free: Any, free_server: Served) -> None:
    free.get("/login", params={"token": TOKEN})
    session = free.cookies[security.COOKIE]
    for path in ("/api/v1/queues/flush", "/api/v1/queues/replay", "/queues/flush", "/logout"):
        assert free.post(path).status_code == 403, path
        assert free.post(path, data={"form_word": "guess"}).status_code == 403, path
    own = free_server.app.state.sessions.form_word(session)
    foreign = free.post(
        "/api/v1/queues/flush", data={"form_word": own}, headers={"Origin": "http://evil.example"}
    )
    assert foreign.status_code == 403
    answer = free.post("/api/v1/queues/flush", data={"form_word": own})
    assert (answer.status_code, answer.json()["code"]) == (503, "NOT_READY")  # there is no outbox


def test_names_that_others_point_at_this_machine_are_not_answered(free: Any) -> None:
    assert free.get("/api/v1/queues", headers={"Host": "evil.example:8137"}).status_code == 421
    for host in ("localhost:8137", "127.0.0.1", "[::1]:8137"):
        assert free.get("/healthz", headers={"Host": host}).status_code == 200


def test_every_answer_carries_the_content_policy(free: Any) -> None:
    for path in ("/", "/api/v1/queues", "/static/stagepost.js", "/nowhere"):
        headers = free.get(path).headers
        assert headers["content-security-policy"] == security.CONTENT_POLICY
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"


def test_a_body_is_refused_above_its_limit_with_and_without_a_stated_length(free: Any) -> None:
    from stagepost.web.access.guard import BODY_BYTES_MAX

    def parts(count: int) -> Iterator[bytes]:
        for _ in range(count // 1_024):
            yield b"x" * 1_024

    def post(content: Any) -> Any:
        return free.post(
            "/queues/flush", content=content, headers={"Content-Type": "application/x-www-form-urlencoded"}
        )

    assert post(b"x" * BODY_BYTES_MAX).status_code == 403
    for content in (b"x" * (BODY_BYTES_MAX + 1), parts(BODY_BYTES_MAX + 1_024)):
        answer = post(content)
        assert (answer.status_code, answer.json()["code"]) == (413, "PROTOCOL_SIZE")
    assert post(b"a=1&" * 40).status_code == 400


def test_a_body_that_does_not_come_is_not_waited_for(
    free_server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stagepost.web.access.guard.BODY_WITHIN_S", 0.2)
    host, port = free_server.base.removeprefix("http://").split(":")
    head = f"POST /queues/flush HTTP/1.1\r\nHost: {host}\r\nContent-Length: 10\r\n"
    head += "Content-Type: application/x-www-form-urlencoded\r\nConnection: close\r\n\r\nhalf"
    with socket.create_connection((host, int(port)), timeout=60) as slow:
        slow.sendall(head.encode())
        answer = slow.recv(65_536)
        assert b" 408 " in answer.split(b"\r\n")[0]
        while b"PROTOCOL_TIMEOUT" not in answer:
            part = slow.recv(65_536)
            assert part, answer
            answer += part
