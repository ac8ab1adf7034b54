"""`stagepost pipeline`."""
