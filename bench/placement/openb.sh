#!/bin/sh
# Allocation at 90, 95, 100, 110 and 130 % of arrived load for every published trace, one line per
# trace and policy. Further arguments go to `warp simulate openb`, for instance --no-prior or --bound.
set -eu
warp=${WARP:-target/release/warp}
data=${DATA:-../shared/data/alibaba-gpu-2023/csv}
policies=${POLICIES:-bestFit,fgd,warp}
seeds=${SEEDS:-42-51}
traces=${TRACES:-default cpu050 cpu100 cpu200 cpu250 gpushare40 gpushare60 gpushare80 gpushare100 \
gpuspec10 gpuspec20 gpuspec25 gpuspec33 multigpu20 multigpu30 multigpu40 multigpu50}
for trace in $traces; do
	"$warp" simulate openb --nodes "$data/openb_node_list_gpu_node.csv" \
		--pods "$data/openb_pod_list_$trace.csv" --policy "$policies" --seeds "$seeds" "$@" |
		awk -v trace="$trace" 'NR > 1 { printf "%-12s %s\n", trace, $0 }'
done
