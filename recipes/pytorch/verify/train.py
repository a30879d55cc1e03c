"""A small training run; N ranks with a share each of the batch do what one does with all of it."""

import envbuild_job
import group
import torch
import torch.distributed as dist
from envbuild_job import FEATURES, HIDDEN, ROWS, STEPS
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train, and report losses, parameters and their hash."""
    rank, size = group.start()
    device = group.device()
    inputs, labels, starts = envbuild_job.training_data(rank, size)
    inputs, labels = torch.tensor(inputs, device=device), torch.tensor(labels, device=device)
    layers = (torch.nn.Linear(FEATURES, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1))
    network = torch.nn.Sequential(*layers).to(device)
    with torch.no_grad():
        for parameter, start in zip(network.parameters(), starts, strict=True):
            parameter.copy_(torch.tensor(start.T))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        squares = (model(inputs) - labels).square().sum()
        # Gradients are averaged over ranks: so weighed, shares of any size make the mean over all rows.
        (squares * size / ROWS).backward()
        optimizer.step()
        whole = squares.detach() / ROWS
        dist.all_reduce(whole)
        losses.append(float(whole))

    parameters = [parameter.detach().cpu().numpy() for parameter in model.parameters()]
    envbuild_job.report_training(rank, size, losses, parameters, gpus=group.gpus())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
