"""A validator: queues, sessions, receipts, and its process."""
