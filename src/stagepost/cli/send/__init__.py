"""`stagepost send`."""
