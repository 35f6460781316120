"""Brokers: protocol handlers in front of the storage adapter."""
