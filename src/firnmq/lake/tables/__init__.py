"""Iceberg tables of topics: their catalog, files, commits, upkeep, and their rows as history."""
