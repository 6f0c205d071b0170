"""Read a file that a Timeline has written, as a browser does."""

from __future__ import annotations

import base64
import json
import re
import zlib
from typing import Any


def script_of(page: str) -> tuple[str, dict[str, Any]]:
    """Return what the browser unpacks and runs: code, and the content that it shows."""
    script = zlib.decompress(base64.b64decode(re.search(r'atob\("(.*?)"\)', page)[1])).decode()
    code, opens, content = script.partition('openFile(document.getElementById("timeline"), ')
    return code + opens, json.loads(content.removesuffix(");"))
