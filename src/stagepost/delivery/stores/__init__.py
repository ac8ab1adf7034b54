"""The durable and the in-memory stores of the outbox and the inbox."""
