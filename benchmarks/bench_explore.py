"""Measure how long a reader waits for a new picture: JupyterLab in a browser, from key to pixels.

    python benchmarks/bench_explore.py [--moves 30]

Two notebooks are open, with a kernel each: one with schedule_explorer(), one in which matplotlib
redraws the same two schedules through ipywidgets' interact. A slider of each is moved by one, a
few times in turns; the time is that from the key to the frame with the new picture. Then the slider
is dragged: after the last value may come the picture under way and the last one, which has to be
that of the last value. Then the slider of an op's time, which the page follows without Python, is
moved in every frame, in a notebook and in a file: how many pictures come a second. Then a schedule
of 65,536 ops is opened and dragged along its time axis; what counts is the longest time between two
frames. Last comes a site's page "play", from its address to the first picture.

Exits with 1 where that is more than is wanted. Needs chromium.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "tests" / "browser"))

from lab import CHROMIUM, Lab, jupyter_lab  # noqa: E402
from playwright.sync_api import Page  # noqa: E402

from labkit.base.course import whole_lab  # noqa: E402
from labkit.course.site import write_site  # noqa: E402
from labkit.explore import schedule_explorer  # noqa: E402

MAX_MS = {(4, 8): 60.0, (8, 64): 200.0}  # by ranks and micro-batches, from a slider's move to the picture
MIN_PICTURES_PER_S = {(8, 64): 45.0, (16, 64): 30.0}  # while a time is dragged, live and in a file
MIN_RATIO = 4.0
MAX_BEHIND = 2
MAX_GAP_MS = 250.0
MAX_PLAY_MS = 1000.0  # from the address of a site's page "play" to its first picture
MOVES, TURN = 30, 6  # of each slider, and so many of one before those of the other
N_RANKS, N_MICRO = 64, 512
SLIDERS = {"ours": "micro-batches", "interact": "matplotlib"}  # each known by the word beside it

OURS = """
from labkit.explore import schedule_explorer
schedule_explorer("gpipe n={n_ranks} m={n_micro} vs 1f1b")
"""
INTERACT = """
from ipywidgets import IntSlider, interact
from labkit import draw
from labkit.schedule import gpipe, one_f_one_b
from labkit.simulate import simulate
def redraw(n_micro):
    tables = {{"GPipe": simulate(gpipe({n_ranks}, n_micro)), "1F1B": simulate(one_f_one_b({n_ranks}, n_micro))}}
    return draw.timeline(tables)
interact(redraw, n_micro=IntSlider({n_micro}, 1, 64, description="matplotlib"));
"""
OPENED = """
from IPython.display import HTML, display
from labkit.explore import Timeline
from labkit.schedule import one_f_one_b
from labkit.simulate import simulate
schedule = one_f_one_b({n_ranks}, {n_micro})
events = simulate(schedule)
display(HTML("<i id=began></i>"))
Timeline(events, schedule)
"""

DRAG_A_TIME = """async () => {
  const view = document.querySelector(".labkit-timeline");
  const slider = document.querySelector("input[name=F]");
  const [before, began] = [Number(view.dataset.drawn), performance.now()];
  for (let k = 0; performance.now() - began < 4000; k++) {
    slider.value = 1 + (k % 30) / 10;
    slider.dispatchEvent(new Event("input", { bubbles: true }));
    await new Promise(requestAnimationFrame);
  }
  return (1000 * (Number(view.dataset.drawn) - before)) / (performance.now() - began);
}"""


FIRST_PICTURE = """new Promise((resolve) => {
  const isDrawn = () => document.querySelector(".labkit-timeline[data-drawn]");
  const look = () => (isDrawn() ? resolve(performance.now()) : requestAnimationFrame(look));
  look();
})"""


def redrawn(lab: Lab, n_ranks: int, n_micro: int, moves: int) -> dict[str, Any]:
    """Return what moving and dragging the sliders took at this size."""
    with ExitStack() as stack:
        pages = {}
        for picture, cell in {"ours": OURS, "interact": INTERACT}.items():
            source = cell.format(n_ranks=n_ranks, n_micro=n_micro)
            page = stack.enter_context(lab.notebook([source], name=picture, script=HERE / "explore_page.js"))
            page.wait_for_function("picture => bench.isDrawn(picture)", arg=picture)
            pages[picture] = page
        pairs = [pair for number in range(1 + moves // TURN) for pair in turn(pages, number)][TURN:]  # one to warm up
        return {
            "ours_ms": statistics.median(ours for ours, _ in pairs),
            "interact_ms": statistics.median(interact for _, interact in pairs),
            "ratio": statistics.median(interact / ours for ours, interact in pairs),
            "dragged": {picture: dragged(page, picture) for picture, page in pages.items()},
            "last_is_last": shows_its_value(pages["ours"]),
        }


def turn(pages: dict[str, Page], number: int) -> list[tuple[float, float]]:
    """Return the milliseconds to the new picture of a few moves of one slider, down and up by one,
    then of the other: pairs of ours and theirs."""
    waited = {}
    for name in list(pages) if number % 2 == 0 else list(pages)[::-1]:
        pages[name].bring_to_front()  # behind another page the browser draws seldom
        keys = ["ArrowLeft", "ArrowRight"] * (TURN // 2)
        waited[name] = [pages[name].evaluate("ask => bench.move(...ask)", [SLIDERS[name], key, name]) for key in keys]
    return list(zip(waited["ours"], waited["interact"], strict=True))


def dragged(page: Page, picture: str) -> dict[str, float]:
    """Drag a slider over most of its length in sixty moves. Returns how many values it went
    through, how many pictures came, and how long after the last value the last of them."""
    page.bring_to_front()
    page.evaluate("word => bench.slider(word).scrollIntoView({ block: 'center' })", SLIDERS[picture])
    start = page.evaluate("word => bench.grip(word)", SLIDERS[picture])
    track = page.evaluate("word => bench.track(word)", SLIDERS[picture])
    page.evaluate("ask => bench.drag(...ask)", [SLIDERS[picture], picture])
    drag(page, start, [track["x"] + track["width"] * k / 75 for k in range(10, 70)])
    return page.evaluate("bench.dropped()")


def drag(page: Page, start: tuple[float, float], places: list[float]) -> None:
    page.mouse.move(*start)
    page.mouse.down()
    for x in places:
        page.mouse.move(x, start[1])
    page.mouse.up()


def shows_its_value(page: Page) -> bool:
    """Return whether the picture is the one that its slider gives when moved away and back."""
    after_drag = page.evaluate("bench.pixels()")
    for key in ("ArrowLeft", "ArrowRight"):
        page.evaluate("ask => bench.move(...ask)", [SLIDERS["ours"], key, "ours"])
    return after_drag == page.evaluate("bench.pixels()")


def pictures_per_s(lab: Lab, n_ranks: int, n_micro: int) -> dict[str, float]:
    """Return how many pictures of two schedules a page draws while a time is dragged."""
    state = f"1f1b n={n_ranks} m={n_micro} vs zb-h1"

    def drawn(page: Page) -> float:
        page.wait_for_selector(".labkit-timeline[data-drawn]")
        return statistics.median([page.evaluate(DRAG_A_TIME) for _ in range(4)][1:])  # one to warm up

    file = lab.folder / "explorer.html"
    schedule_explorer(state).timeline.to_html(file)
    page = lab.browser.new_page()
    page.goto(file.as_uri())
    in_file = drawn(page)
    page.close()
    with lab.notebook([f"from labkit.explore import schedule_explorer\nschedule_explorer({state!r})"]) as live:
        return {"live": drawn(live), "in a file": in_file}


def panned(lab: Lab) -> dict[str, float]:
    """Return what opening a schedule of 65,536 ops took, and dragging it while zoomed in."""
    cell = OPENED.format(n_ranks=N_RANKS, n_micro=N_MICRO)
    with lab.notebook([cell], script=HERE / "explore_page.js") as page:
        page.wait_for_function("'drawn' in bench.firsts")
        found = {"first_picture_ms": page.evaluate("bench.firsts.drawn - bench.firsts.began")}
        for name, zooms in {"nearly all in sight": 2, "closely": 12}.items():
            stage = page.locator(".labkit-timeline canvas").first
            stage.click(position={"x": 2, "y": 2})
            for _ in range(zooms):
                page.keyboard.press("+")
            box = stage.bounding_box()
            assert box is not None
            page.evaluate("bench.watchFrames()")
            middle, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
            drag(page, (middle, y), [middle - 5 * k for k in range(60)])
            gaps = page.evaluate("bench.framesSeen()")
            found |= {f"longest_gap_ms, {name}": max(gaps), f"median_gap_ms, {name}": statistics.median(gaps)}
        return found


def first_picture_ms(lab: Lab) -> float:
    """Return when the page "play" of this lab's site has its first picture."""
    folder, found = lab.folder / "site", list[float]()
    write_site(folder, whole_lab(), lambda _: None)
    for _ in range(6):
        page = lab.browser.new_page()
        page.goto((folder / "play.html").as_uri(), wait_until="commit")
        found.append(page.evaluate(FIRST_PICTURE))
        page.close()
    return statistics.median(found[1:])  # one to warm up


def faults(
    sizes: dict[tuple[int, int], dict[str, Any]],
    in_page: dict[tuple[int, int], dict[str, float]],
    opened: dict[str, float],
    play_ms: float,
) -> list[str]:
    """Return what is not as it is wanted, a line each."""
    found = []
    for (n_ranks, n_micro), max_ms in MAX_MS.items():
        size, got = f"{n_ranks} × {n_micro}", sizes[n_ranks, n_micro]
        if got["ours_ms"] > max_ms:
            found.append(f"{size}: {got['ours_ms']:.0f} ms to the new picture, wanted at most {max_ms:g}")
        if got["ratio"] < MIN_RATIO:
            found.append(f"{size}: {got['ratio']:.1f} times as fast as interact, wanted at least {MIN_RATIO:g}")
        if not got["last_is_last"]:
            found.append(f"{size}: the last picture of a drag is not that of its last value")
        if got["dragged"]["ours"]["behind"] > MAX_BEHIND:
            found.append(f"{size}: {got['dragged']['ours']['behind']} pictures came after the last value of a drag")
    for (n_ranks, n_micro), min_per_s in MIN_PICTURES_PER_S.items():
        for where, drawn in in_page[n_ranks, n_micro].items():
            if drawn < min_per_s:
                found.append(
                    f"{n_ranks} × {n_micro}: {drawn:.0f} pictures a second {where}, wanted at least {min_per_s:g}"
                )
    longest = max(value for name, value in opened.items() if name.startswith("longest"))
    if longest > MAX_GAP_MS:
        found.append(f"{longest:.0f} ms between two frames of a dragged schedule, wanted at most {MAX_GAP_MS:g}")
    if play_ms > MAX_PLAY_MS:
        found.append(f"{play_ms:.0f} ms to the first picture of a site's page, wanted at most {MAX_PLAY_MS:g}")
    return found


def report(
    sizes: dict[tuple[int, int], dict[str, Any]],
    in_page: dict[tuple[int, int], dict[str, float]],
    opened: dict[str, float],
    play_ms: float,
) -> None:
    for (n_ranks, n_micro), got in sizes.items():
        print(f"{n_ranks} ranks × {n_micro} micro-batches, two schedules; from a slider's move to the new picture")
        print(f"  labkit.explore              {got['ours_ms']:8.0f} ms")
        print(
            f"  matplotlib through interact {got['interact_ms']:8.0f} ms   {got['ratio']:6.1f} × labkit, median of pairs"
        )
        for picture, drag in got["dragged"].items():
            print(
                f"  dragged, {picture:<18} {drag['values']:8.0f} values, {drag['pictures']} pictures, "
                f"{drag['behind']} after the last value, within {drag['behind_ms']:.0f} ms"
            )
        print(f"  the last picture is that of the last value: {'yes' if got['last_is_last'] else 'NO'}")
    for (n_ranks, n_micro), drawn in in_page.items():
        rates = ", ".join(f"{rate:.0f} {where}" for where, rate in drawn.items())
        print(f"{n_ranks} ranks × {n_micro} micro-batches, two schedules, a time dragged: pictures a second: {rates}")
    print(f"1F1B, {N_RANKS} ranks, {N_MICRO} micro-batches, {2 * N_RANKS * N_MICRO} ops")
    for name, value in opened.items():
        print(f"  {name.replace('_ms', ', ms').replace('_', ' '):<40} {value:8.0f}")
    print(f"a site's page with eight explorers: first picture after {play_ms:.0f} ms")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--moves", type=int, default=MOVES)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    if CHROMIUM is None:
        print("left out: no chromium on this machine")
        return 0
    with tempfile.TemporaryDirectory() as folder, jupyter_lab(Path(folder)) as lab:
        sizes = {size: redrawn(lab, *size, options.moves) for size in MAX_MS}
        in_page = {size: pictures_per_s(lab, *size) for size in MIN_PICTURES_PER_S}
        opened = panned(lab)
        play_ms = first_picture_ms(lab)
    if options.json:
        print(
            json.dumps(
                {
                    "sizes": {f"{n} x {m}": got for (n, m), got in sizes.items()},
                    "pictures_per_s": [*in_page.values()],
                    "opened": opened,
                    "play_ms": play_ms,
                }
            )
        )
    else:
        report(sizes, in_page, opened, play_ms)
    missed = faults(sizes, in_page, opened, play_ms)
    print(*missed, sep="\n", end="\n" if missed else "", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
