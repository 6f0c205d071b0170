"""Behind labkit.guess: questions, where guesses are kept, the form, feedback, calibration.

question      what is asked, and which guesses it takes
store         where guesses are kept: outside the notebook
reader        the reader's guess of a question, and its card on a page
form          the form in a notebook
feedback      how far off a guess is, and which term it forgot
calibration   all guesses of the course in one table and one picture
"""
