"""Tiered storage: sealed segments in an object store, and reading them from there."""
