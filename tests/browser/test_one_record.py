"""One message, one record, in a real Chromium: ten lines of Python publish on a network of two DMQ nodes, the id that they
print goes into the search box, and the page draws the way from the program to two signed acknowledgements.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from rigs.optional import require
from stagepost.web.access.settings import WebSettings
from tests.browser.chromium import chromium_path
from tests.worlds.delivery.one_message import Network, published

pytest.importorskip("fastapi", reason="the extra web is not installed")
try:
    from playwright import sync_api as playwright
except ModuleNotFoundError:
    require("browser", "the package playwright is not installed")

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Network, str]]:
    with published(tmp_path_factory.mktemp("story")) as found:
        yield found


def test_the_returned_id_shows_the_way_from_the_program_to_two_signed_acknowledgements(
    story: tuple[Network, str],
) -> None:
    from tests.browser.served import served

    network, message_id = story
    with served(WebSettings(network.data)) as server, playwright.sync_playwright() as driver:
        try:
            browser = driver.chromium.launch(executable_path=chromium_path())
        except playwright.Error as error:
            require("browser", f"no Chromium could be started: {str(error).splitlines()[0]}")
        page = browser.new_page(viewport={"width": 1_280, "height": 900})
        page.set_default_timeout(60_000)
        for text in (message_id, message_id[:8], "order-17"):
            page.goto(server.base + "/")
            page.fill("input[name=q]", text)
            page.press("input[name=q]", "Enter")
            page.wait_for_url(f"**/trace/{message_id}")
            assert page.text_content("h1") == "Acknowledged by 2 of 2"
        lanes = page.eval_on_selector_all(".way-lane", "all => all.map(one => one.dataset.name)")
        recipients = {f"pool {network.ids[name][:8]}" for name in ("bob", "carol")}
        assert lanes[:2] == ["program", "node-1"]
        assert {"node-2", "peers"} | recipients <= set(lanes)
        steps = page.text_content("table.steps") or ""
        assert steps.count("acknowledged, signed") == 2
        for word in ("published", "sent", "accepted", "pulled by"):
            assert word in steps
        page.screenshot(
            path=os.environ.get("STAGEPOST_PICTURE", str(network.data / "page.png")), full_page=True
        )
        browser.close()
