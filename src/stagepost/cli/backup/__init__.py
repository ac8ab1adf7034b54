"""`stagepost backup` and `stagepost restore`."""
