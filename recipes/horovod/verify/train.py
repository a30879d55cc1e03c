"""A small training run with Horovod; N ranks with a share each do what one does with all of it."""

import envbuild_job
import horovod.torch as hvd
import torch
from envbuild_job import FEATURES, HIDDEN, ROWS, STEPS


def main() -> None:
    """Train, and report losses, parameters and their hash."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    inputs, labels, starts = envbuild_job.training_data(rank, size)
    inputs, labels = torch.tensor(inputs), torch.tensor(labels)
    layers = (torch.nn.Linear(FEATURES, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1))
    model = torch.nn.Sequential(*layers)
    with torch.no_grad():
        for parameter, start in zip(model.parameters(), starts, strict=True):
            parameter.copy_(torch.tensor(start.T))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05), named_parameters=model.named_parameters()
    )

    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        squares = (model(inputs) - labels).square().sum()
        # Gradients are averaged over ranks: so weighed, shares of any size make the mean over all rows.
        (squares * size / ROWS).backward()
        optimizer.step()
        losses.append(float(hvd.allreduce(squares.detach() / ROWS, op=hvd.Sum)))

    parameters = [parameter.detach().numpy() for parameter in model.parameters()]
    envbuild_job.report_training(rank, size, losses, parameters)
    hvd.shutdown()


if __name__ == "__main__":
    main()
