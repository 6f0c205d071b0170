"""A kernel that has run no cell says in one sentence what a cell of the lab needs."""

import json
import re
import subprocess
import sys
from pathlib import Path

from labkit.base.restarted_kernel import RUN_ABOVE

ROOT = Path(__file__).parents[2]
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


def test_a_kernel_of_make_setup_says_run_all_above_until_the_lab_is_imported_and_imports_none():
    config = re.search(r"echo '(.+)' > \S+/etc/ipython/ipython_kernel_config.json", (ROOT / "Makefile").read_text())
    extensions = json.loads(config[1])["IPKernelApp"]["extensions"]
    code = KERNEL.format(extensions=extensions, cells=CELLS)
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stderr.splitlines() == [f"UsageError: {RUN_ABOVE}"] * 3
    assert run.stdout.splitlines() == ["[]", f"GUESS nobody: {RUN_ABOVE}"]
