"""`stagepost conform`."""
