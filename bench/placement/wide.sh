#!/bin/sh
# What the order of starts can do at most for wide jobs (8 GPUs or more) when nothing is evicted: they come first, and
# nobody else starts while one of them waits. One JSON object per line: skipAhead, warp, then that order, for the list as
# it is (0) and four replicas.
# Usage: bench/placement/wide.sh [philly.csv] [path of warp]
set -eu
jobs=${1:-../shared/data/philly/philly.csv}
warp=${2:-target/release/warp}
first=$(mktemp)
trap 'rm -f "$first"' EXIT
awk -F, 'NR == 1 { print $0 ",priority" } NR > 1 && NF > 1 { print $0 "," ($3 >= 8 ? 1 : 0) }' "$jobs" >"$first"
for seed in 0 1 2 3 4; do
    shuffle=
    [ "$seed" = 0 ] || shuffle="--shuffle-days $seed"
    for run in "$jobs skipAhead" "$jobs warp" "$first fifo"; do
        echo "# replica $seed, $run" >&2
        # shellcheck disable=SC2086 # two words, and an option with its value or nothing
        set -- $run $shuffle
        list=$1 policy=$2
        shift 2
        "$warp" simulate queue --jobs "$list" --busiest-days 56 --nodes 81 --policy "$policy" --estimates 0 -o json "$@"
    done
done
