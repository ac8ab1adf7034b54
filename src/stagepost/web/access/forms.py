"""Changes are only made by forms of our own pages, or by programs that show the token."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from stagepost.errors import ErrorCode
from stagepost.ground.files.audit import record_action
from stagepost.web.access.guard import BY_TOKEN, RefusedRequest

if TYPE_CHECKING:
    from fastapi import Request

FORM_FIELD = "form_word"
FORM_HEADER = "x-form-word"
FIELDS_MAX = 32


async def read_form(request: Request) -> dict[str, str]:
    """An urlencoded body; anything else is an empty form."""
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        return {}
    body = await request.body()
    try:
        return dict(parse_qsl(body.decode("utf-8", "replace"), max_num_fields=FIELDS_MAX))
    except ValueError:
        raise RefusedRequest(
            HTTPStatus.BAD_REQUEST, f"a form has at most {FIELDS_MAX} fields", code=ErrorCode.PROTOCOL_REQUEST
        ) from None


async def require_right_to_act(request: Request) -> dict[str, str]:
    """Return the form of an action: a program has shown the token, or a browser that has shown it sends a form of our own
    pages. Raise `RefusedRequest` with 403 otherwise. Record the action in the audit file; `StorageError` if that is
    impossible."""
    form = await require_own_form(request)
    scope = request.scope
    by_token = bool(scope.get(BY_TOKEN))
    if by_token or request.app.state.sessions.may_act(scope.get("stagepost.session")):
        address = request.client.host if request.client else "unknown address"
        named = form.get("delivery_id") or request.query_params.get("delivery_id") or ""
        record_action(
            request.app.state.sources.settings.data,
            f"{request.method} {request.url.path} {named}".rstrip(),
            through="api" if request.url.path.startswith("/api/") else "page",
            who=f"{'token' if by_token else 'browser with the token'} from {address}",
        )
        return form
    raise RefusedRequest(
        HTTPStatus.FORBIDDEN,
        "actions need the token of this dashboard",
        code=ErrorCode.PROTOCOL_REQUEST,
        advice="open the link that `stagepost serve` printed at its start, or log in at /login",
    )


async def require_own_form(request: Request) -> dict[str, str]:
    """Return the form if our own page sent it; raise `RefusedRequest` with 403 otherwise."""
    form = await read_form(request)
    if request.scope.get(BY_TOKEN):
        return form
    origin = request.headers.get("origin")
    is_ours = origin is None or urlsplit(origin).netloc == request.headers.get("host")
    word = form.get(FORM_FIELD) or request.headers.get(FORM_HEADER, "")
    if not is_ours or not request.app.state.sessions.is_form_word(
        request.scope.get("stagepost.session"), word
    ):
        raise RefusedRequest(
            HTTPStatus.FORBIDDEN,
            "this form does not come from a page of this dashboard, or is too old",
            code=ErrorCode.PROTOCOL_REQUEST,
            advice="load the page again; programs send `Authorization: Bearer TOKEN`",
        )
    return form
