"""`stagepost demo`."""
