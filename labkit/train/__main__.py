"""Run ``python -m labkit.train TASK``."""

import gc

from labkit.base.lab import start_again_in_own
from labkit.train.command import main

if __name__ == "__main__":
    start_again_in_own()
    try:
        main()
    finally:
        gc.freeze()  # Python's end would look through all of torch's objects, on a busy machine for seconds
