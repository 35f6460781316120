"""Bytes and names of objects in the store; docs/formats/tiered-objects.md describes them."""
