"""`stagepost check`."""
