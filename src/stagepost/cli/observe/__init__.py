"""`stagepost observe`: Mithril on DMQ by stake, live."""
