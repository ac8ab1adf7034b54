"""Changes are only made by forms of our own pages, or by programs that show the token."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from stagepost.errors import ErrorCode
from stagepost.web.access.guard import Refused

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
        raise Refused(
            HTTPStatus.BAD_REQUEST, f"a form has at most {FIELDS_MAX} fields", code=ErrorCode.PROTOCOL_REQUEST
        ) from None


async def require_own_form(request: Request) -> dict[str, str]:
    """The form, if our own page sent it; 403 otherwise."""
    form = await read_form(request)
    if request.scope.get("stagepost.by_token"):
        return form
    origin = request.headers.get("origin")
    is_ours = origin is None or urlsplit(origin).netloc == request.headers.get("host")
    word = form.get(FORM_FIELD) or request.headers.get(FORM_HEADER, "")
    if not is_ours or not request.app.state.sessions.is_form_word(
        request.scope.get("stagepost.session"), word
    ):
        raise Refused(
            HTTPStatus.FORBIDDEN,
            "changes are made from our own pages only, and this form is none of them or too old",
            code=ErrorCode.PROTOCOL_REQUEST,
            advice="load the page again; programs send `Authorization: Bearer TOKEN`",
        )
    return form
