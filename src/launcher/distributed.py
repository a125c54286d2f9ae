"""Ranks in your own code: this process's rank, joining a process group, and exchanging values.

For example: `device = Ranks.from_env().device`, `join(device)`, and at the end `leave()`.
"""

from launcher.process.ranks import Ranks as Ranks
from launcher.process.ranks import all_gather as all_gather
from launcher.process.ranks import broadcast as broadcast
from launcher.process.ranks import join as join
from launcher.process.ranks import leave as leave
from launcher.process.ranks import on_main as on_main
from launcher.process.ranks import rank as rank
from launcher.process.ranks import world_size as world_size
