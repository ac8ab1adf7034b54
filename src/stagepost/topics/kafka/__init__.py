"""Topics on Kafka brokers."""
