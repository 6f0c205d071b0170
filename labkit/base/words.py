"""Read the words of the notebooks by name: ``notebooks/questions.toml`` and ``figures.toml``."""

from __future__ import annotations

import base64
import json
import re
import string
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from labkit.base.lab import lab


def words(file: str, name: str) -> dict[str, Any]:
    """Return what ``notebooks/<file>.toml`` says under ``name``.

    Raises FileNotFoundError outside a lab, and ValueError for a file that is damaged or a name that
    is not in it.
    """
    path = lab().notebooks / f"{file}.toml"
    try:
        known = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"{file}: there is no {path}; work in the folder of a lab") from None
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if name not in known:
        raise ValueError(f"{name!r} is not in {path.name}, expected one of {', '.join(known)}")
    found: dict[str, Any] = known[name]
    return found | {"answer": unsealed(found["answer"])} if "answer" in found else found


_SEAL = "sealed:"


def sealed(answer: Any) -> str:
    """Return an answer as the student edition has it: not secret, but not read by accident."""
    return _SEAL + base64.b64encode(json.dumps(answer).encode()).decode()


def unsealed(answer: Any) -> Any:
    """Return an answer as it was before :func:`sealed`; any other one as it is."""
    if not isinstance(answer, str) or not answer.startswith(_SEAL):
        return answer
    return json.loads(base64.b64decode(answer.removeprefix(_SEAL)))


def fields_of(entry: object) -> Iterator[str]:
    """Yield the names of the ``{fields}`` in all texts of an entry."""
    match entry:
        case str():
            fields = (field for _, field, _, _ in string.Formatter().parse(entry) if field)
            yield from (re.split(r"[.\[]", field)[0] for field in fields)  # of {ms[stage 0]}, ms
        case Mapping():
            for each in entry.values():
                yield from fields_of(each)
