"""The data sets of the lab: found, read and checked.

``"auto"`` takes the first of these that is there, and a printed line says which:

1. the folder named by the environment variable ``LABKIT_DATA``, in the form the data set has on the
   web;
2. the Hugging Face hub, where it can be reached (a hub that cannot be costs about a second, once);
3. what ships with the lab in ``data/``, or with scikit-learn.
"""

from labkit.data.glue import rte
from labkit.data.handwritten import Digits, digits
from labkit.data.sentence_pairs import translation
from labkit.data.sources import Rows

__all__ = ["Digits", "Rows", "digits", "rte", "translation"]
