"""Optimizer factories: called with the model, so that they can tell norms, biases and embeddings from the rest.

A configuration may as well name any optimizer class (`_target_: torch.optim.RMSprop`): one whose first argument is not
`model` is called with the trainable parameters.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from launcher.errors import ConfigError
from launcher.optim.arguments import has_required_argument
from launcher.types import NonNegativeFloat, PositiveFloat, PositiveInt, UnitInterval

Kind = Literal["norms", "biases", "embeddings"]
NO_DECAY: tuple[Kind, ...] = ("norms", "biases")


def adamw(
    model: nn.Module,
    *,
    lr: PositiveFloat = 1e-3,
    betas: tuple[UnitInterval, UnitInterval] = (0.9, 0.999),
    eps: PositiveFloat = 1e-8,
    weight_decay: NonNegativeFloat = 0.01,
    no_decay: list[Kind] | None = None,
    fused: bool | None = None,
) -> Optimizer:
    """AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101).

    Args:
        betas: decay of the first and second moment.
        no_decay: parameters without weight decay: "norms", "biases", "embeddings"; None: norms and biases.
        fused: one kernel for all parameters; None: where their device has it.
    Raises:
        ConfigError: `betas` are not two numbers, the model has nothing to train, or `fused` is not supported.
    """
    groups = decay_groups(model, weight_decay, no_decay)
    return torch.optim.AdamW(groups, lr=lr, betas=_pair(betas), eps=eps, fused=_fused(groups, fused))


def adam(
    model: nn.Module,
    *,
    lr: PositiveFloat = 1e-3,
    betas: tuple[UnitInterval, UnitInterval] = (0.9, 0.999),
    eps: PositiveFloat = 1e-8,
    weight_decay: NonNegativeFloat = 0.0,
    no_decay: list[Kind] | None = None,
    fused: bool | None = None,
) -> Optimizer:
    """Adam (Kingma and Ba 2015, arXiv:1412.6980). Its weight decay is an L2 penalty; otherwise as `adamw`."""
    groups = decay_groups(model, weight_decay, no_decay)
    return torch.optim.Adam(groups, lr=lr, betas=_pair(betas), eps=eps, fused=_fused(groups, fused))


def sgd(
    model: nn.Module,
    *,
    lr: PositiveFloat = 0.1,
    momentum: UnitInterval = 0.9,
    nesterov: bool = False,
    weight_decay: NonNegativeFloat = 0.0,
    no_decay: list[Kind] | None = None,
    fused: bool | None = None,
) -> Optimizer:
    """Stochastic gradient descent with momentum (Sutskever et al. 2013); weight decay is an L2 penalty.

    Raises:
        ConfigError: `nesterov` without momentum, or as `adamw`.
    """
    if nesterov and not momentum:
        raise ConfigError("optimizer.nesterov=true: needs momentum; e.g. optimizer.momentum=0.9.")
    groups = decay_groups(model, weight_decay, no_decay)
    kernel = _fused(groups, fused, takes_sharded=False)
    return torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=nesterov, fused=kernel)


def lion(
    model: nn.Module,
    *,
    lr: PositiveFloat = 1e-4,
    betas: tuple[UnitInterval, UnitInterval] = (0.9, 0.99),
    weight_decay: NonNegativeFloat = 0.1,
    no_decay: list[Kind] | None = None,
) -> Optimizer:
    """Lion (Chen et al. 2023, arXiv:2302.06675), from the package lion-pytorch.

    Its updates are signs: the authors advise a learning rate 3 to 10 times smaller than AdamW's, and a weight decay
    larger by as much.

    Raises:
        ConfigError: lion-pytorch is not installed, or as `adamw`.
    """
    try:
        from lion_pytorch import Lion
    except ImportError as error:
        raise ConfigError(
            "optimizer=lion: needs the package lion-pytorch; pip install 'torch-launcher[lion]'."
        ) from error
    return Lion(decay_groups(model, weight_decay, no_decay), lr=lr, betas=_pair(betas))


def muon(
    model: nn.Module,
    *,
    lr: PositiveFloat = 1e-3,
    momentum: UnitInterval = 0.95,
    nesterov: bool = True,
    ns_steps: PositiveInt = 5,
    weight_decay: NonNegativeFloat = 0.1,
    no_decay: list[Kind] | None = None,
    adamw_lr: PositiveFloat | None = None,
    betas: tuple[UnitInterval, UnitInterval] = (0.9, 0.95),
    eps: PositiveFloat = 1e-8,
    fused: bool | None = None,
) -> Optimizer:
    """Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon) for hidden matrices, AdamW for the rest.

    Muon's update is made as large as AdamW's usually is (Liu et al. 2025, arXiv:2502.16982), so that learning rate and
    weight decay can be taken over from AdamW.

    Args:
        lr: learning rate; of the matrices only, if `adamw_lr` is set.
        momentum, nesterov: of Muon's gradient average.
        ns_steps: Newton-Schulz iterations of the orthogonalisation.
        adamw_lr: learning rate of the rest; None: `lr`.
        betas, eps, fused: of AdamW, as are the groups of `no_decay`.
    Raises:
        ConfigError: this torch has no Muon (2.9 and later have), or as `adamw`.
    """
    if not hasattr(torch.optim, "Muon"):
        raise ConfigError(
            f"optimizer=muon: torch {torch.__version__} has no Muon; it needs torch 2.9 or later, or optimizer=adamw."
        )
    matrices = {id(p) for p in hidden_matrices(model)}
    groups = [{"name": "muon", "params": [p for p in model.parameters() if id(p) in matrices]}]
    rest = decay_groups(model, weight_decay, no_decay, leave_out=matrices)
    settings = {"lr": adamw_lr or lr, "betas": _pair(betas), "eps": eps, "fused": _fused(rest, fused)}
    return MuonAdamW(
        groups if groups[0]["params"] else [],
        rest,
        {
            "lr": lr,
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_steps": ns_steps,
            "weight_decay": weight_decay,
            "adjust_lr_fn": "match_rms_adamw",
        },
        settings,
    )


class MuonAdamW(Optimizer):
    """`torch.optim.Muon` and `torch.optim.AdamW` as one optimizer.

    Its `param_groups` are the groups of both, the very same dictionaries, and all three share one `state`. So a
    scheduler, a gradient scaler, `state_dict` and whoever saves state by parameter see an ordinary optimizer.

    Args:
        muon_groups: parameter groups of matrices; may be empty.
        adamw_groups: the other parameter groups; may be empty.
        muon, adamw: what the two are made with.
    """

    def __init__(
        self,
        muon_groups: list[dict[str, Any]],
        adamw_groups: list[dict[str, Any]],
        muon: dict[str, Any],
        adamw: dict[str, Any],
    ):
        self._parts: list[Optimizer] = []
        if muon_groups:
            self._parts.append(torch.optim.Muon(muon_groups, **muon))
        if adamw_groups:
            self._parts.append(torch.optim.AdamW(adamw_groups, **adamw))
        super().__init__([group for part in self._parts for group in part.param_groups], {})
        self._share()

    def _share(self) -> None:
        """Make the parts work on this optimizer's groups and state."""
        first = 0
        for part in self._parts:
            last = first + len(part.param_groups)
            part.param_groups = self.param_groups[first:last]
            part.state = self.state
            first = last

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_parts": self._parts}  # copy and pickle

    def __setstate__(self, state: dict[str, Any]) -> None:
        """`load_state_dict` ends here, with groups and state of its own making."""
        super().__setstate__(state)
        self._share()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Groups are fixed: it is unknown which of the two should take a new one.

        Raises:
            RuntimeError: after construction.
        """
        if len(self.param_groups) == sum(len(part.param_groups) for part in self._parts):
            raise RuntimeError("MuonAdamW takes no further parameter groups.")
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters; `closure`, if any, computes the loss once."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self._parts:
            part.step()
        return loss


def needs_closure(optimizer: Optimizer) -> bool:
    """Whether its `step` computes the loss itself, as LBFGS's does."""
    return has_required_argument(type(optimizer), "step")


def decay_groups(
    model: nn.Module,
    weight_decay: float,
    no_decay: Iterable[str] | None = None,
    leave_out: set[int] | frozenset[int] = frozenset(),
) -> list[dict[str, Any]]:
    """Trainable parameters in the groups "decay" and "no_decay", the second with a weight decay of 0.

    Args:
        no_decay: kinds of parameters for the second group; None: norms and biases.
        leave_out: `id`s of parameters that belong to neither.
    Raises:
        ConfigError: the model has no trainable parameter.
    """
    kinds = NO_DECAY if no_decay is None else tuple(no_decay)
    members: dict[str, list[Tensor]] = defaultdict(list)
    trainable = False
    for parameter, kind in _kinds(model):
        trainable = True
        if id(parameter) not in leave_out:
            members["no_decay" if kind in kinds else "decay"].append(parameter)
    if not trainable:
        raise ConfigError("model: it has no trainable parameters; every one is frozen, or there are none.")
    decays = {"decay": weight_decay, "no_decay": 0.0}
    return [
        {"name": name, "params": members[name], "weight_decay": decay}
        for name, decay in decays.items()
        if members[name]
    ]


def hidden_matrices(model: nn.Module) -> list[Tensor]:
    """Trainable matrices between a model's first and last layer.

    Those of the model's `shard_units()` if it has any; else all but embeddings and the last linear layer's.
    """
    shard_units = getattr(model, "shard_units", None)
    units = shard_units() if callable(shard_units) else []
    linears = [part for part in model.modules() if isinstance(part, nn.Linear)]
    outer = {id(p) for part in linears[-1:] for p in part.parameters()} if not units else set()
    return [
        parameter
        for root in units or [model]
        for parameter, kind in _kinds(root)
        if parameter.ndim == 2 and kind != "embeddings" and id(parameter) not in outer
    ]


def _kinds(model: nn.Module) -> Iterator[tuple[Tensor, Kind | None]]:
    """Each trainable parameter once, with its kind by the module that owns it."""
    seen: set[int] = set()
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad and id(parameter) not in seen:
                seen.add(id(parameter))
                yield parameter, _kind(module, name)


def _kind(module: nn.Module, name: str) -> Kind | None:
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return "embeddings"
    # by name, so that LlamaRMSNorm, LayerNorm, BatchNorm2d and a user's own are all found
    kind = type(module).__name__.lower()
    if "norm" in kind:
        return "norms"
    return "biases" if name == "bias" or name.endswith("_bias") else None


def _pair(betas: Iterable[float]) -> tuple[float, float]:
    values = tuple(float(beta) for beta in betas)
    if len(values) != 2:
        raise ConfigError(f"optimizer.betas={list(values)}: should be two numbers; e.g. optimizer.betas=[0.9,0.95].")
    return values


def _fused(groups: list[dict[str, Any]], wanted: bool | None, takes_sharded: bool = True) -> bool | None:
    """What to pass on as `fused`; torch itself finds out at the first step only.

    Args:
        takes_sharded: the kernel works on the pieces of sharded parameters too, as those of Adam and AdamW do.
    Raises:
        ConfigError: it is required but not supported.
    """
    if wanted is False:
        return None
    kernels = _fused_devices()
    parameters = [p for group in groups for p in group["params"]]
    if not takes_sharded and any(hasattr(p, "device_mesh") for p in parameters):
        if wanted:
            raise ConfigError(
                "optimizer.fused=true: this optimizer's fused kernel takes no sharded parameters; take "
                "optimizer.fused=null, or strategy=ddp."
            )
        return None
    missing = next((p for p in parameters if p.device.type not in kernels or not p.is_floating_point()), None)
    if missing is None:
        return True
    if wanted:
        raise ConfigError(
            f"optimizer.fused=true: torch {torch.__version__} has no fused kernel for {missing.dtype} on "
            f"{missing.device.type}; take optimizer.fused=null, which uses it where it can be had."
        )
    return None


def _fused_devices() -> list[str]:
    """Kinds of devices that have fused Adam, AdamW and SGD."""
    try:
        # No public name says it; without this one, what torch 2.6 had.
        from torch.utils._foreach_utils import _get_fused_kernels_supported_devices as devices
    except ImportError:
        return ["cuda", "cpu"]
    return devices()
