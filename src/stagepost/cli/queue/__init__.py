"""`stagepost queue`."""
