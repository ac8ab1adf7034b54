"""`stagepost submit`."""
