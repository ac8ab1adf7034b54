"""What `stagepost.endpoints` and `stagepost.client` promise by name, and a node of one's own built from them alone."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from stagepost import client, endpoints
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from tests.worlds.dmq.background_node import node_in_background
from tests.worlds.dmq.small_node import MAGIC
from tests.worlds.ground.strategies import EXPIRES_AT, a_signed_message

EXAMPLES = Path(__file__).parents[4] / "examples"


def test_every_name_of_the_facades_exists() -> None:
    for facade in (client, endpoints):
        for name in facade.__all__:
            assert getattr(facade, name) is not None


@pytest.mark.parametrize(
    ("config", "options"),
    [
        (
            endpoints.LocalMessageSubmissionConfig,
            {
                "submit_message",
                "accept_message",
                "reject_message",
                "authenticator",
                "ttl_validator",
                "timeout_s",
                "idle_timeout_s",
                "max_queue_size",
            },
        ),
        (
            endpoints.LocalMessageNotificationConfig,
            {
                "reply_messages",
                "max_queue_size",
                "blocking_request_timeout_s",
                "authenticator",
                "ttl_validator",
                "idle_timeout_s",
            },
        ),
        (
            endpoints.MessageSubmissionConfig,
            {
                "request_message_ids",
                "request_messages",
                "reply_message_ids",
                "reply_messages",
                "max_queue_size",
                "init_timeout_s",
                "idle_timeout_s",
                "message_ids_blocking_timeout_s",
                "messages_timeout_s",
                "authenticator",
                "ttl_validator",
            },
        ),
    ],
)
def test_configs_have_the_documents_options(config: type, options: set[str]) -> None:
    assert options <= {field.name for field in fields(config)}
    assert config().max_queue_size == 100


@pytest.mark.parametrize(
    ("owner", "calls"),
    [
        (endpoints.LocalMessageSubmissionClient, ["submit_message", "done"]),
        (endpoints.LocalMessageSubmissionServer, ["run", "next_message"]),
        (
            endpoints.LocalMessageNotificationClient,
            ["request_messages_blocking", "request_messages_non_blocking", "done"],
        ),
        (endpoints.LocalMessageNotificationServer, ["run", "notify"]),
        (
            endpoints.MessageSubmissionServer,
            ["request_message_ids_blocking", "request_message_ids_non_blocking", "request_messages"],
        ),
        (endpoints.MessageSubmissionClient, ["run"]),
    ],
)
def test_endpoints_have_the_documents_calls(owner: type, calls: list[str]) -> None:
    for call in calls:
        assert inspect.iscoroutinefunction(getattr(owner, call)), call


def test_id_and_size_are_named_as_in_the_document() -> None:
    announced = endpoints.MessageIdAndSize(a_signed_message().message_id, 700)

    assert (announced.message_id, announced.size_in_bytes) == (a_signed_message().message_id, 700)


def test_node_of_ones_own_from_the_facade_alone(tmp_path: Path) -> None:
    """One program submits, the other is told: every part of it comes from `stagepost.endpoints`."""
    path, magic, profile = tmp_path / "run" / "own.socket", 42, endpoints.PROFILES["seed"]
    message = a_signed_message()
    ours = endpoints.VersionData(magic)
    local = endpoints.MiniProtocol
    showing: list[endpoints.LocalMessageNotificationServer] = []

    async def forward(submitted: endpoints.DmqMessage) -> None:
        for server in showing:
            await server.notify(submitted)

    submission = endpoints.LocalMessageSubmissionConfig(
        submit_message=forward, unix_s=lambda: EXPIRES_AT - 60.0
    )
    notification = endpoints.LocalMessageNotificationConfig(unix_s=lambda: EXPIRES_AT - 60.0)

    async def serve(bearer: endpoints.Bearer) -> None:
        connection = await endpoints.respond(bearer, [profile], endpoints.ConnectionKind.CLIENT, ours)
        talks = connection.answer_all([profile])
        submitting = endpoints.LocalMessageSubmissionServer(
            talks[profile, local.LOCAL_MESSAGE_SUBMISSION], submission
        )
        showing.append(
            endpoints.LocalMessageNotificationServer(
                talks[profile, local.LOCAL_MESSAGE_NOTIFICATION], notification
            )
        )
        await endpoints.run_conversations(connection.bearer, [submitting.run(), showing[-1].run()])

    async def main() -> None:
        server = await endpoints.serve_unix(path, serve)
        async with (
            client.AsyncClient.connect(path, magic, "seed") as sender,
            client.AsyncClient.connect(path, magic, "seed") as reader,
        ):
            heard = asyncio.create_task(anext(reader.listen()))
            await asyncio.sleep(1)
            assert await sender.submit(message) == endpoints.Accepted()
            assert await heard == message
        await server.close()

    run_in_virtual_time(main())


@pytest.mark.slow
def test_examples_run(tmp_path: Path) -> None:
    path = tmp_path / "run" / "node.socket"

    def run(example: str, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / example), str(path), str(MAGIC), *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout

    from stagepost.dmq.keys.pool_keys import make_keys

    make_keys(tmp_path / "keys", start_kes_period=0, issue_number=0)
    with node_in_background(path):
        assert run("submit_message.py", str(tmp_path / "keys"), "hello from an example").startswith(
            "accepted "
        )
        assert "hello from an example" in run("listen_for_messages.py", "1")
