"""`/api/v1`: the same data as the pages, for programs. Errors are problem+json with our codes.

Connections of the nodes that run here, for the API and the page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from stagepost.dmq.mithril.body import EPOCH_MAX, NamesAsOf
from stagepost.errors import ConfigError, ErrorCode, StagepostError
from stagepost.pipeline.tables.filter import NAMES, Exported, FileFormat, MessageFilter
from stagepost.trace.reading import read_trace, trace_object
from stagepost.web.access.forms import require_right_to_act
from stagepost.web.access.problems import problem_response
from stagepost.web.export import MEDIA_TYPES, exported, written
from stagepost.web.figures import as_objects, sessions_of
from stagepost.web.listing import Cursor, ListSource, page_of
from stagepost.web.live import read_event_id
from stagepost.web.observatory import ROWS_MAX, TABLES, beacon_rows, epoch_rows, pool_rows
from stagepost.web.outcomes import Nothing, Unreadable
from stagepost.web.queues import queues_object, run_queue_command
from stagepost.web.sources import Sources, UnreadableSource
from stagepost.web.stream import ROWS_AT_BEGIN_MAX, ROWS_OF_EVENT_MAX, STREAMS_MAX, Streams
from stagepost.web.tables import Asking


def peers_object(sources: Sources) -> list[dict[str, Any]]:
    nodes = sources.nodes()
    if isinstance(nodes, Unreadable):
        raise UnreadableSource(nodes)
    if isinstance(nodes, Nothing):
        return []
    found: list[dict[str, Any]] = []
    for seen in nodes:
        if isinstance(seen.status, Unreadable):
            found.append(
                {"node": str(seen.folder), "state": "unreadable", "reason": seen.status.text, "peers": []}
            )
        else:
            peers = [msgspec.to_builtins(peer) for peer in seen.status.peers]
            found.append({"node": str(seen.folder), "state": "read", "reason": None, "peers": peers})
    return found


PAGE_ROWS_MAX = 1_000
RECEIPT_COLUMNS = (
    "lane",
    "kind",
    "timestamp",
    "source_id",
    "counts",
    "refused",
    "position",
    "signature",
    "error",
)
DELIVERY_ID_DIGITS = 64

_PROBLEM = {"description": "refused, with one of our codes", "content": {"application/problem+json": {}}}
_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: _PROBLEM for status in (400, 401, 403, 404, 413, 422, 429, 503, 504)
}
_DELIVERY_ID = re.compile(r"[0-9a-f]{8,64}(@[0-9]{1,19})?", re.ASCII)

MessageId = Annotated[
    str, Path(description="any id of a message, at least eight of its first digits, or its idempotency key")
]


def wanted_filter(
    request: Request,
    id: Annotated[str | None, Query(description="a message id, or the digits that it begins with")] = None,
    outcome: Annotated[str | None, Query(description="verdicts, several with commas")] = None,
    kind: Annotated[str | None, Query(description="kinds of receipts, several with commas")] = None,
    since: Annotated[str | None, Query(description="ISO 8601, Unix milliseconds, or how long ago")] = None,
    until: Annotated[str | None, Query(description="before this moment")] = None,
    topic: Annotated[str | None, Query(description="topic of the delivery layer")] = None,
    pool: Annotated[str | None, Query(description="pool that signed the DMQ message")] = None,
    validator: Annotated[
        str | None, Query(description="name of a validator, digits of its key id, or V3")
    ] = None,
) -> MessageFilter:
    sources: Sources = request.app.state.sources
    given = dict(zip(NAMES, (id, outcome, kind, since, until, topic, pool, validator), strict=True))
    return MessageFilter.read(given, sources.now_ms() / 1_000, sources.validator_names)


Wanted = Annotated[MessageFilter, Depends(wanted_filter)]
SourceGiven = Annotated[
    ListSource, Query(description="the newest messages, or the whole history in the tables")
]


class NoSuchMessage(StagepostError):
    default_code = ErrorCode.MSG_BAD_ID


def _sources(request: Request) -> Sources:
    found: Sources = request.app.state.sources
    return found


def router() -> APIRouter:
    """All routes below `/api/v1`."""
    api = APIRouter(prefix="/api/v1", responses=_REFUSALS)
    add = api.add_api_route
    add("/messages", messages, summary="Messages by filter, the newest first, page by page")
    add("/messages/{message_id}", message, summary="What became of one message")
    add("/messages/{message_id}/receipts", receipts, summary="Everything that was signed about one message")
    add("/queues", queues, summary="What waits, in an outbox and in mempools")
    add("/queues/flush", flush, methods=["POST"], summary="Send what waits in the outbox")
    add(
        "/queues/replay",
        replay,
        methods=["POST"],
        summary="Try dead letters again: all, or the one with this id",
    )
    add("/validators", validators, summary="Delays, silence and disagreement, by session and validator")
    add("/peers", peers, summary="Connections of the nodes that run here")
    add("/observatory/epochs", observed_epochs, summary="Mithril on DMQ by stake: epochs, the newest first")
    add("/observatory/beacons", observed_beacons, summary="Adoption and quorum of the beacons of one epoch")
    add(
        "/observatory/pools", observed_pools, summary="Pools of one epoch: signed, silent, late, equivocating"
    )
    add(
        "/stream",
        stream,
        summary="News as server-sent events; resumes by Last-Event-ID",
        response_class=StreamingResponse,
        responses={200: {"content": {"text/event-stream": {}}}},
    )
    add(
        "/export",
        export,
        summary="All rows of a filter as one file, streamed",
        response_class=StreamingResponse,
    )
    return api


def messages(
    request: Request,
    wanted: Wanted,
    source: SourceGiven = ListSource.LIVE,
    before: Annotated[str | None, Query(description="`next` of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=PAGE_ROWS_MAX)] = 50,
) -> dict[str, Any]:
    cursor = None if not before else Cursor.read(before)
    page = page_of(_sources(request), wanted, source, cursor, limit)
    if isinstance(page, Unreadable):
        raise UnreadableSource(page)
    if isinstance(page, Nothing):
        return {"rows": [], "next": None, "total": 0, "note": page.text}
    following = None if page.next is None else page.next.text()
    return {"rows": page.rows, "next": following, "total": page.total}


def message(request: Request, message_id: MessageId) -> dict[str, Any]:
    found = traced(_sources(request), message_id)
    del found["all_receipts"]
    return found


def receipts(
    request: Request,
    message_id: MessageId,
    to: Annotated[FileFormat | None, Query(description="csv or jsonl for a file; JSON otherwise")] = None,
) -> Response:
    found = traced(_sources(request), message_id)
    if to is None:
        return JSONResponse(found["all_receipts"])
    if to is FileFormat.PARQUET:
        raise ConfigError(
            "the receipts of one message are written as csv or jsonl", advice="choose one of them"
        )
    rows = found["all_receipts"]
    if to is FileFormat.CSV:
        rows = [{name: row.get(name) for name in RECEIPT_COLUMNS} for row in rows]
    name = f"{found['message_id'][:16]}-receipts.{to}"
    return _file(written(rows, list(RECEIPT_COLUMNS), to), to, name)


def queues(request: Request) -> dict[str, Any]:
    return queues_object(_sources(request))


async def flush(request: Request) -> dict[str, Any]:
    await require_right_to_act(request)
    return await run_queue_command(_sources(request), "flush")


async def replay(
    request: Request,
    delivery_id: Annotated[
        str | None, Query(description="of a dead letter, as ID or ID@SEQUENCE; all without one")
    ] = None,
) -> dict[str, Any]:
    await require_right_to_act(request)
    return await run_queue_command(_sources(request), "replay", require_delivery_id(delivery_id))


def validators(request: Request) -> list[dict[str, Any]]:
    sources = _sources(request)
    if isinstance(sources.tail.state, Unreadable):
        raise UnreadableSource(sources.tail.state)
    return as_objects(sessions_of(sources.book, sources.now_ms()))


def peers(request: Request) -> list[dict[str, Any]]:
    return peers_object(_sources(request))


EpochGiven = Annotated[int, Query(ge=0, le=EPOCH_MAX, description="epoch in which beacons are signed")]
RowsMax = Annotated[int, Query(ge=1, le=ROWS_MAX)]


def _asked(request: Request, question: Callable[[Asking], list[dict[str, Any]]]) -> dict[str, Any]:
    """Return rows; null in a row means that the figure is not known. Without tables, say so in a note."""

    def ask(asking: Asking) -> list[dict[str, Any]] | Nothing:
        if not all(asking.has(table) for table in TABLES):
            return Nothing("the tables have no observatory yet", "run the pipeline to its end once")
        return question(asking)

    found = _sources(request).tables.ask(ask)
    if isinstance(found, Unreadable):
        raise UnreadableSource(found)
    if isinstance(found, Nothing):
        return {"rows": [], "note": found.text}
    return {"rows": found}


def observed_epochs(request: Request, limit: RowsMax = 100) -> dict[str, Any]:
    return _asked(request, lambda asking: epoch_rows(asking, limit))


def observed_beacons(
    request: Request,
    epoch: EpochGiven,
    names_as_of: Annotated[
        NamesAsOf, Query(description="release by which entities are named")
    ] = NamesAsOf.SINCE_2630,
    limit: RowsMax = 1_000,
) -> dict[str, Any]:
    return _asked(request, lambda asking: beacon_rows(asking, epoch, names_as_of, limit))


def observed_pools(request: Request, epoch: EpochGiven, limit: RowsMax = ROWS_MAX) -> dict[str, Any]:
    return _asked(request, lambda asking: pool_rows(asking, epoch, "true", limit))


async def stream(
    request: Request,
    wanted: Wanted,
    last_event_id: Annotated[str | None, Header(description="where a stream broke off")] = None,
    max_rows: Annotated[int, Query(ge=1, le=ROWS_OF_EVENT_MAX)] = ROWS_OF_EVENT_MAX,
    begin: Annotated[int, Query(ge=0, le=ROWS_AT_BEGIN_MAX, description="older rows to begin with")] = 0,
) -> Response:
    streams: Streams = request.app.state.streams
    if streams.open >= STREAMS_MAX:
        raise StagepostError(
            f"{STREAMS_MAX} streams are open already",
            code=ErrorCode.QUEUE_FULL,
            advice="close one",
            limit=STREAMS_MAX,
        )
    seen = None
    if last_event_id:
        seen = read_event_id(last_event_id)
        if seen is None:
            raise StagepostError(
                "Last-Event-ID is not a valid event id",
                code=ErrorCode.PROTOCOL_REQUEST,
                advice="leave it out to begin with the newest rows",
            )
    events = streams.events(wanted, seen, max_rows, begin)
    return StreamingResponse(events, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


def export(
    request: Request,
    wanted: Wanted,
    to: FileFormat = FileFormat.CSV,
    table: Exported = Exported.MESSAGES,
    source: SourceGiven = ListSource.LIVE,
) -> Response:
    parts = exported(_sources(request), table, wanted, source, to)
    return _file(parts, to, f"{table}.{to}")


def traced(sources: Sources, message_id: str) -> dict[str, Any]:
    trace = read_trace(sources.settings.data, message_id, sources.now_ms(), sources.outbox_folder)
    return trace_object(trace)


def require_delivery_id(text: str | None) -> str | None:
    """Return what `queue replay` takes as its ID: the id of a message, or ID@SEQUENCE for one copy of it."""
    if text is None or text == "":
        return None
    if _DELIVERY_ID.fullmatch(text.lower()) is None:
        raise NoSuchMessage(
            f"{text[:DELIVERY_ID_DIGITS]!r} is not a delivery id",
            advice="give 8 to 64 of its digits, followed by @ and a sequence for one of several dead letters",
        )
    return text.lower()


def _file(parts: Iterator[bytes], form: FileFormat, name: str) -> StreamingResponse:
    # What goes wrong with the first part can still be said; behind it only the connection can be broken off.
    parts = chain([next(parts, b"")], parts)
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(parts, media_type=MEDIA_TYPES[form], headers=headers)


def refusal(error: StagepostError) -> Response:
    return problem_response(error)
