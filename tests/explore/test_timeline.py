"""The Timeline without a browser: what it sends, what it answers, what it leaves in files."""

import base64
import json
import zlib

import pytest

from labkit.explore import Timeline, bucket_explorer, static_fallback
from labkit.schedule import gpipe, one_f_one_b
from labkit.simulate import simulate
from labkit.trace import event_table


@pytest.fixture
def timeline():
    made = Timeline(simulate(one_f_one_b(2, 4)))
    made.sent = []
    made.send = lambda message, buffers=None: made.sent.append((message, buffers))
    return made


def receive(timeline, **message):
    timeline._receive(timeline, {"version": timeline.scene["version"]} | message, [])


def test_what_a_reader_chooses_is_heard(timeline):
    heard = []
    timeline.on_control = lambda *what: heard.append(what) or ""
    receive(timeline, control="ranks", text="4")
    assert heard == [("ranks", "4")]


def test_why_a_choice_is_refused_stands_in_the_form(timeline):
    timeline.on_control = lambda name, text: f"no {text} {name}"
    receive(timeline, control="ranks", text="4")
    assert timeline.form["fault"] == {"name": "ranks", "text": "no 4 ranks"}


def test_a_file_is_written_whole_and_what_an_event_is_called_cannot_run_as_code(tmp_path):
    events = simulate(gpipe(2, 2)).assign(name="</script><script>alert(1)</script>")
    timeline, page = Timeline(events, title="<b>"), tmp_path / "t.html"
    assert timeline.to_html(page) is None
    page = page.read_text(encoding="utf-8")
    assert page == timeline.to_html()
    assert "<script>alert" not in page and "<title>&lt;b&gt;</title>" in page


def test_saving_writes_the_picture_its_data_its_words_and_the_page(timeline, tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_FIGURES", str(tmp_path))
    timeline.save("two_ranks")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"two_ranks.{ending}" for ending in ("alt.txt", "csv", "html", "png", "svg")]
    assert (tmp_path / "two_ranks.alt.txt").read_text().startswith("Timeline of 2 ranks")


def test_what_the_page_alone_draws_is_not_saved_as_a_figure_and_what_to_do_is_said():
    with pytest.raises(ValueError, match="to_html"):
        bucket_explorer("mlp").timeline.save("buckets")


def test_a_button_saves_the_page_for_the_view_that_asked(timeline):
    receive(timeline, save="html", view="a")
    ((message, (content,)),) = timeline.sent
    assert message["name"].endswith(".html") and content.startswith(b"<!doctype html>")
    assert message["view"] == "a"  # another view of it downloads nothing


@pytest.fixture
def displayed(monkeypatch):
    shown = []
    monkeypatch.setattr(static_fallback, "display", lambda *objects, **options: shown.append((objects, options)))
    return shown


def test_a_kept_table_of_a_run_has_measurements_in_a_style_in_html(displayed, monkeypatch):
    monkeypatch.setenv("LABKIT_STATIC", "1")
    events = event_table([(0, "compute", "forward", None, None, 0, None, None, 0.0, 1.5)], measured=True)
    Timeline(events)._ipython_display_()
    _, ((table,), _) = displayed
    html = table._repr_html_()
    assert "[~       1.5]" in repr(table) and "[~" not in html and 'class="labkit-measured"' in html


def test_a_kept_picture_has_what_a_static_site_plays(displayed, monkeypatch):
    monkeypatch.setenv("LABKIT_STATIC", "1")
    timeline = Timeline(simulate(gpipe(2, 2)))
    timeline._ipython_display_()
    ((_, options), _) = displayed
    content = json.loads(zlib.decompress(base64.b64decode(options["metadata"]["labkit"])))
    assert content["scenes"][0]["alt"] == timeline.scene["alt"] and content["library"] is None


def test_what_is_no_table_is_refused():
    with pytest.raises(TypeError, match=r"Timeline\(events\) is of type list, expected an event table"):
        Timeline([1, 2])
    with pytest.raises(ValueError, match=r"Timeline\(ideal\) is empty"):
        Timeline(simulate(gpipe(2, 2)), ideal=simulate(gpipe(2, 2))[:0])
