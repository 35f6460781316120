"""The meta service: processes in front of the meta store that any node can ask, and one of which
is the controller."""
