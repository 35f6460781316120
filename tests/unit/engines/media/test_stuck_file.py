"""A file that cannot be removed for long: nothing else waits for it, and nothing grows."""

from pathlib import Path

import pytest

from tests.conformance.lab import Lab, numbered


def test_what_is_left_of_other_segments_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab(tmp_path / "data", "EngineSegment")
    shard, files = lab.shard(), lab.store.files
    remove, paths = files.remove, []

    def fail(path: str) -> None:
        paths.append(path)
        if Path(path).stem == "0" * 20:
            raise OSError(5, "Input/output error")
        remove(path)

    with monkeypatch.context() as patch:
        patch.setattr(files, "remove", fail)
        for _ in range(8):
            shard.append_each(numbered(2))
            shard.roll()
            shard.delete_before(shard.end)
        paths.clear()
        lab.store.housekeep()
        assert len(paths) == 1, "the others are removed once"
        chain = lab.store.state.chain(shard.status.spec.uid)
        assert [meta.base_offset for meta in chain] == [0, 16]
    lab.store.housekeep()
    assert [meta.base_offset for meta in lab.store.state.chain(shard.status.spec.uid)] == [16]
    assert not lab.store.verifier.verify(shard.name).findings
    lab.close()
