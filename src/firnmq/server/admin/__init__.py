"""The HTTP listener of a node: administration, metrics and health."""
