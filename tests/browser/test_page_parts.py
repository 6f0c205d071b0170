"""Parts of the page by themselves: its theme, its form."""

import pytest
from lab import chromium

from labkit.base.javascript import bundle
from labkit.guesses import form

THEME, FORM = (bundle(form.BROWSER / f"{name}.js") for name in ("theme", "form"))
SAYS = {
    "JupyterLab": "document.body.dataset.jpThemeLight = 'false'",
    "VS Code": "document.body.dataset.vscodeThemeKind = 'vscode-dark'",
    "Colab": "document.documentElement.setAttribute('theme', 'dark')",
}


@pytest.fixture(scope="module")
def page(browser_there):
    with chromium(color_scheme="light") as context:
        yield context.new_page()


@pytest.mark.parametrize("program", SAYS)
def test_a_dark_page_is_dark_over_a_light_system_and_its_change_is_heard(page, program):
    page.goto("about:blank")
    found = page.evaluate(f"""async () => {{
        {THEME}
        const themes = [], before = themeNow();
        const end = onThemeChange(() => themes.push(themeNow()));
        {SAYS[program]};
        await new Promise(requestAnimationFrame);
        end();
        return [before, themeNow(), themes];
    }}""")
    assert found == ["light", "dark", ["dark"]]


def test_of_a_slider_that_is_dragged_away_and_back_the_release_is_final_without_a_change(page):
    page.goto("about:blank")  # Firefox tells of no change then
    taken = page.evaluate(f"""() => {{
        {FORM}
        const taken = [], root = document.body.appendChild(document.createElement("form"));
        const form = new Form(root, (...what) => taken.push(what));
        form.show([{{ name: "F", label: "F", look: "slider", min: 0, max: 4, value: 1 }}]);
        const input = root.querySelector("input"), tell = (name) => input.dispatchEvent(new Event(name));
        for (const value of [2, 1]) [input.value = value, tell("input")];
        ["pointerup", "blur"].forEach(tell);
        return taken;
    }}""")
    assert taken == [["F", 2, False], ["F", 1, False], ["F", 1, True]]
