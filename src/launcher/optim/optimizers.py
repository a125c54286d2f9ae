"""Optimizer factories, called with the model, since they tell norms, biases and embeddings apart.

A configuration may also name any optimizer class (`_target_: torch.optim.RMSprop`). If its first
argument is not `model`, it is called with the trainable parameters.
"""

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from launcher.config.messages import describe_type
from launcher.errors import ConfigError
from launcher.optim.arguments import has_required_argument
from launcher.optim.combined import MuonAdamW
from launcher.optim.fused import choose_fused
from launcher.optim.groups import decay_groups, hidden_matrices
from launcher.types import NonNegativeFloat, ParameterKind, PositiveFloat, PositiveInt, UnitInterval


def adamw(
    model: nn.Module,
    *,
    lr: PositiveFloat = 1e-3,
    betas: tuple[UnitInterval, UnitInterval] = (0.9, 0.999),
    eps: PositiveFloat = 1e-8,
    weight_decay: NonNegativeFloat = 0.01,
    no_decay: list[ParameterKind] | None = None,
    fused: bool | None = None,
) -> Optimizer:
    """AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101).

    Args:
        model: the model whose parameters are trained.
        lr: learning rate.
        betas: decay of the first and second moment.
        eps: added to the square root of the second moment.
        weight_decay: share of a weight, times the learning rate, that a step removes.
        no_decay: parameters without weight decay, of "norms", "biases" and "embeddings". Default
            None: norms and biases.
        fused: use one kernel for all parameters. Default None: where the device supports it.
    Raises:
        ConfigError: `betas` are not two numbers, the model has nothing to train, or `fused` is not
            supported.
    """
    groups = decay_groups(model, weight_decay, no_decay)
    return torch.optim.AdamW(
        groups, lr=lr, betas=_pair(betas), eps=eps, fused=choose_fused(groups, fused)
    )


def adam(
    model: nn.Module,
    *,
    lr: PositiveFloat = 1e-3,
    betas: tuple[UnitInterval, UnitInterval] = (0.9, 0.999),
    eps: PositiveFloat = 1e-8,
    weight_decay: NonNegativeFloat = 0.0,
    no_decay: list[ParameterKind] | None = None,
    fused: bool | None = None,
) -> Optimizer:
    """Adam (Kingma and Ba 2015, arXiv:1412.6980) with the arguments of `adamw`.

    Its weight decay is an L2 penalty.
    """
    groups = decay_groups(model, weight_decay, no_decay)
    return torch.optim.Adam(
        groups, lr=lr, betas=_pair(betas), eps=eps, fused=choose_fused(groups, fused)
    )


def sgd(
    model: nn.Module,
    *,
    lr: PositiveFloat = 0.1,
    momentum: UnitInterval = 0.9,
    nesterov: bool = False,
    weight_decay: NonNegativeFloat = 0.0,
    no_decay: list[ParameterKind] | None = None,
    fused: bool | None = None,
) -> Optimizer:
    """Stochastic gradient descent with momentum (Sutskever et al. 2013).

    Its weight decay is an L2 penalty.
    """
    if nesterov and not momentum:
        raise ConfigError("optimizer.nesterov=true: needs momentum; e.g. optimizer.momentum=0.9.")
    groups = decay_groups(model, weight_decay, no_decay)
    kernel = choose_fused(groups, fused, takes_sharded=False)
    return torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=nesterov, fused=kernel)


def lion(
    model: nn.Module,
    *,
    lr: PositiveFloat = 1e-4,
    betas: tuple[UnitInterval, UnitInterval] = (0.9, 0.99),
    weight_decay: NonNegativeFloat = 0.1,
    no_decay: list[ParameterKind] | None = None,
) -> Optimizer:
    """Lion (Chen et al. 2023, arXiv:2302.06675), from the package lion-pytorch.

    Its updates are signs, so the authors advise a learning rate 3 to 10 times smaller than AdamW's,
    and a weight decay larger by as much.
    """
    try:
        from lion_pytorch import Lion
    except ImportError as error:
        raise ConfigError(
            "optimizer=lion: needs the package lion-pytorch; pip install 'torch-launcher[lion]'."
        ) from error
    optimizer: Optimizer = Lion(
        decay_groups(model, weight_decay, no_decay), lr=lr, betas=_pair(betas)
    )
    return optimizer


def muon(
    model: nn.Module,
    *,
    lr: PositiveFloat = 1e-3,
    momentum: UnitInterval = 0.95,
    nesterov: bool = True,
    ns_steps: PositiveInt = 5,
    weight_decay: NonNegativeFloat = 0.1,
    no_decay: list[ParameterKind] | None = None,
    adamw_lr: PositiveFloat | None = None,
    betas: tuple[UnitInterval, UnitInterval] = (0.9, 0.95),
    eps: PositiveFloat = 1e-8,
    fused: bool | None = None,
) -> Optimizer:
    """Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon) for hidden matrices, else AdamW.

    Muon's update is scaled to the usual size of AdamW's (Liu et al. 2025, arXiv:2502.16982), so
    that AdamW's learning rate and weight decay can be used.

    Args:
        model: the model whose parameters are trained.
        lr: learning rate, only of the matrices if `adamw_lr` is set.
        momentum: decay of Muon's gradient average.
        nesterov: use Nesterov's form of the average.
        ns_steps: Newton-Schulz iterations of the orthogonalisation.
        weight_decay: share of a weight, times the learning rate, that a step removes.
        no_decay: parameters without weight decay, as in `adamw`.
        adamw_lr: learning rate of the other parameters. Default None: `lr`.
        betas: decay of AdamW's first and second moment.
        eps: AdamW's, as in `adamw`.
        fused: AdamW's, as in `adamw`.
    Raises:
        ConfigError: this torch has no Muon (it is in 2.9 and later), or as `adamw`.
    """
    if not hasattr(torch.optim, "Muon"):
        raise ConfigError(
            f"optimizer=muon: torch {torch.__version__} has no Muon; install torch 2.9 or later, or"
            " use optimizer=adamw."
        )
    matrices = {id(p) for p in hidden_matrices(model)}
    rest = decay_groups(model, weight_decay, no_decay, leave_out=matrices)
    optimizers: list[Optimizer] = []
    if matrices:
        groups = [{"name": "muon", "params": [p for p in model.parameters() if id(p) in matrices]}]
        optimizers.append(
            torch.optim.Muon(
                groups,
                lr=lr,
                momentum=momentum,
                nesterov=nesterov,
                ns_steps=ns_steps,
                weight_decay=weight_decay,
                adjust_lr_fn="match_rms_adamw",
            )
        )
    if rest:
        kernel = choose_fused(rest, fused)
        optimizers.append(
            torch.optim.AdamW(rest, lr=adamw_lr or lr, betas=_pair(betas), eps=eps, fused=kernel)
        )
    return MuonAdamW(optimizers)


def check_optimizer(optimizer: object, key: str) -> None:
    """Check what training calls; `step` needs no closure, unlike torch.optim.LBFGS's."""
    cls: Any = type(optimizer)
    methods = ("param_groups", "step", "zero_grad", "state_dict", "load_state_dict")
    if not all(hasattr(optimizer, name) for name in methods):
        issue = f"should make a torch.optim.Optimizer; it made {describe_type(optimizer)}"
    # Torch has wrapped the method of each class.
    elif inspect.unwrap(cls.step) is inspect.unwrap(Optimizer.step):
        issue = f"{cls.__name__} has no step(); add it"
    elif has_required_argument(cls, "step"):
        issue = (
            f"the step of {cls.__name__} needs a closure, which is not supported; use another"
            " optimizer, e.g. optimizer=adamw"
        )
    else:
        return
    raise ConfigError(f"{key}: {issue}.")


def _pair(betas: Iterable[float]) -> tuple[float, float]:
    values = tuple(float(beta) for beta in betas)
    if len(values) != 2:
        raise ConfigError(
            f"optimizer.betas={list(values)}: should be two numbers; e.g."
            " optimizer.betas=[0.9,0.95]."
        )
    return values
