"""`dispatch=slurm`, under the name that configurations have for its class."""

from launcher.dispatch.slurm.submit import SlurmDispatch as SlurmDispatch
