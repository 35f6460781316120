"""Every format has committed bytes that tests read."""

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
FORMATS = REPOSITORY / "docs" / "formats"
GOLDEN = REPOSITORY / "tests" / "golden"


def test_every_format_names_its_golden_bytes() -> None:
    named: set[str] = set()
    for page in sorted(FORMATS.glob("*.md")):
        found = re.findall(r"`tests/golden/([\w.]+)`", page.read_text(encoding="utf-8"))
        assert found, f"{page.name} names no file of tests/golden"
        named.update(found)
    assert named == {path.name for path in GOLDEN.iterdir()}


def test_every_golden_file_is_read_by_a_test() -> None:
    tests = [
        path.read_text(encoding="utf-8")
        for path in (REPOSITORY / "tests").rglob("test_*.py")
        if path != Path(__file__)
    ]
    for path in GOLDEN.iterdir():
        assert any(path.name in text for text in tests), f"no test reads {path.name}"
