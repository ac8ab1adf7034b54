"""External messages over HTTP: hand one in, and read how it stands.

    POST /api/v1/messages        the message's bytes        202 with its id; the same bytes again: 202 with the same id
    GET  /api/v1/messages/{id}   its row of `messages`
    GET  /api/v1/messages/{id}/proof   the proof of its end, once that is known

What the full node does not pass on is a problem with our code: 422 for the message itself, 413 for its size, 503 and 429
where another try may help.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, Protocol

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from stagepost.errors import ErrorCode, StagepostError
from stagepost.full_node.local_client import AcceptedSubmission
from stagepost.ground.net.admission import prefix_of
from stagepost.remp.message import MESSAGE_BYTES_MAX
from stagepost.trace.reading import NotAMessageId
from stagepost.web.access.guard import BY_TOKEN
from stagepost.web.access.problems import problem_response

PREFIX = "/api/v1"
MEDIA_TYPE = "application/octet-stream"
BODY_WITHIN_S = 15.0
"""Whoever sends a body more slowly is told, and cut off."""
ID_DIGITS = 64


class FullNodeHandle(Protocol):
    """`stagepost.full_node.intake_desk.IntakeDesk` is one."""

    def submit(self, data: bytes, submitter: str) -> AcceptedSubmission: ...

    async def row(self, message_id: bytes) -> dict[str, Any]: ...

    async def proof(self, message_id: bytes) -> bytes | None: ...


def intake_router(full_node: FullNodeHandle) -> APIRouter:
    router = APIRouter(prefix=PREFIX)

    async def hand_in(request: Request) -> Response:
        try:
            async with asyncio.timeout(BODY_WITHIN_S):
                data = await _body(request)
        except TimeoutError:
            slow = StagepostError(
                f"the body did not come within {BODY_WITHIN_S:g} s", code=ErrorCode.PROTOCOL_TIMEOUT
            )
            return problem_response(slow, HTTPStatus.REQUEST_TIMEOUT)
        except ClientDisconnect:
            return Response(status_code=HTTPStatus.BAD_REQUEST.value)  # nobody reads it
        except StagepostError as error:
            return problem_response(error)
        return _handed_in(full_node, data, _submitter(request))

    async def row(message_id: str) -> Response:
        try:
            return JSONResponse(await full_node.row(_id(message_id)), headers={"Cache-Control": "no-store"})
        except StagepostError as error:
            return problem_response(error)

    async def proof(message_id: str) -> Response:
        try:
            found = await full_node.proof(_id(message_id))
        except StagepostError as error:
            return problem_response(error)
        if found is None:
            unknown = StagepostError(
                f"the end of message {message_id} is not known yet",
                code=ErrorCode.NOT_READY,
                advice="ask later; do not send the message again under another id",
            )
            return problem_response(unknown, HTTPStatus.NOT_FOUND)
        return Response(found, media_type="application/json", headers={"Cache-Control": "no-store"})

    problem: dict[str, Any] = {"application/problem+json": {}}
    router.add_api_route(
        "/messages",
        hand_in,
        methods=["POST"],
        status_code=HTTPStatus.ACCEPTED.value,
        response_class=JSONResponse,
        summary="Hand in an external message",
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}},
            }
        },
        responses={
            413: {"description": "larger than any message", "content": problem},
            415: {"description": f"not {MEDIA_TYPE}", "content": problem},
            422: {"description": "the full node does not pass it on", "content": problem},
            429: {
                "description": "the submitter has its share of messages in processing, or the node has too many",
                "content": problem,
            },
            503: {"description": "the full node is not ready, or its disk refuses", "content": problem},
        },
    )
    router.add_api_route(
        "/messages/{message_id}",
        row,
        methods=["GET"],
        response_class=JSONResponse,
        summary="How an external message stands",
        responses={
            404: {"description": "no receipt is of this message", "content": problem},
            422: {"description": "not a message id", "content": problem},
        },
    )
    router.add_api_route(
        "/messages/{message_id}/proof",
        proof,
        methods=["GET"],
        response_class=JSONResponse,
        summary="The proof of an external message's end, for anybody to check",
        responses={
            404: {"description": "the end of the message is not known yet", "content": problem},
            422: {"description": "not a message id", "content": problem},
        },
    )
    return router


def _submitter(request: Request) -> str:
    """Return who is charged: the holder of the token, or else the prefix of the address."""
    if request.scope.get(BY_TOKEN):
        return "token"
    return f"address:{prefix_of('' if request.client is None else request.client.host)}"


def _handed_in(full_node: FullNodeHandle, data: bytes, submitter: str) -> Response:
    try:
        taken = full_node.submit(data, submitter)
    except StagepostError as error:
        # What was asked for in good form, and cannot be, is the message's own fault.
        is_refused = error.code in (ErrorCode.PROTOCOL_REQUEST, ErrorCode.CONFIG_INVALID)
        return problem_response(error, HTTPStatus.UNPROCESSABLE_ENTITY if is_refused else None)
    where = f"{PREFIX}/messages/{taken.message_id.hex()}"
    found = {"message_id": taken.message_id.hex(), "is_new": taken.is_new, "links": {"message": where}}
    return JSONResponse(found, HTTPStatus.ACCEPTED.value, {"Location": where, "Cache-Control": "no-store"})


async def _body(request: Request) -> bytes:
    """Never more in memory than a message may have."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != MEDIA_TYPE:
        raise _WrongForm(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"the body is {kind or 'of no type'}",
            f"send the bytes of the message as {MEDIA_TYPE}",
        )
    found = bytearray()
    async for piece in request.stream():
        found += piece
        if len(found) > MESSAGE_BYTES_MAX:
            raise StagepostError(
                f"the body has more than {MESSAGE_BYTES_MAX} bytes, more than any message",
                code=ErrorCode.MSG_BODY_SIZE,
                limit=MESSAGE_BYTES_MAX,
            )
    return bytes(found)


def _id(text: str) -> bytes:
    try:
        found = bytes.fromhex(text) if len(text) == ID_DIGITS else b""
    except ValueError:
        found = b""
    # Python reads blanks between the digits as nothing.
    if 2 * len(found) != ID_DIGITS:
        raise NotAMessageId(text, digits=f"its {ID_DIGITS} hexadecimal digits")
    return found


class _WrongForm(StagepostError):
    default_code = ErrorCode.PROTOCOL_REQUEST

    def __init__(self, status: HTTPStatus, text: str, advice: str) -> None:
        super().__init__(text, advice=advice)
        self.status = status
