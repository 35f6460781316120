"""A Kafka client's connection: frames, requests in order, states, authentication."""
