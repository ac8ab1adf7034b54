"""Sources of the pipeline: topics, dumps, Kafka, DMQ nodes."""
