"""The wheel has all that the package needs."""

from __future__ import annotations

import shutil
import zipfile

import environments
import pytest
from environments import PROJECT

from labkit.course.student import tracked_files


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_package(tmp_path):
    """Of a copy of the project: pip leaves its build in the folder that it builds."""
    for name in tracked_files(PROJECT):
        if name.startswith("labkit/") or "/" not in name:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PROJECT / name, tmp_path / name)
    try:
        environments.pip("wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(tmp_path))
    except environments.Offline as error:
        pytest.skip(str(error))
    (wheel,) = tmp_path.glob("labkit-*.whl")
    files = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert files == {name for name in tracked_files(PROJECT) if name.startswith("labkit/")}
