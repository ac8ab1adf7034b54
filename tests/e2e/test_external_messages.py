"""External messages by command line, program and HTTP into a running network, followed until they are final."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from rigs.chain_messages import expires_soon_s
from stagepost.chain.contracts import ContractKind, primes_body
from stagepost.chain.messages import CanonicalMessage
from stagepost.cli import main as command
from stagepost.cli.devnet import devnet
from stagepost.client import AsyncClient, Client, RefusedByFullNode
from stagepost.devnet.devnet import DevnetPlan
from stagepost.errors import ErrorCode
from stagepost.ground.files.running_nodes import DATA_DIR, find_full_node
from tests.hostile.devnet_process import devnet_process
from tests.hostile.strangers import half_requests_to_intake
from tests.hostile.submitters import costly_messages, silent_links
from tests.worlds.devnet.devnet_runs import ENVIRONMENT, ROOT
from tests.worlds.devnet.running_devnet import RunningDevnet, devnet_in_background

pytestmark = pytest.mark.xdist_group("intake")

WITHIN_S = 60.0


def refused_message() -> bytes:
    account = bytes(31) + bytes([ContractKind.ALWAYS_REJECTS])
    return CanonicalMessage(account, b"", expires_soon_s()).encode()


def a_message(name: str, number: int = 50) -> bytes:
    account = name.encode().ljust(31, b".")[:31] + bytes([ContractKind.SUM_OF_PRIMES])
    return CanonicalMessage(account, primes_body(number), expires_soon_s()).encode()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDevnet]:
    data = tmp_path_factory.mktemp("intake") / DATA_DIR
    with devnet_in_background(data, DevnetPlan(validators=4, seed=11)) as found:
        yield found


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    status = command.run([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return status, said.out, said.err


# By command


def test_a_file_is_sent_and_told_stage_by_stage_until_it_is_final(
    running: RunningDevnet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "message.bin").write_bytes(a_message("by command"))
    asked = (tmp_path / "message.bin", "--wait", "final", "--data", running.data)
    status, out, err = run(capsys, "submit", *asked)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("taken ")
    stages = {"queued", "sent", "included", "accepted", "finalized", "proved"}
    told = {line.split()[0]: line for line in lines[1:]}
    # The proof ends the wait; the full node's own receipt of finality may come after it.
    assert stages - {"finalized"} <= set(told) <= stages
    assert lines[-1] == told["proved"]
    assert "proved executed, in master block" in lines[-1]
    assert "shard 0:8000000000000000" in told["accepted"]
    assert " · master block" in told.get("finalized", " · master block")
    shown = lines[0].split()[1]
    status, again, err = run(capsys, "send", *asked)
    assert (status, again.splitlines()[-1].split()[:2]) == (0, ["proved", shown])
    assert err == f"this form is now: stagepost submit {shlex.join(map(str, asked))}\n"
    status, out, _ = run(capsys, "trace", shown[:8], "--data", running.data)
    assert status == 0
    assert "Finalized" in out.splitlines()[0]


def test_in_json_each_stage_is_an_object_and_the_last_one_is_the_row(
    running: RunningDevnet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "message.bin").write_bytes(a_message("by command, as JSON"))
    options = (tmp_path / "message.bin", "--data", running.data, "--json")
    status, out, _ = run(capsys, "submit", *options, "--wait", "accepted")
    assert status == 0
    said = [json.loads(line) for line in out.splitlines()]
    assert (said[0]["stage"], said[0]["is_new"]) == ("taken", True)
    assert (said[-1]["stage"], said[-1]["is_reached"], said[-1]["validators"]) == ("end", True, 4)
    assert len({one["message_id"] for one in said}) == 1
    status, out, _ = run(capsys, "submit", *options, "--wait", "final")
    assert status == 0
    assert json.loads(out.splitlines()[0])["is_new"] is False, "the same message is not taken twice"


def test_what_is_refused_ends_with_one_and_says_why(
    running: RunningDevnet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "refused.bin").write_bytes(refused_message())
    status, out, err = run(
        capsys, "submit", tmp_path / "refused.bin", "--wait", "final", "--data", running.data
    )
    assert (status, out) == (1, "")
    assert "error code 52" in err
    assert err.splitlines()[-1] == "PROTOCOL_REQUEST"
    status, out, err = run(capsys, "submit", "just some words", "--data", running.data, "--json")
    assert status == 1
    assert json.loads(out)["code"] == "TL_INVALID"


def test_following_a_trace_ends_with_the_message(
    running: RunningDevnet, capsys: pytest.CaptureFixture[str]
) -> None:
    with Client.connect(data=running.data) as client:
        message_id = client.send(a_message("followed")).message_id
    status, out, _ = run(capsys, "trace", message_id, "--data", running.data, "--follow")
    assert status == 0
    assert "Finalized" in out.splitlines()[-1]
    status, out, _ = run(capsys, "trace", str(message_id)[:16], "--data", running.data, "--follow", "--json")
    assert [json.loads(line)["verdict"] for line in out.splitlines()] == ["finalized"]


# By program


def test_the_nodes_of_the_usual_folder_are_found_without_a_word(
    running: RunningDevnet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(running.data.parent)
    with Client.connect() as client:
        sent = client.send(a_message("blocking"))
        assert sent.message_id is not None
        optimistic = client.wait_for(sent.message_id, "optimistic", timeout_s=WITHIN_S)
        assert optimistic.is_reached
        final = client.wait_for(bytes.fromhex(sent.message_id), "final", timeout_s=WITHIN_S)
        assert (str(final), final.is_reached, final.missing) == ("Finalized", True, ())
        trace = client.trace(sent.message_id)
        assert [lane.name for lane in trace.lanes] == [
            "full node",
            *(f"validator-{number}" for number in (1, 2, 3, 4)),
        ]
        assert all(point.refused is None for point in trace.points)
        with pytest.raises(RefusedByFullNode) as caught:
            client.send(refused_message())
        assert caught.value.code is ErrorCode.PROTOCOL_REQUEST


def test_many_at_once_are_all_final_and_waits_are_side_by_side(running: RunningDevnet) -> None:
    async def main() -> None:
        async with AsyncClient.connect(data=running.data) as client:
            sent = await asyncio.gather(
                *(client.send(a_message("many", 70 + number)) for number in range(20))
            )
            ids = [str(one.message_id) for one in sent]
            assert len(set(ids)) == 20
            waits = (client.wait_for(one, "final", timeout_s=WITHIN_S) for one in ids)
            assert [one.verdict for one in await asyncio.gather(*waits)] == ["finalized"] * 20

    asyncio.run(main())


def test_the_example_runs(running: RunningDevnet) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "follow_a_message.py"), str(running.data), "alice", "100"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=True,
    )
    assert ": Finalized, silent: nobody" in done.stdout
    assert done.stdout.splitlines()[2].startswith("full node ")


# By HTTP


def test_what_comes_by_http_is_followed_there_and_by_programs(running: RunningDevnet) -> None:
    assert find_full_node(running.data).http == running.http
    with httpx.Client(base_url=running.http) as http, Client.connect(data=running.data) as client:
        taken = http.post(
            "/api/v1/messages",
            content=a_message("by http"),
            headers={"Content-Type": "application/octet-stream"},
        )
        assert taken.status_code == 202
        message_id = taken.json()["message_id"]
        assert client.wait_for(message_id, "final", timeout_s=WITHIN_S).is_reached
        row = http.get(taken.json()["links"]["message"]).json()
        assert (row["verdict"], row["validators"], row["message_id"]) == ("finalized", 4, message_id)


def test_a_devnet_of_processes_takes_messages_by_socket_and_http(tmp_path: Path) -> None:
    with (
        devnet_process(tmp_path / "data", "--validators", "1") as devnet,
        Client.connect(data=devnet.data) as client,
    ):
        taken = httpx.post(
            f"{devnet.http}/api/v1/messages",
            content=a_message("in processes"),
            headers={"Content-Type": "application/octet-stream"},
        )
        assert client.wait_for(taken.json()["message_id"], "final", timeout_s=WITHIN_S).is_reached
        # Unfinished heads, more than there are places for them, keep nobody out.
        figure, faults = half_requests_to_intake(devnet.http, devnet.process.pid, 150)
        assert not faults, f"{faults}\n{figure}"
        # Nor do connections to the validator that send nothing.
        figure, faults = silent_links(devnet, 150)
        assert not faults, f"{faults}\n{figure}"
        # A submitter that floods the intake with costly messages gets its share, and others theirs.
        figure, faults = asyncio.run(costly_messages(devnet.http, devnet.data, 60))
        assert not faults, f"{faults}\n{figure}"
        sent = client.send(a_message("in processes", 51))
        assert client.wait_for(str(sent.message_id), "final", timeout_s=WITHIN_S).is_reached


# What the page shows

PAGE = (ROOT / "docs" / "sending.md").read_text(encoding="utf-8")


def shown_commands() -> list[list[str]]:
    blocks: list[str] = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


def test_every_command_of_the_page_does_what_it_says(
    running: RunningDevnet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(running.data.parent)
    Path("message.bin").write_bytes(a_message("of the page"))
    seen = []
    for words in shown_commands():
        seen.append(tuple(words[:2]))
        match words:
            case ["stagepost", "devnet", *options]:
                devnet.make_context("devnet", options)  # it runs already; its options are understood
            case ["stagepost", "trace", prefix, *options]:
                with Client.connect() as client:
                    message_id = str(client.send(a_message("of the page")).message_id)
                status, out, _ = run(capsys, "trace", message_id[: len(prefix)], *options)
                assert (status, "Finalized" in out) == (0, True)
            case ["stagepost", *arguments]:
                status, out, err = run(capsys, *arguments)
                assert status == 0, err
                assert out
            case ["curl", *_]:
                if shutil.which("curl") is None:
                    continue
                here = [word.replace("http://127.0.0.1:8140", running.http) for word in words]
                done = subprocess.run([*here, "--silent"], capture_output=True, check=True, timeout=WITHIN_S)
                assert json.loads(done.stdout)["links"]
            case _:
                pytest.fail(f"not a command that this test knows: {words}")
    assert len(seen) == 6


def test_the_program_of_the_page_runs(
    running: RunningDevnet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(running.data.parent)
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    capsys.readouterr()
    exec(compile(program, "docs/sending.md", "exec"), {})
    assert capsys.readouterr().out.startswith("Finalized ()")
