"""Checks what is stored, and names what is wrong with it."""
