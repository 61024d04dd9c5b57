#!/bin/sh
# Prints the figures of queue.md: one JSON object per line, policies and loads in a fixed order.
# Usage: bench/placement/queue.sh [philly.csv] [path of warp]
set -eu
jobs=${1:-../shared/data/philly/philly.csv}
warp=${2:-target/release/warp}
run() {
    echo "# $*" >&2
    "$warp" simulate queue --jobs "$jobs" --busiest-days 56 -o json "$@"
}
# Quality at three loads (98, 81 and 72 nodes of 8 = 70, 85 and 95 % offered).
for nodes in 98 81 72; do
    for policy in fifo skipAhead sjf easy warp; do
        run --nodes $nodes --policy $policy --estimates 0
    done
    for share in 0.5 1; do
        run --nodes $nodes --policy warp --preemptible $share --estimates 0
    done
    run --nodes $nodes --policy las --preemptible 1 --estimates 0
done
# Four replicas with the days in another order, at 85 %.
for seed in 1 2 3 4; do
    for policy in skipAhead warp; do
        run --nodes 81 --policy $policy --estimates 0 --shuffle-days $seed
    done
    for share in 0.5 1; do
        run --nodes 81 --policy warp --preemptible $share --estimates 0 --shuffle-days $seed
    done
done
# Start-time estimates.
run --nodes 81 --policy warp --estimates 1000
run --nodes 81 --policy warp --estimates 100 --along --progress-error 0.15
run --nodes 81 --policy skipAhead --estimates 150
for nodes in 98 72; do
    run --nodes $nodes --policy warp --estimates 100
done
run --nodes 81 --policy warp --estimates 100 --shuffle-days 1
run --nodes 81 --policy warp --estimates 100 --preemptible 1
# Cost of an estimate for a thousand waiting jobs.
run --nodes 81 --policy skipAhead,warp --time-estimate 1000
