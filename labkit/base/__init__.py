"""Serve every package, and import nothing else of labkit.

autoreload        have %autoreload leave every function as its file has it
checks            check an argument: numbers, counts, seconds, bytes
chromium          print a page to PDF, or take its picture, in a browser
consequence       tell a rank's error from those that others raise because of it
course            what a course is, from its file
deprecations      keep deprecations in the lab's own calls out of a cell
files             write a file whole or not at all
formats           how a number prints, so that a test knows what may differ
hub               does the Hugging Face hub answer
interrupts        hold a keyboard interrupt back
javascript        join the JavaScript files of a page into one
lab               find the lab: the one folder that has the notebooks
lazy_names        import a module of a package once a name of it is used
machine           how many cores and how much memory this process may use
measurement_html  measurements as HTML, and lines that have them
notebook          is this a notebook, and one whose outputs are for keeping
orphans           adopt the children of a process that has ended
parent            end a process together with the one that started it
rendezvous        how processes find each other, and by which addresses
restarted_kernel  what the lab's magics say in a kernel that has run no cell yet
tensors           a tensor as its bytes
texts             names in a sentence; a long text made short
units             seconds and bytes in the units that people read
widget_output     a widget as an output, and what stands where it is not
words             the notebooks' words, by name
"""
