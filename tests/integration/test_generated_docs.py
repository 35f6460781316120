"""The generated parts of the documents are what the program would write now."""

import pytest

from docs.generate import PARTS, with_part
from tests.documents import text


@pytest.mark.parametrize("name", PARTS)
def test_a_generated_part_is_up_to_date(name: str) -> None:
    page, write = PARTS[name]
    assert with_part(text(page), name, write()) == text(page), "run make docs"
