"""The utilities of trainloop, under the name that they have there."""

from launcher.hooks.records import key_average as key_average
from launcher.hooks.records import map_nested_tensor as map_nested_tensor
