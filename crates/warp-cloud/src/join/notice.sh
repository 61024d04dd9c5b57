#!/bin/sh
# Asks the cloud whether it takes this machine back, and says so on its own node.
set -u
. /etc/warp/machine.env

metadata=http://169.254.169.254

aws() {
  token=$(curl --silent --max-time 3 -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' "$metadata/latest/api/token") || return 1
  curl --silent --fail --max-time 3 --output /dev/null -H "X-aws-ec2-metadata-token: $token" \
    "$metadata/latest/meta-data/spot/instance-action"
}

gcp() {
  curl --silent --fail --max-time 3 -H 'Metadata-Flavor: Google' "$metadata/computeMetadata/v1/instance/preempted" | grep -q TRUE
}

azure() {
  curl --silent --fail --max-time 3 -H 'Metadata: true' "$metadata/metadata/scheduledevents?api-version=2020-07-01" |
    grep -q '"EventType": *"Preempt"'
}

tell() {
  case "$WAY" in
  kubeadm) kubectl --kubeconfig /etc/kubernetes/kubelet.conf annotate --overwrite node "$NAME" "$1" ;;
  k3s) k3s kubectl --kubeconfig /var/lib/rancher/k3s/agent/kubelet.kubeconfig annotate --overwrite node "$NAME" "$1" ;;
  esac
}

while :; do
  if "$CLOUD"; then
    tell "gpu.warp.dev/taken-back-since=$(date -u +%Y-%m-%dT%H:%M:%SZ)" && exit 0
  fi
  sleep 5
done
