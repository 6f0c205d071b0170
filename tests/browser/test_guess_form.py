"""The form of a question in JupyterLab: nothing is given until the reader gives it, by mouse or by
keyboard, and the cell that reveals the answer waits."""

import json

import axe
from lab import run_all, save
from playwright.sync_api import Page, expect

CELLS = [
    "from labkit.guess import guess",
    "hidden = guess('hidden', 'Which fraction of the communication hides?', low=0, high=1)",
    "slow = guess('slow', 'How long does a step take?', low=1.0, high=1000.0, unit='ms')",
    "which = guess('which', 'Which sends less?', choices=['`ring`', 'parameter server'])",
    "%%needs guess.hidden\nhidden.feedback(0.72, as_if={'if nothing overlapped': 0.0})",
]


def form(page: Page, question: str):
    return page.locator(".labkit-guess").filter(has_text=question)


def test_a_reader_gives_guesses_of_every_kind(lab):
    with lab.notebook(CELLS, name="guesses") as page:
        page.get_by_text("GUESS hidden: give your guess first").wait_for()
        axe.check(page, ".labkit-guess")
        fraction = form(page, "Which fraction")
        give = fraction.get_by_role("button", name="That is my guess")
        expect(give).to_be_disabled()  # a slider that nobody has moved is no guess
        fraction.get_by_role("slider").focus()
        page.keyboard.press("ArrowRight")
        expect(give).to_be_enabled()
        box = fraction.get_by_role("textbox")
        expect(box).not_to_have_value("")
        box.fill("7")
        box.press("Enter")
        expect(fraction.get_by_role("alert")).to_contain_text("expected a number from 0 to 1")
        box.fill("two")
        box.press("Enter")
        expect(fraction.get_by_role("alert")).to_contain_text("'two', expected a number from 0 to 1")
        box.fill("0,125")
        box.press("Enter")
        expect(fraction).to_contain_text("Your guess: 0.125")
        page.keyboard.press("Shift+Enter")  # the focus is in the cell
        page.wait_for_function("window.jupyterapp.shell.currentWidget.content.activeCellIndex === 2")
        fraction.get_by_role("button", name="change").click()
        expect(box).to_be_focused()
        box.fill("0.5")
        box.press("Enter")
        expect(fraction).to_contain_text("Your guess: 0.5")
        slow = form(page, "How long").get_by_role("textbox")
        slow.fill("0.05")
        slow.press("Enter")
        expect(form(page, "How long").get_by_role("alert")).to_contain_text("Do you mean 0.05 s? That is 50 ms")
        form(page, "How long").get_by_role("button", name="I don't know").click()
        expect(form(page, "How long")).to_contain_text("Your guess: I don't know")
        form(page, "sends less").get_by_label("ring").check()
        page.keyboard.press("Enter")
        expect(form(page, "sends less")).to_contain_text("Your guess: ring")  # and not `ring`
        axe.check(page, ".labkit-guess")
        kept = json.loads((lab.folder / ".labkit" / "guesses.json").read_text())
        assert {name: facts["guess"] for name, facts in kept.items()} == {
            "hidden": 0.5,
            "slow": None,
            "which": "`ring`",
        }
        run_all(page)
        page.get_by_text("It is 0.72").wait_for()
        expect(form(page, "Which fraction")).to_contain_text("final")
        expect(form(page, "Which fraction").get_by_role("button")).to_have_count(0)
        expect(page.get_by_text("Your guess: 0.5").locator("visible=true")).to_have_count(1)  # not its card as well
        save(page)
    with lab.opened("guesses", quiet=False) as page:  # ipywidgets tells the console that its models are gone
        expect(page.get_by_text("Your guess: 0.5").locator("visible=true")).to_have_count(1, timeout=30_000)
        expect(page.get_by_text("Error displaying widget").locator("visible=true")).to_have_count(0)
