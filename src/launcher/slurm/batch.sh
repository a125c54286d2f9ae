# Run a command and exit as it does. `run` is the run's folder. Until the run has started (its first act is an entry in
# restarts.json), nobody but this script can requeue a job that is preempted.
starts() { grep -cs '"restart"' "$run/restarts.json" || true; }
requeue_if_preempted() {
	[[ $(starts) == "$before" ]] || return 0
	local job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID} info
	job=${job:-$SLURM_JOB_ID}
	info=" $(trap "" TERM; SLURM_TIME_FORMAT=standard scontrol show job -o "$job") " || return 0
	[[ $info == *" Restarts=${SLURM_RESTART_COUNT:-0} "* && $info =~ " PreemptTime="([0-9][^ ]*) ]] || return 0
	[[ $info == *" JobState=RUNNING "* || $info == *" EndTime=${BASH_REMATCH[1]} "* ]] || return 0 # cancelled
	echo "SLURM job $job: preempted before its run had started: requeueing it"
	(trap "" TERM; exec scontrol requeue "$job")
}
guarded() {
	before=$(starts)
	trap requeue_if_preempted TERM
	"$@" &
	while wait $! && code=0 || code=$?; kill -0 $! 2>/dev/null; do :; done
	((code == 0)) || requeue_if_preempted
	exit $code
}
