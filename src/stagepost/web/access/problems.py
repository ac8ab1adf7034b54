"""Errors for programs that ask over HTTP: `application/problem+json` with our code, one table of statuses."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from stagepost.errors import ConfigError, ErrorCode, StagepostError, StorageError, TransportError
from stagepost.trace.reading import NotAMessageId, NotOneMessage

if TYPE_CHECKING:
    from fastapi.responses import JSONResponse

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 1
"""What passes by itself: how long a program may wait before it asks again."""

STATUSES = {
    ErrorCode.MSG_BODY_SIZE: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    ErrorCode.MUX_TOO_LARGE: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    ErrorCode.PROTOCOL_SIZE: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    ErrorCode.PROTOCOL_REQUEST: HTTPStatus.BAD_REQUEST,
    ErrorCode.PROTOCOL_TIMEOUT: HTTPStatus.GATEWAY_TIMEOUT,
    ErrorCode.MSG_DUPLICATE: HTTPStatus.CONFLICT,
    ErrorCode.MSG_TOO_FREQUENT: HTTPStatus.TOO_MANY_REQUESTS,
    ErrorCode.QUEUE_FULL: HTTPStatus.TOO_MANY_REQUESTS,
    ErrorCode.NOT_READY: HTTPStatus.SERVICE_UNAVAILABLE,
    ErrorCode.STORAGE_UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    ErrorCode.NO_CONNECTED_PEERS: HTTPStatus.SERVICE_UNAVAILABLE,
    ErrorCode.NO_QUORUM: HTTPStatus.SERVICE_UNAVAILABLE,
    ErrorCode.ACK_TIMEOUT: HTTPStatus.GATEWAY_TIMEOUT,
    ErrorCode.KEY_PERMISSIONS: HTTPStatus.FORBIDDEN,
    ErrorCode.CONFIG_INVALID: HTTPStatus.BAD_REQUEST,
}
"""Every other code is about what was handed in: well received, and not acceptable."""

_RETRYABLE = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})


def status_of(error: StagepostError) -> HTTPStatus:
    """Return the status by the code, unless the error tells more: whether a message id is none, is unknown or names several, or a
    status of its own. A class of errors that is never the asker's fault goes before the code."""
    if isinstance(error, NotAMessageId):
        return HTTPStatus.UNPROCESSABLE_ENTITY
    if isinstance(error, NotOneMessage):
        return HTTPStatus.CONFLICT if error.message_ids else HTTPStatus.NOT_FOUND
    own: HTTPStatus | None = getattr(error, "status", None)
    if own is not None:
        return own
    if isinstance(error, StorageError | TransportError):
        return HTTPStatus.SERVICE_UNAVAILABLE
    if isinstance(error, ConfigError) and error.code is ErrorCode.CONFIG_INVALID:
        return HTTPStatus.BAD_REQUEST
    return STATUSES.get(error.code, HTTPStatus.UNPROCESSABLE_ENTITY)


def problem_object(error: StagepostError, status: HTTPStatus | None = None) -> dict[str, Any]:
    """RFC 9457's members, and ours: `code`, `advice`, `message_id`, `limit`."""
    status = status or status_of(error)
    found: dict[str, Any] = {
        "type": "about:blank",
        "title": status.phrase,
        "status": status.value,
        "detail": error.text,
        "code": error.code.value,
    }
    if error.advice:
        found["advice"] = error.advice
    if error.message_id is not None:
        found["message_id"] = error.message_id.hex()
    if error.limit is not None:
        found["limit"] = error.limit
    return found


def problem_response(error: StagepostError, status: HTTPStatus | None = None) -> JSONResponse:
    """`status`: where the place tells more than the code, as 401, 404, 405 and 415 do."""
    from fastapi.responses import JSONResponse

    status = status or status_of(error)
    headers = {"Cache-Control": "no-store"}
    if status in _RETRYABLE:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    return JSONResponse(problem_object(error, status), status.value, headers, media_type=MEDIA_TYPE)
