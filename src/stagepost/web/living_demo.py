"""Page of a living demonstration: faults that a person sets and takes back. Only `stagepost demo --live` serves it."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Protocol

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from stagepost.web import pages
from stagepost.web.access.forms import require_right_to_act

PATH = "/demo"


class ShownFault(Protocol):
    @property
    def key(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def about(self) -> str: ...

    @property
    def is_on(self) -> bool: ...


class Breakable(Protocol):
    """Network whose faults can be set and taken back; everything on the loop that serves the pages."""

    @property
    def faults(self) -> Sequence[ShownFault]: ...

    async def set_fault(self, key: str, is_on: bool) -> None: ...


def add_demo(app: FastAPI, demo: Breakable) -> None:
    """Add the page of `demo` to the dashboard."""
    app.state.demo = demo
    router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
    router.add_api_route(PATH, show)
    router.add_api_route(PATH, change, methods=["POST"])
    app.include_router(router)


def show(request: Request) -> HTMLResponse:
    sources = request.app.state.sources
    return pages.page(
        request, "demo.html", with_form=True, faults=request.app.state.demo.faults, health=sources.health()
    )


async def change(request: Request) -> Response:
    form = await require_right_to_act(request)
    await request.app.state.demo.set_fault(form.get("fault", ""), form.get("is_on") == "1")
    return RedirectResponse(PATH, HTTPStatus.SEE_OTHER)
