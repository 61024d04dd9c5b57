# What a member of an MPI gang runs. The first starts the workload's command once every other answers over SSH; the others
# answer until the first has ended. Nothing of it outlives the pod.
set -u
umask 077
own=$(mktemp -d "${TMPDIR:-/tmp}/warp-mpi.XXXXXX") || exit 1
printf '%s\n' "$WARP_MPI_KEY" >"$own/key"
printf '%s\n' "$WARP_MPI_PUBLIC_KEY" >"$own/key.pub"
printf '* %s\n' "$WARP_MPI_PUBLIC_KEY" >"$own/known_hosts"
unset WARP_MPI_KEY
need() {
	command -v "$1" || command -v "/usr/sbin/$1" || {
		echo "warp: the image has no $1, which an MPI gang needs: install it in the image" >&2
		rm -rf "$own"
		exit 127
	}
}
if [ "$RANK" != 0 ]; then
	sshd=$(need sshd) || exit 127
	[ "$(id -u)" != 0 ] || mkdir -p /run/sshd
	cat >"$own/sshd_config" <<END
Port $WARP_MPI_PORT
ListenAddress $WARP_MPI_ADDRESS
HostKey $own/key
AuthorizedKeysFile $own/key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
MaxStartups 1024
LogLevel ERROR
SetEnv WARP_MPI_DONE=$own/done
END
	"$sshd" -D -e -f "$own/sshd_config" &
	server=$!
	trap 'kill "$server" 2>/dev/null; rm -rf "$own"; exit 143' TERM INT
	while [ ! -e "$own/done" ]; do
		kill -0 "$server" 2>/dev/null || { rm -rf "$own"; exit 1; }
		sleep 1
	done
	kill "$server" 2>/dev/null
	rm -rf "$own"
	exit 0
fi
ssh=$(need ssh) || exit 127
cat >"$own/ssh_config" <<END
Host *
Port $WARP_MPI_PORT
IdentityFile $own/key
IdentitiesOnly yes
UserKnownHostsFile $own/known_hosts
GlobalKnownHostsFile none
StrictHostKeyChecking yes
BatchMode yes
ConnectTimeout 5
LogLevel ERROR
END
# The first is itself, whatever others call it.
WARP_MPI_HOST_0=$(uname -n)
each() {
	member=$1
	while [ "$member" -lt "$WORLD_SIZE" ]; do
		eval "host=\$WARP_MPI_HOST_$member"
		$2
		member=$((member + 1))
	done
}
list() { echo "$host slots=$WARP_MPI_SLOTS" >>"$own/hostfile"; }
plain() { echo "$host:$WARP_MPI_SLOTS" >>"$own/machinefile"; }
answers() {
	tries=0
	until "$ssh" -F "$own/ssh_config" "$host" true 2>"$own/error" </dev/null; do
		tries=$((tries + 1))
		if [ "$tries" -ge 300 ]; then
			echo "warp: member $member ($host) does not answer over SSH: $(cat "$own/error")" >&2
			rm -rf "$own"
			exit 1
		fi
		sleep 1
	done
}
released() { "$ssh" -F "$own/ssh_config" "$host" 'touch "$WARP_MPI_DONE"' </dev/null; }
each 0 list
each 0 plain
each 1 answers
# Open MPI, and those that start by Hydra (MPICH, Intel MPI).
export OMPI_MCA_orte_default_hostfile="$own/hostfile" PRTE_MCA_prte_default_hostfile="$own/hostfile"
export OMPI_MCA_plm_rsh_agent="$ssh -F $own/ssh_config" PRTE_MCA_plm_ssh_agent="$ssh -F $own/ssh_config"
export HYDRA_HOST_FILE="$own/machinefile" HYDRA_LAUNCHER_EXEC="$ssh" HYDRA_LAUNCHER_EXTRA_ARGS="-F $own/ssh_config"
export I_MPI_HYDRA_HOST_FILE="$own/machinefile" WARP_MPI_HOSTFILE="$own/hostfile"
# Members that are processes of one machine: Open MPI would take their addresses for its own, and their shared memory too.
case ${WARP_MPI_HOST_1:-} in
127.*)
	export OMPI_MCA_if_base_do_not_resolve=1 OMPI_MCA_orte_if_do_not_resolve=1
	export OMPI_MCA_btl=self,tcp OMPI_MCA_btl_tcp_if_include=lo
	;;
esac
[ "$(id -u)" != 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
"$@" &
command=$!
trap 'kill "$command" 2>/dev/null' TERM INT
wait "$command"
code=$?
each 1 released
rm -rf "$own"
exit "$code"
