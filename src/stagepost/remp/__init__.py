"""Reliable external messages: statuses, signed receipts, verdicts, and the validators' message queue."""
