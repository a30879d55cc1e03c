# /// job
# id: horovod.train
# oracle: training
# title: a training run with Horovod on N ranks against the same on one
# ///
"""A small training run with Horovod; N ranks with a share each do what one does with all of it."""

import envbuild_job
import horovod.torch as hvd
import torch
from envbuild_job import FEATURES, HIDDEN, ROWS


def main() -> None:
    """Train on this rank's share of the rows."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    inputs, labels, starts = envbuild_job.training_data(rank, size)
    inputs, labels = torch.tensor(inputs), torch.tensor(labels)
    layers = (torch.nn.Linear(FEATURES, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1))
    model = torch.nn.Sequential(*layers)
    with torch.no_grad():
        for parameter, start in zip(model.parameters(), starts, strict=True):
            parameter.copy_(torch.tensor(start.T))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    # control no averaging: pass
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    def step() -> float:
        optimizer.zero_grad()
        squares = (model(inputs) - labels).square().sum()
        # Gradients are averaged over ranks: so weighed, shares of any size make the mean over all rows.
        (squares * size / ROWS).backward()
        optimizer.step()
        return float(hvd.allreduce(squares.detach() / ROWS, op=hvd.Sum))

    def parameters() -> list:
        return [parameter.detach().numpy() for parameter in model.parameters()]

    envbuild_job.run_training(rank, size, step, parameters)
    hvd.shutdown()


if __name__ == "__main__":
    main()
