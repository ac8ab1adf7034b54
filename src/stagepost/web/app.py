"""The dashboard as one ASGI application: pages, API, health and metrics over the sources of a data folder.

`/metrics`: what this program knows itself. Nodes and publishers serve their own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry, generate_latest
from starlette.exceptions import HTTPException

from stagepost import __version__
from stagepost.delivery.shell import metrics as delivery_metrics
from stagepost.errors import ErrorCode, StagepostError
from stagepost.full_node.node_health import health_gauges
from stagepost.ground.telemetry.metrics import CONTENT_TYPE as CONTENT_TYPE
from stagepost.ground.telemetry.metrics import set_build_info
from stagepost.ground.telemetry.status import FullNodePage
from stagepost.web import api, pages
from stagepost.web.access.guard import Guard, RefusedRequest, wants_page
from stagepost.web.access.security import LoginLimit, Sessions
from stagepost.web.access.settings import WebSettings, require_safe_address
from stagepost.web.outcomes import Nothing, Unreadable
from stagepost.web.sources import Sources
from stagepost.web.static_files import static_router
from stagepost.web.stream import Streams

if TYPE_CHECKING:
    from starlette.types import ASGIApp


def metrics_text(sources: Sources) -> bytes:
    """Return the health of the folder, and its outbox, if there is one to read: the publisher may be a program that serves no metrics."""
    registry = CollectorRegistry()
    set_build_info(registry)
    members = [seen.status for seen in sources.members() if isinstance(seen.status, FullNodePage)]
    now_s = sources.now_ms() / 1_000
    health_gauges(registry, sources.health(), members[0] if members else None, now_s)
    content = sources.outbox()
    if isinstance(content, Nothing):
        return generate_latest(registry)
    is_readable = not isinstance(content, Unreadable) and not content.damage
    delivery_metrics.DELIVERY_OUTBOX_READABLE.gauge(registry).set(is_readable)
    # What could not be counted has no sample: a 0 would look like an empty outbox.
    if is_readable and not isinstance(content, Unreadable):
        oldest_ms = min((record.created_ms for record in content.records), default=None)
        age_s = 0.0 if oldest_ms is None else max(0.0, (sources.now_ms() - oldest_ms) / 1_000)
        for declared, value in (
            (delivery_metrics.DELIVERY_QUEUE_MESSAGES, len(content.records)),
            (
                delivery_metrics.DELIVERY_QUEUE_CAPACITY,
                content.queue_size or sources.settings.queue_size,
            ),
            (delivery_metrics.DELIVERY_QUEUE_OLDEST, age_s),
            (delivery_metrics.DELIVERY_DEAD_LETTERS, len(content.dead_letters)),
        ):
            declared.gauge(registry).set(value)
    return generate_latest(registry)


def create_app(settings: WebSettings) -> FastAPI:
    """`ConfigError` for an address that must not be served so."""
    require_safe_address(settings)
    sources = Sources(settings)
    app = FastAPI(
        title="Stagepost",
        version=__version__,
        description="Messages, receipts and verdicts of one data folder.",
        docs_url=None,  # they load from elsewhere
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
        lifespan=_life,
    )
    app.state.sources = sources
    app.state.streams = Streams(sources)
    app.state.sessions = Sessions(time.monotonic)
    app.state.login_limit = LoginLimit(time.monotonic)
    app.include_router(api.router())
    app.include_router(_health_router())
    app.include_router(static_router())
    app.include_router(pages.router())
    app.add_exception_handler(StagepostError, _refused)
    app.add_exception_handler(HTTPException, _refused_by_framework)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_middleware(_guard_class(settings, app.state.sessions, app.state.login_limit))
    return app


def _guard_class(settings: WebSettings, sessions: Sessions, limit: LoginLimit) -> Any:
    def make(app: ASGIApp) -> Guard:
        return Guard(app, settings, sessions, limit)

    return make


@asynccontextmanager
async def _life(app: FastAPI) -> AsyncIterator[None]:
    sources: Sources = app.state.sources
    sources.tail.start()
    pulse = asyncio.create_task(sources.pulse.run())
    try:
        yield
    finally:
        sources.pulse.end()
        pulse.cancel()
        with suppress(asyncio.CancelledError):
            await pulse
        await asyncio.to_thread(sources.tail.stop)


def _health_router() -> APIRouter:
    health = APIRouter()
    health.add_api_route("/healthz", healthz, summary="The process is alive")
    not_ready: dict[int | str, dict[str, Any]] = {503: {"description": "one is not ready"}}
    health.add_api_route("/readyz", readyz, summary="Each part with its reason", responses=not_ready)
    health.add_api_route("/metrics", metrics, summary="For Prometheus", response_class=Response)
    return health


def healthz() -> dict[str, bool]:
    return {"alive": True}


def readyz(request: Request) -> JSONResponse:
    sources: Sources = request.app.state.sources
    parts, report = sources.readiness(), sources.health()
    is_ready = all(part["ready"] for part in parts.values())
    status = HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE
    answer = {"ready": is_ready, "health": report.health.value, "text": report.text, "parts": parts}
    return JSONResponse(answer, status)


def metrics(request: Request) -> Response:
    return Response(metrics_text(request.app.state.sources), media_type=CONTENT_TYPE)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, StagepostError)
    if wants_page(request.url.path, dict(request.headers)):
        return pages.problem_page(request, error)
    response = api.refusal(error)
    wait_s = getattr(error, "wait_s", None)
    if wait_s is not None:
        response.headers["Retry-After"] = str(max(1, round(wait_s)))
    return response


async def _refused_by_framework(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    texts = {
        HTTPStatus.NOT_FOUND: f"there is nothing at {request.url.path[:200]}",
        HTTPStatus.METHOD_NOT_ALLOWED: f"{request.method} is not served at {request.url.path[:200]}",
    }
    text = texts.get(status, str(error.detail))
    refused = RefusedRequest(
        status, text, code=ErrorCode.PROTOCOL_REQUEST, advice="/openapi.json lists all paths"
    )
    response = await _refused(request, refused)
    for name, value in (error.headers or {}).items():
        response.headers[name] = value
    return response


async def _malformed(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    text = f"{where}: {first['msg'].lower()}"
    refused = RefusedRequest(HTTPStatus.UNPROCESSABLE_ENTITY, text, code=ErrorCode.PROTOCOL_REQUEST)
    return await _refused(request, refused)
