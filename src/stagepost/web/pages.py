"""The pages: parse, ask one source, show. Each is whole without a script; scripts only keep it up to date."""

from __future__ import annotations

import gzip
import re
import shlex
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import msgspec
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup, escape

from stagepost import __version__
from stagepost.delivery.stores.outbox import OutboxContent
from stagepost.dmq.mithril.body import EPOCH_MAX, NamesAsOf
from stagepost.errors import ErrorCode, StagepostError
from stagepost.pipeline.tables.filter import KIND_NAMES, NAMES, OUTCOMES, MessageFilter
from stagepost.pipeline.tables.manifest import Manifest
from stagepost.remp.receipts.status_records import STATUSES_TOPIC
from stagepost.remp.verdict.trace import Trace
from stagepost.remp.verdict.words import WORDS
from stagepost.trace.drawing import draw_trace
from stagepost.trace.kept_proofs import keeps_proofs
from stagepost.trace.reading import NotOneMessage, read_trace, require_prefix
from stagepost.trace.reasons import error_words
from stagepost.trace.view import receipt_view, trace_view
from stagepost.trace.words import FILTERS, ago
from stagepost.web.access.forms import read_form, require_own_form, require_right_to_act
from stagepost.web.access.guard import BY_TOKEN, Guard, RefusedRequest
from stagepost.web.access.problems import status_of
from stagepost.web.access.security import COOKIE, SESSION_LIFE_S, Sessions
from stagepost.web.api import require_delivery_id
from stagepost.web.charts import charts_of, run_of
from stagepost.web.figures import heat, lately, sessions_of
from stagepost.web.listing import Cursor, ListSource, Page, page_of
from stagepost.web.live import event_id
from stagepost.web.observatory import POOLS_SHOWN, Observed, adoption_charts, observed
from stagepost.web.outcomes import Nothing, Unreadable
from stagepost.web.queues import ENTRIES_SHOWN, entry_object, outbox_figures, run_queue_command
from stagepost.web.sources import Remembered, Sources
from stagepost.web.static_files import plotly_address, plotly_marks, versions
from stagepost.web.stream import row_filter

FRAGMENT_HEADER = "x-fragment"
"""A script that keeps a page up to date asks for the inner part alone."""
COMPRESSED_FROM_BYTES = 100_000
"""Bytes of a page above which it is compressed."""
GZIP_LEVEL = 5
LIVE_ROWS_AT_FIRST = 60
LIVE_MESSAGES_SHOWN = 40
OPEN_OUTCOMES = "sent,queued,included,accepted,likely_rejected"
REFUSED_OUTCOMES = "rejected,rejected_by_fullnode,likely_rejected,expired"

NAVIGATION = (
    ("/", "Overview"),
    ("/live", "Live"),
    ("/messages", "Messages"),
    ("/queues", "Queues"),
    ("/validators", "Validators"),
    ("/peers", "Peers"),
    ("/observatory", "Observatory"),
    ("/analytics", "Analytics"),
)


def coded(text: str) -> Markup:
    """Return a sentence for a page: commands between backticks, and options, are shown as code."""
    return Markup(_COMMAND.sub(lambda found: f"<code>{found[1] or found[0]}</code>", str(escape(text))))


_COMMAND = re.compile(r"`([^`]+)`|(?<![\w-])--[a-z][a-z-]*")


@lru_cache
def _templates() -> Environment:
    folder = Path(__file__).parent / "templates"
    environment = Environment(
        loader=FileSystemLoader(folder), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= FILTERS | {"reason": error_words, "coded": coded}
    environment.tests |= {
        "nothing": lambda value: isinstance(value, Nothing),
        "unreadable": lambda value: isinstance(value, Unreadable),
    }
    return environment


def page(
    request: Request,
    template: str,
    status: HTTPStatus = HTTPStatus.OK,
    *,
    with_form: bool = False,
    **context: Any,
) -> HTMLResponse:
    """`with_form`: the page can change something, so its reader gets a session for the form's word."""
    sources: Sources = request.app.state.sources
    sessions: Sessions = request.app.state.sessions
    session: str | None = request.scope.get("stagepost.session")
    is_new = with_form and session is None and not request.scope.get(BY_TOKEN)
    if is_new:
        session = sessions.begin(may_act=False)
    now_ms = sources.now_ms()
    text = (
        _templates()
        .get_template(template)
        .render(
            navigation=(
                *NAVIGATION,
                *((("/demo", "Break it"),) if hasattr(request.app.state, "demo") else ()),
            ),
            path=request.url.path,
            is_fragment=FRAGMENT_HEADER in request.headers,
            versions=versions(),
            version=__version__,
            now_ms=now_ms,
            ago=lambda time_ms: ago(time_ms, now_ms),
            data=str(sources.settings.data),
            may_act=_may_act(request),
            form_word="" if session is None else sessions.form_word(session),
            **context,
        )
    )
    response = HTMLResponse(text, status)
    if not with_form and session is None and len(response.body) > COMPRESSED_FROM_BYTES:
        _compress(request, response)
    if is_new and session is not None:
        set_cookie(response, session, is_secure=sources.settings.has_tls)
    return response


def _compress(request: Request, response: HTMLResponse) -> None:
    """Compress a long page for a reader that takes it so. A page with a form's word is never compressed: the length of the
    answer would tell of the word."""
    response.headers["Vary"] = "Accept-Encoding"
    if "gzip" in request.headers.get("accept-encoding", ""):
        response.body = gzip.compress(response.body, GZIP_LEVEL, mtime=0)
        response.headers["Content-Encoding"] = "gzip"
        response.headers["Content-Length"] = str(len(response.body))


def _may_act(request: Request) -> bool:
    sessions: Sessions = request.app.state.sessions
    return sessions.may_act(request.scope.get("stagepost.session"))


def set_cookie(response: Response, session: str, *, is_secure: bool) -> None:
    response.set_cookie(
        COOKIE, session, max_age=int(SESSION_LIFE_S), httponly=True, samesite="strict", secure=is_secure
    )


def _sources(request: Request) -> Sources:
    found: Sources = request.app.state.sources
    return found


def _filter_given(request: Request) -> tuple[MessageFilter, dict[str, str]]:
    """From the URL, where it lives; what cannot be understood raises, and the page says what."""
    given = {name: request.query_params.get(name) for name in NAMES}
    shown = {name: text for name, text in given.items() if text}
    sources = _sources(request)
    return MessageFilter.read(given, sources.now_ms() / 1_000, sources.validator_names), shown


def _try_filter(request: Request) -> tuple[MessageFilter, dict[str, str], StagepostError | None]:
    try:
        return *_filter_given(request), None
    except StagepostError as error:
        shown = {name: text for name in NAMES if (text := request.query_params.get(name))}
        return MessageFilter(), shown, error


def router() -> APIRouter:
    html = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
    html.add_api_route("/", overview)
    html.add_api_route("/live", live)
    html.add_api_route("/messages", messages)
    html.add_api_route("/search", search)
    html.add_api_route("/trace/{message_id}", trace)
    html.add_api_route("/trace/{message_id}/drawing.svg", drawing)
    html.add_api_route("/trace/{message_id}/receipts/{position}", receipt)
    html.add_api_route("/queues", queues)
    html.add_api_route("/queues/{verb}", empty_queue, methods=["POST"])
    html.add_api_route("/validators", validators)
    html.add_api_route("/peers", peers)
    html.add_api_route("/observatory", observatory)
    html.add_api_route("/analytics", analytics)
    html.add_api_route("/login", login_page)
    html.add_api_route("/login", login, methods=["POST"])
    html.add_api_route("/logout", logout, methods=["POST"])
    return html


# Overview


def overview(request: Request) -> HTMLResponse:
    sources = _sources(request)
    state = request.app.state
    if not hasattr(state, "lately"):
        # However many pages are open: worked out once a second.
        state.lately = Remembered(lambda: lately(sources.book, sources.now_ms()))
    nodes = sources.nodes()
    outbox = sources.outbox()
    figures = None if isinstance(outbox, Nothing | Unreadable) else outbox_figures(outbox, sources)
    return page(
        request,
        "overview.html",
        topic_state=sources.tail.state,
        figures=state.lately(),
        nodes=nodes,
        outbox=outbox,
        outbox_figures=figures,
        readiness=sources.readiness(),
        health=sources.health(),
        open_outcomes=OPEN_OUTCOMES,
        refused_outcomes=REFUSED_OUTCOMES,
        outcome_words={**WORDS, "queued": "Queued"},
    )


# Live


def live(request: Request) -> HTMLResponse:
    sources = _sources(request)
    wanted, shown, fault = _try_filter(request)
    is_wanted = row_filter(wanted, sources)
    since = sources.ring.newest(LIVE_ROWS_AT_FIRST * 20)
    rows = [row.row for row in since.rows if is_wanted(row) and row.row.type == "receipt"]
    recent = page_of(sources, wanted, ListSource.LIVE, None, LIVE_MESSAGES_SHOWN) if fault is None else None
    return page(
        request,
        "live.html",
        HTTPStatus.OK if fault is None else status_of(fault),
        fault=fault,
        state=sources.tail.state,
        rows=list(reversed(rows))[:LIVE_ROWS_AT_FIRST],
        messages=recent.rows if isinstance(recent, Page) else [],
        given=shown,
        stream=f"/api/v1/stream?{urlencode({**shown, 'max_rows': 100})}",
        event_id=event_id(sources.ring.next_offsets),
        rows_max=sources.settings.live_rows_max,
        kinds=KIND_NAMES,
        outcomes=OUTCOMES,
        validator_names=sorted(sources.validator_names.values()),
    )


# Messages


def messages(
    request: Request,
    source: Annotated[ListSource, Query()] = ListSource.LIVE,
    before: Annotated[str, Query()] = "",
) -> HTMLResponse:
    sources = _sources(request)
    wanted, shown, fault = _try_filter(request)
    found: Page | Nothing | Unreadable | None = None
    if fault is None:
        try:
            cursor = Cursor.read(before) if before else None
            found = page_of(sources, wanted, source, cursor, sources.settings.page_rows)
        except StagepostError as error:
            fault = error
    kept = {**shown, **({} if source is ListSource.LIVE else {"source": source.value})}
    following = found.next if isinstance(found, Page) else None
    return page(
        request,
        "messages.html",
        HTTPStatus.OK if fault is None else status_of(fault),
        fault=fault,
        found=found,
        given=shown,
        source=source.value,
        query=urlencode(kept),
        first_page=f"/messages?{urlencode(kept)}",
        is_first=not before,
        next_page=None
        if following is None
        else f"/messages?{urlencode({**kept, 'before': following.text()})}",
        export=f"/api/v1/export?{urlencode({**kept, 'to': ''})}",
        outcomes=OUTCOMES,
        kinds=KIND_NAMES,
        validator_names=sorted(sources.validator_names.values()),
        words=WORDS,
        book_size=len(sources.book),
        dropped=sources.book.dropped,
        tables_state=sources.tables.state(),
    )


def search(request: Request, q: Annotated[str, Query()] = "") -> RedirectResponse:
    """An id of any layer, or an idempotency key, goes to its trace, anything else to the list, which says what is wrong
    with it."""
    text = q.strip()
    try:
        return RedirectResponse(f"/trace/{require_prefix(text)}", HTTPStatus.SEE_OTHER)
    except NotOneMessage:
        if text and _sources(request).knows(text):
            return RedirectResponse(f"/trace/{quote(text, safe='')}", HTTPStatus.SEE_OTHER)
        return RedirectResponse(f"/messages?{urlencode({'id': text.lower()})}", HTTPStatus.SEE_OTHER)


# Trace


def _read(request: Request, message_id: str) -> Trace:
    sources = _sources(request)
    return read_trace(sources.settings.data, message_id, sources.now_ms(), sources.outbox_folder)


def trace(request: Request, message_id: str) -> Response:
    sources = _sources(request)
    try:
        found = _read(request, message_id)
    except NotOneMessage as error:
        status = status_of(error)
        return page(request, "not_one.html", status, error=error, prefix=message_id[:64])
    if message_id != found.message_id.hex():
        return RedirectResponse(f"/trace/{found.message_id.hex()}", HTTPStatus.SEE_OTHER)
    whole = found.message_id.hex()
    return page(
        request,
        "trace.html",
        **trace_view(found, sources.settings.data),
        hides_payload=sources.settings.token_hash is not None
        and not request.scope.get(BY_TOKEN)
        and not _may_act(request),
        is_followed=found.is_open or (found.proved is None and keeps_proofs(sources.settings.data)),
        command=f"stagepost trace {whole[:16]} --data {shlex.quote(str(sources.settings.data))}",
        stream=f"/api/v1/stream?id={whole}",
        event_id=event_id(sources.ring.next_offsets),
        topic=STATUSES_TOPIC,
    )


def drawing(request: Request, message_id: str) -> Response:
    text = draw_trace(_read(request, message_id))
    # It stands alone: its own style is all that it loads.
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return Response(text, media_type="image/svg+xml", headers={"Content-Security-Policy": policy})


def receipt(request: Request, message_id: str, position: str) -> HTMLResponse:
    found = _read(request, message_id)
    proof = receipt_view(found, position, _sources(request).settings.data)
    if proof is None:
        raise RefusedRequest(
            HTTPStatus.NOT_FOUND,
            f"this message has no receipt at {position[:40]}",
            code=ErrorCode.MSG_BAD_ID,
            advice="the list of its receipts names their places",
        )
    return page(request, "receipt.html", message_id=found.message_id.hex(), **proof)


# Queues


def queues(request: Request) -> HTMLResponse:
    return _queues_page(request, None)


def _queues_page(request: Request, outcome: dict[str, Any] | None) -> HTMLResponse:
    sources = _sources(request)
    outbox = sources.outbox()
    content = OutboxContent() if isinstance(outbox, Nothing | Unreadable) else outbox
    return page(
        request,
        "queues.html",
        with_form=True,
        outbox=outbox,
        figures=outbox_figures(content, sources) if content is outbox else None,
        waiting=[entry_object(one) for one in content.records[:ENTRIES_SHOWN]],
        dead=[entry_object(one) for one in content.dead_letters[-ENTRIES_SHOWN:][::-1]],
        nodes=sources.nodes(),
        has_keys=sources.settings.keys is not None,
        can_send=sources.settings.keys is not None and _may_act(request),
        outcome=outcome,
    )


async def empty_queue(request: Request, verb: str) -> HTMLResponse:
    form = await require_right_to_act(request)
    if verb not in ("flush", "replay"):
        raise RefusedRequest(
            HTTPStatus.NOT_FOUND, f"a queue cannot be {verb[:20]}ed", code=ErrorCode.PROTOCOL_REQUEST
        )
    message = require_delivery_id(form.get("delivery_id")) if verb == "replay" else None
    outcome = await run_queue_command(_sources(request), verb, message)
    return _queues_page(request, outcome)


# Validators, peers, analytics


def validators(request: Request) -> HTMLResponse:
    sources = _sources(request)
    sessions = sessions_of(sources.book, sources.now_ms())
    charts = charts_of(sources, ("validators", "trust"))
    return page(
        request,
        "validators.html",
        state=sources.tail.state,
        sessions=sessions,
        since_ms=sources.book.whole_since_ms,
        book_size=len(sources.book),
        heat=heat,
        charts=charts,
        chart_data=_chart_data(charts),
        plotly_marks=plotly_marks() if charts else (),
        chart_library=plotly_address(),
        stages=("queued", "included", "accepted"),
    )


def peers(request: Request) -> HTMLResponse:
    sources = _sources(request)
    return page(request, "peers.html", nodes=sources.nodes(), members=sources.members())


def analytics(request: Request) -> HTMLResponse:
    sources = _sources(request)
    state = sources.tables.state()
    charts = charts_of(sources)
    return page(
        request,
        "analytics.html",
        state=state,
        run=run_of(sources, state) if isinstance(state, Manifest) else None,
        charts=charts,
        chart_data=_chart_data(charts),
        plotly_marks=plotly_marks() if charts else (),
        chart_library=plotly_address(),
        folder=str(sources.tables.folder),
    )


def observatory(
    request: Request,
    epoch: Annotated[int | None, Query(ge=0, le=EPOCH_MAX)] = None,
    names_as_of: Annotated[NamesAsOf, Query()] = NamesAsOf.SINCE_2630,
) -> HTMLResponse:
    found = observed(_sources(request), epoch, names_as_of)
    charts = adoption_charts(found) if isinstance(found, Observed) else []
    is_newest = names_as_of is NamesAsOf.SINCE_2630
    return page(
        request,
        "observatory.html",
        found=found,
        charts=charts,
        chart_data=_chart_data(charts),
        plotly_marks=plotly_marks() if charts else (),
        chart_library=plotly_address(),
        names_as_of=names_as_of.value,
        other_names=(NamesAsOf.UNTIL_2617 if is_newest else NamesAsOf.SINCE_2630).value,
        names_query="" if is_newest else f"&names_as_of={names_as_of.value}",
        shown=POOLS_SHOWN,
    )


def _chart_data(charts: Any) -> list[dict[str, Any]]:
    return [msgspec.to_builtins(chart) for chart in charts] if isinstance(charts, list) else []


# Who may look


def login_page(request: Request) -> Response:
    """Show the form, or log in the browser that follows the link with the token."""
    token = request.query_params.get("token")
    return page(request, "login.html", error=None) if token is None else _log_in(request, token)


async def login(request: Request) -> Response:
    return _log_in(request, (await read_form(request)).get("token", ""))


def _log_in(request: Request, token: str) -> Response:
    sources = _sources(request)
    if sources.settings.token_hash is None:
        return RedirectResponse("/", HTTPStatus.SEE_OTHER)
    address = request.client.host if request.client else ""
    guard = Guard(request.app, sources.settings, request.app.state.sessions, request.app.state.login_limit)
    try:
        guard.check_token(token.strip(), address)
    except RefusedRequest as error:
        return page(request, "login.html", error.status, error=error)
    response = RedirectResponse("/", HTTPStatus.SEE_OTHER)
    set_cookie(response, request.app.state.sessions.begin(may_act=True), is_secure=sources.settings.has_tls)
    return response


async def logout(request: Request) -> Response:
    await require_own_form(request)
    session = request.scope.get("stagepost.session")
    if session:
        request.app.state.sessions.end(session)
    response = RedirectResponse("/login", HTTPStatus.SEE_OTHER)
    response.delete_cookie(COOKIE)
    return response


def problem_page(request: Request, error: StagepostError) -> HTMLResponse:
    status = status_of(error)
    return page(request, "problem.html", status, error=error, quoted=quote(request.url.path))
