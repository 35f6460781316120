"""Iceberg's own runtime for Spark and a JDBC driver for SQLite, fetched by Maven once."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

SPARK_LINE = "4.1"
ICEBERG_VERSION = "1.12.0"
CACHE = Path(__file__).resolve().parents[3] / "var" / "iceberg" / ICEBERG_VERSION
_FETCH_TIMEOUT_S = 600
_JARS = (
    ("org.apache.iceberg", f"iceberg-spark-runtime-{SPARK_LINE}_2.13", ICEBERG_VERSION),
    ("org.xerial", "sqlite-jdbc", "3.50.3.0"),
)
_POM = """<project><modelVersion>4.0.0</modelVersion>
<groupId>firnmq</groupId><artifactId>iceberg</artifactId><version>1</version><dependencies>
{dependencies}
</dependencies></project>
"""
_DEPENDENCY = (
    "<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
    "<version>{version}</version></dependency>"
)


def fetched_jars() -> list[Path]:
    """The jars; Maven brings them from wherever it is set up to."""
    jars = CACHE / "jars"
    if not (CACHE / "complete").exists():
        shutil.rmtree(CACHE, ignore_errors=True)
        CACHE.mkdir(parents=True)
        dependencies = "\n".join(
            _DEPENDENCY.format(group=group, name=name, version=version)
            for group, name, version in _JARS
        )
        (CACHE / "pom.xml").write_text(_POM.format(dependencies=dependencies))
        subprocess.run(
            [
                *("mvn", "-q", "-B", "dependency:copy-dependencies"),
                *(f"-DoutputDirectory={jars}", "-DincludeScope=runtime"),
            ],
            cwd=CACHE,
            check=True,
            timeout=_FETCH_TIMEOUT_S,
        )
        (CACHE / "complete").touch()
    return sorted(jars.glob("*.jar"))
