"""Say which extra of labkit has a package that is not installed, and how to get it."""

from __future__ import annotations

import sys

OTHER_NAMES = {"sklearn": "scikit-learn"}  # modules that are not called as their package


class MissingExtra(ModuleNotFoundError):
    """A module of labkit needs a package that only an extra of labkit installs."""


class ExtraFinder:
    """The last finder of ``sys.meta_path``, which is asked for what no other has found.

    Where a module of labkit imports a package of an extra, it raises :class:`MissingExtra`. So each
    file imports what it needs as usual, and the sentence stands here alone.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if path is None and _importer().startswith("labkit.") and (extra := extra_of(name)):
            raise MissingExtra(f"this part of labkit needs {name}: pip install 'labkit[{extra}]' brings it", name=name)


def extra_of(module: str) -> str | None:
    """Return the extra of the installed labkit that has this module, if any."""
    import re  # here, as every import of labkit comes by
    from importlib.metadata import PackageNotFoundError, requires

    try:
        requirements = requires("labkit") or []
    except PackageNotFoundError:  # on the path, but not installed
        return None
    package = OTHER_NAMES.get(module, module)
    for requirement in requirements:
        found = re.match(r"([\w.-]+).*; extra == [\"'](\w+)[\"']", requirement)
        if found and re.sub(r"[-.]", "_", found[1]).lower() == re.sub("-", "_", package):
            return found[2]
    return None


def _importer() -> str:
    """Return the name of the module whose import looks for a spec; "" where it is not an import."""
    frame, importing = sys._getframe(2), False
    while "importlib" in frame.f_code.co_filename and frame.f_back:
        importing = importing or frame.f_code.co_name == "_find_and_load"
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "")) if importing else ""


def name_missing_extras() -> None:
    """Put the finder in its place, where it is not yet: a rank may import the lab again."""
    others = [finder for finder in sys.meta_path if type(finder).__name__ != ExtraFinder.__name__]
    sys.meta_path[:] = [*others, ExtraFinder()]
