"""A Kafka broker of one node on this machine, to try things out: a process of its own, found again by a note
in its folder.

    broker = start_broker(BrokerPlan(data, port), java, jars)
    stop_broker(data)

Its folder: `server.properties`, `log/` (Kafka's data), `broker.log` (its output) and `broker.json` (its
process and port). It listens on loopback alone and has no users; for anything else, use a broker of your own.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import msgspec

from stagepost.errors import ConfigError, StorageError, TransportError
from stagepost.ground.files.data_folder import FILE_MODE, make_private
from stagepost.ground.files.owner_lock import OwnerLock
from stagepost.ground.files.small_files import replace_file
from stagepost.ground.identifiers import LOOPBACK_HOST
from stagepost.ground.wire.foreign_json import decode_foreign

PORT = 9092
PROPERTIES_FILE = "server.properties"
NOTE_FILE = "broker.json"
LOG_FILE = "broker.log"
LOCK_FILE = "broker.lock"
KEPT_FOLDER = "log"
STARTS_WITHIN_S = 90.0
ENDS_WITHIN_S = 30.0
LOOK_EVERY_S = 0.1
LAST_LINES = 3
# A broker for one machine and few topics: little memory, and quick to start.
JVM_OPTIONS = (
    "-Xmx384m",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)


_children: dict[int, subprocess.Popen[bytes]] = {}
"""Brokers that this very process has started: it is told of their end, other processes only see it."""


class BrokerPlan(msgspec.Struct, frozen=True):
    """`properties` are added to those of this file, or replace them. Port 0 takes a free one."""

    data: Path
    port: int = PORT
    properties: Mapping[str, str] = {}


class Broker(msgspec.Struct, frozen=True):
    """A broker as its note describes it. `begun` is the time at which the system started the process: process
    numbers are used again.
    """

    pid: int
    begun: int
    port: int

    @property
    def address(self) -> str:
        return f"{LOOPBACK_HOST}:{self.port}"

    @property
    def is_running(self) -> bool:
        return _begun(self.pid) == self.begun


def start_broker(plan: BrokerPlan, java: Path, jars: Sequence[Path]) -> Broker:
    """Start a broker, and return when it answers. `ConfigError` if it runs already, or its port is taken;
    after any failure no process is left running.
    """
    make_private(plan.data, "data folder of the broker", advice="choose another folder with --data")
    lock = OwnerLock(plan.data / LOCK_FILE)
    try:
        known = read_note(plan.data)
        if known is not None and known.is_running:
            raise ConfigError(
                f"the broker in {plan.data} runs already, at {known.address}, as process {known.pid}",
                advice="stop it first with `stagepost kafka stop`",
                found=known.pid,
            )
        port, controller_port = _ports(plan.port)
        _write_properties(plan, port, controller_port)
        class_path = os.pathsep.join(str(jar) for jar in jars)
        _format(java, class_path, plan.data)
        return _started(plan.data, java, class_path, port)
    finally:
        lock.release()


def stop_broker(data: Path) -> Broker | None:
    """Stop the broker: ask first, and kill it when that does not help. Return it; None if none was running."""
    broker = read_note(data)
    if broker is None or not broker.is_running:
        return None
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.kill(broker.pid, number)
        if has_ended(broker):
            (data / NOTE_FILE).unlink(missing_ok=True)
            return broker
    raise StorageError(f"process {broker.pid} did not end", advice="end it by hand")


def read_note(data: Path) -> Broker | None:
    try:
        return decode_foreign((data / NOTE_FILE).read_bytes(), Broker)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise StorageError(f"{data / NOTE_FILE} cannot be read: {error}", advice="remove it") from error


def _ports(wanted: int) -> tuple[int, int]:
    """Return the port of the broker, and one for its controller, with which only the broker itself speaks."""
    with socket.socket() as first, socket.socket() as second:
        first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            first.bind((LOOPBACK_HOST, wanted))
        except OSError as error:
            raise ConfigError(
                f"port {wanted} of {LOOPBACK_HOST} cannot be used: {(error.strerror or 'no reason given').lower()}",
                advice="choose another with --port; 0 takes a free one",
                found=wanted,
            ) from error
        second.bind((LOOPBACK_HOST, 0))
        return first.getsockname()[1], second.getsockname()[1]


def _write_properties(plan: BrokerPlan, port: int, controller_port: int) -> None:
    properties = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{LOOPBACK_HOST}:{controller_port}",
        "listeners": f"PLAINTEXT://{LOOPBACK_HOST}:{port},CONTROLLER://{LOOPBACK_HOST}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{LOOPBACK_HOST}:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL",
        "log.dirs": str((plan.data / KEPT_FOLDER).absolute()),
        # Topics are made by those who need them, with the partitions that they state.
        "auto.create.topics.enable": "false",
        # One node: whatever is kept several times elsewhere is kept once here.
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
        # One that was killed is let in again when its last life counts as over; nobody else could have taken its place.
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "1000",
    }
    for name, value in plan.properties.items():
        # Listeners may be added to ours, whose ports are known only now.
        properties[name] = value.replace("{port}", str(port)).replace("{controller}", str(controller_port))
    lines = "".join(f"{name}={value}\n" for name, value in properties.items())
    replace_file(plan.data / PROPERTIES_FILE, lines.encode(), FILE_MODE)


def _format(java: Path, class_path: str, data: Path) -> None:
    """Give the folder the id of its cluster, once."""
    if (data / KEPT_FOLDER / "meta.properties").exists():
        return
    cluster_id = urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")
    tool = ("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(data / PROPERTIES_FILE))
    ended = _run_java(java, class_path, *tool)
    if ended.returncode != 0:
        raise StorageError(
            f"Kafka could not prepare {data / KEPT_FOLDER}: {_last_lines(ended.stdout + ended.stderr)}",
            advice="choose an empty folder with --data",
        )


def _run_java(java: Path, class_path: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [str(java), *JVM_OPTIONS, "-cp", class_path, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=STARTS_WITHIN_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{java} cannot be run: {error}", advice="point JAVA_HOME at a Java 17+") from error


def _started(data: Path, java: Path, class_path: str, port: int) -> Broker:
    with (data / LOG_FILE).open("ab") as log:
        begins_at = log.tell()
        # In a session of its own: Ctrl-C in the terminal that started it is not meant for it.
        process = subprocess.Popen(
            [str(java), *JVM_OPTIONS, "-cp", class_path, "kafka.Kafka", str(data / PROPERTIES_FILE)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    _children[process.pid] = process
    broker = Broker(process.pid, _begun(process.pid) or 0, port)
    replace_file(data / NOTE_FILE, msgspec.json.encode(broker) + b"\n", FILE_MODE)
    ends = time.monotonic() + STARTS_WITHIN_S
    try:
        while not _answers(port):
            if process.poll() is not None:
                with (data / LOG_FILE).open("rb") as file:
                    file.seek(begins_at)
                    said = _last_lines(file.read().decode(errors="replace"))
                raise TransportError(
                    f"the broker ended with {process.returncode}: {said}",
                    advice=f"read {data / LOG_FILE}",
                )
            if time.monotonic() > ends:
                raise TransportError(
                    f"the broker did not answer at {LOOPBACK_HOST}:{port} within {STARTS_WITHIN_S:g} s",
                    advice=f"read {data / LOG_FILE}",
                )
            time.sleep(LOOK_EVERY_S)
    except BaseException:
        process.kill()
        _children.pop(process.pid).wait()
        (data / NOTE_FILE).unlink(missing_ok=True)
        raise
    return broker


_ASK_VERSIONS = bytes.fromhex("0000001200120000000000010008") + b"starting"
"""Bytes of Kafka's first request, for the versions of all requests (ApiVersions, version 0, number 1)."""


def _answers(port: int) -> bool:
    """Return whether Kafka itself answers; an open port may have no Kafka behind it yet."""
    try:
        with socket.create_connection((LOOPBACK_HOST, port), timeout=1.0) as connection:
            connection.sendall(_ASK_VERSIONS)
            answer = connection.recv(10, socket.MSG_WAITALL)
    except OSError:
        return False
    return answer[4:10] == bytes.fromhex("000000010000")


def _begun(pid: int) -> int | None:
    """Return the time at which the process was started, in ticks of the system; None if it is not there any
    more.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def has_ended(broker: Broker) -> bool:
    """Wait for the end of the broker's process. Return False if the process still runs after `ENDS_WITHIN_S`."""
    ends = time.monotonic() + ENDS_WITHIN_S
    while broker.is_running:
        if time.monotonic() > ends:
            return False
        time.sleep(LOOK_EVERY_S)
    child = _children.pop(broker.pid, None)
    if child is not None:
        child.wait()
    return True


def _last_lines(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    faults = [line for line in lines if "ERROR" in line or "Exception" in line]
    return " · ".join((faults or lines)[:LAST_LINES]) or "it said nothing"


def describe(broker: Broker | None, data: Path) -> dict[str, object]:
    """Describe the broker for people and programs: its address, and whether it runs."""
    is_running = broker is not None and broker.is_running
    found: dict[str, object] = {"data": str(data), "running": is_running}
    if broker is not None and is_running:
        found |= {"bootstrap": broker.address, "pid": broker.pid, "answers": _answers(broker.port)}
    return found
