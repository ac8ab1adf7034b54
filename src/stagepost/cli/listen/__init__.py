"""`stagepost listen`."""
