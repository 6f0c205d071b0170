"""Find out in about a second whether the Hugging Face hub answers; its own clients take 30."""

from __future__ import annotations

import functools
import os
import threading
import time
import urllib.error
import urllib.request


def offline() -> bool:
    """Return whether the environment says to stay off the hub (``HF_HUB_OFFLINE``).

    Then its clients use what they cached.
    """
    settings = (os.environ.get(name, "") for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"))
    return any(value.upper() in {"1", "ON", "YES", "TRUE"} for value in settings)


def reachable(timeout_s: float = 1.5) -> bool:
    """Return whether the hub answers within ``timeout_s``; False at once where :func:`offline`.

    Follows ``HF_ENDPOINT`` and the proxy variables. The answer is kept for up to a minute.
    """
    address = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    return not offline() and _answers(address, timeout_s, minute=int(time.monotonic() // 60))


def require(what: str) -> None:
    """Raise ConnectionError, naming ``what`` was wanted, where the hub does not answer."""
    if not offline() and not reachable():
        raise ConnectionError(
            f"{what} is on the Hugging Face hub, which does not answer. Connect this machine, "
            "set HF_HUB_OFFLINE=1 to use what was downloaded before, or name a local folder"
        )


@functools.lru_cache(maxsize=4)
def _answers(url: str, timeout_s: float, minute: int) -> bool:
    answered = threading.Event()

    def ask() -> None:
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=timeout_s).close()
            answered.set()
        except urllib.error.HTTPError as refusal:
            if refusal.code < 500:  # an answer too; a 5xx is a gateway that found nothing behind it
                answered.set()
        except (OSError, ValueError):
            pass

    # In a thread of its own, since looking up a name takes no timeout and may take far longer than
    # we want to wait.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(timeout_s)
    return answered.is_set()
