"""A real S3-compatible server on loopback for tests: started, killed without a farewell, and started again on the same data.

The server is Versity's gateway over a folder, built from its Go module (`tests/interop/object_storage`). Among
the candidates, the S3 server of rclone 1.75 has no conditions of puts in its source, and SeaweedFS is not to be had
from the module proxy; this one decides and publishes under one lock, and a test says so before any other is counted.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from rigs.optional import require
from rigs.peer_builds import go_program

PROGRAM = "object_storage"
ACCESS, SECRET = "stagepost-tests", "a secret of the tests alone"
REGION = "us-east-1"
BUCKET = "lake"
HEALTH = "/healthz"
UP_WITHIN_S = 60.0
LOOK_EVERY_S = 0.05
REQUEST_WITHIN_S = 60.0
PRECONDITION_FAILED = 412


class Answer(NamedTuple):
    """The server's reply to one request."""

    status: int
    body: bytes


class ObjectStorage:
    """A server with one bucket. Its address stays the same when the server is killed and started again."""

    def __init__(self, folder: Path, *, is_conditional: bool = True) -> None:
        """`is_conditional` False plants a defect: the server ignores the conditions of a put."""
        self.folder = folder
        self._defects = () if is_conditional else ("unconditional",)
        self.port = _free_port()
        self._program = go_program(PROGRAM)
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def options(self) -> dict[str, str]:
        """Return the storage options by which `deltalake` reaches the bucket."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": REGION,
            "AWS_ALLOW_HTTP": "true",
        }

    def address(self, name: str) -> str:
        return f"s3://{BUCKET}/{name}"

    def start(self) -> None:
        """Start the server and return when it answers; make the bucket if it is not there."""
        log = (self.folder.parent / f"{self.folder.name}.log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [self._program, self.folder, f"127.0.0.1:{self.port}", ACCESS, SECRET, *self._defects],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        began = time.monotonic()
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() - began > UP_WITHIN_S:
                said = (self.folder.parent / f"{self.folder.name}.log").read_text(errors="replace")
                self.kill()
                if "extended attributes" in said:
                    require("go", said.strip().splitlines()[-1])
                raise AssertionError(f"the storage server did not start: {said[-2_000:]}")
            time.sleep(LOOK_EVERY_S)
        if not (self.folder / BUCKET).exists():
            made = self.request("PUT", "")
            assert made.status == 200, made

    def kill(self) -> None:
        """End the server as a lost machine would: by a signal that it cannot handle."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def request(
        self, method: str, key: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send one signed request for an object of the bucket; the empty key is the bucket itself."""
        path = f"/{BUCKET}/{quote(key)}".rstrip("/")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=REQUEST_WITHIN_S)
        try:
            connection.request(method, path, body, {**self._signed(method, path, body), **(headers or {})})
            reply = connection.getresponse()
            return Answer(reply.status, reply.read())
        finally:
            connection.close()

    def put_new(self, key: str, body: bytes) -> int:
        """Put an object only if none has its key; return the status."""
        return self.request("PUT", key, body, {"If-None-Match": "*"}).status

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1.0)
        try:
            connection.request("GET", HEALTH)
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def _signed(self, method: str, path: str, body: bytes) -> dict[str, str]:
        """Return the headers of AWS Signature Version 4 over host, content hash and time."""
        now = datetime.now(UTC)
        moment, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
        digest = hashlib.sha256(body).hexdigest()
        headers = {"host": f"127.0.0.1:{self.port}", "x-amz-content-sha256": digest, "x-amz-date": moment}
        names = ";".join(headers)
        lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
        canonical = f"{method}\n{path}\n\n{lines}\n{names}\n{digest}"
        scope = f"{day}/{REGION}/s3/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        key = f"AWS4{SECRET}".encode()
        for part in scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        signature = hmac.digest(key, text.encode(), "sha256").hex()
        credential = f"Credential={ACCESS}/{scope}, SignedHeaders={names}, Signature={signature}"
        return {**headers, "authorization": f"AWS4-HMAC-SHA256 {credential}"}


@contextmanager
def object_storage(*, is_conditional: bool = True) -> Iterator[ObjectStorage]:
    """Serve a bucket from a folder that goes with the test."""
    with tempfile.TemporaryDirectory() as name:
        storage = ObjectStorage(Path(name) / "objects", is_conditional=is_conditional)
        storage.start()
        try:
            yield storage
        finally:
            storage.kill()


class LosingProxy(NamedTuple):
    """Proxy before a server that loses answers: `options` lead through it."""

    options: dict[str, str]
    folder: Path

    def lose(self, name: str) -> None:
        """Lose the answer to the next PUT of an object of this name; the server does what is asked for."""
        (self.folder / name).touch()

    def due(self) -> list[str]:
        """Return the names of objects whose answers are still to be lost."""
        return sorted(one.name for one in self.folder.iterdir())


@contextmanager
def losing_proxy(storage: ObjectStorage) -> Iterator[LosingProxy]:
    """Run the proxy in a process of its own: the `deltalake` package keeps Python's lock while it waits for an answer."""
    port = _free_port()
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, "-m", "rigs.losing_proxy", str(port), str(storage.port), name]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"listening\n"
            yield LosingProxy({**storage.options, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}, Path(name))
        finally:
            process.kill()
            process.communicate()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
