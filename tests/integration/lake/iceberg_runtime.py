"""Iceberg's own programs, fetched by Maven once: its runtime for Spark, and its REST catalog."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

SPARK_LINE = "4.1"
ICEBERG_VERSION = "1.12.0"
REST_VERSION = "1.11.0"
"""The newest whose catalog for tests is published."""
CACHE = Path(__file__).resolve().parents[3] / "var" / "iceberg"
_FETCH_TIMEOUT_S = 600
_SQLITE = ("org.xerial", "sqlite-jdbc", "3.50.3.0")
_JARS = (
    ("org.apache.iceberg", f"iceberg-spark-runtime-{SPARK_LINE}_2.13", ICEBERG_VERSION),
    _SQLITE,
)
_REST_JARS = (
    ("org.apache.iceberg", "iceberg-open-api", REST_VERSION, "test-fixtures"),
    ("org.apache.iceberg", "iceberg-core", REST_VERSION),
    ("org.apache.iceberg", "iceberg-core", REST_VERSION, "tests"),
    ("org.apache.hadoop", "hadoop-client-api", "3.4.1"),
    ("org.apache.hadoop", "hadoop-client-runtime", "3.4.1"),
    ("org.eclipse.jetty", "jetty-server", "12.1.8"),
    ("org.eclipse.jetty.ee10", "jetty-ee10-servlet", "12.1.8"),
    ("org.eclipse.jetty.compression", "jetty-compression-server", "12.1.8"),
    ("org.eclipse.jetty.compression", "jetty-compression-gzip", "12.1.8"),
    ("org.slf4j", "slf4j-simple", "2.0.17"),
    _SQLITE,
)
_POM = """<project><modelVersion>4.0.0</modelVersion>
<groupId>firnmq</groupId><artifactId>iceberg</artifactId><version>1</version><dependencies>
{dependencies}
</dependencies></project>
"""


def fetched_jars() -> list[Path]:
    """The runtime for Spark and a JDBC driver for SQLite."""
    return _fetched(CACHE / ICEBERG_VERSION, _JARS)


def fetched_rest_jars() -> list[Path]:
    """A REST catalog that keeps its tables in SQLite."""
    return _fetched(CACHE / f"rest-{REST_VERSION}", _REST_JARS)


def _fetched(cache: Path, wanted: tuple[tuple[str, ...], ...]) -> list[Path]:
    """Maven brings them from wherever it is set up to."""
    jars = cache / "jars"
    if not (cache / "complete").exists():
        shutil.rmtree(cache, ignore_errors=True)
        cache.mkdir(parents=True)
        dependencies = "\n".join(_dependency(*each) for each in wanted)
        (cache / "pom.xml").write_text(_POM.format(dependencies=dependencies))
        subprocess.run(
            [
                *("mvn", "-q", "-B", "dependency:copy-dependencies"),
                *(f"-DoutputDirectory={jars}", "-DincludeScope=runtime"),
            ],
            cwd=cache,
            check=True,
            timeout=_FETCH_TIMEOUT_S,
        )
        (cache / "complete").touch()
    return sorted(jars.glob("*.jar"))


def _dependency(group: str, name: str, version: str, classifier: str = "") -> str:
    kind = f"<classifier>{classifier}</classifier>" if classifier else ""
    if classifier == "test-fixtures":
        # What it was built with is for Iceberg's own build.
        kind += (
            "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
            "</exclusions>"
        )
    return (
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
        f"<version>{version}</version>{kind}</dependency>"
    )
