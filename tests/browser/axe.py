"""Judge an element of a page with axe-core: nothing in it may shut a reader out."""

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

GRAVE = ("serious", "critical")


def check(page: Page, selector: str, **options: object) -> None:
    """Hold an element to the rules, or to those that axe's ``options`` choose."""
    assert page.locator(selector).count(), f"nothing on the page is {selector}"
    # JupyterLab's body has no height and hides what overflows: axe would take all text for hidden.
    page.evaluate("document.body.style.overflow = 'visible'")
    options = {"preload": False, "resultTypes": ["violations"]} | options  # others take as long again
    found = Axe().run(page, [selector], options).response["violations"]
    faults = [
        f"{fault['impact']}: {fault['help']} ({fault['id']}): {node['html'][:160]} {node['failureSummary']}"
        for fault in found
        if fault["impact"] in GRAVE
        for node in fault["nodes"]
    ]
    assert not faults, "\n".join([f"axe finds in {selector}:", *faults])
