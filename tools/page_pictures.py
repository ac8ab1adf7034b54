"""Takes the pictures of `docs/dashboard.md`: every page of the dashboard over an invented but signed history, in Chromium.

    python tools/page_pictures.py docs/images

Needs the packages of the extras `web` and `test`, and a Chromium. With a folder of tables (`--tables DIR`, made by
`stagepost pipeline run` from the folder that `--data` names) the page of analytics has its charts; without, they are made here
from a few hand-written rows.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

sys.path.insert(0, str(Path(__file__).parents[1]))

from rigs.dashboard_world import DashboardWorld
from stagepost.web.access.security import hash_of, new_token
from stagepost.web.access.settings import WebSettings
from tests.browser.chromium import chromium_path
from tests.browser.served import a_node, an_outbox, served
from tests.browser.tables_world import write_tables

WIDTH, HEIGHT = 1_280, 780
PICTURE_BYTES_MAX = 200_000
TOKEN = new_token()


def main(out: Path, tables: Path | None = None) -> int:
    from playwright.sync_api import sync_playwright

    out = out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    now_ms = time.time_ns() // 1_000_000
    with ExitStack() as parts:
        parts.enter_context(contextlib.chdir(parts.enter_context(tempfile.TemporaryDirectory())))
        data = Path("stagepost-demo")  # as it stands on the pages
        world = DashboardWorld(data, now_ms)
        parts.callback(world.close)
        world.many(260)
        ids = {"trace": world.forged(), "trace-open": world.open(), "trace-returned": world.returned()}
        an_outbox(data / "outbox", now_ms)
        parts.enter_context(a_node(data, now_ms))
        if tables is None:
            tables = data / "tables"
            write_tables(tables, now_ms)
        settings = WebSettings(
            data, tables=tables, keys=data / "keys", token_hash=hash_of(TOKEN), open_reading=True
        )
        server = parts.enter_context(served(settings))
        browser = parts.enter_context(sync_playwright()).chromium.launch(executable_path=chromium_path())
        parts.callback(browser.close)
        shots = {name: f"/trace/{identifier}" for name, identifier in ids.items()}
        shots |= {
            name: f"/{name}"
            for name in ("live", "messages", "queues", "validators", "peers", "observatory", "analytics")
        }
        shots["overview"] = "/"
        shots["trace-dark"] = shots["trace"]
        context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT})
        context.request.get(f"{server.base}/login", params={"token": TOKEN})
        for name, path in shots.items():
            scheme: Literal["dark", "light"] = "dark" if name.endswith("dark") else "light"
            page = context.new_page()
            page.emulate_media(color_scheme=scheme)
            page.goto(server.base + path, wait_until="load")
            if name in ("analytics", "observatory"):
                page.wait_for_selector("[data-drawn]")
            page.wait_for_timeout(300)
            target = out / f"{name}.png"
            page.screenshot(path=target)
            page.close()
            size = target.stat().st_size
            print(f"{target} {size} bytes")
            assert size < PICTURE_BYTES_MAX, f"{target} is larger than {PICTURE_BYTES_MAX} bytes"
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--tables", type=Path)
    options = parser.parse_args()
    sys.exit(main(options.out, options.tables))
