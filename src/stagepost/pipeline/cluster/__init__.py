"""The pipeline on a Spark cluster."""
