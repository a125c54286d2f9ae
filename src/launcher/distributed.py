"""Ranks in your own code: this process's rank, joining a process group, and exchanging values.

device = Ranks.from_env().device
join(device)
...
leave()
"""

from launcher.run.ranks import Ranks as Ranks
from launcher.run.ranks import all_gather as all_gather
from launcher.run.ranks import broadcast as broadcast
from launcher.run.ranks import join as join
from launcher.run.ranks import leave as leave
from launcher.run.ranks import on_main as on_main
from launcher.run.ranks import rank as rank
from launcher.run.ranks import world_size as world_size
