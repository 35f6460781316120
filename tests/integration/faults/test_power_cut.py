"""Real power cuts: what the device holds at an arbitrary moment is all that is left.

The store is on an ext4 file system in an image file, the image on an XFS that can clone files in
an instant. A clone taken while the writer works is what a power cut would leave: the page cache
is not in it, and what the file system's journal has not written is not either.
"""

import copy
import random
import subprocess
from pathlib import Path

import pytest

from firnmq.server import LocalStore, Store
from tests.integration.faults.ledger import Ledger
from tests.integration.faults.loops import make_image, mounted, need
from tests.integration.faults.processes import Nursery
from tests.integration.faults.writer import UNSYNCED

CUTS = 8
_XFS_MIB, _EXT4_MIB = 1024, 256


@pytest.mark.root
def test_a_power_cut_takes_nothing_that_was_acknowledged_as_durable(
    tmp_path: Path, nursery: Nursery
) -> None:
    need("mkfs.xfs", "mkfs.ext4")
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    make_image(tmp_path / "xfs", _XFS_MIB, "mkfs.xfs", "-q", "-f", "-m", "reflink=1")
    with mounted(tmp_path / "xfs", tmp_path / "outer") as outer:
        make_image(outer / "disk", _EXT4_MIB, "mkfs.ext4", "-q", "-F")
        with mounted(outer / "disk", tmp_path / "inner") as inner:
            cuts = cut_while_it_works(nursery, inner, outer, rng, seed)
        for number, ledger in enumerate(cuts):
            check_cut(outer / f"cut-{number}", tmp_path / "after", ledger, f"seed {seed}")


def cut_while_it_works(
    nursery: Nursery, inner: Path, outer: Path, rng: random.Random, seed: int
) -> list[Ledger]:
    """Clones the disk at several moments; for each, what had been acknowledged before."""
    ledger = Ledger()
    cuts: list[Ledger] = []
    job = "tests.integration.faults.writer:run"
    with nursery.run(job, str(inner / "store"), seed, 0, 10_000) as writer:
        lines = writer.lines()
        for number in range(CUTS):
            wanted = ledger.done_count + rng.randrange(20, 200)
            while ledger.done_count < wanted:
                line = next(lines, None)
                assert line is not None, nursery.log_text()
                ledger.take_line(line)
            known = copy.deepcopy(ledger)
            subprocess.run(
                ["cp", "--reflink=always", outer / "disk", outer / f"cut-{number}"], check=True
            )
            # What was announced before the clone may be in it, and is in the pipe by now.
            while writer.has_more():
                ledger.take_line(next(lines))
            known.take_later(ledger)
            cuts.append(known)
        writer.kill()
        writer.wait()
    return cuts


def check_cut(image: Path, at: Path, ledger: Ledger, when: str) -> None:
    with mounted(image, at) as disk:
        try:
            with Store(LocalStore(disk / "store", background=False)) as store:
                ledger.check(store, is_lossy=UNSYNCED.__contains__)
        except Exception as error:
            error.add_note(f"{image.name} of {when}")
            raise
