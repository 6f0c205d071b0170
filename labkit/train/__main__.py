"""Run ``python -m labkit.train TASK``."""

import gc

from labkit.train.command import main

if __name__ == "__main__":
    try:
        main()
    finally:
        gc.freeze()  # Python's end would look through all of torch's objects, on a busy machine for seconds
