#!/bin/sh
# An interpreter that does not get ready in the first start of a SLURM job.
[ -n "$SLURM_RESTART_COUNT" ] || exec sleep 10000
exec python "$@"
