"""The data sets of the lab: found, read and checked.

A source is a folder in the form that the data set has on the web; ``"shipped"``, the generated
sentences that come with the lab; or a data set on the Hugging Face hub, ``"hub"`` or
``"owner/name"``. ``"auto"`` is the folder that the environment variable ``LABKIT_DATA`` names, else
what ships. A printed line says which it was.

sources          find a data set, and read its files line by line
glue             RTE: pairs of which the second sentence may follow from the first
sentence_pairs   pairs in two languages
"""

from labkit.data.glue import rte
from labkit.data.sentence_pairs import GERMAN_ENGLISH, translation
from labkit.data.sources import Rows

__all__ = ["GERMAN_ENGLISH", "Rows", "rte", "translation"]
