# /// job
# id: pytorch.resnet
# launcher: any
# devices: [cpu, gpu]
# title: images per second of a residual network
# expect: {steps: "10"}
# same_on_all_ranks: [parameter_hash]
# measures:
#   images_weak: {unit: images/s, scaling: weak}
#   images_strong: {unit: images/s, scaling: strong}
#   communication: {unit: "%", higher_is_better: false}
# hint: gradients were not averaged over all ranks
# ///
"""Images per second of a residual network with DistributedDataParallel.

The network is the smallest for CIFAR-10 of He et al., Deep Residual Learning for Image Recognition (2016,
section 4.2): 20 layers of 16, 32 and 64 filters, images of 32 x 32. The images are random: times depend on
their size, not on what they show.
"""

import group
import torch
import training
from torch import nn

IMAGES, SIDE, CLASSES = 16, 32, 10
FILTERS, BLOCKS = (16, 32, 64), 3


class Block(nn.Module):
    """Two convolutions, and the input beside them; of a new width, every second place of it."""

    def __init__(self, before: int, filters: int) -> None:
        super().__init__()
        self.stride = 1 if before == filters else 2
        self.added = filters - before
        self.layers = nn.Sequential(
            nn.Conv2d(before, filters, 3, stride=self.stride, padding=1, bias=False),
            nn.BatchNorm2d(filters),
            nn.ReLU(),
            nn.Conv2d(filters, filters, 3, padding=1, bias=False),
            nn.BatchNorm2d(filters),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the block's images; new channels of the input are zero (option A of the paper)."""
        beside = images[:, :, :: self.stride, :: self.stride]
        beside = nn.functional.pad(beside, (0, 0, 0, 0, 0, self.added))
        return torch.relu(self.layers(images) + beside)


def network() -> nn.Module:
    """Return the network, on this rank's device."""
    layers = [nn.Conv2d(3, FILTERS[0], 3, padding=1, bias=False), nn.BatchNorm2d(FILTERS[0]), nn.ReLU()]
    before = FILTERS[0]
    for filters in FILTERS:
        for _ in range(BLOCKS):
            layers.append(Block(before, filters))
            before = filters
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(FILTERS[-1], CLASSES)]
    return nn.Sequential(*layers).to(group.device())


def main() -> None:
    """Train on this rank's images."""
    rank, _ = training.start()
    model = network()
    torch.manual_seed(2027 + rank)
    images = torch.randn(IMAGES, 3, SIDE, SIDE, device=group.device())
    labels = torch.randint(CLASSES, (IMAGES,), device=group.device())

    def loss_of(model: nn.Module, _: int, count: int) -> torch.Tensor:
        return nn.functional.cross_entropy(model(images[:count]), labels[:count])

    training.measure("images", 1, IMAGES, model, loss_of)


if __name__ == "__main__":
    main()
