"""Where Iceberg tables are registered: SQLite and REST catalogs, metadata files."""
