"""A small training run; N ranks with a share each of the batch do what one does with all of it.

A regression with noisy labels, so that training on a share alone ends far
from training on the whole.
"""

import hashlib

import envbuild_job
import gloo
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

ROWS, FEATURES, HIDDEN, STEPS = 64, 8, 16, 25


def main() -> None:
    """Train, and report losses, parameters and their hash."""
    rank, size = gloo.start()
    torch.manual_seed(2026)
    inputs = torch.randn(ROWS, FEATURES)
    labels = inputs.sin().sum(dim=1, keepdim=True) + torch.randn(ROWS, 1)
    layers = (torch.nn.Linear(FEATURES, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1))
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    own = slice(rank * ROWS // size, (rank + 1) * ROWS // size)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        squares = (model(inputs[own]) - labels[own]).square().sum()
        # Gradients are averaged over ranks: so weighed, shares of any size make the mean over all rows.
        (squares * size / ROWS).backward()
        optimizer.step()
        whole = squares.detach() / ROWS
        dist.all_reduce(whole)
        losses.append(float(whole))

    parameters = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    envbuild_job.report(
        rank=rank,
        size=size,
        steps=len(losses),
        losses=losses,
        parameters=parameters.tolist(),
        parameter_hash=hashlib.sha256(parameters.numpy().tobytes()).hexdigest(),
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
