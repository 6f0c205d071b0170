"""Run ``python -m labkit.train TASK``."""

from labkit.train.command import main

if __name__ == "__main__":
    main()
