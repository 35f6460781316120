"""Topics as tables: plans of what to read, the conversion to Parquet and Iceberg, the Spark source.

Heavy libraries (pyspark, pyiceberg, pyarrow) are imported by the modules that need them and come
with `pip install firnmq[lake]`. Importing this package costs nothing, on executors too.
"""
