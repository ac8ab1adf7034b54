"""`stagepost trace`."""
