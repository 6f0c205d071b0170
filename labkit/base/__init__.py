"""Serve every package, and import nothing else of labkit.

checks            check an argument: numbers, counts, seconds, bytes
consequence       tell a rank's error from those that others raise because of it
extras            which extra has a package that is not installed
files             the lab's folders; write a file whole or not at all
formats           how a number prints, so that a test knows what may differ
hub               does the Hugging Face hub answer
interrupts        hold a keyboard interrupt back
machine           how many cores and how much memory this process may use
measurement_html  measurements as HTML, and lines that have them
notebook          is this a notebook, and one whose outputs are for keeping
rendezvous        how processes find each other, and by which addresses
tensors           a tensor as its bytes
texts             names in a sentence; a long text made short
"""

from labkit.base.extras import name_missing_extras

name_missing_extras()
