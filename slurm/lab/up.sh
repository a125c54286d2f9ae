#!/usr/bin/env bash
# Bring up a real SLURM cluster on this one machine (Debian or Ubuntu, as root), without systemd
# and without cgroups: its own munged, mariadbd, slurmdbd, slurmctld and N virtual nodes (one
# slurmd each, in its own pid+uts+mount namespace).  Apart from the distribution's packages it
# writes only under $SLURM_LAB_STATE (default /tmp/slurm-lab) and /dev/shm/slurm-lab.*.
#   eval "$(.../up.sh)"          # already up: returns at once; else starts afresh (job ids from 1)
#   up.sh --fresh                # always afresh
# Partitions: main (high priority, preempts) | preempt (REQUEUE, GraceTime) | nograce (REQUEUE, GraceTime=0)
# | pcancel (CANCEL, GraceTime) | ncancel (CANCEL, GraceTime=0).  down.sh stops it, node.sh crashes and restarts nodes.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
STATE=${SLURM_LAB_STATE:-${TMPDIR:-/tmp}/slurm-lab}
NODES=${SLURM_LAB_NODES:-4}          # virtual nodes node1..nodeN
CPUS=${SLURM_LAB_CPUS:-16}           # advertised CPUs per node (config_overrides)
GPUS=${SLURM_LAB_GPUS:-4}            # fake GPUs per node
MEM=${SLURM_LAB_MEM:-64000}          # advertised MB per node
GRACE=${SLURM_LAB_GRACE:-12}         # GraceTime of preempt, pcancel; enforced at the next multiple of KillWait+MessageTimeout
USERSIG=${SLURM_LAB_USERSIG:-1}      # 1: preemption sends the job's own --signal; 0: SIGTERM
CRED=${SLURM_LAB_CRED_EXPIRE:-5}     # requeue delay is this + 1 s (5 is the least Slurm takes)
KILLWAIT=${SLURM_LAB_KILLWAIT:-5}    # SIGTERM -> SIGKILL, seconds (slurmd takes max(this, 5))
MSGTIMEOUT=${SLURM_LAB_MESSAGE_TIMEOUT:-10}  # MessageTimeout, seconds
ARRAY=${SLURM_LAB_MAX_ARRAY:-1001}   # MaxArraySize
DBD=${SLURM_LAB_DBD:-1}              # 0: no mariadb/slurmdbd (0.7 s to start, but no sacct)
P0=${SLURM_LAB_PORT:-36800}          # ports: +0 mariadb, +1 slurmdbd, +2 slurmctld, +10+i slurmd of node i
HOST=$(hostname -s)
export SLURM_CONF=$STATE/etc/slurm.conf

log() { echo "up.sh: $(date +%H:%M:%S) $*" >&2; }
wait_for() {  # wait_for SECONDS WHAT COMMAND...
	local t=$1 what=$2 end; shift 2; end=$((SECONDS + t))
	while ((SECONDS <= end)); do "$@" >/dev/null 2>&1 && return 0; sleep 0.1; done
	log "TIMED OUT after ${t}s waiting for $what; see $STATE/log"; return 1
}
alive() { [[ -s $1 && $(awk '/^State:/{print $2}' "/proc/$(cat "$1")/status" 2>/dev/null) == [^ZX] ]]; }
healthy() {
	[[ -f $SLURM_CONF ]] && alive "$STATE/run/slurmctld.pid" &&
	[[ $(timeout 10 sinfo -h -N -t idle,alloc,mix,comp -o %N 2>/dev/null | sort -u | wc -l) -eq $NODES ]]
}

exec 9>"$STATE.lock"; flock 9      # one at a time; the daemons below must not inherit it (9>&-)
if [[ ${1:-} != --fresh ]] && healthy; then
	log "already up"; echo "export SLURM_CONF=$SLURM_CONF"; exit 0
fi
SLURM_LAB_STATE=$STATE "$HERE/down.sh" >&2

# ---------------------------------------------------------------- packages
need=(slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge)
if [[ $DBD == 1 ]]; then need+=(slurmdbd slurm-wlm-mysql-plugin mariadb-server mariadb-client); fi
installed() { [[ $(dpkg-query -W -f '${db:Status-Status}\n' "${need[@]}" 2>/dev/null | grep -cx installed) -eq ${#need[@]} ]]; }
if ! installed; then (
	flock 8   # another cluster may be starting too
	installed && exit
	log "installing ${need[*]}"
	apt-get -o DPkg::Lock::Timeout=300 update -qq >/dev/null
	# RUNLEVEL=1: the packages' init scripts must not start anything
	RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends \
		"${need[@]}" >"$STATE.apt.log" 2>&1 8>&- 9>&- || { tail -20 "$STATE.apt.log" >&2; exit 1; }
	log "installed"
) 8>"${TMPDIR:-/tmp}/slurm-lab.install.lock"; fi

# ---------------------------------------------------------------- configuration
rm -rf "$STATE"
mkdir -p "$STATE"/{etc,run,log,ctld,spool,dev}
chmod 755 "$STATE" "$STATE"/{etc,run,log}
# fake GPUs: copies of /dev/null (slurmd rejects plain files, and then sets no CUDA_VISIBLE_DEVICES)
for ((g = 0; g < GPUS; g++)); do mknod -m 666 "$STATE/dev/nvidia$g" c 1 3; done

cat >"$STATE/etc/slurm.conf" <<CONF
ClusterName=lab
SlurmctldHost=$HOST(127.0.0.1)
SlurmctldPort=$((P0 + 2))
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# cred_expire also is how long a requeued job waits (BeginTime = now + cred_expire + 1; default 120)
AuthInfo=socket=$STATE/run/munge.socket,cred_expire=$CRED
CredType=cred/munge
MpiDefault=none
StateSaveLocation=$STATE/ctld
SlurmctldPidFile=$STATE/run/slurmctld.pid
SlurmctldLogFile=$STATE/log/slurmctld.log
SlurmctldDebug=debug
SlurmdPidFile=$STATE/run/slurmd.%n.pid
SlurmdSpoolDir=$STATE/spool/%n
SlurmdLogFile=$STATE/log/slurmd.%n.log
SlurmdDebug=debug
MailProg=/bin/true
# no cgroups; more CPUs and memory than the hardware has
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
SwitchType=switch/none
# 1, not 2: with 2 a node that was set down comes back at once and its requeued job collides with its own remains
ReturnToService=1
# timers
KillWait=$KILLWAIT
UnkillableStepTimeout=30
MessageTimeout=$MSGTIMEOUT
SlurmctldTimeout=10
SlurmdTimeout=15
InactiveLimit=0
MinJobAge=300
OverTimeLimit=0
MaxArraySize=$ARRAY
MaxJobCount=20000
CompleteWait=0
# scheduling
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1,bf_continue,bf_resolution=1,sched_min_interval=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=$((MEM / CPUS / 4 > 0 ? MEM / CPUS / 4 : 1))
PriorityType=priority/basic
# preemption
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
$([[ $USERSIG != 1 ]] || echo "SlurmctldParameters=preempt_send_user_signal")
# accounting
$(if [[ $DBD == 1 ]]; then
	echo "AccountingStorageType=accounting_storage/slurmdbd"
	echo "AccountingStorageHost=127.0.0.1"
	echo "AccountingStoragePort=$((P0 + 1))"
	echo "# with munge this is the socket to use towards slurmdbd (AuthInfo is not looked at there)"
	echo "AccountingStoragePass=$STATE/run/munge.socket"
	echo "AccountingStorageTRES=gres/gpu"
	echo "AccountingStorageEnforce=limits"
else
	echo "AccountingStorageType=accounting_storage/none"
fi)
JobCompType=jobcomp/filetxt
JobCompLoc=$STATE/log/jobcomp.log
# nodes
GresTypes=gpu
$(for ((i = 1; i <= NODES; i++)); do
	echo "NodeName=node$i NodeAddr=127.0.0.1 Port=$((P0 + 10 + i)) CPUs=$CPUS Boards=1 SocketsPerBoard=1 CoresPerSocket=$CPUS ThreadsPerCore=1 RealMemory=$MEM Gres=gpu:$GPUS State=UNKNOWN"
done)
PartitionName=DEFAULT Nodes=ALL State=UP MaxTime=INFINITE DefaultTime=60 OverSubscribe=NO
PartitionName=main     Default=YES PriorityTier=10 PreemptMode=OFF
PartitionName=preempt  PriorityTier=1 PreemptMode=REQUEUE GraceTime=$GRACE
PartitionName=nograce  PriorityTier=1 PreemptMode=REQUEUE GraceTime=0
PartitionName=pcancel  PriorityTier=1 PreemptMode=CANCEL  GraceTime=$GRACE
PartitionName=ncancel  PriorityTier=1 PreemptMode=CANCEL  GraceTime=0
CONF
cat >"$STATE/etc/gres.conf" <<CONF
AutoDetect=off
NodeName=node[1-$NODES] Name=gpu File=$STATE/dev/nvidia[0-$((GPUS - 1))]
CONF
# /etc/hosts inside the nodes, so that MASTER_ADDR=node1 resolves there
{ echo "127.0.0.1 localhost $HOST"; for ((i = 1; i <= NODES; i++)); do echo "127.0.0.1 node$i"; done; } >"$STATE/etc/hosts"

# ---------------------------------------------------------------- munged
install -d -o munge -g munge -m 755 "$STATE/run/munge.d"
MK=$STATE/run/munge.d/key
dd if=/dev/urandom of="$MK" bs=128 count=1 status=none; chown munge:munge "$MK"; chmod 400 "$MK"
chown munge:munge "$STATE/run"   # munged insists on owning its socket's folder
runuser -u munge -- /usr/sbin/munged --key-file="$MK" --socket="$STATE/run/munge.socket" \
	--pid-file="$STATE/run/munge.d/munged.pid" --log-file="$STATE/run/munge.d/munged.log" \
	--seed-file="$STATE/run/munge.d/seed" --num-threads=4 9>&-
wait_for 10 munged test -S "$STATE/run/munge.socket"
log "munged up"

# ---------------------------------------------------------------- accounting
if [[ $DBD == 1 ]]; then
	# in memory: on disk the fsyncs of the two create-table phases cost 10 s
	# --tmpdir: the user mysql may not write to the folder of TMPDIR
	DB=$(mktemp -d /dev/shm/slurm-lab.XXXXXX); ln -s "$DB" "$STATE/db"
	chown mysql:mysql "$DB"; chmod 755 "$DB"; DB=$STATE/db
	mariadb-install-db --no-defaults --user=mysql --datadir="$DB/data" --auth-root-authentication-method=normal \
		--skip-test-db --skip-name-resolve --innodb-log-file-size=8M --tmpdir="$DB" \
		>"$STATE/log/mariadb-install.log" 2>&1 9>&- || { tail -20 "$STATE/log/mariadb-install.log" >&2; exit 1; }
	setsid runuser -u mysql -- /usr/sbin/mariadbd --no-defaults --datadir="$DB/data" --tmpdir="$DB" --socket="$DB/sock" \
		--pid-file="$DB/mariadbd.pid" --bind-address=127.0.0.1 --port=$P0 --skip-log-bin --skip-name-resolve \
		--innodb-buffer-pool-size=32M --innodb-log-file-size=8M --innodb-lock-wait-timeout=900 \
		--innodb-flush-log-at-trx-commit=0 --performance-schema=OFF --max-connections=50 \
		--log-error="$DB/mariadbd.log" >/dev/null 2>&1 </dev/null 9>&- &
	disown
	wait_for 60 mariadbd mariadb-admin --no-defaults -uroot --socket="$DB/sock" ping
	mariadb --no-defaults -uroot --socket="$DB/sock" -e \
		"CREATE DATABASE slurm_acct_db; CREATE USER slurm@'127.0.0.1' IDENTIFIED BY 'slurm'; GRANT ALL ON slurm_acct_db.* TO slurm@'127.0.0.1';"
	cat >"$STATE/etc/slurmdbd.conf" <<CONF
AuthType=auth/munge
AuthInfo=socket=$STATE/run/munge.socket
DbdHost=$HOST
DbdAddr=127.0.0.1
DbdPort=$((P0 + 1))
SlurmUser=root
DebugLevel=info
LogFile=$STATE/log/slurmdbd.log
PidFile=$STATE/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=$P0
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
CONF
	chmod 600 "$STATE/etc/slurmdbd.conf"
	log "mariadbd up"
	/usr/sbin/slurmdbd 9>&-
	wait_for 60 slurmdbd timeout 10 sacctmgr -n -i list cluster
	sacctmgr -n -i add cluster lab >/dev/null
	log "slurmdbd up"
fi

# ---------------------------------------------------------------- controller, nodes
/usr/sbin/slurmctld 9>&-
wait_for 30 slurmctld timeout 10 scontrol ping
log "slurmctld up"
for ((i = 1; i <= NODES; i++)); do SLURM_LAB_STATE=$STATE "$HERE/node.sh" start "node$i" 9>&-; done
wait_for 60 "all nodes idle" healthy
log "up: $(sinfo -h -N -p main -o '%N=%t' | tr '\n' ' ')"
echo "export SLURM_CONF=$SLURM_CONF"
