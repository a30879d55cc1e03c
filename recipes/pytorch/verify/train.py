# /// job
# id: pytorch.train
# launcher: any
# oracle: training
# devices: [cpu, gpu]
# controls:
#   gradients not weighed: {fails: [losses-as-one-rank, parameters-as-one-rank], least_ranks: 2}
# ///
"""A small training run; N ranks with a share each of the batch do what one does with all of it."""

import envbuild_job
import group
import torch
import torch.distributed as dist
from envbuild_job import FEATURES, HIDDEN, ROWS
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train on this rank's share of the rows."""
    rank, size = group.start()
    device = group.device()
    inputs, labels, starts = envbuild_job.training_data(rank, size)
    inputs, labels = torch.tensor(inputs, device=device), torch.tensor(labels, device=device)
    layers = (torch.nn.Linear(FEATURES, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1))
    network = torch.nn.Sequential(*layers).to(device)
    with torch.no_grad():
        for parameter, start in zip(network.parameters(), starts, strict=True):
            parameter.copy_(torch.tensor(start.T))
    # control no averaging: model = network
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def step() -> float:
        optimizer.zero_grad()
        squares = (model(inputs) - labels).square().sum()
        # Gradients are averaged over ranks: so weighed, shares of any size make the mean over all rows.
        # control gradients not weighed: (squares / ROWS).backward()
        (squares * size / ROWS).backward()
        optimizer.step()
        whole = squares.detach() / ROWS
        dist.all_reduce(whole)
        return float(whole)

    def parameters() -> list:
        return [parameter.detach().cpu().numpy() for parameter in model.parameters()]

    envbuild_job.run_training(rank, size, step, parameters, gpus=group.gpus())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
