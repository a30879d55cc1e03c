"""The model of the jobs with the oracle `averaging`."""

import torch


class Shift(torch.nn.Module):
    """Adds its one parameter to each element: no matrix product that could round."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x + w."""
        return x + self.w
