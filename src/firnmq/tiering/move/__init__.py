"""Moves sealed segments: what waits, uploads, removals, and how fast they may go."""
