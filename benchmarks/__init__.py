"""Benchmarks: each ``bench_*.py`` registers measurements, ``python -m benchmarks`` runs them."""
