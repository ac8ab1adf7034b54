"""The topics that the pipeline reads, by name."""

from __future__ import annotations

MESSAGES = "stagepost.remp.messages"
STATUSES = "stagepost.remp.statuses"
DMQ_MESSAGES = "stagepost.dmq.messages"
DELIVERY_EVENTS = "stagepost.delivery.events"
KNOWN = (MESSAGES, STATUSES, DMQ_MESSAGES, DELIVERY_EVENTS)
