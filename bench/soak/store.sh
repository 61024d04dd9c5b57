#!/bin/sh
# Flips bits of data directories of 1, 100 and 10,000 objects, WARP_FLIPS times each: every one is refused at
# the start or serves exactly what was acknowledged, also after more writes. Prints how many were which.
# WARP_FLIP_OBJECTS=10000 damages directories of one size alone.
set -eu
cd "$(dirname "$0")/../.."
WARP_FLIPS="${WARP_FLIPS:-2000}" exec cargo test --release --locked -p warp-apiserver --lib -- \
	after_any_flipped_bit_a_store_is_refused_or_unharmed --nocapture
