"""Build a schedule by hand: the puzzle, from two ranks and one micro-batch to zero bubble.

rules     what the ops are, what they need, what a rank may keep; why a move is refused
board     what is placed, op by op
levels    what each level asks and teaches, and the paper's schedule that sets its par
widget    the same in a notebook: schedule_puzzle

The page plays it: when ops run, which are offered, what is answered (browser/puzzle.js).
"""
