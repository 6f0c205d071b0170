"""Serve a course around the lab: what instructors run.

student            the student edition: this repository without the solutions
report             an assignment's report, from the reader's own notebook
notebook_html      a notebook as one page, in which nothing runs
site               static pages: explorers play, notebooks are read (site_explorers, formulas)
notebooks          run notebooks and store them
normal_form        the form in which they are stored, alike for alike outputs
notebook_contract  what a stored notebook keeps to
what_ran           what its reader has run, and what cells waited for
doctor             whether this machine is ready
plan               a course as a table: what each notebook asks, needs and takes
leave_out          a text without what a course leaves out
tasks              the table of tasks in docs/student.md
glossary           links from a notebook's terms to the glossary
submission         what a student hands in, packed
archive            that as a zip file: written, and read without trust
downloads          what a class handed in, as an LMS downloads it
assignments        what the archives of two assignments have besides
judge              student files judged in a copy of the lab, by a process of its own
grading            one archive, or a folder of them, graded
autograder         the same on Gradescope
grades             what was found of an archive
grade_tables       grades as tables and pages, and a summary of the class
class_guesses      what a class guessed, as a page without names
leaks              whether one text shows the solution that another has
"""
