"""Worked examples. Each runs by itself: `python -m examples.clickstream`."""
