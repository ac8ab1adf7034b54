"""The dashboard in a real Chromium: what is drawn is counted, not what was sent. All other hosts are blocked."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rigs.dashboard_world import DashboardWorld
from rigs.optional import require
from stagepost.web.access.settings import WebSettings
from tests.browser.chromium import chromium_path

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

    from tests.browser.served import Served

pytest.importorskip("fastapi", reason="the extra web is not installed")
try:
    from playwright import sync_api as playwright
except ModuleNotFoundError:
    require("browser", "the package playwright is not installed")

# Playwright keeps a loop running in this thread, so everything of it lives and ends within this one module.
pytestmark = pytest.mark.xdist_group("browser")

ROOT = Path(__file__).parents[2]
ALL_PAGES = (
    "/",
    "/live",
    "/messages",
    "/queues",
    "/validators",
    "/peers",
    "/observatory",
    "/analytics",
    "/login",
)


class Dashboard:
    """The world, its server, and what the browser asked of whom."""

    def __init__(self, world: DashboardWorld, server: Served, ids: dict[str, str]) -> None:
        self.world = world
        self.server = server
        self.ids = ids
        self.asked: list[str] = []
        self.complaints: list[str] = []


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    from tests.browser.served import a_node, an_outbox, served
    from tests.browser.tables_world import write_tables

    data = tmp_path_factory.mktemp("dashboard") / "data"
    now_ms = time.time_ns() // 1_000_000
    world = DashboardWorld(data, now_ms)
    world.many(70)
    names = ("finalized", "rejected", "returned", "open", "forged", "largest")
    ids = {name: getattr(world, name)() for name in names}
    an_outbox(data / "outbox", now_ms)
    write_tables(data / "tables", now_ms, count=60)
    try:
        with a_node(data, now_ms), served(WebSettings(data, page_rows=20)) as server:
            yield Dashboard(world, server, ids)
    finally:
        world.close()


@pytest.fixture(scope="module")
def browser(dashboard: Dashboard) -> Iterator[Browser]:
    """After the world: from here on this thread has a loop that runs, and `asyncio.run` refuses."""
    with playwright.sync_playwright() as driver:
        try:
            found = driver.chromium.launch(executable_path=chromium_path())
        except playwright.Error as error:
            require("browser", f"no Chromium could be started: {str(error).splitlines()[0]}")
        yield found
        found.close()


@pytest.fixture
def context(browser: Browser, dashboard: Dashboard) -> Iterator[BrowserContext]:
    found = opened(browser, dashboard)
    yield found
    found.close()


def opened(
    browser: Browser, dashboard: Dashboard, *, with_charts: bool = True, **options: Any
) -> BrowserContext:
    """Without charts their library is left out, which takes Chromium longer than all else together."""
    context = browser.new_context(viewport={"width": 1_280, "height": 800}, **options)
    context.set_default_timeout(60_000)

    def pass_own(route: Any) -> None:
        dashboard.asked.append(route.request.url)
        if "/plotly.js" in route.request.url and not with_charts:
            route.fulfill(body="", content_type="text/javascript")
        elif route.request.url.startswith(dashboard.server.base):
            route.continue_()
        else:
            route.abort()

    context.route("**/*", pass_own)
    return context


def page_at(context: BrowserContext, dashboard: Dashboard, path: str) -> Page:
    page = context.new_page()
    page.on("console", lambda message: note(dashboard, page.url, message.type, message.text))
    page.on("pageerror", lambda error: dashboard.complaints.append(f"{page.url}: {error}"))
    answer = page.goto(dashboard.server.base + path, wait_until="load")
    assert answer is not None
    assert answer.status == 200, path
    return page


def note(dashboard: Dashboard, url: str, kind: str, text: str) -> None:
    if kind == "error" and "ERR_CONNECTION_REFUSED" not in text and "ERR_INCOMPLETE_CHUNKED" not in text:
        dashboard.complaints.append(f"{url}: {text}")


def lanes(page: Page) -> list[str]:
    found: list[str] = page.eval_on_selector_all(
        "svg.trace g.lane", "all => all.map(one => one.dataset.name)"
    )
    return found


def marks(page: Page, lane: str | None = None) -> Counter[str]:
    """Of those that have an extent on the screen."""
    within = f'svg.trace g.lane[data-name="{lane}"]' if lane else "svg.trace"
    drawn = page.eval_on_selector_all(
        f"{within} g.mark",
        "all => all.filter(one => one.getBoundingClientRect().width > 1).map(one => one.dataset.mark)",
    )
    return Counter(drawn)


def count(page: Page, selector: str) -> int:
    found: int = page.locator(selector).count()
    return found


# Traces


def test_a_finalized_message_is_drawn_with_all_its_lanes(
    context: BrowserContext, dashboard: Dashboard
) -> None:
    page = page_at(context, dashboard, f"/trace/{dashboard.ids['finalized']}")

    assert page.inner_text("h1") == "Finalized"
    assert lanes(page) == ["full node", *(f"V{number}" for number in range(1, 8))]
    assert marks(page) == {"ON_ITS_WAY": 15, "QUEUED": 7, "FINAL": 1}
    assert marks(page, "V3") == {"QUEUED": 1, "ON_ITS_WAY": 2}
    assert count(page, "svg.trace .life") == 1 + 7 * 2
    assert (
        count(page, "svg.trace .back")
        == count(page, "svg.trace .label")
        == count(page, "svg.trace .tail")
        == 0
    )
    assert page.locator(".rail li.reached").count() == 5
    assert count(page, "table.receipts tbody tr") == 23


def test_a_rejected_message_says_why_in_every_lane(context: BrowserContext, dashboard: Dashboard) -> None:
    page = page_at(context, dashboard, f"/trace/{dashboard.ids['rejected']}")

    assert page.inner_text("h1") == "Rejected"
    assert marks(page) == {"ON_ITS_WAY": 1, "QUEUED": 7, "NEVER": 7}
    labels = page.locator("svg.trace .label")
    assert labels.count() == 7
    assert "contract error 52" in (labels.first.text_content() or "")
    assert page.locator(".rail li.ahead").count() == 3, "only a proof says never"
    assert "not known yet" in page.inner_text(".seal")


def test_a_returned_message_has_arcs_back_to_the_queue(context: BrowserContext, dashboard: Dashboard) -> None:
    page = page_at(context, dashboard, f"/trace/{dashboard.ids['returned']}")

    assert marks(page)["RETURNED"] == 3
    arcs = page.eval_on_selector_all("svg.trace .back", "all => all.map(one => one.getTotalLength())")
    assert len(arcs) == 3
    assert all(length > 50 for length in arcs)
    assert count(page, "svg.trace .label") == 4  # three were returned, one rejected
    assert page.locator("svg.trace .silent").all_text_contents() == ["silent"]


def test_an_open_message_has_dashed_tails_and_says_who_is_silent(
    context: BrowserContext, dashboard: Dashboard
) -> None:
    page = page_at(context, dashboard, f"/trace/{dashboard.ids['open']}")

    assert page.inner_text("h1") == "Queued at 5 of 7"
    assert count(page, "svg.trace .tail") == 6
    assert page.eval_on_selector("svg.trace .tail", "one => getComputedStyle(one).strokeDasharray") != "none"
    assert page.locator("svg.trace .silent").count() == 2
    assert "2 of 7 silent (V2, V6)" in page.inner_text(".waiting")


def test_a_forged_receipt_stands_in_its_lane_and_does_not_count(
    context: BrowserContext, dashboard: Dashboard
) -> None:
    page = page_at(context, dashboard, f"/trace/{dashboard.ids['forged']}")

    assert len(lanes(page)) == 9
    assert marks(page, "V6") == {"QUEUED": 1, "RETURNED": 1, "UNTRUSTED": 1}
    assert count(page, "svg.trace .untrusted") == count(page, "svg.trace .unknown") == 1
    labels = page.locator("svg.trace .label").all_text_contents()
    assert any("SIGNATURE INVALID" in label for label in labels)
    assert any("UNKNOWN SIGNER" in label for label in labels)
    assert "20 of 22 signatures valid" in page.inner_text(".counts")
    assert count(page, "table.receipts tr.refused") == 2


def test_the_largest_trace_is_drawn_whole(context: BrowserContext, dashboard: Dashboard) -> None:
    page = page_at(context, dashboard, f"/trace/{dashboard.ids['largest']}")

    assert len(lanes(page)) == 22
    assert sum(marks(page).values()) == 2_000
    assert marks(page)["RETURNED"] == count(page, "svg.trace .back") == 21 * 47
    assert count(page, "svg.trace .life") == 2_000 - 22
    outside = page.evaluate(
        """() => { const frame = document.querySelector('svg.trace').getBoundingClientRect();
        return [...document.querySelectorAll('svg.trace g.mark')].filter(one => { const box = one.getBoundingClientRect();
        return box.left < frame.left || box.right > frame.right || box.top < frame.top || box.bottom > frame.bottom; }).length }"""
    )
    assert outside == 0
    assert count(page, "table.receipts tbody tr") == 2_000


def test_a_narrow_screen_scrolls_the_receipts_in_their_own_box(
    context: BrowserContext, dashboard: Dashboard
) -> None:
    page = page_at(context, dashboard, f"/trace/{dashboard.ids['forged']}")
    page.set_viewport_size({"width": 420, "height": 800})

    widths = page.evaluate(
        """() => { const box = document.querySelector('table.receipts').parentElement;
        return [document.documentElement.scrollWidth, box.scrollWidth, box.clientWidth]; }"""
    )
    assert widths[0] <= 420, "the page itself does not scroll sideways"
    assert widths[1] > widths[2], "the table is wider than its box"


def test_every_mark_has_a_title(context: BrowserContext, dashboard: Dashboard) -> None:
    page = page_at(context, dashboard, f"/trace/{dashboard.ids['forged']}")
    titles = page.eval_on_selector_all(
        "svg.trace g.mark, svg.trace .back",
        "all => all.map(one => one.querySelector('title')?.textContent || '')",
    )
    assert len(titles) == 23
    assert all(titles)


def test_a_trace_follows_its_message_to_the_end_without_a_reload(
    context: BrowserContext, dashboard: Dashboard
) -> None:
    world = dashboard.world
    begin_ms = time.time_ns() // 1_000_000
    identifier = world.open("followed", begin_ms)
    page = page_at(context, dashboard, f"/trace/{identifier}")
    page.evaluate("window.isStillHere = true")
    before = sum(marks(page).values())

    world.finalized("followed", begin_ms)

    page.wait_for_selector("h1:text-is('Finalized')")
    assert sum(marks(page).values()) > before
    assert count(page, "svg.trace .tail") == 0
    assert page.evaluate("window.isStillHere") is True


def test_the_proof_of_a_receipt_opens_in_place_and_its_command_repeats_the_check(
    context: BrowserContext, dashboard: Dashboard
) -> None:
    page = page_at(context, dashboard, f"/trace/{dashboard.ids['forged']}")
    page.click("table.receipts tr.refused:has-text('Duplicate') a.proof")
    proof = page.locator("tr.proof-row")
    assert "RECEIPT_SIGNATURE" in proof.inner_text()
    assert json.loads(proof.locator("pre").first.inner_text())["kind"] == "Duplicate"
    assert again(proof.locator("button.copy").get_attribute("data-copy")) == 1

    page.click("table.receipts tr:not(.refused):has-text('V6') a.proof")
    good = page.locator("tr.proof-row").filter(has_text="valid: Ed25519").first
    assert again(good.locator("button.copy").get_attribute("data-copy")) == 0


def again(command: str | None) -> int:
    """The line as a person would paste it, with this interpreter's `stagepost`."""
    assert command is not None
    ours = f"{shlex.quote(sys.executable)} -m stagepost.cli.main"
    line = command.replace("| stagepost verify", f"| {ours} verify")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(["sh", "-c", line], env=environment, capture_output=True, timeout=120).returncode


# Lists


def test_filters_live_in_the_url_and_pages_go_on_behind_each_other(
    context: BrowserContext, dashboard: Dashboard
) -> None:
    page = page_at(context, dashboard, "/messages")
    page.fill("input[name=outcome]", "finalized")
    page.fill("input[name=validator]", "V3")
    page.click("form.filters button")
    page.wait_for_url("**/messages?outcome=finalized&validator=V3")
    shown = ids_on(page)
    page.reload()
    assert ids_on(page) == shown
    assert page.input_value("input[name=outcome]") == "finalized"

    found = list(shown)
    while page.locator("a[rel=next]").count():
        page.click("a[rel=next]")
        page.wait_for_load_state()
        assert "outcome=finalized" in page.url
        found += ids_on(page)
    assert len(found) == len(set(found)) > 40

    text = context.request.get(
        f"{dashboard.server.base}/api/v1/export?outcome=finalized&validator=V3&to=csv"
    ).text()
    exported = [row["message_id"] for row in csv.DictReader(io.StringIO(text))]
    assert exported == found

    page.goto(dashboard.server.base + "/messages?outcome=expired")
    assert page.locator("[data-empty=no-match] a").inner_text() == "clear filter"


def ids_on(page: Page) -> list[str]:
    found: list[str] = page.eval_on_selector_all(
        "table.rows tr[data-id]", "all => all.map(one => one.dataset.id)"
    )
    return found


def test_the_history_comes_from_the_tables_and_is_exported_as_it_is_shown(
    context: BrowserContext, dashboard: Dashboard
) -> None:
    page = page_at(context, dashboard, "/messages?source=tables&outcome=rejected")
    shown = ids_on(page)
    lines = context.request.get(
        f"{dashboard.server.base}/api/v1/export?source=tables&outcome=rejected&to=jsonl"
    ).text()
    assert shown == [json.loads(line)["message_id"] for line in lines.splitlines()]
    assert shown


def test_the_live_page_grows_and_goes_on_after_the_server_was_started_anew(
    context: BrowserContext, dashboard: Dashboard
) -> None:
    world, server = dashboard.world, dashboard.server
    page = page_at(context, dashboard, "/live")
    page.wait_for_selector("#live-state[data-state=on]")
    now_ms = time.time_ns() // 1_000_000

    first = world.finalized("live 1", now_ms)
    page.wait_for_selector(f"#live-messages tr[data-id='{first}'] .badge:text-is('Finalized')")
    server.stop()
    page.wait_for_selector("#live-state[data-state=lost]")
    missed = world.finalized("live 2", now_ms)
    server.start()
    page.wait_for_selector(f"#live-messages tr[data-id='{missed}'] .badge:text-is('Finalized')")
    last = world.finalized("live 3", now_ms)
    page.wait_for_selector(f"#live-messages tr[data-id='{last}'] .badge:text-is('Finalized')")

    places = page.eval_on_selector_all(
        "#live-receipts tr[data-position]",
        "all => all.map(one => Number(one.dataset.position.split(':')[1]))",
    )
    assert len(places) == len(set(places)), "a receipt was shown twice"
    newest = sorted(places)[-3 * 23 :]
    assert newest == list(range(newest[0], newest[0] + 3 * 23)), "a receipt is missing"
    assert page.inner_text("#live-dropped") == "0"


def test_a_paused_page_stands_still_and_then_shows_what_came(
    context: BrowserContext, dashboard: Dashboard
) -> None:
    page = page_at(context, dashboard, "/live")
    page.wait_for_selector("#live-state[data-state=on]")
    page.keyboard.press("p")
    identifier = dashboard.world.finalized("paused", time.time_ns() // 1_000_000)
    page.wait_for_selector("#live-pause:has-text('Go on (')")
    assert count(page, f"#live-messages tr[data-id='{identifier}']") == 0
    page.keyboard.press("p")
    page.wait_for_selector(f"#live-messages tr[data-id='{identifier}']")


# How it is used and seen


def test_keys_reach_search_rows_and_help(context: BrowserContext, dashboard: Dashboard) -> None:
    page = page_at(context, dashboard, "/messages")
    page.keyboard.press("?")
    assert page.locator("dialog#keys").is_visible()
    page.keyboard.press("Escape")
    page.locator("dialog#keys").wait_for(state="hidden")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    chosen = page.get_attribute("tr[aria-selected=true]", "data-id")
    assert chosen == ids_on(page)[0]
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/trace/{chosen}")
    page.wait_for_load_state()
    page.keyboard.press("/")
    page.wait_for_function("document.activeElement.matches('.search input')")
    page.keyboard.type(dashboard.ids["forged"][:12])
    assert page.input_value(".search input") == dashboard.ids["forged"][:12]
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/trace/{dashboard.ids['forged']}")


def _empty_headers(page: Page) -> int:
    """Return how many header cells of tables have no text that a screen reader could say."""
    return sum(not text.strip() for text in page.locator("th").all_text_contents())


def test_pages_are_readable_without_a_script(browser: Browser, dashboard: Dashboard) -> None:
    context = opened(browser, dashboard, java_script_enabled=False)
    page = page_at(context, dashboard, f"/trace/{dashboard.ids['forged']}")
    assert page.locator("svg.trace g.lane").count() == 9
    assert _empty_headers(page) == 0
    page.click("table.receipts tr.refused a.proof >> nth=0")
    page.locator("pre.hex").wait_for(state="visible")
    assert page.locator("pre.hex").inner_text().strip()
    for path in ALL_PAGES:
        page = page_at(context, dashboard, path)
        assert page.inner_text("main").strip()
        assert _empty_headers(page) == 0
    context.close()


CONTRASTS = """() => {
  const parse = (text) => { const n = (text.match(/[-\\d.]+/g) || []).map(Number);
    return text.startsWith('color(') ? [n[0]*255, n[1]*255, n[2]*255, n[3] ?? 1] : [n[0], n[1], n[2], n[3] ?? 1]; };
  const over = (a, b) => [0, 1, 2].map(i => a[i] * a[3] + b[i] * (1 - a[3])).concat(1);
  const light = (c) => { const [r, g, b] = c.slice(0, 3).map(v => { v /= 255; return v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; });
    return .2126 * r + .7152 * g + .0722 * b; };
  const ground = (one) => { const layers = []; for (let at = one; at; at = at.parentElement) layers.push(parse(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255, 1]); };
  const found = [];
  for (const one of document.querySelectorAll('body *:not(svg *):not(script):not(:disabled)')) {
    const own = [...one.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
    const box = one.getBoundingClientRect();
    if (!own || !box.width || !box.height || box.right < 0) continue;
    const back = ground(one), ink = over(parse(getComputedStyle(one).color), back);
    const [a, b] = [light(back), light(ink)];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) found.push(`${one.tagName}.${one.className} ${ratio.toFixed(2)} ${one.textContent.trim().slice(0, 30)}`);
  }
  return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_follow_the_system_with_enough_contrast(
    browser: Browser, dashboard: Dashboard, scheme: str
) -> None:
    context = opened(browser, dashboard, with_charts=False, color_scheme=scheme, reduced_motion="reduce")
    for path in (*ALL_PAGES, f"/trace/{dashboard.ids['forged']}", f"/trace/{dashboard.ids['open']}"):
        page = page_at(context, dashboard, path)
        red, *_ = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
        assert (red > 128) is (scheme == "light"), path
        assert page.evaluate(CONTRASTS) == [], path
        page.close()
    context.close()


def test_charts_are_drawn_from_the_tables(context: BrowserContext, dashboard: Dashboard) -> None:
    page = page_at(context, dashboard, "/analytics")
    page.locator("[data-drawn]").nth(5).wait_for()
    bars = page.eval_on_selector_all(
        "#chart-outcomes .bars .point path",
        "all => all.filter(one => one.getBoundingClientRect().height > 1).length",
    )
    assert bars >= 30
    assert page.locator("#chart-stages .scatterlayer .trace").count() == 8
    assert "quarantined" in page.inner_text(".facts")


def test_queues_offer_changes_only_with_keys(context: BrowserContext, dashboard: Dashboard) -> None:
    page = page_at(context, dashboard, "/queues")
    assert page.locator("table.rows").first.locator("tbody tr").count() == 12
    assert page.locator("button:text('Flush')").is_disabled()
    assert "--keys DIR" in page.inner_text(".actions")


WIDTHS = (390, 768, 1_280)
PLACES = """() => {
  const wide = document.documentElement.scrollWidth - innerWidth;
  const hidden = [...document.querySelectorAll('nav[aria-label="Pages"] a')].filter(one => {
    const box = one.getBoundingClientRect();
    return box.width < 8 || box.height < 8 || box.left < 0 || box.right > innerWidth + 1;
  }).map(one => one.textContent);
  const unreachable = [...document.querySelectorAll('section, .panel, .scroll')].filter(one =>
    one.scrollWidth > one.clientWidth && getComputedStyle(one).overflowX === 'auto'
      && one.tabIndex < 0 && !one.querySelector('a, button, input, [tabindex]')).map(one => one.outerHTML.slice(0, 80));
  const misnamed = [...document.querySelectorAll('button[aria-label]')].filter(one =>
    !one.getAttribute('aria-label').includes(one.textContent.trim())).map(one => one.outerHTML);
  return [wide, [...hidden, ...unreachable, ...misnamed]];
}"""


@pytest.mark.parametrize("width", WIDTHS)
def test_every_page_fits_and_every_page_can_be_reached(
    browser: Browser, dashboard: Dashboard, width: int
) -> None:
    context = opened(browser, dashboard, with_charts=False)
    for path in (*ALL_PAGES, f"/trace/{dashboard.ids['forged']}"):
        page = context.new_page()
        page.set_viewport_size({"width": width, "height": 800})
        page.goto(dashboard.server.base + path, wait_until="load")
        wide, hidden = page.evaluate(PLACES)
        assert wide <= 0, f"{path} is {wide} px wider than {width}"
        assert hidden == [], path
        page.close()
    context.close()


TRANSFERRED = """() => performance.getEntriesByType('navigation').concat(performance.getEntriesByType('resource'))
  .reduce((sum, one) => sum + one.transferSize, 0)"""


def test_pages_are_light_and_the_chart_library_comes_only_where_it_is_used(
    browser: Browser, dashboard: Dashboard
) -> None:
    for path in (*ALL_PAGES, f"/trace/{dashboard.ids['largest']}"):
        context = browser.new_context()
        page = context.new_page()
        asked: list[str] = []
        page.on("request", lambda request, asked=asked: asked.append(request.url))
        page.goto(dashboard.server.base + path, wait_until="load")
        has_charts = page.locator("[data-chart]").count() > 0
        if has_charts:
            page.locator("[data-drawn]").first.wait_for()
        size = page.evaluate(TRANSFERRED)
        assert size <= (1_600_000 if has_charts else 300_000), (path, size)
        assert any("/plotly.js" in url for url in asked) is has_charts, path
        context.close()


ONE_BUCKET = """(counts) => {
  const holder = document.getElementById('chart-data');
  const made = JSON.parse(holder.textContent).map(chart => chart.is_time
    ? { ...chart, series: chart.series.map(series => ({ ...series,
        x: [...Array(counts).keys()].map(n => 1800000000000 + n * 60000), y: [...Array(counts).keys()].map(n => 1 + n % 7) })) }
    : chart);
  holder.textContent = JSON.stringify(made);
  document.querySelectorAll('[data-drawn]').forEach(one => delete one.dataset.drawn);
  charts();
  return made.filter(chart => chart.is_time).map(chart => `[data-chart="${chart.key}"]`).join(', ');
}"""


@pytest.mark.parametrize("buckets", [1, 3, 500])
def test_charts_with_few_and_many_buckets_have_readable_axes(
    context: BrowserContext, dashboard: Dashboard, buckets: int
) -> None:
    page = page_at(context, dashboard, "/analytics")
    page.locator("[data-drawn]").nth(5).wait_for()
    of_time = page.evaluate(ONE_BUCKET, buckets)
    page.locator("[data-drawn]").nth(5).wait_for()
    labels = page.eval_on_selector_all("[data-chart] .xtick text", "all => all.map(one => one.textContent)")
    assert not [one for one in labels if re.search(r"\.[0-9]{3}", one)], "no parts of a second on an axis"
    overlaps = page.eval_on_selector_all(
        of_time,
        """all => all.flatMap(chart => {
          const boxes = [...chart.querySelectorAll('.xtick text')].map(one => one.getBoundingClientRect());
          boxes.sort((a, b) => a.left - b.left);
          const legend = chart.querySelector('.legend')?.getBoundingClientRect();
          const plot = chart.querySelector('.plot')?.getBoundingClientRect();
          return boxes.slice(1).filter((box, n) => box.left < boxes[n].right - 1).map(() => 'ticks')
            .concat(legend && boxes.some(box => box.top < legend.bottom && box.bottom > legend.top) ? ['legend'] : []);
        })""",
    )
    assert overlaps == []


def test_nothing_is_requested_from_another_host_and_nobody_complains(
    browser: Browser, dashboard: Dashboard
) -> None:
    """Runs last: over everything that the tests before have opened, and every page once more."""
    context = opened(browser, dashboard, with_charts=False)
    for path in (*ALL_PAGES, f"/trace/{dashboard.ids['forged']}"):
        page_at(context, dashboard, path).close()
    context.close()
    strangers = {url for url in dashboard.asked if not url.startswith(dashboard.server.base)}
    assert strangers == set()
    assert len(dashboard.asked) > 30
    assert dashboard.complaints == []
