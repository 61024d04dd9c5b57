#!/bin/sh
# Joins this machine to its cluster and says whether its GPUs work. Run again until it ends well: every step may be
# repeated. Its values are in /etc/warp/machine.env.
set -eu
. /etc/warp/machine.env

say() {
  echo "warp-join: $*"
}

packages() {
  export DEBIAN_FRONTEND=noninteractive
  apt-get -o DPkg::Lock::Timeout=300 -q update
  apt-get -o DPkg::Lock::Timeout=300 -q -y install "$@"
}

fetched() {
  curl --fail --silent --show-error --location --retry 5 "$1"
}

# What the administrator of the account wants done before, once.
prepare() {
  if [ -x /etc/warp/setup ] && [ ! -e /var/lib/warp/prepared ]; then
    say "running the account's own script"
    /etc/warp/setup
    touch /var/lib/warp/prepared
  fi
}

runtime() {
  command -v containerd >/dev/null || packages containerd
  mkdir -p /etc/containerd
  if ! grep -qs 'SystemdCgroup = true' /etc/containerd/config.toml; then
    containerd config default | sed 's/SystemdCgroup = false/SystemdCgroup = true/' >/etc/containerd/config.toml
  fi
  if command -v nvidia-ctk >/dev/null; then
    nvidia-ctk runtime configure --runtime=containerd --set-as-default
  fi
  systemctl enable containerd
  systemctl restart containerd
}

kubeadm_packages() {
  if command -v kubeadm >/dev/null && command -v kubelet >/dev/null && command -v kubectl >/dev/null; then
    return 0
  fi
  packages ca-certificates curl gpg
  minor=$(echo "$VERSION" | cut -d. -f1,2)
  mkdir -p /etc/apt/keyrings
  fetched "https://pkgs.k8s.io/core:/stable:/$minor/deb/Release.key" >/run/warp/kubernetes.asc
  gpg --batch --yes --dearmor --output /etc/apt/keyrings/kubernetes.gpg /run/warp/kubernetes.asc
  echo "deb [signed-by=/etc/apt/keyrings/kubernetes.gpg] https://pkgs.k8s.io/core:/stable:/$minor/deb/ /" \
    >/etc/apt/sources.list.d/kubernetes.list
  packages kubelet kubeadm kubectl
}

join_kubeadm() {
  if [ -e /etc/kubernetes/kubelet.conf ]; then
    return 0
  fi
  swapoff -a
  modprobe overlay
  modprobe br_netfilter
  sysctl -w net.ipv4.ip_forward=1 net.bridge.bridge-nf-call-iptables=1
  runtime
  kubeadm_packages
  say "joining $SERVER as $NAME"
  kubeadm join --config /etc/warp/join.yaml
}

join_k3s() {
  if ! command -v k3s >/dev/null; then
    fetched https://get.k3s.io >/run/warp/k3s.sh
    say "joining $SERVER as $NAME"
    INSTALL_K3S_VERSION="$VERSION" INSTALL_K3S_EXEC=agent sh /run/warp/k3s.sh
  fi
  systemctl is-active --quiet k3s-agent
}

# How many GPUs answer with memory of their own.
answering() {
  case "$VENDOR" in
  nvidia)
    nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits 2>/dev/null | grep -c '^ *[1-9]'
    ;;
  amd)
    cat /sys/class/drm/card*/device/mem_info_vram_total 2>/dev/null | grep -c '^[1-9]'
    ;;
  *)
    echo 0
    ;;
  esac
}

# The only word a node may say of itself: an annotation. Its taint is taken away by whoever reads it.
tell() {
  case "$WAY" in
  kubeadm) kubectl --kubeconfig /etc/kubernetes/kubelet.conf annotate --overwrite node "$NAME" "$1" ;;
  k3s) k3s kubectl --kubeconfig /var/lib/rancher/k3s/agent/kubelet.kubeconfig annotate --overwrite node "$NAME" "$1" ;;
  esac
}

mkdir -p /run/warp /var/lib/warp
prepare
case "$WAY" in
kubeadm) join_kubeadm ;;
k3s) join_k3s ;;
esac
rm -f /etc/warp/join.yaml /run/warp/k3s.sh
count=$(answering) || count=0
if [ "$count" -ge "$GPUS" ]; then
  tell gpu.warp.dev/gpu-test=passed
else
  tell "gpu.warp.dev/gpu-test=failed: $count of $GPUS GPUs answer"
fi
say "joined; $count of $GPUS GPUs answer"
