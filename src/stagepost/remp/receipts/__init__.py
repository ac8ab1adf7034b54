"""Signed receipts: statuses, binary and JSON forms."""
