"""labkit: a course lab on data-parallel and pipeline-parallel training.

Nothing is imported here, so that each module costs only what it needs:
``from labkit.launch import launch``, ``from labkit.draw import timeline``, …
"""

__version__ = "0.1.0"
