"""The example's pipeline on a Spark cluster of real processes: `python -m scale`."""
