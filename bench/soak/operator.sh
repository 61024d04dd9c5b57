#!/usr/bin/env bash
# Half an hour (WARP_SOAK_SECONDS) of random load and faults on `warp up` and on a real control plane, both at
# once; prints what was done and what memory did. WARP_SOAK_SEED repeats a run.
set -euo pipefail
cd "$(dirname "$0")/../.."
testbed/control-plane >/dev/null
export WARP_SOAK_SECONDS="${WARP_SOAK_SECONDS:-1800}"
cargo test --locked -p warp --test it soak -- --nocapture
