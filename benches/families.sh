#!/bin/bash
# A training step of every model family beside Llama's of the same size, on the CPU.
#
#   families.sh [NAME]... [--layers 8] [--rows 2] [--rounds 5]
#
# NAME is a folder of crates/models/tests/fixtures; without one all of them. One line of JSON for each.
set -euo pipefail
exec cargo run --release --quiet -p burnish-models --example family_speed -- "$@"
