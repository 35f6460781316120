"""Sealed segments in an object store: how they are named, kept, found again and read."""
