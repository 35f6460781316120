"""Data files of a table: their names, Parquet rows, footers, key filters, rewriting, placing."""
