"""Message submission, node to node, as objects: the server pulls messages, the client supplies them."""

from __future__ import annotations

from stagepost.runtime.submission_client import MessageSubmissionClient
from stagepost.runtime.submission_config import MessageSubmissionConfig, is_pulling_side
from stagepost.runtime.submission_server import MessageSubmissionServer

__all__ = ["MessageSubmissionClient", "MessageSubmissionConfig", "MessageSubmissionServer", "is_pulling_side"]
