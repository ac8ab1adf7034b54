"""The two local protocols as objects: a client that asks and a server that answers, over one conversation each."""

from __future__ import annotations

from stagepost.runtime.local_notification_endpoints import (
    LocalMessageNotificationClient,
    LocalMessageNotificationConfig,
    LocalMessageNotificationServer,
    MessageFeed,
    Notification,
)
from stagepost.runtime.local_submission_endpoints import (
    LocalMessageSubmissionClient,
    LocalMessageSubmissionConfig,
    LocalMessageSubmissionServer,
    SubmitMessage,
)

__all__ = [
    "LocalMessageNotificationClient",
    "LocalMessageNotificationConfig",
    "LocalMessageNotificationServer",
    "LocalMessageSubmissionClient",
    "LocalMessageSubmissionConfig",
    "LocalMessageSubmissionServer",
    "MessageFeed",
    "Notification",
    "SubmitMessage",
]
