"""The authorizer in front of every Kafka API: what each needs, and what a refusal looks like."""
