"""`stagepost node dmq`: dmq-node's flags as they are, what is refused before anything starts, and a whole process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from stagepost import __version__
from stagepost.cli.main import run
from stagepost.cli.options.node_flags import FLAGS, request_from, with_node_flags
from stagepost.config.effective import ConfigRequest
from stagepost.config.settings import SETTINGS

SOURCE = Path(__file__).parents[4] / "src"
POOLS = {"max_kes_evolutions": 62, "slots_per_kes_period": 129_600, "pools": []}
STOPPED_WITHIN_S = 120
# fmt: off
NODE = (
    sys.executable, "-m", "stagepost.cli.main", "node", "dmq",
    "--host-addr", "127.0.0.1", "--port", "0", "--pools", "pools.json", "--data", "data",
)
# fmt: on
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCE)}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("pools.json").write_text(json.dumps(POOLS))
    Path("dmq.topology.json").write_text(json.dumps({"localRoots": [], "publicRoots": []}))
    return tmp_path


def request_of(*arguments: str) -> ConfigRequest:
    """What a command line asks for."""
    requests: list[ConfigRequest] = []

    @click.command()
    @with_node_flags()
    def command(**given: Any) -> None:
        requests.append(request_from(given))

    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return requests[0]


def test_every_flag_of_dmq_node_is_taken_as_it_is() -> None:
    request = request_of(
        *("--host-addr", "10.0.0.1", "--host-ipv6-addr", "::1", "-p", "3001", "--local-socket", "x.socket"),
        *(
            "-c",
            "c.json",
            "-t",
            "t.json",
            "--cardano-node-socket",
            "n.socket",
            "--cardano-network-magic",
            "1",
        ),
        *("--dmq-network-magic", "42", "--min-sig-delay", "1.5"),
    )

    assert {key: flag.value for key, flag in request.flags.items()} == {
        "node.host_addr": "10.0.0.1",
        "node.host_ipv6_addr": "::1",
        "node.port": 3001,
        "node.local_socket": "x.socket",
        "node.dmq_config": "c.json",
        "node.topology": "t.json",
        "node.network_magic": 42,
        "node.cardano_node_socket": "n.socket",
        "node.cardano_network_magic": 1,
        "node.min_sig_delay_s": 1.5,
    }


@pytest.mark.parametrize(
    ("text", "seconds"), [("0.01s", 0.01), ("2s", 2.0), ("0.5", 0.5), ("1ms", "1ms"), ("s", "s")]
)
def test_a_delay_is_a_number_with_the_letter_s_as_in_dmq_node(text: str, seconds: object) -> None:
    assert request_of("--min-sig-delay", text).flags["node.min_sig_delay_s"].value == seconds


def test_our_own_flags_are_taken() -> None:
    request = request_of(
        *("--pools", "p.json", "--data", "d", "--profiles", "seed, dmq-node", "--profile", "seed"),
        *("--metrics-port", "9", "--config", "my.toml", "--context", "preview", "--json", "-q"),
    )

    assert {key: flag.value for key, flag in request.flags.items()} == {
        "node.pools": "p.json",
        "node.data_dir": "d",
        "node.profiles": ["seed", "dmq-node"],
        "node.wire_profile": "seed",
        "node.metrics_port": 9,
        "log.format": "json",
        "log.level": "warning",
    }
    assert (request.config_file, request.context) == (Path("my.toml"), "preview")


def test_long_and_short_names_mean_the_same() -> None:
    assert request_of("--port", "1", "--configuration-file", "c", "--topology-file", "t") == request_of(
        "-p", "1", "-c", "c", "-t", "t"
    )


def test_a_port_of_zero_is_given_and_not_left_open() -> None:
    assert request_of("--port", "0").flags["node.port"].value == 0


def test_without_flags_everything_is_left_to_files_and_defaults() -> None:
    assert request_of() == ConfigRequest()


def test_every_flag_names_a_setting() -> None:
    assert {flag.setting for flag in FLAGS} <= SETTINGS.keys()


def test_help_has_an_example_and_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["node", "dmq", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Example:\n    stagepost node dmq" in shown
    assert all(flag.names[-1] in shown for flag in FLAGS)
    for name in ("-v", "--version"):
        assert run(["node", "dmq", name]) == 0
        assert __version__ in capsys.readouterr().out


# ── nothing is started ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--host-addr", "127.0.0.1"], "--pools"),
        (["--pools", "pools.json"], "--host-addr"),
        (["--host-addr", "127.0.0.1", "--pools", "gone.json"], "gone.json: 1 problem"),
        (["--host-addr", "127.0.0.1", "--pools", "pools.json", "-t", "gone.json"], "gone.json: 1 problem"),
        (["--host-addr", "127.0.0.1", "--pools", "pools.json", "--min-sig-delay", "1"], "--min-sig-delay"),
        (["--host-addr", "::1", "--pools", "pools.json"], "this is IPv6"),
        (["--host-addr", "127.0.0.1", "--pools", "pools.json", "--profiles", "x"], "--profiles"),
        (["--host-addr", "127.0.0.1", "--pools", "pools.json", "--context", "x"], "--context"),
    ],
)
def test_a_bad_configuration_starts_nothing(
    here: Path, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(here.iterdir())

    assert run(["node", "dmq", *arguments]) == 2

    shown = capsys.readouterr().err
    assert told in shown
    assert shown.splitlines()[-1] == "CONFIG_INVALID  nothing was started"
    assert sorted(here.iterdir()) == before


def test_a_flag_that_is_no_number_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["node", "dmq", "--port", "x"]) == 2
    assert "--port" in capsys.readouterr().err


# ── a whole process ──────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def a_node(
    here: Path, *arguments: str, awaited: str = "node started"
) -> Iterator[tuple[subprocess.Popen[str], Mapping[str, Any]]]:
    """A running node, and the line of its log that was waited for."""
    here.chmod(0o700)
    process = subprocess.Popen(
        [*NODE, "--json", *arguments], cwd=here, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process, next_event(process, awaited)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def run_to_the_end(here: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    here.chmod(0o700)
    return subprocess.run(
        [*NODE, *arguments],
        cwd=here,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=STOPPED_WITHIN_S,
        check=False,
    )


def next_event(process: subprocess.Popen[str], event: str) -> Mapping[str, Any]:
    assert process.stderr is not None
    seen: list[str] = []
    for line in process.stderr:
        seen.append(line)
        if line.startswith("{") and json.loads(line)["event"] == event:
            found = json.loads(line)
            assert isinstance(found, dict)
            return found
    raise AssertionError(f"the process ended without {event!r}:\n{''.join(seen)}")


def fetch(port: int, path: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=STOPPED_WITHIN_S) as answer:
        body = answer.read()
        assert isinstance(body, bytes)
        return body


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_node_tells_where_it_is_and_ends_cleanly(here: Path, number: signal.Signals, status: int) -> None:
    with a_node(here) as (process, started):
        told = json.loads((here / "data" / "node.json").read_text())
        assert told["pid"] == process.pid
        assert told["tcp"][0].startswith("127.0.0.1:")
        assert told["local_socket"] == str(here / "dmq-node.socket")
        assert Path(told["local_socket"]).is_socket()
        assert started["metrics_port"] == told["metrics_port"]
        port = told["metrics_port"]
        assert b"stagepost_build_info" in fetch(port, "/metrics")
        assert json.loads(fetch(port, "/readyz"))["ready"] is True
        assert json.loads(fetch(port, "/status"))["mempool"]["messages"] == 0

        process.send_signal(number)
        next_event(process, "node stopped")

        assert process.wait(STOPPED_WITHIN_S) == status
    assert not (here / "data" / "node.json").exists()
    assert not (here / "dmq-node.socket").exists()


def test_a_second_node_in_the_same_folder_is_refused(here: Path) -> None:
    with a_node(here, "--metrics-port", "off") as (process, _):
        second = run_to_the_end(here, "--local-socket", "other.socket")

        assert second.returncode == 3
        assert str(process.pid) in second.stderr
        assert json.loads((here / "data" / "node.json").read_text())["pid"] == process.pid


def test_a_port_that_is_taken_is_one_sentence_and_leaves_nothing_running(here: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for flag, told in (("--port", "the port is in use"), ("--metrics-port", "cannot serve metrics")):
            ended = run_to_the_end(here, flag, port)

            assert ended.returncode == 2
            assert told in ended.stderr
            assert "Traceback" not in ended.stderr
            assert ended.stderr.splitlines()[-1] == "CONFIG_INVALID"
            assert not (here / "data" / "node.json").exists()
            assert not (here / "dmq-node.socket").exists()


def test_what_has_no_effect_is_logged_once_at_the_start(here: Path) -> None:
    with a_node(
        here, "--cardano-node-socket", "x", "--metrics-port", "off", awaited="setting without effect"
    ) as (process, note):
        assert note["detail"].startswith("command line: --cardano-node-socket has no effect here")
        assert next_event(process, "node started")["metrics_port"] is None
        process.terminate()
        assert process.wait(STOPPED_WITHIN_S) == 0
