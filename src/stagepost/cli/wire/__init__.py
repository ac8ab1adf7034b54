"""`stagepost wire`."""
