"""The Spark data source `firn`. Needs `pip install firnmq[spark]`.

```python
from firnmq.lake.spark import register
register(spark)
spark.read.format("firn").option("bootstrap", "localhost:9092").option("topic", "clicks").load()
```
"""

from firnmq.lake.spark.source import FirnDataSource, register

__all__ = ["FirnDataSource", "register"]
