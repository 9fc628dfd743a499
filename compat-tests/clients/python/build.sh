#!/usr/bin/env bash
# One virtual environment for all clients of this folder.
set -euo pipefail
python3 -m venv "$OUT/venv"
"$OUT/venv/bin/pip" install --quiet --requirement "$SRC/requirements.txt"
