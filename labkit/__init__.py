"""labkit: a course lab on data-parallel and pipeline-parallel training.

Nothing of it is imported here, so that each module costs only what it needs:
``from labkit.launch import launch``, ``from labkit.draw import timeline``, …
"""

import importlib

__version__ = "0.1.0"


def load_ipython_extension(shell: object) -> None:
    """Bring ``%ranks``, ``%%ranks`` and ``%%needs`` to a notebook: ``%load_ext labkit`` calls this.

    Importing :mod:`labkit.launch`, or :mod:`labkit.todo` for the last, does so as well.

    Raises ImportError in a lab that has a labkit of its own, which is not this one.
    """
    for name in ("labkit.launch", "labkit.todo"):
        importlib.import_module(name).load_ipython_extension(shell)
