"""A kernel that has run no cell says in one sentence what a cell of the lab needs."""

import json
import subprocess
import sys
from pathlib import Path

from labkit.base.restarted_kernel import RUN_ABOVE

ROOT = Path(__file__).parents[2]
CONFIG = "labkit/base/ipython_kernel_config.json"
CELLS = ["%%needs dp.1\n1", "%ranks 4", "%%ranks\n1", "import labkit.todo", "%%needs guess.nobody\n1"]
KERNEL = """
import sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for name in {extensions}:
    shell.extension_manager.load_extension(name)
print([name for name in sys.modules if name.startswith("labkit")])
for cell in {cells}:
    shell.run_cell(cell)
"""


def test_a_kernel_where_the_lab_is_installed_says_run_all_above_until_the_lab_is_imported_and_imports_none():
    copied = [f"cp {CONFIG}", f"cp {CONFIG}", f"COPY lab/{CONFIG} /usr/local/etc/ipython/"]
    for place, line in zip(("Makefile", "docs/platforms.md", "docs/hub.md"), copied, strict=True):
        page = ROOT / place
        assert line in page.read_text() if page.exists() else place == "docs/hub.md"  # which students have not
    extensions = json.loads((ROOT / CONFIG).read_text())["IPKernelApp"]["extensions"]
    code = KERNEL.format(extensions=extensions, cells=CELLS)
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stderr.splitlines() == [f"UsageError: {RUN_ABOVE}"] * 3
    assert run.stdout.splitlines() == ["[]", f"GUESS nobody: {RUN_ABOVE}"]
