"""`stagepost network`."""
