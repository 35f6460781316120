"""The files of an Iceberg table's metadata, on the device before the catalog refers to them."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.typedef import EMPTY_DICT, Properties

from firnmq.disk.directory import make_directories, sync_directory
from firnmq.tiering.stores.local import PARTIAL


class DurableFileIO(PyArrowFileIO):
    """PyIceberg's own, but a local file appears whole and synced, or not at all.

    Object stores keep that promise by themselves.
    """

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        super().__init__(properties=properties)

    def new_output(self, location: str) -> PyArrowFile:
        scheme, _, path = self.parse_location(location, self.properties)
        if scheme != "file":
            return super().new_output(location)
        return _DurableFile(
            fs=self.fs_by_scheme(scheme, ""), location=location, path=path, buffer_size=1 << 20
        )


class _DurableFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> OutputStream:
        if not overwrite and self.exists():
            raise FileExistsError(f"{self.location} exists already")
        return _DurableStream(Path(self._path))


class _DurableStream:
    """Writes into a file without a name that counts, and gives it its name when it is closed
    without an error. What a crash leaves is in the folder that the table's store sweeps."""

    def __init__(self, target: Path) -> None:
        self._target = target
        make_directories(target.parent)
        partial = target.parent.parent / PARTIAL
        make_directories(partial)
        self._partial = partial / f"{target.name}.{secrets.token_hex(4)}"
        self._file = self._partial.open("xb")

    def write(self, data: bytes | pa.Buffer) -> int:
        return self._file.write(data)

    def tell(self) -> int:
        return self._file.tell()

    def flush(self) -> None:
        self._file.flush()

    @property
    def closed(self) -> bool:
        return self._file.closed

    def close(self) -> None:
        if self._file.closed:
            return
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._partial.replace(self._target)
        sync_directory(self._target.parent)

    def __enter__(self) -> _DurableStream:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close()
            self._partial.unlink(missing_ok=True)
