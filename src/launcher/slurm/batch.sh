# What a job's script does until its run has started, which the run shows by an entry in restarts.json: it requeues the job
# if it is preempted, and records why it failed. A run that ended without recording it (os._exit, a SIGKILL) has failed.
# `__launcher_run` is the run's folder, `__launcher_pythons` are interpreters for recording: names that no setup line uses.
# It must work with a broken PATH.
starts() {
	local text= rest
	[[ ! -r $__launcher_run/restarts.json ]] || text=$(<"$__launcher_run/restarts.json")
	rest=${text//'"restart"'/}
	echo $(((${#text} - ${#rest}) / 9))
}
ask() { # SCONTROL_ARGUMENT...: print its answer. A controller that is away is asked again, for five minutes
	local answer until=$((SECONDS + 300))
	until answer=$(trap "" TERM; SLURM_TIME_FORMAT=standard scontrol "$@" 2>&1); do
		[[ $answer == *[Uu]"nable to contact"* || $answer == *"timed out"* ]] && ((SECONDS < until)) && sleep 2 || return
	done
	echo "$answer"
}
describe() { # JOB: what SLURM says about it, between what users have written: the name, and the command and comment
	local text
	text=$(ask show job -o "$1") || return
	text=${text#* UserId=}
	echo "${text%% Command=*}"
}
field() { # DESCRIPTION KEY: its value
	local rest=${1#* "$2"=}
	[[ $rest == "$1" ]] || echo "${rest%% *}"
}
requeue_if_preempted() {
	[[ $(starts) == "$__launcher_before" ]] || return 0
	local __launcher_job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID} info preempted
	__launcher_job=${__launcher_job:-$SLURM_JOB_ID}
	info=$(describe "$__launcher_job") || return 0
	preempted=$(field "$info" PreemptTime)
	[[ $(field "$info" Restarts) == "${SLURM_RESTART_COUNT:-0}" && $preempted == [0-9]* ]] || return 0
	[[ $(field "$info" JobState) == RUNNING || $(field "$info" EndTime) == "$preempted" ]] || return 0 # cancelled
	echo "SLURM job $__launcher_job: preempted before its run had started: requeueing it"
	ask requeue "$__launcher_job" || return 0
}
ended() { # EXIT_CODE COMMAND
	trap "" TERM
	local python record= started=()
	if [[ $(starts) == "$__launcher_before" ]]; then
		requeue_if_preempted
	else
		started=(started)
		[[ ! -r $__launcher_run/run.json ]] || record=$(<"$__launcher_run/run.json")
		[[ $record == *'"state": "running"'* ]] || return 0
	fi
	for python in "${__launcher_pythons[@]}"; do
		"$python" -m launcher.slurm.not_started "$__launcher_run" "$1" "${__launcher_guarded:-$2}" "${started[@]}" && return
		[[ $? != 100 ]] || exit 1 # the run has failed although its process ended with 0
	done
}
one_task() { # SRUN_FLAG... COMMAND: run a step of one task, without resources
	(
		unset ${!SLURM_GPU*} ${!SLURM_MEM*} ${!SLURM_NTASKS*} ${!SLURM_TRES*} SLURM_NPROCS SLURM_CPUS_PER_TASK
		exec srun --export=ALL --overlap --mem=0 --nodes=1 --ntasks=1 "$@" </dev/null &>/dev/null
	)
}
skip_numbers() { # begin a restart with empty steps. SLURM counts steps from 0 in each start, and if a
	# frozen node of the start before wakes, its srun ends the job's step that has the number of its own
	local count=$((${SLURM_RESTART_COUNT:-0} % 4)) pids=() pid
	for (( ; count > 0; count--)); do
		one_task bash -c true & # ":" would separate the parts of a heterogeneous job
		pids+=($!)
	done
	for pid in "${pids[@]}"; do
		while wait "$pid"; kill -0 "$pid" 2>/dev/null; do :; done
	done
}
guarded() { # run a command and exit with its code
	local code
	skip_numbers
	__launcher_guarded=$1
	"$@" &
	while wait $! && code=0 || code=$?; kill -0 $! 2>/dev/null; do :; done
	exit $code
}
usable() { # COUNT RANKS_PER_NODE LANES: the largest number of nodes, at most COUNT, whose ranks divide LANES; 0 lanes: COUNT
	local count=$1
	while ((count > 1 && $3 % (count * $2))); do ((count--)); done
	echo "$count"
}
say_unused() { # COUNT USED LANES
	(($1 == $2)) || echo "$1 nodes allocated, $2 used: trainer.lanes=$3 should be divisible by the number of ranks."
}
on_nodes() { # RANKS_PER_NODE LANES SRUN_FLAG...: `guarded srun` on as many of the job's nodes as the lanes allow
	local ranks=$1 lanes=$2 count
	count=$(usable "$SLURM_JOB_NUM_NODES" "$ranks" "$lanes")
	say_unused "$SLURM_JOB_NUM_NODES" "$count" "$lanes"
	shift 2
	guarded srun --nodes="$count" --ntasks="$((count * ranks))" --ntasks-per-node="$ranks" "$@"
}
__launcher_before=$(starts)
trap requeue_if_preempted TERM
trap : USR1 USR2 # warnings are for the tasks, and would end this shell, and so the job
trap 'ended $? "$BASH_COMMAND"' EXIT
