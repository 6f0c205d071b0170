"""Train GPT-2 to translate on one device, model parallel or pipeline parallel (problem 2.3).

    python project/run_pipeline.py --model_parallel_mode=model_parallel
    python project/run_pipeline.py --model_parallel_mode=pipeline_parallel

Other flags are those of python -m labkit.train translate, such as --size mini.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from utils import flag_parser, train_flags

from labkit.train import main

if __name__ == "__main__":
    parser = flag_parser(__doc__, n_epochs=2, batch_size=32)
    parser.add_argument("--n_chunk", default="4", help="micro-batches of a batch (%(default)s)")
    parser.add_argument("--model_parallel_mode", choices=("model_parallel", "pipeline_parallel"))
    args, others = parser.parse_known_args()
    mode, n_devices = (args.model_parallel_mode, 2) if args.model_parallel_mode else ("data_parallel", 1)
    where = ["--mode", mode, "--world-size", str(n_devices), "--n-micro", args.n_chunk]
    main([*train_flags(args, others, n_devices), *where])
