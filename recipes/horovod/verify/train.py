"""A small training run with Horovod; N ranks with a share each do what one does with all of it.

A regression with noisy labels, so that training on a share alone ends far
from training on the whole.
"""

import hashlib

import envbuild_job
import horovod.torch as hvd
import torch

ROWS, FEATURES, HIDDEN, STEPS = 64, 8, 16, 25


def main() -> None:
    """Train, and report losses, parameters and their hash."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    torch.manual_seed(2026)
    inputs = torch.randn(ROWS, FEATURES)
    labels = inputs.sin().sum(dim=1, keepdim=True) + torch.randn(ROWS, 1)
    layers = (torch.nn.Linear(FEATURES, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1))
    model = torch.nn.Sequential(*layers)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05), named_parameters=model.named_parameters()
    )

    own = slice(rank * ROWS // size, (rank + 1) * ROWS // size)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        squares = (model(inputs[own]) - labels[own]).square().sum()
        # Gradients are averaged over ranks: so weighed, shares of any size make the mean over all rows.
        (squares * size / ROWS).backward()
        optimizer.step()
        losses.append(float(hvd.allreduce(squares.detach() / ROWS, op=hvd.Sum)))

    parameters = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    envbuild_job.report(
        rank=rank,
        size=size,
        steps=len(losses),
        losses=losses,
        parameters=parameters.tolist(),
        parameter_hash=hashlib.sha256(parameters.numpy().tobytes()).hexdigest(),
    )
    hvd.shutdown()


if __name__ == "__main__":
    main()
