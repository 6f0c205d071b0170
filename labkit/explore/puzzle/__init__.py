"""Build a schedule by hand: the puzzle, from two ranks and one micro-batch to zero bubble.

rules     what the ops are, how long they take, what a rank may keep; why a move is refused
board     what is placed: for each rank its ops in order; moves that give another board
levels    what each level asks and teaches, and the paper's schedule that sets its par
game      what a reader does, by key or button, and what is answered; undo, hints
picture   a board as panel, words and table
widget    the same in a notebook: schedule_puzzle

All but the last two are pure: moves in, boards and sentences out.
"""
