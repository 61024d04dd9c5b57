#!/bin/sh
# Kills `warp apiserver` with SIGKILL under load, again and again on the same data: no acknowledged write
# may be lost, none half-applied. WARP_KILLS is how often (make test does it three times).
#
# Recorded results are in bench/apiserver/README.md.
set -eu
cd "$(dirname "$0")/../.."
WARP_KILLS="${WARP_KILLS:-200}" exec cargo test --locked -p warp --test it -- \
	no_acknowledged_write_is_lost_when_the_server_is_killed --nocapture
