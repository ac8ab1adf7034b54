"""The observatory's page and API: the figures of a plain recomputation, and "unknown" where nobody knows, never 0."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stagepost.pipeline.tables.manifest import Batch, Manifest, Reports
from stagepost.web.access.settings import WebSettings
from tests.worlds.dmq.mithril_traffic import FIRST_EPOCH, Traffic
from tests.worlds.pipeline.observatory_oracle import (
    beacon_rows,
    differences,
    epoch_figures,
    observatory_tables,
    pool_rows,
)
from tests.worlds.pipeline.written_tables import write_lake

pytest.importorskip("fastapi", reason="the extra web is not installed")
httpx = pytest.importorskip("httpx", reason="httpx is not installed")

EPOCHS = 5
UNKNOWN_EPOCH = FIRST_EPOCH + EPOCHS - 1


@pytest.fixture(scope="module")
def traffic(run_seed: int) -> Traffic:
    return Traffic(24, EPOCHS, run_seed)


@pytest.fixture(scope="module")
def client(traffic: Traffic, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from tests.browser.served import served

    data = tmp_path_factory.mktemp("observatory")
    (data / "topics").mkdir()
    made = Manifest(total=Batch(other_rows=42), reports=Reports(1, 1, are_all_made=True))
    write_lake(data / "tables", observatory_tables(traffic), made)
    with served(WebSettings(data)) as server, httpx.Client(base_url=server.base, timeout=60) as found:
        yield found


def test_the_api_has_the_figures_of_every_epoch(client: Any, traffic: Traffic) -> None:
    rows = client.get("/api/v1/observatory/epochs").json()["rows"]
    wanted = epoch_figures(traffic)

    assert [row["epoch"] for row in rows] == sorted(wanted, reverse=True)
    found = {row["epoch"]: {name: row[name] for name in wanted[row["epoch"]]} for row in rows}
    assert differences(found, wanted) == []


def test_the_api_has_the_beacons_and_pools_of_an_epoch(client: Any, traffic: Traffic) -> None:
    for name, every, key in (
        ("beacons", beacon_rows(traffic), ("epoch", "variant", "beacon")),
        ("pools", pool_rows(traffic), ("epoch", "pool_id")),
    ):
        rows = client.get(f"/api/v1/observatory/{name}?epoch={FIRST_EPOCH}").json()["rows"]
        found = {
            tuple(row[one] for one in key): {n: v for n, v in row.items() if n != "name"} for row in rows
        }
        assert differences(found, {one: row for one, row in every.items() if one[0] == FIRST_EPOCH}) == []


def test_names_follow_the_release_that_is_asked_for(client: Any) -> None:
    def names(query: str) -> set[str]:
        rows = client.get(f"/api/v1/observatory/beacons?epoch={FIRST_EPOCH}{query}").json()["rows"]
        return {row["name"] for row in rows}

    assert "CardanoImmutableFilesFull" not in names("")
    assert "CardanoImmutableFilesFull" in names("&names_as_of=2617")
    assert client.get(f"/api/v1/observatory/beacons?epoch={FIRST_EPOCH}&names_as_of=1").status_code == 422


def test_the_page_shows_the_same_figures(client: Any, traffic: Traffic) -> None:
    text = client.get(f"/observatory?epoch={FIRST_EPOCH}").text
    figures = epoch_figures(traffic)[FIRST_EPOCH]
    row = next(one for one in re.findall(r"<tr.*?</tr>", text, re.S) if f"<b>{FIRST_EPOCH}</b>" in one)

    assert f"{figures['adoption_percent']:.1f} %" in row
    assert f"{figures['quorum_percent']:.1f} %" in row
    for beacon in (one for one in beacon_rows(traffic).values() if one["epoch"] == FIRST_EPOCH):
        line = next(
            one for one in re.findall(r"<tr>.*?</tr>", text, re.S) if f"<b>{beacon['entity']}</b>" in one
        )
        assert f'<td class="num">{beacon["adoption_percent"]:.1f} %</td>' in line
    assert "Signers that use HTTP alone are not seen here" in text
    assert "2 valid messages have bodies of other programs" in text


def test_what_nobody_knows_is_unknown_and_not_0(client: Any) -> None:
    text = client.get(f"/observatory?epoch={UNKNOWN_EPOCH}").text
    row = next(one for one in re.findall(r"<tr.*?</tr>", text, re.S) if f"<b>{UNKNOWN_EPOCH}</b>" in one)

    assert row.count("data-unknown") == 7
    beacons = text[text.index('id="beacons"') : text.index('id="pools"')]
    assert beacons.count("data-unknown") == 5 * 5
    assert "0.0 %" not in row + beacons
    for found in client.get(f"/api/v1/observatory/beacons?epoch={UNKNOWN_EPOCH}").json()["rows"]:
        assert found["adoption_percent"] is None
        assert found["pools"] > 0


def test_without_tables_the_page_says_so(tmp_path: Path) -> None:
    from tests.browser.served import served

    (tmp_path / "topics").mkdir()
    with served(WebSettings(tmp_path)) as server, httpx.Client(base_url=server.base, timeout=60) as found:
        assert "no tables yet" in found.get("/observatory").text
        assert found.get("/api/v1/observatory/epochs").json() == {"rows": [], "note": "no tables yet"}
