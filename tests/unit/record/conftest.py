"""The fixture that runs a test once per form of the codec."""

from types import ModuleType

import pytest

from tests.unit.record import codec_forms


@pytest.fixture(params=["compiled", "interpreted"])
def codec(request: pytest.FixtureRequest) -> ModuleType:
    if request.param == "interpreted":
        return codec_forms.interpreted()
    module = codec_forms.compiled()
    if module is None:
        pytest.skip("the codec is not compiled here")
    return module
