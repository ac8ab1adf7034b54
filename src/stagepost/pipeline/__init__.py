"""The data pipeline: topics and dumps into verified tables, on Spark. Nothing is imported here: Spark is slow to load."""
