"""The archive that a student hands in: its files, without what tells who and where they are."""

from __future__ import annotations

import contextlib
import getpass
import json
import re
import socket
import urllib.parse
import zipfile
from collections.abc import Container, Iterator
from pathlib import Path

import psutil

from labkit.course.edition import STUDENT_FILES
from labkit.course.student import NOT_OURS

MOST_BYTES = 10_000_000  # of a file in the archive
TEXTS = (".ipynb", ".html", ".json", ".csv", ".txt", ".md", ".svg", ".toml", ".log", ".tsv", ".yaml", ".yml")
# Names of accounts and hosts that say nothing about anyone.
NOBODY = {"root", "user", "student", "jovyan", "ubuntu", "runner", "localhost", "docker"}


class Archive:
    """The files of an archive, without what is private; and what is to be said of them."""

    def __init__(self, lab: Path):
        self.lab, self.files = lab, dict[str, bytes]()
        self.warnings: list[str] = []
        spellings = sorted({each for text in _private(lab) for each in _spellings(text)}, key=len, reverse=True)
        words = (rf"(?<![^\W_]){re.escape(each)}(?![^\W_])" for each in spellings)
        self._find = re.compile("|".join(words) or "(?!)", re.IGNORECASE)

    def add(self, name: str, content: bytes | str) -> None:
        """Add a file; of a text what is private becomes ``…``. A program stays as it is written."""
        name = self.without_private(name)
        content = content.encode() if isinstance(content, str) else content
        if len(content) > MOST_BYTES:
            self.warnings.append(f"{name} is left out: it has {len(content) / 1e6:.0f} MB, more than 10")
            return
        text = content.decode("utf-8", "surrogateescape")
        if name.endswith(TEXTS):
            content = self.without_private(text).encode("utf-8", "surrogateescape")
        if name in STUDENT_FILES and (found := self._find.search(text)):
            line = text.count("\n", 0, found.start()) + 1
            self.warnings.append(f"{name}, line {line} names you, this machine or a folder of yours")
        self.files[name] = content

    def add_file(self, file: Path, name: str | None = None, washed: bool = True) -> None:
        """Add a file of the lab; one that lies elsewhere, as a link does, is left out.

        What came with the lab need not be ``washed``.
        """
        name = name or file.relative_to(self.lab).as_posix()
        if not file.resolve().is_relative_to(self.lab.resolve()):
            self.warnings.append(f"{name} is left out: it is a link to what lies outside the lab")
        elif file.is_file() and file.stat().st_size > MOST_BYTES:
            self.warnings.append(f"{name} is left out: it has {file.stat().st_size / 1e6:.0f} MB, more than 10")
        elif file.is_file() and washed:
            self.add(name, file.read_bytes())
        elif file.is_file():
            self.files[name] = file.read_bytes()

    def add_folder(self, folder: Path, but: Container[str] = ()) -> None:
        """Add the files of a folder of the lab, ``but`` for those of these names."""
        for file in sorted(folder.rglob("*")):
            name = file.relative_to(self.lab).as_posix()
            if name not in but and file.suffix != ".zip" and not NOT_OURS.intersection(name.split("/")):
                self.add_file(file, name)

    def without_private(self, text: str) -> str:
        return self._find.sub("…", text)

    def write(self, file: Path) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in sorted(self.files.items()):
                archive.writestr(name, content)


def _private(lab: Path) -> Iterator[str]:
    """Yield what tells who and where somebody is: folders, names, addresses."""
    yield from (str(folder) for folder in (lab, lab.resolve(), Path.home()) if folder != Path(folder.anchor))
    with contextlib.suppress(Exception):  # there may be no user of this number
        yield getpass.getuser()
    yield socket.gethostname()
    for address in (each.address for addresses in psutil.net_if_addrs().values() for each in addresses):
        if not address.startswith(("127.", "::1", "00:00:00:00:00:00")):
            yield address.partition("%")[0]


def _spellings(text: str) -> set[str]:
    """Return a text as it is, in JSON and in a URL; nothing for one that says nothing."""
    if len(text) < 3 or text.lower() in NOBODY:
        return set()
    return {text, json.dumps(text)[1:-1], urllib.parse.quote(text)}
