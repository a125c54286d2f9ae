"""A dataset with NaN in it."""

import torch


class NaNs(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        features = torch.ones(64)
        features[index % 64] = float("nan") if index < 3 else 1.0
        return features, index % 10
