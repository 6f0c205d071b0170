"""Train BERT on RTE; torch's DistributedDataParallel averages the gradients.

    python run_glue.py [the assignment's flags] --world_size 4 --local_rank 0 --master_ip 10.10.1.1

Without --local_rank all ranks start here.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from labkit.train import main

if __name__ == "__main__":
    main(["glue", "--sync", "ddp", *sys.argv[1:]])
