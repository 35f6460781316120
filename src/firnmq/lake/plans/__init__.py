"""What there is of a topic, and where: plans, made by a node, from a bucket or a directory."""
