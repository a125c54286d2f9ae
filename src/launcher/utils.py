"""trainloop's utilities, under the module name that trainloop uses."""

from launcher.hooks.records import key_average as key_average
from launcher.hooks.records import map_nested_tensor as map_nested_tensor
