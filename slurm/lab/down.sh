#!/usr/bin/env bash
# Stop the lab cluster: only the processes whose pids its own pid files name.
set -uo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
STATE=${SLURM_LAB_STATE:-${TMPDIR:-/tmp}/slurm-lab}
T0=$(date +%s%N)
# a dead daemon may stay a zombie for seconds, where init reaps slowly: that counts as dead
lives() { [[ $(awk '/^State:/{print $2}' "/proc/$1/status" 2>/dev/null) == [^ZX] ]]; }
stop() {  # stop PIDFILE NAME [SIGNAL]
	local f=$1 name=$2 sig=${3:-TERM} p i
	[[ -s $f ]] || return 0
	p=$(cat "$f"); 
	# the pid must still be ours (pids are reused)
	if [[ -r /proc/$p/comm && $(tr '\0' ' ' </proc/$p/cmdline) == *$name* ]]; then
		kill -"$sig" "$p" 2>/dev/null
		for ((i = 0; i < 100; i++)); do lives "$p" || break; sleep 0.05; done
		lives "$p" && { kill -KILL "$p"; sleep 0.2; }
	fi
	rm -f "$f"
	[[ -n ${VERBOSE:-} ]] && echo "down.sh: $name $(( ($(date +%s%N) - T0) / 1000000 )) ms"
	return 0
}
[[ -d $STATE/run ]] || { echo "down.sh: not up"; exit 0; }
for f in "$STATE"/run/init.*.pid; do stop "$f" node-init KILL; done
rm -f "$STATE"/run/unshare.*.pid "$STATE"/run/slurmd.*.pid
stop "$STATE/run/slurmctld.pid" slurmctld KILL   # KILL all: the state is thrown away, and TERM takes 8 s
stop "$STATE/run/slurmdbd.pid" slurmdbd KILL
stop "$STATE/db/mariadbd.pid" mariadbd KILL   # its data are thrown away anyway
stop "$STATE/run/munge.d/munged.pid" munged KILL
if [[ -L $STATE/db ]]; then d=$(readlink "$STATE/db"); [[ $d == /dev/shm/slurm-lab.* ]] && rm -rf "$d"; rm -f "$STATE/db"; fi
echo "down.sh: down"
