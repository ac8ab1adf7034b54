"""A full node's HTTP address, served on the node's own loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from stagepost import __version__
from stagepost.errors import ConfigError, ErrorCode, StagepostError
from stagepost.web.access.guard import Guard, RefusedRequest
from stagepost.web.access.places import placed_server
from stagepost.web.access.problems import problem_response
from stagepost.web.access.security import LoginLimit, Sessions
from stagepost.web.access.settings import WebSettings, require_safe_address
from stagepost.web.intake.api import FullNodeHandle, intake_router

REQUESTS_AT_ONCE = 64
KEEP_ALIVE_S = 5
END_WITHIN_S = 2
LOOK_EVERY_S = 0.01


def intake_app(full_node: FullNodeHandle, settings: WebSettings) -> FastAPI:
    """`ConfigError` for an address that others can reach, without token and TLS."""
    require_safe_address(settings)
    app = FastAPI(
        title="Stagepost full node",
        version=__version__,
        description="External messages in.",
        docs_url=None,
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
    )
    app.include_router(intake_router(full_node))
    app.add_exception_handler(StagepostError, _refused)
    app.add_exception_handler(HTTPException, _refused_by_framework)
    app.add_exception_handler(RequestValidationError, _malformed)
    sessions, limit = Sessions(time.monotonic), LoginLimit(time.monotonic)
    guard: Any = lambda inner: Guard(inner, settings, sessions, limit)  # noqa: E731  # as the framework wants it
    app.add_middleware(guard)
    return app


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, StagepostError)
    return problem_response(error, getattr(error, "status", None))


async def _refused_by_framework(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    text = f"{request.method} {request.url.path[:200]}: {status.phrase.lower()}"
    advice = "POST /api/v1/messages, or GET /api/v1/messages/{id}"
    response = problem_response(
        RefusedRequest(status, text, code=ErrorCode.PROTOCOL_REQUEST, advice=advice), status
    )
    for name, value in (error.headers or {}).items():
        response.headers[name] = value
    return response


async def _malformed(request: Request, error: Exception) -> Response:
    fault = RefusedRequest(
        HTTPStatus.BAD_REQUEST, "the request cannot be read", code=ErrorCode.PROTOCOL_REQUEST
    )
    return problem_response(fault, fault.status)


@asynccontextmanager
async def serving_intake(full_node: FullNodeHandle, settings: WebSettings) -> AsyncIterator[str]:
    """Serves until the end of the block; tells the address. Port 0 takes a free one."""
    listening = _listen(settings.host, settings.port)
    try:
        port = listening.getsockname()[1]
        app = intake_app(full_node, replace(settings, port=port))
        config = uvicorn.Config(
            app,
            http="h11",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=END_WITHIN_S,
            ssl_certfile=_text(settings.certificate),
            ssl_keyfile=_text(settings.private_key),
            lifespan="off",
        )
        server: Any = placed_server(config, REQUESTS_AT_ONCE)
        server.capture_signals = contextlib.nullcontext  # signals are the node's
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            while not server.started:
                if serving.done():
                    serving.result()
                    raise ConfigError(f"HTTP at {settings.host}:{port} did not start", advice="read the log")
                await asyncio.sleep(LOOK_EVERY_S)
            host = f"[{settings.host}]" if ":" in settings.host else settings.host
            yield f"{'https' if settings.has_tls else 'http'}://{host}:{port}"
        finally:
            server.should_exit = True
            await serving
    finally:
        listening.close()


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _listen(host: str, port: int) -> socket.socket:
    listening: socket.socket | None = None
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except (OSError, OverflowError) as error:
        if listening is not None:
            listening.close()
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise ConfigError(
            f"cannot serve HTTP at {host}:{port}: {reason}", advice="choose another address with --http"
        ) from error
    return listening
