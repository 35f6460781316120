"""Runs the core in a node: messages of peers, logs of engines, records of the meta store."""
