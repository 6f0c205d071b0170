"""Find out in about a second whether the Hugging Face hub answers; its own clients take 30."""

from __future__ import annotations

import functools
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def offline() -> bool:
    """Return whether the environment says to stay off the hub (``HF_HUB_OFFLINE``).

    Then its clients use what they cached.
    """
    asked = (os.environ.get(name, "") for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"))
    return any(value.upper() in {"1", "ON", "YES", "TRUE"} for value in asked)


def reachable(timeout_s: float = 1.5) -> bool:
    """Return whether the hub answers within ``timeout_s``; False at once where :func:`offline`.

    Follows ``HF_ENDPOINT`` and the proxy variables. The answer is kept for up to a minute.
    """
    address = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    return not offline() and _answers(address, timeout_s, minute=int(time.monotonic() // 60))


def require(what: str) -> None:
    """Raise ConnectionError, naming ``what`` was wanted, where the hub is asked in vain."""
    if not offline() and not reachable():
        raise ConnectionError(
            f"{what} is on the Hugging Face hub, which does not answer. Connect this machine, "
            "set HF_HUB_OFFLINE=1 to use what was downloaded before, or name a local folder"
        )


def local_first(name: str, load: Callable[[bool], Found]) -> Found:
    """Return ``load(True)``, what is on this machine; where that is nothing, ``load(False)``.

    The argument is ``local_files_only``, as in ``from_pretrained``. Raises the OSError of the first
    where ``name`` is a folder or the hub is not to be asked, and ConnectionError where it does not
    answer.
    """
    try:
        return load(True)
    except OSError:
        if os.path.isdir(name) or offline():
            raise
    require(f"the model {name}")
    return load(False)


@functools.lru_cache(maxsize=4)
def _answers(url: str, timeout_s: float, minute: int) -> bool:
    answered = threading.Event()
    over = threading.Event()

    def ask() -> None:
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=timeout_s).close()
            answered.set()
        except urllib.error.HTTPError as refusal:
            if refusal.code < 500:  # an answer too; a 5xx is a gateway that found nothing behind it
                answered.set()
        except (OSError, ValueError):
            pass
        over.set()

    # In a thread of its own, since looking up a name takes no timeout and may take far longer than
    # we want to wait.
    threading.Thread(target=ask, daemon=True).start()
    over.wait(timeout_s)
    return answered.is_set()
