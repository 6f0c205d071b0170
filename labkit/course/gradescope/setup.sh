#!/usr/bin/env bash
# Install Python, torch for the CPU, and the lab: Gradescope runs this once, when it builds the container.
set -euo pipefail
cd "${AUTOGRADER:-/autograder}"

apt-get update
if ! apt-get install -y --no-install-recommends python3.12-venv; then # Ubuntu 22.04 has Python 3.10
    apt-get install -y --no-install-recommends software-properties-common
    add-apt-repository -y ppa:deadsnakes/ppa
    apt-get install -y --no-install-recommends python3.12-venv
fi
python3.12 -m venv venv
venv/bin/pip install --no-cache-dir -c source/lab/constraints.txt \
    --extra-index-url https://download.pytorch.org/whl/cpu source/lab transformers
