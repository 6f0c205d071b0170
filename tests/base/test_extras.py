"""The package of an extra that is missing is named with the line that installs it."""

import pytest

import labkit.base  # noqa: F401  sets it up
from labkit.base.extras import MissingExtra

METADATA = """Metadata-Version: 2.4
Name: labkit
Version: 9
Provides-Extra: lab
Requires-Dist: absent.draws-it>=3; extra == "lab"
Requires-Dist: absent-from-all>=1
"""


@pytest.fixture(autouse=True)
def _installed(tmp_path, monkeypatch):
    folder = tmp_path / "labkit-9.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(METADATA)
    monkeypatch.syspath_prepend(str(tmp_path))


def run(code: str, module: str) -> dict:
    names = {"__name__": module}
    exec(code, names)
    return names


@pytest.mark.parametrize("code", ["import absent_draws_it", "from absent_draws_it import charts"])
def test_a_module_of_labkit_says_which_line_installs_what_it_needs(code):
    with pytest.raises(MissingExtra, match=r"needs absent_draws_it: pip install 'labkit\[lab\]' brings it"):
        run(code, "labkit.draw.charts")


@pytest.mark.parametrize(
    ("module", "package"), [("numpy.core", "absent_draws_it"), ("labkit.draw", "absent_from_all"), ("labkit.x", "nope")]
)
def test_other_modules_and_other_packages_have_pythons_own_error(module, package):
    with pytest.raises(ModuleNotFoundError, match=f"No module named '{package}'") as caught:
        run(f"import {package}", module)
    assert caught.type is ModuleNotFoundError
