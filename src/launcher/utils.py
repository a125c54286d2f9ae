"""trainloop's utilities, under the module name that trainloop uses."""

from launcher.compat.trainloop import key_average as key_average
from launcher.compat.trainloop import map_nested_tensor as map_nested_tensor
