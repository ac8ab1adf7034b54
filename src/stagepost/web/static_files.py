"""The few files that pages load, all of them ours or out of an installed package; nothing comes from another host."""

from __future__ import annotations

import gzip
import importlib.util
import re
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from fastapi import APIRouter, Request, Response

from stagepost.errors import ErrorCode, StagepostError
from stagepost.trace.drawing import STYLE

FOLDER = Path(__file__).parent / "static"
CACHE = "public, max-age=31536000, immutable"
"""Names carry a hash of the content, as a query, so a new version has a new name."""


@lru_cache
def style_sheet() -> bytes:
    """Ours, and that of the drawing, which also stands alone in files."""
    return (FOLDER / "stagepost.css").read_bytes() + STYLE.encode()


@lru_cache
def script() -> bytes:
    return (FOLDER / "stagepost.js").read_bytes()


@lru_cache
def plotly() -> bytes:
    """Out of the installed package, which is not imported for it: that takes a second."""
    found = importlib.util.find_spec("plotly")
    if found is None or found.origin is None:
        raise StagepostError(
            "charts need the package plotly",
            code=ErrorCode.NOT_READY,
            advice="install the extra: pip install '.[web]'",
        )
    return (Path(found.origin).parent / "package_data" / "plotly.min.js").read_bytes()


@lru_cache
def plotly_packed() -> bytes:
    """The chart library as browsers take it: a third of its size."""
    return gzip.compress(plotly(), 9, mtime=0)


@lru_cache
def plotly_address() -> str:
    """Return the address of the library, with its version; empty if the package is not installed."""
    try:
        return f"/static/plotly.js?{_hash(plotly())}"
    except (StagepostError, OSError):
        return ""


@lru_cache
def plotly_marks() -> tuple[str, ...]:
    """The library adds a style sheet of its own unless an element with this id is there: our content policy forbids it."""
    try:
        found = re.findall(rb'getElementById\("([0-9a-f]{64})"\)', plotly())
    except (StagepostError, OSError):
        return ()
    return tuple(sorted({mark.decode() for mark in found}))


@lru_cache
def versions() -> dict[str, str]:
    return {"css": _hash(style_sheet()), "js": _hash(script())}


def _hash(content: bytes) -> str:
    return sha256(content).hexdigest()[:12]


def static_router() -> APIRouter:
    files = APIRouter(prefix="/static", include_in_schema=False)
    files.add_api_route("/stagepost.css", _css)
    files.add_api_route("/stagepost.js", _js)
    files.add_api_route("/plotly.js", _charts)
    files.add_api_route("/icon.svg", _icon)
    return files


def _css() -> Response:
    return Response(style_sheet(), media_type="text/css", headers={"Cache-Control": CACHE})


def _js() -> Response:
    return Response(script(), media_type="text/javascript", headers={"Cache-Control": CACHE})


def _charts(request: Request) -> Response:
    headers = {"Cache-Control": CACHE, "Vary": "Accept-Encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        return Response(plotly_packed(), media_type="text/javascript", headers=headers)
    return Response(plotly(), media_type="text/javascript", headers=headers)


def _icon() -> Response:
    return Response((FOLDER / "icon.svg").read_bytes(), media_type="image/svg+xml")
