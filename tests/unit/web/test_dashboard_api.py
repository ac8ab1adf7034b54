"""The API over a real socket: rows, streams, files, and what is said to requests that cannot be served."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stagepost.pipeline.tables.delta import LOG_FOLDER
from stagepost.pipeline.tables.filter import FileFormat
from stagepost.pipeline.tables.manifest import COMMITS
from stagepost.web.export import written

pytest.importorskip("fastapi", reason="the extra web is not installed")
httpx = pytest.importorskip("httpx", reason="httpx is not installed")

from rigs.dashboard_world import DashboardWorld  # noqa: E402  # below what may be absent
from stagepost.errors import ErrorCode  # noqa: E402
from stagepost.web.access.settings import WebSettings  # noqa: E402
from tests.browser.served import Served, a_node, an_outbox, served  # noqa: E402
from tests.browser.tables_world import write_tables  # noqa: E402
from tests.worlds.ground.damaged_files import change_row  # noqa: E402

NOW_MS = time.time_ns() // 1_000_000
CODES = {code.value for code in ErrorCode}


class Api:
    def __init__(
        self, world: DashboardWorld, server: Served, ids: dict[str, str], rows: list[Any], client: Any
    ) -> None:
        self.world = world
        self.server = server
        self.ids = ids
        self.table_rows = rows
        self.client = client

    def get(self, path: str, **options: Any) -> Any:
        return self.client.get(path, **options)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    data = tmp_path_factory.mktemp("api") / "data"
    world = DashboardWorld(data, NOW_MS)
    names = ("finalized", "rejected", "returned", "open", "forged")
    ids = {name: getattr(world, name)() for name in names}
    an_outbox(data / "outbox", NOW_MS)
    rows = write_tables(data / "tables", NOW_MS, count=30)
    with (
        a_node(data, NOW_MS),
        served(WebSettings(data)) as server,
        httpx.Client(base_url=server.base, timeout=60) as client,
    ):
        yield Api(world, server, ids, rows, client)
    world.close()


def test_messages_come_with_their_rows_and_a_cursor(api: Api) -> None:
    first = api.get("/api/v1/messages?limit=3").json()
    second = api.get(f"/api/v1/messages?limit=3&before={first['next']}").json()
    assert first["total"] == 5
    assert {row["message_id"] for row in first["rows"] + second["rows"]} == set(api.ids.values())
    assert second["next"] is None


@pytest.mark.parametrize("path", ["messages?limit=1000", "messages?limit=1"])
def test_limits_hold_at_their_edge(api: Api, path: str) -> None:
    assert api.get(f"/api/v1/{path}").status_code == 200


def test_one_message_is_told_with_its_verdict_and_its_receipts(api: Api) -> None:
    row = api.get(f"/api/v1/messages/{api.ids['forged'][:12]}").json()
    assert (row["verdict"], row["words"], row["receipts"], row["receipts_bad"]) == (
        "finalized",
        "Finalized",
        20,
        2,
    )
    receipts = api.get(f"/api/v1/messages/{api.ids['forged']}/receipts").json()
    assert len(receipts) == 22
    assert sum(not receipt["counts"] for receipt in receipts) == 2
    text = api.get(f"/api/v1/messages/{api.ids['forged']}/receipts?to=csv").text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["position"] for row in rows] == [receipt["position"] for receipt in receipts]


def test_the_same_rows_come_as_csv_json_lines_and_parquet(api: Api, tmp_path: Path) -> None:
    import duckdb

    for source, expected in (
        ("live", set(api.ids.values())),
        ("tables", {row["message_id"] for row in api.table_rows}),
    ):
        text = api.get(f"/api/v1/export?source={source}&to=csv").text
        lines = api.get(f"/api/v1/export?source={source}&to=jsonl").text
        path = tmp_path / f"{source}.parquet"
        path.write_bytes(api.get(f"/api/v1/export?source={source}&to=parquet").content)
        of_csv = [row["message_id"] for row in csv.DictReader(io.StringIO(text))]
        assert of_csv == [json.loads(line)["message_id"] for line in lines.splitlines()]
        found = duckdb.sql(f"SELECT message_id, silent FROM '{path}'").fetchall()
        assert of_csv == [row[0] for row in found]
        assert set(of_csv) == expected
        assert all(isinstance(row[1], list) for row in found)


def test_no_text_in_a_csv_answer_is_a_formula() -> None:
    rows: list[dict[str, object]] = [
        {"error": "=1+1", "silent": [1, 2], "queued_ms": -1},
        {"error": "plain", "silent": [], "queued_ms": None},
    ]
    parts = written(rows, ["error", "silent", "queued_ms"], FileFormat.CSV)
    assert b"".join(parts).decode() == 'error,silent,queued_ms\n\'=1+1,"[1,2]",-1\nplain,[],\n'


def test_receipts_of_the_tables_are_exported_by_the_filter(api: Api) -> None:
    wanted = api.table_rows[3]["message_id"]
    text = api.get(f"/api/v1/export?table=receipts&source=tables&to=csv&id={wanted}").text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert {row["message_id"] for row in rows} == {wanted}


def test_queues_validators_peers_and_health(api: Api) -> None:
    queues = api.get("/api/v1/queues").json()
    assert (queues["outbox"]["messages"], queues["outbox"]["dead"]) == (12, 3)
    assert "payload" not in json.dumps(queues)
    (session,) = api.get("/api/v1/validators").json()
    assert len(session["seats"]) == 7
    (node,) = api.get("/api/v1/peers").json()
    assert len(node["peers"]) == 3
    assert api.get("/healthz").json() == {"alive": True}
    ready = api.get("/readyz")
    assert (ready.status_code, ready.json()["ready"]) == (200, True)
    metrics = api.get("/metrics").text
    assert "stagepost_build_info" in metrics
    assert "stagepost_delivery_queue_messages 12.0" in metrics


def events(answer: Any) -> Iterator[tuple[str, str, Any]]:
    """(id, name, data) of each event."""
    fields: dict[str, str] = {}
    for line in answer.iter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "data" in fields:
            yield fields.get("id", ""), fields.get("event", ""), json.loads(fields["data"])
            fields = {}


def test_a_stream_goes_on_where_it_was(api: Api) -> None:
    with api.client.stream("GET", "/api/v1/stream?begin=5") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        identifier, name, rows = next(events(answer))
    assert (name, len(rows)) == ("rows", 5)
    later = api.world.finalized("streamed", NOW_MS)
    seen = []
    with api.client.stream(
        "GET", f"/api/v1/stream?id={later}", headers={"Last-Event-ID": identifier}
    ) as answer:
        for _, _, rows in events(answer):
            seen += rows
            if any(row["type"] == "verdict" and row["verdict"] == "finalized" for row in seen):
                break
    receipts = [row for row in seen if row["type"] == "receipt"]
    assert len(receipts) == len({row["position"] for row in receipts}) == 23


def test_a_stream_that_gets_too_much_is_told_how_much_was_dropped(api: Api) -> None:
    with api.client.stream("GET", "/api/v1/stream?max_rows=2", headers={"Last-Event-ID": "0"}) as answer:
        found = []
        for _, name, data in events(answer):
            found.append((name, len(data) if name == "rows" else data["rows"]))
            if len(found) == 1:
                api.world.finalized("too much", NOW_MS)
            if any(name == "dropped" for name, _ in found):
                break
    assert found[0][0] == "rows"
    assert found[-1][1] >= 1


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/api/v1/messages?outcome=nonsense", 400, "CONFIG_INVALID"),
        ("/api/v1/messages?since=yesterday", 400, "CONFIG_INVALID"),
        ("/api/v1/messages?id=xyz", 400, "CONFIG_INVALID"),
        ("/api/v1/messages?before=nonsense", 400, "CONFIG_INVALID"),
        ("/api/v1/messages?pool=pool1x", 400, "CONFIG_INVALID"),
        ("/api/v1/messages?topic=orders", 400, "CONFIG_INVALID"),
        ("/api/v1/messages?limit=0", 422, "PROTOCOL_REQUEST"),
        ("/api/v1/messages?limit=1001", 422, "PROTOCOL_REQUEST"),
        ("/api/v1/messages?source=elsewhere", 422, "PROTOCOL_REQUEST"),
        ("/api/v1/messages/nothex", 422, "MSG_BAD_ID"),
        ("/api/v1/messages/abcdef1", 422, "MSG_BAD_ID"),
        ("/api/v1/messages/" + "00" * 32, 404, "MSG_BAD_ID"),
        ("/api/v1/messages/" + "00" * 33, 422, "MSG_BAD_ID"),
        ("/api/v1/export?to=xlsx", 422, "PROTOCOL_REQUEST"),
        ("/api/v1/export?table=receipts", 400, "CONFIG_INVALID"),
        ("/api/v1/nowhere", 404, "PROTOCOL_REQUEST"),
        ("/docs", 404, "PROTOCOL_REQUEST"),
        ("/redoc", 404, "PROTOCOL_REQUEST"),
    ],
)
def test_what_cannot_be_served_is_refused_with_our_code(api: Api, path: str, status: int, code: str) -> None:
    answer = api.get(path)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"]


def test_a_stream_with_a_strange_event_id_is_refused(api: Api) -> None:
    answer = api.get("/api/v1/stream", headers={"Last-Event-ID": "nonsense"})
    assert (answer.status_code, answer.json()["code"]) == (400, "PROTOCOL_REQUEST")


def test_pages_say_what_is_wrong_with_a_filter_or_an_id(api: Api) -> None:
    page = {"Accept": "text/html"}
    bad = api.get("/messages?outcome=nonsense", headers=page)
    assert (bad.status_code, "is not a known outcome" in bad.text, 'value="nonsense"' in bad.text) == (
        400,
        True,
        True,
    )
    unknown = api.get("/trace/" + "00" * 32, headers=page)
    assert (unknown.status_code, "nothing matches" in unknown.text) == (404, True)
    assert api.get("/trace/nonsense", headers=page).status_code == 422
    assert api.get(f"/trace/{api.ids['open']}/receipts/9:9", headers=page).status_code == 404


def test_what_strangers_wrote_is_never_markup(api: Api) -> None:
    name = api.world.rejected("hostile", NOW_MS, reason="<script>alert(1)</script>")
    with api.client.stream("GET", f"/api/v1/stream?id={name}&begin=1000") as answer:
        next(events(answer))  # it has been heard
    for path in ("/messages", "/live", f"/trace/{name}", "/", "/messages?id=%3Cscript%3E"):
        assert "<script>alert" not in api.get(path, headers={"Accept": "text/html"}).text, path


def test_no_more_streams_are_opened_than_may_be(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stagepost.web.api.STREAMS_MAX", 1)
    with api.client.stream("GET", "/api/v1/stream?begin=1") as first:
        listening = events(first)  # held, for letting it go would close the stream
        next(listening)
        with api.client.stream("GET", "/api/v1/stream") as second:
            assert second.status_code == 429
            assert json.loads(second.read())["code"] == "QUEUE_FULL"


def test_every_source_that_cannot_be_read_is_said_on_its_page(tmp_path: Path) -> None:
    (tmp_path / "node.json").write_text(
        '{"pid": 1, "local_socket": "s", "network_magic": 1, "metrics_port": 9}'
    )
    (tmp_path / "outbox").mkdir()
    (tmp_path / "outbox" / "outbox.sqlite").write_text("this is no database")
    log = tmp_path / "tables" / COMMITS / LOG_FOLDER
    log.mkdir(parents=True)
    (log / f"{0:020d}.json").write_text("{")
    world = DashboardWorld(tmp_path, NOW_MS)
    world.close()
    (tmp_path / "validator-sets.json").unlink()
    with served(WebSettings(tmp_path)) as server, httpx.Client(base_url=server.base, timeout=60) as client:
        pages = (
            "/",
            "/live",
            "/messages",
            "/messages?source=tables",
            "/queues",
            "/validators",
            "/peers",
            "/observatory",
            "/analytics",
        )
        for path in pages:
            assert "could not read" in client.get(path).text, path
        ready = client.get("/readyz")
        assert ready.status_code == 503
        parts = ready.json()["parts"]
        # The index is made anew from the topics that can be read.
        assert {name: part["ready"] for name, part in parts.items()} == dict.fromkeys(parts, False) | {
            "index": True
        }
        assert all(part["reason"] for part in parts.values() if not part["ready"])
        for path in (
            "messages",
            "messages?source=tables",
            "validators",
            "export",
            "export?source=tables",
            "observatory/epochs",
        ):
            answer = client.get(f"/api/v1/{path}")
            assert answer.status_code in (400, 503), path
            assert answer.json()["code"] in CODES


def test_the_manual_names_every_route(api: Api) -> None:
    manual = (Path(__file__).parents[3] / "docs" / "dashboard.md").read_text()
    for path in api.get("/openapi.json").json()["paths"]:
        last = path.removeprefix("/api/v1").replace("{message_id}", "ID").split("/")[-1]
        assert last in manual, path


def test_the_document_of_the_api_is_generated_and_obeyed(api: Api) -> None:
    """Requests made up from the document: none ends in a fault of ours, and each refusal carries one of our codes."""
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    from hypothesis import HealthCheck, Phase, given, settings

    document = api.get("/openapi.json").json()
    schema = schemathesis.openapi.from_dict(document)
    tried = 0
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path.endswith("/stream"):
            continue  # it never ends

        @settings(
            max_examples=12,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def ask(case: Any) -> None:
            answer = case.call(base_url=api.server.base, timeout=60)
            assert answer.status_code != 500, case.as_curl_command()
            if answer.status_code >= 400 and not case.path.endswith("/readyz"):
                assert answer.headers["content-type"] == ["application/problem+json"], case.as_curl_command()
                assert answer.json()["code"] in CODES

        ask()
        tried += 1
    assert tried >= 12


def test_pages_of_a_damaged_outbox_say_so_and_count_nothing(tmp_path: Path) -> None:
    an_outbox(tmp_path / "outbox", NOW_MS, waiting=0, dead=1)
    change_row(tmp_path / "outbox" / "outbox.sqlite", "UPDATE dead_letters SET checksum = x'00'")
    with served(WebSettings(tmp_path)) as server, httpx.Client(base_url=server.base, timeout=60) as client:
        for path in ("/", "/queues"):
            text = client.get(path).text
            assert "could not read" in text, path
            assert "a row of dead_letters" in text, path
            assert "published" not in text, path
        assert client.get("/queues").text.count(">unknown</p>") == 2
        assert client.get("/api/v1/queues").json()["outbox"]["state"] == "damaged"
        assert client.get("/readyz").status_code == 503
