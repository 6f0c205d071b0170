"""Measure whether a model trains the same under a way of training as in plain torch.

    compare(build, (x, y), torch.nn.functional.cross_entropy, ways=["DDP", "ShardedModel"])

training    what is trained, and on what: the same for plain torch and for every way
truth       plain torch on one rank: the whole batch, or its parts in turn
ways        the ways of the lab, of torch and of the reader, each as a step to take
request     check what was given, before any rank starts
rank        train under a way on a rank
record      what each rank writes down at each step
judge       compare records with the truth and with each other
verdict     say what became of a way in a sentence
comparison  run everything, and put the verdicts into a table
"""

from labkit.parity.comparison import Parity, compare

__all__ = ["Parity", "compare"]
