"""labkit.base.chromium: a browser prints a page; where it cannot, it says so."""

import pytest

from labkit.base import chromium


def test_a_page_on_which_nothing_is_seen_is_no_picture(with_chromium, tmp_path):
    with pytest.raises(chromium.ChromiumError, match="stayed blank"):
        chromium.take_picture(b"<p hidden>all of it", tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_browser_can_be_named_and_taken_away(monkeypatch, tmp_path):
    (tmp_path / "browser").touch(0o755)
    monkeypatch.setenv("LABKIT_CHROMIUM", str(tmp_path / "browser"))
    assert chromium.find_chromium() == str(tmp_path / "browser")
    monkeypatch.setenv("LABKIT_CHROMIUM", "")
    with pytest.raises(chromium.ChromiumError, match="no Chromium here"):
        chromium.print_to_pdf(b"", tmp_path)
