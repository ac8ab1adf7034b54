"""External messages over HTTP: what is taken, what is refused and how, and those who send nonsense."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from stagepost.errors import ConfigError, ErrorCode, StagepostError, StorageError, TransportError
from stagepost.ground.net.admission import RESERVED_PART, UNPROVED_MAX, AdmissionLimits
from stagepost.remp.message import MESSAGE_BYTES_MAX
from stagepost.web.access import places
from stagepost.web.access.problems import STATUSES, problem_object, problem_response, status_of
from stagepost.web.access.security import hash_of
from stagepost.web.access.settings import WebSettings
from stagepost.web.intake import api as intake_api
from stagepost.web.intake import server as intake_server
from stagepost.web.intake.server import intake_app, serving_intake
from tests.worlds.full_node.full_node_desk import REFUSING, FullNodeDesk, a_desk, primes

MESSAGES = "/api/v1/messages"
BINARY = {"Content-Type": "application/octet-stream"}
Scenario = Callable[[FullNodeDesk, httpx.AsyncClient], Awaitable[None]]


def over_http(data: Path, scenario: Scenario, settings: WebSettings | None = None, **options: Any) -> None:
    """The whole application, without a socket."""

    async def main() -> None:
        async with a_desk(data, **options) as desk:
            app = intake_app(desk.desk, settings or WebSettings(data))
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                await scenario(desk, client)

    asyncio.run(main())


def problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    found: dict[str, Any] = answer.json()
    assert (found["status"], found["code"]) == (status, code)
    assert found["detail"]
    return found


def test_a_message_is_taken_and_the_same_bytes_again_are_the_same_message(tmp_path: Path) -> None:
    async def scenario(desk: FullNodeDesk, client: httpx.AsyncClient) -> None:
        wanted = desk.node.id_of(primes()).hex()
        for is_new in (True, False):
            answer = await client.post(MESSAGES, content=primes(), headers=BINARY)
            assert answer.status_code == 202
            assert answer.json() == {
                "message_id": wanted,
                "is_new": is_new,
                "links": {"message": f"{MESSAGES}/{wanted}"},
            }
            assert answer.headers["location"] == f"{MESSAGES}/{wanted}"
        assert desk.desk.taken == 1

    over_http(tmp_path, scenario)


def test_its_row_is_read_once_there_is_a_receipt(tmp_path: Path) -> None:
    async def scenario(desk: FullNodeDesk, client: httpx.AsyncClient) -> None:
        link = (await client.post(MESSAGES, content=primes(), headers=BINARY)).json()["links"]["message"]
        problem(await client.get(link), 404, "MSG_BAD_ID")
        desk.in_a_final_block(primes())
        while (row := (await client.get(link)).json()).get("verdict") != "finalized":
            await asyncio.sleep(0.001)  # until it is on the disk
        assert (row["verdict"], row["words"]) == ("finalized", "Finalized")
        assert row["message_id"] == desk.node.id_of(primes()).hex()
        shouted = await client.get(link.upper().replace(MESSAGES.upper(), MESSAGES))
        assert shouted.json()["message_id"] == row["message_id"]

    over_http(tmp_path, scenario)


def test_what_the_account_would_not_take_is_unprocessable_with_the_reason(tmp_path: Path) -> None:
    async def scenario(desk: FullNodeDesk, client: httpx.AsyncClient) -> None:
        answer = await client.post(MESSAGES, content=primes(account=REFUSING), headers=BINARY)
        found = problem(answer, 422, "PROTOCOL_REQUEST")
        assert "error code 52" in found["detail"]
        assert found["message_id"] == desk.node.id_of(primes(account=REFUSING)).hex()
        for junk, code in (
            (b"", "TL_TRUNCATED"),
            (b"no message", "TL_INVALID"),
            (primes() + b"0", "TL_INVALID"),
        ):
            problem(await client.post(MESSAGES, content=junk, headers=BINARY), 422, code)
        assert desk.desk.taken == 0

    over_http(tmp_path, scenario)


@pytest.mark.parametrize(
    ("size", "status"), [(MESSAGE_BYTES_MAX, 422), (MESSAGE_BYTES_MAX + 1, 413), (1 << 20, 413)]
)
@pytest.mark.parametrize("is_told", [True, False], ids=["with its length", "in pieces"])
def test_a_body_larger_than_any_message_is_too_large(
    tmp_path: Path, size: int, status: int, is_told: bool
) -> None:
    async def pieces() -> Any:
        for start in range(0, size, 10_000):
            yield bytes(min(10_000, size - start))

    async def scenario(desk: FullNodeDesk, client: httpx.AsyncClient) -> None:
        answer = await client.post(MESSAGES, content=bytes(size) if is_told else pieces(), headers=BINARY)
        assert answer.status_code == status
        assert answer.json()["code"] in ("TL_INVALID", "MSG_BODY_SIZE", "PROTOCOL_SIZE")

    over_http(tmp_path, scenario)


@pytest.mark.parametrize("kind", [None, "application/json", "text/plain", "multipart/form-data; boundary=x"])
def test_only_plain_bytes_are_taken(tmp_path: Path, kind: str | None) -> None:
    async def scenario(desk: FullNodeDesk, client: httpx.AsyncClient) -> None:
        headers = {} if kind is None else {"Content-Type": kind}
        found = problem(
            await client.post(MESSAGES, content=primes(), headers=headers), 415, "PROTOCOL_REQUEST"
        )
        assert "application/octet-stream" in found["advice"]
        with_parameter = {"Content-Type": "Application/Octet-Stream; charset=binary"}
        assert (await client.post(MESSAGES, content=primes(), headers=with_parameter)).status_code == 202

    over_http(tmp_path, scenario)


def test_a_full_node_with_too_much_to_do_asks_to_come_again(tmp_path: Path) -> None:
    async def scenario(desk: FullNodeDesk, client: httpx.AsyncClient) -> None:
        assert (await client.post(MESSAGES, content=primes(10), headers=BINARY)).status_code == 202
        answer = await client.post(MESSAGES, content=primes(11), headers=BINARY)
        problem(answer, 429, "QUEUE_FULL")
        assert answer.headers["retry-after"] == "1"

    over_http(tmp_path, scenario, messages_max=1)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", MESSAGES, 405),
        ("DELETE", f"{MESSAGES}/{'ab' * 32}", 405),
        ("GET", f"{MESSAGES}/ab", 422),
        ("GET", f"{MESSAGES}/{'zz' * 32}", 422),
        ("GET", f"{MESSAGES}/{'ab' * 32}", 404),
        ("GET", f"{MESSAGES}/%00%ff..", 422),
        ("GET", f"{MESSAGES}/{'00' * 31}%20%20", 422),
        ("GET", f"{MESSAGES}/{'00' * 31}%20%20/proof", 422),
        ("GET", f"{MESSAGES}/{'00' * 33}/proof", 422),
    ],
)
def test_other_requests_are_refused_with_our_code(
    tmp_path: Path, method: str, path: str, status: int
) -> None:
    async def scenario(desk: FullNodeDesk, client: httpx.AsyncClient) -> None:
        answer = await client.request(method, path)
        assert answer.status_code == status
        assert answer.json()["code"] in ("PROTOCOL_REQUEST", "MSG_BAD_ID")

    over_http(tmp_path, scenario)


def test_a_page_of_another_site_cannot_reach_it_by_a_name_of_its_own(tmp_path: Path) -> None:
    async def scenario(desk: FullNodeDesk, client: httpx.AsyncClient) -> None:
        answer = await client.post(MESSAGES, content=primes(), headers={**BINARY, "Host": "evil.example"})
        problem(answer, 421, "PROTOCOL_REQUEST")
        assert desk.desk.taken == 0

    over_http(tmp_path, scenario)


# Other addresses


@pytest.mark.parametrize("has_token", [False, True])
def test_an_address_that_others_reach_needs_a_token_and_tls(tmp_path: Path, has_token: bool) -> None:
    settings = WebSettings(tmp_path, host="0.0.0.0", token_hash=hash_of("t") if has_token else None)
    with pytest.raises(ConfigError, match="can be reached by other machines") as caught:
        over_http(tmp_path, lambda desk, client: asyncio.sleep(0), settings)
    assert caught.value.code is ErrorCode.CONFIG_INVALID


def test_a_token_is_asked_for_where_there_is_one(tmp_path: Path) -> None:
    async def scenario(desk: FullNodeDesk, client: httpx.AsyncClient) -> None:
        problem(await client.post(MESSAGES, content=primes(), headers=BINARY), 401, "PROTOCOL_REQUEST")
        wrong = {**BINARY, "Authorization": "Bearer wrong"}
        problem(await client.post(MESSAGES, content=primes(), headers=wrong), 401, "PROTOCOL_REQUEST")
        right = {**BINARY, "Authorization": "Bearer secret"}
        assert (await client.post(MESSAGES, content=primes(), headers=right)).status_code == 202

    over_http(tmp_path, scenario, WebSettings(tmp_path, token_hash=hash_of("secret")))


def test_a_certificate_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("no certificate")
    settings = WebSettings(
        tmp_path, port=0, certificate=tmp_path / "bad.pem", private_key=tmp_path / "bad.pem"
    )

    async def main() -> None:
        async with a_desk(tmp_path) as desk:
            with pytest.raises(ConfigError, match=r"with the key .* cannot be used"):
                async with serving_intake(desk.desk, settings):
                    pass

    assert ssl.OPENSSL_VERSION
    asyncio.run(main())


# Over a real socket


def test_half_a_body_and_a_slow_one_cost_nobody_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake_api, "BODY_WITHIN_S", 0.3)
    head = f"POST {MESSAGES} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/octet-stream\r\n"

    async def main() -> None:
        async with a_desk(tmp_path) as desk, serving_intake(desk.desk, WebSettings(tmp_path, port=0)) as base:
            port = int(base.rpartition(":")[2])

            async def said(request: bytes, *, leaves: bool) -> bytes:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(request)
                await writer.drain()
                if leaves:
                    writer.transport.abort()
                    return b""
                answer = await reader.read(4_096)
                writer.close()
                with suppress(ConnectionError):
                    await writer.wait_closed()
                return answer

            half = (head + "Content-Length: 100\r\n\r\n").encode() + b"half"
            await said(half, leaves=True)
            assert b" 408 " in (await said(half, leaves=False)).split(b"\r\n")[0]
            assert b" 400 " in (await said(b"no HTTP at all\r\n\r\n", leaves=False)).split(b"\r\n")[0]
            async with httpx.AsyncClient(base_url=base) as client:
                answer = await client.post(MESSAGES, content=primes(), headers=BINARY)
                assert answer.status_code == 202
            assert (desk.desk.taken, desk.desk.refused) == (1, 0)

    asyncio.run(main())


def test_connections_without_a_request_keep_nobody_out(tmp_path: Path) -> None:
    """More idle connections and unfinished heads than there are places, and each request beside them is answered."""
    half = f"GET {MESSAGES}/ab HTTP/1.1\r\nHost: 127.0.0.1\r\n".encode()

    async def main() -> None:
        async with a_desk(tmp_path) as desk, serving_intake(desk.desk, WebSettings(tmp_path, port=0)) as base:
            port = int(base.rpartition(":")[2])
            idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2 * UNPROVED_MAX)]
            for _, writer in idle[::2]:
                writer.write(half)
            async with httpx.AsyncClient(base_url=base) as client:
                for _ in range(10):
                    assert (await client.get(f"{MESSAGES}/{'ab' * 32}")).status_code == 404
                answer = await client.post(MESSAGES, content=primes(), headers=BINARY)
                assert answer.status_code == 202
            for _, writer in idle:
                writer.close()

    asyncio.run(main())


def test_requests_above_the_limit_come_again_and_those_with_the_token_have_places_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake_server, "REQUESTS_AT_ONCE", RESERVED_PART)
    token = "a token of sixteen or more"
    settings = WebSettings(tmp_path, port=0, token_hash=hash_of(token), open_reading=True)
    end = asyncio.Event()

    async def main() -> None:
        async with a_desk(tmp_path) as desk:

            async def held(message_id: bytes) -> dict[str, object]:
                await end.wait()
                return {}

            monkeypatch.setattr(desk.desk, "row", held)
            async with (
                serving_intake(desk.desk, settings) as base,
                httpx.AsyncClient(base_url=base) as client,
            ):
                path = f"{MESSAGES}/{'ab' * 32}"
                asked = [asyncio.create_task(client.get(path)) for _ in range(RESERVED_PART)]
                done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
                (refused,) = done
                assert refused.result().status_code == 503
                assert refused.result().json()["code"] == "QUEUE_FULL"
                bearer = {"Authorization": f"Bearer {token}"}
                answer = await client.post(MESSAGES, content=primes(), headers={**BINARY, **bearer})
                assert answer.status_code == 202
                end.set()
                answers = await asyncio.gather(*asked)
                assert sorted(one.status_code for one in answers) == [200] * (RESERVED_PART - 1) + [503]

    asyncio.run(main())


@pytest.mark.parametrize("is_first", [True, False], ids=["at once", "behind a whole request"])
def test_a_head_that_never_ends_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    monkeypatch.setattr(places, "AdmissionLimits", partial(AdmissionLimits, proof_within_s=0.1))
    half = f"GET {MESSAGES}/ab HTTP/1.1\r\nHost: 127.0.0.1\r\n".encode()

    async def main() -> None:
        async with a_desk(tmp_path) as desk, serving_intake(desk.desk, WebSettings(tmp_path, port=0)) as base:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(base.rpartition(":")[2]))
            writer.write(half if is_first else half + b"\r\n" + half)
            answer = await asyncio.wait_for(reader.read(), 20)  # until it is closed
            assert answer.count(b"HTTP/1.1 422") == (0 if is_first else 1)
            writer.close()

    asyncio.run(main())


def test_a_port_in_use_is_told_in_one_sentence(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_desk(tmp_path) as desk, serving_intake(desk.desk, WebSettings(tmp_path, port=0)) as base:
            again = WebSettings(tmp_path, port=int(base.rpartition(":")[2]))
            with pytest.raises(ConfigError, match="cannot serve HTTP"):
                async with serving_intake(desk.desk, again):
                    pass

    asyncio.run(main())


# Problems


def test_every_code_has_a_status_and_errors_of_ours_are_never_the_askers_fault() -> None:
    for code in ErrorCode:
        status = status_of(StagepostError("x", code=code))
        assert 400 <= status < 600
        assert (code in STATUSES) is (status.value != 422)
    assert status_of(StorageError("x")) == status_of(TransportError("x")) == 503
    assert status_of(ConfigError("x")) == 400


def test_a_problem_says_what_to_do_and_carries_what_is_known() -> None:
    error = StagepostError(
        "too large", code=ErrorCode.MSG_BODY_SIZE, advice="less", message_id=b"\1" * 32, limit=7
    )
    assert problem_object(error) == {
        "type": "about:blank",
        "title": "Request Entity Too Large",
        "status": 413,
        "detail": "too large",
        "code": "MSG_BODY_SIZE",
        "advice": "less",
        "message_id": "01" * 32,
        "limit": 7,
    }
    answer = problem_response(StagepostError("wait", code=ErrorCode.NOT_READY))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert json.loads(bytes(answer.body))["code"] == "NOT_READY"
