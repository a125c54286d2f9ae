"""The networks and the loop of pytorch/examples/dcgan (BSD 3-Clause), on scikit-learn's digits."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from launcher.process.rng import restore_rng

NZ = 10
ADAM = {"lr": 0.0002, "betas": (0.5, 0.999)}


class DCGAN(nn.Module):
    """Both networks, with 64 x 64 images of one channel.

    Args:
        size: channels of the layer next to the images; the example has 64.
        pause: the generator has no turn in every so many steps; 0: it always has.
    """

    def __init__(self, size: int = 2, pause: int = 0, **_: Any):
        super().__init__()
        self.pause = pause
        ngf = ndf = size
        self.generator = nn.Sequential(
            nn.ConvTranspose2d(NZ, ngf * 8, 4, 1, 0, bias=False),
            *(nn.BatchNorm2d(ngf * 8), nn.ReLU(True)),
            nn.ConvTranspose2d(ngf * 8, ngf * 4, 4, 2, 1, bias=False),
            *(nn.BatchNorm2d(ngf * 4), nn.ReLU(True)),
            nn.ConvTranspose2d(ngf * 4, ngf * 2, 4, 2, 1, bias=False),
            *(nn.BatchNorm2d(ngf * 2), nn.ReLU(True)),
            nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False),
            *(nn.BatchNorm2d(ngf), nn.ReLU(True)),
            nn.ConvTranspose2d(ngf, 1, 4, 2, 1, bias=False),
            nn.Tanh(),
        )
        self.discriminator = nn.Sequential(
            *(nn.Conv2d(1, ndf, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True)),
            nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False),
            *(nn.BatchNorm2d(ndf * 2), nn.LeakyReLU(0.2, inplace=True)),
            nn.Conv2d(ndf * 2, ndf * 4, 4, 2, 1, bias=False),
            *(nn.BatchNorm2d(ndf * 4), nn.LeakyReLU(0.2, inplace=True)),
            nn.Conv2d(ndf * 4, ndf * 8, 4, 2, 1, bias=False),
            *(nn.BatchNorm2d(ndf * 8), nn.LeakyReLU(0.2, inplace=True)),
            nn.Conv2d(ndf * 8, 1, 4, 1, 0, bias=False),
            nn.Sigmoid(),
        )
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.fakes: list[torch.Tensor] = []

    def init_weights(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
                nn.init.normal_(module.weight, 0.0, 0.02)
            elif isinstance(module, nn.BatchNorm2d):
                nn.init.normal_(module.weight, 1.0, 0.02)
                nn.init.zeros_(module.bias)

    def judge(self, images: torch.Tensor, label: float) -> tuple[torch.Tensor, torch.Tensor]:
        output = self.discriminator(images).view(-1)
        loss = F.binary_cross_entropy(output.float(), torch.full_like(output, label).float())
        return loss, output.detach().mean()

    def forward(self, batch: Any, optimizer: str | None = None) -> Any:
        if optimizer == "generator":
            fake = self.fakes.pop(0)
            if self.pause and int(self.steps) % self.pause:
                return None, {}
            loss, score = self.judge(fake, 1.0)
            return loss, {"D_G_z2": score}
        images = as_images(batch)
        real, of_real = self.judge(images, 1.0)
        fake = self.generator(torch.randn(len(images), NZ, 1, 1, device=images.device))
        of_fake, score = self.judge(fake.detach(), 0.0)
        if optimizer is not None:
            self.fakes.append(fake)
            self.steps += 1
        return real + of_fake, {"D_x": of_real, "D_G_z1": score}


def as_images(batch: Any) -> torch.Tensor:
    """[B, 64] in 0..1 as images [B, 1, 64, 64] in -1..1."""
    return F.interpolate(batch[0].view(-1, 1, 8, 8), scale_factor=8) * 2 - 1


def original(model: DCGAN, batches: list[Any], rng: dict[str, Any]) -> None:
    """The example's loop over the batches."""
    restore_rng(rng)
    model.train()
    net_g, net_d, criterion = model.generator, model.discriminator, nn.BCELoss()
    optimizer_d = torch.optim.Adam(net_d.parameters(), **ADAM)  # type: ignore[arg-type]
    optimizer_g = torch.optim.Adam(net_g.parameters(), **ADAM)  # type: ignore[arg-type]
    for batch in batches:
        # (1) Update D network: maximize log(D(x)) + log(1 - D(G(z)))
        net_d.zero_grad()
        real = as_images(batch)
        label = torch.full((len(real),), 1.0)
        output = net_d(real).view(-1)
        err_d_real = criterion(output, label)
        err_d_real.backward()
        noise = torch.randn(len(real), NZ, 1, 1)
        fake = net_g(noise)
        label.fill_(0.0)
        output = net_d(fake.detach()).view(-1)
        err_d_fake = criterion(output, label)
        err_d_fake.backward()
        optimizer_d.step()
        # (2) Update G network: maximize log(D(G(z)))
        net_g.zero_grad()
        label.fill_(1.0)
        output = net_d(fake).view(-1)
        err_g = criterion(output, label)
        err_g.backward()
        optimizer_g.step()


class Adversaries(nn.Module):
    """Two small networks whose numbers do not depend on ranks and micro-batches: no statistics of a
    batch, and pixels as noise."""

    def __init__(self, **_: Any):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 64))
        self.discriminator = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 1))
        self.fakes: list[torch.Tensor] = []

    def forward(self, batch: Any, optimizer: str | None = None) -> Any:
        if optimizer == "generator":
            return F.softplus(-self.discriminator(self.fakes.pop(0))).mean(), {}
        fake = self.generator(batch[0][:, 26:34])
        self.fakes.append(fake)
        loss = F.softplus(-self.discriminator(batch[0])) + F.softplus(
            self.discriminator(fake.detach())
        )
        return loss.mean(), {}
