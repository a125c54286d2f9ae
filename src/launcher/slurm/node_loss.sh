# For a job with dispatch.no_kill, after batch.sh: when nodes are lost, the run restarts inside the job, on the nodes that are
# left. `nodes` are the job's nodes, `left` answered and `lost` did not; `__launcher_job` is an array's task.
exec {never}<> <(:)
beat=5    # seconds between two signs of life of the script
silence=4 # missed signs of life in a row, after which the first node is checked
pause() { # SECONDS; without a command, since PATH may be broken
	read -rt "$1" -u "$never" || :
}
ended_as() { # PID: wait for a child, also through signals; returns its code
	local code
	while wait "$1" && code=0 || code=$?; kill -0 "$1" 2>/dev/null; do :; done
	return "$code"
}
is_ours() { # whether the job runs, and SLURM is not about to take its nodes
	local info
	info=$(describe "${__launcher_job:-$SLURM_JOB_ID}") || return 1
	[[ $(field "$info" JobState) == RUNNING && $(field "$info" PreemptTime) != [0-9]* ]] || return 1
	[[ $(field "$info" Restarts) == "${SLURM_RESTART_COUNT:-0}" && $(field "$info" Reason) != TimeLimit ]]
}
answers() { # NODE: a node is lost if it starts no step; SLURM itself notices only after SlurmdTimeout
	one_task --nodelist="$1" bash -c "exit 0"
}
look_at_nodes() {
	local node number pids=()
	for node in "${nodes[@]}"; do
		answers "$node" &
		pids+=($!)
	done
	left=() lost=()
	for number in "${!nodes[@]}"; do
		if ended_as "${pids[number]}"; then left+=("${nodes[number]}"); else lost+=("${nodes[number]}"); fi
	done
	[[ ${left[0]:-} == "${nodes[0]}" ]] || lost=() # if this script's own node does not answer, the others' silence means nothing
}
find_lost() { # PID_OF_SRUN: after a rank has ended, find lost nodes. srun itself waits for the ranks of a lost node
	local is_alive
	while is_ours; do
		is_alive=
		! kill -0 "$1" 2>/dev/null || is_alive=1
		look_at_nodes
		((${#lost[@]} == 0)) || return 0
		[[ -n $is_alive ]] || return 1
		pause 5
	done
	return 1
}
record_loss() { # NEXT: what the job does next
	local python
	for python in "${__launcher_pythons[@]}"; do
		"$python" -m launcher.slurm.node_loss "$__launcher_run" "$1" "${lost[@]}" && return
	done
	return 1
}
give_signs_of_life() { # in the background, while the script runs
	while kill -0 $$ 2>/dev/null; do
		echo "$SECONDS" >"$alive"
		pause "$beat"
	done
}
watch_from() { # NODE: a step there survives the first node, on which the script runs
	local watch='source "$0" && alive=$1 __launcher_run=$2 __launcher_job=$3 __launcher_pythons=("${@:5}") && watch_first_node "$4"'
	one_task --nodelist="$1" bash -c "$(declare -f one_task describe field); $watch" "${BASH_SOURCE[0]}" "$alive" "$__launcher_run" "$__launcher_job" "${nodes[0]}" "${__launcher_pythons[@]}"
}
watch_first_node() { # NODE: SLURM would keep the job without its script, until the time limit
	local sign= last missed=0 lost=("$1")
	trap "exit 0" TERM
	trap "" USR1 USR2
	exec >>"$__launcher_run/logs/slurm-${__launcher_job:-$SLURM_JOB_ID}.log" 2>&1 # srun was on that node
	while pause "$beat"; do
		last=$sign sign=
		read -r sign 2>/dev/null <"$alive" || :
		[[ -z $sign || $sign == "$last" ]] && ((++missed)) || missed=0
		((missed >= silence)) && is_ours && ! answers "$1" && answers "$SLURMD_NODENAME" && is_ours || continue
		echo "SLURM job ${__launcher_job:-$SLURM_JOB_ID} has lost $1, on which its script ran: requeueing it"
		record_loss requeued # before the requeued job can begin its attempt
		trap "" TERM
		is_ours && scontrol requeue "${__launcher_job:-$SLURM_JOB_ID}" && exit
		trap "exit 0" TERM
	done
}
usable_of_nodes() { # without the spares, which replace lost nodes
	usable "$((${#nodes[@]} < most ? ${#nodes[@]} : most))" "$ranks" "$lanes"
}
on_nodes_left() { # LEAST SPARES RANKS_PER_NODE LANES SRUN_FLAG...: as `on_nodes`, and again each time nodes are lost
	local least=$1 spares=$2 ranks=$3 lanes=$4 most count pid code names next left lost watcher=
	shift 4
	__launcher_guarded=srun
	skip_numbers 2 # the ranks and the watcher
	export LAUNCHER_RANK_ENDED="$__launcher_run/.rank-ended-$SLURM_JOB_ID"
	mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
	most=$((${#nodes[@]} - spares))
	alive="$__launcher_run/.alive-$SLURM_JOB_ID"
	give_signs_of_life &
	beats=$!
	while :; do
		count=$(usable_of_nodes)
		say_unused "$((${#nodes[@]} < most ? ${#nodes[@]} : most))" "$count" "$lanes"
		names=$(IFS=, && echo "${nodes[*]:0:count}")
		rm -f "$LAUNCHER_RANK_ENDED"
		lost=()
		if ((${#nodes[@]} > 1)) && [[ ${nodes[-1]} != "$watcher" ]]; then
			watcher=${nodes[-1]}
			watch_from "$watcher" &
		fi
		srun --overlap --mem=0 --nodes="$count" --ntasks="$((count * ranks))" --ntasks-per-node="$ranks" \
			--nodelist="$names" "$@" &
		pid=$!
		while kill -0 "$pid" 2>/dev/null && [[ ! -e $LAUNCHER_RANK_ENDED ]]; do pause 1; done
		code=
		kill -0 "$pid" 2>/dev/null || { ended_as "$pid" && code=0 || code=$?; }
		[[ $code != 0 ]] && find_lost "$pid" || break
		nodes=("${left[@]}")
		count=$(usable_of_nodes)
		next="restarts on $count node$( ((count == 1)) || echo s)"
		((count >= least)) || next="requeued, since $count of $least nodes are left"
		record_loss "$next" || count=0 # the old ranks do not end
		disown "$pid" && kill -KILL "$pid" 2>/dev/null
		((count >= least)) || break
		__launcher_before=$(starts)
		export LAUNCHER_RESTARTED=1
	done
	if ((${#lost[@]})); then
		(trap "" TERM; exec scontrol requeue "${__launcher_job:-$SLURM_JOB_ID}")
		code=1
	fi
	[[ -n $code ]] || { ended_as "$pid" && code=0 || code=$?; }
	kill -KILL "$beats" 2>/dev/null
	rm -f "$LAUNCHER_RANK_ENDED" "$alive"
	exit "$code"
}
