"""The Kafka broker: what Kafka clients talk to."""
