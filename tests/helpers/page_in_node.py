"""Run the page's own JavaScript in node."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path

from labkit.explore import standalone_html

BROWSER = Path(standalone_html.__file__).parent / "browser"
NODE = shutil.which("node")


def in_node(source: str, given: object, browser: Path = BROWSER) -> list:
    """Return what a function of JavaScript makes of what is ``given``.

    ``source`` is its imports, from BROWSER, and its body.
    """
    imports, body = (
        "\n".join(line for line in source.splitlines() if line.startswith("import") == wanted)
        for wanted in (True, False)
    )
    module = (
        f'import {{ readFileSync }} from "node:fs";\n{imports.replace("BROWSER", str(browser))}\n'
        f"const answer = (given) => {{{body}}};\n"
        'process.stdout.write(JSON.stringify(answer(JSON.parse(readFileSync(0, "utf8")))));'
    )
    text = json.dumps(given, default=lambda content: base64.b64encode(content).decode())
    command = [str(NODE), "--input-type=module", "-e", module]
    result = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)
