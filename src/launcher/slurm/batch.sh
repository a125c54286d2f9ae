# What a job's script does until its run has started (whose first act is an entry in restarts.json): it requeues the job if
# it is preempted, and records why it failed. `run` is the run's folder, `pythons` are interpreters for recording.
# A broken PATH must not matter.
starts() {
	local text= rest
	[[ ! -r $run/restarts.json ]] || text=$(<"$run/restarts.json")
	rest=${text//'"restart"'/}
	echo $(((${#text} - ${#rest}) / 9))
}
requeue_if_preempted() {
	[[ $(starts) == "$before" ]] || return 0
	local job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID} info
	job=${job:-$SLURM_JOB_ID}
	info=" $(trap "" TERM; SLURM_TIME_FORMAT=standard scontrol show job -o "$job" 2>/dev/null) " || return 0
	[[ $info == *" Restarts=${SLURM_RESTART_COUNT:-0} "* && $info =~ " PreemptTime="([0-9][^ ]*) ]] || return 0
	[[ $info == *" JobState=RUNNING "* || $info == *" EndTime=${BASH_REMATCH[1]} "* ]] || return 0 # cancelled
	echo "SLURM job $job: preempted before its run had started: requeueing it"
	(trap "" TERM; exec scontrol requeue "$job")
}
ended() { # EXIT_CODE COMMAND
	trap "" TERM
	[[ $1 != 0 && $(starts) == "$before" ]] || return 0
	requeue_if_preempted
	local python
	for python in "${pythons[@]}"; do
		"$python" -m launcher.slurm.not_started "$run" "$1" "${guarded:-$2}" && return
	done
}
guarded() { # run a command and exit as it does
	local code
	guarded=$1
	"$@" &
	while wait $! && code=0 || code=$?; kill -0 $! 2>/dev/null; do :; done
	exit $code
}
before=$(starts)
trap requeue_if_preempted TERM
trap 'ended $? "$BASH_COMMAND"' EXIT
