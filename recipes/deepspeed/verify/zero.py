# /// job
# id: deepspeed.zero
# launcher: any
# oracle: training
# expect:
#   held: 2*((160+2*n)//(2*n))
# title: a training run with ZeRO stage 2 on N ranks against the same on one
# controls:
#   all held by each: {fails: [held], least_ranks: 2}
#   gradients not weighed: {fails: [losses-as-one-rank, parameters-as-one-rank], least_ranks: 2}
# ///
"""A small training run with ZeRO stage 2: each rank keeps a part of gradients and optimizer."""

import os

import deepspeed
import envbuild_job
import group
import torch
import torch.distributed as dist
from envbuild_job import FEATURES, HIDDEN, ROWS

RATE = 0.05
CONFIGURATION = {
    "train_micro_batch_size_per_gpu": 1,
    # gloo has no reduce-scatter.
    "zero_optimization": {"stage": 2, "reduce_scatter": False},
    "zero_allow_untested_optimizer": True,
    # Clipped, gradients of any length make the same step, and a wrong mean would not show.
    "gradient_clipping": 0.0,
}


def main() -> None:
    """Train on this rank's share of the rows."""
    rank, size = group.start()
    inputs, labels, starts = envbuild_job.training_data(rank, size)
    inputs, labels = torch.tensor(inputs), torch.tensor(labels)
    layers = (torch.nn.Linear(FEATURES, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1))
    network = torch.nn.Sequential(*layers)
    with torch.no_grad():
        for parameter, start in zip(network.parameters(), starts, strict=True):
            parameter.copy_(torch.tensor(start.T))
    # A launcher sets it, but for a rank alone; DeepSpeed asks for it on CPUs, too.
    os.environ.setdefault("LOCAL_RANK", "0")
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE)
    engine, *_ = deepspeed.initialize(model=network, optimizer=optimizer, config=CONFIGURATION)

    def step() -> float:
        squares = (network(inputs) - labels).square().sum()
        # Gradients are averaged over ranks: so weighed, shares of any size make the mean over all rows.
        # control gradients not weighed: loss = squares / ROWS
        loss = squares * size / ROWS
        # control no averaging: step_alone(network, loss)
        step_of(engine, loss)
        whole = squares.detach() / ROWS
        dist.all_reduce(whole)
        return float(whole)

    def parameters() -> list:
        return [parameter.detach().numpy() for parameter in network.parameters()]

    # control all held by each: held = sum(array.size for array in parameters())
    held = engine.optimizer.single_partition_of_fp32_groups[0].numel()
    envbuild_job.run_training(rank, size, step, parameters, held=held)
    dist.destroy_process_group()


def step_of(engine: deepspeed.DeepSpeedEngine, loss: torch.Tensor) -> None:
    """Take a step with the gradients of all ranks."""
    engine.backward(loss)
    engine.step()


def step_alone(network: torch.nn.Module, loss: torch.Tensor) -> None:
    """Take a step with the gradients of this rank alone, as the control does."""
    gradients = torch.autograd.grad(loss, list(network.parameters()))
    with torch.no_grad():
        for parameter, gradient in zip(network.parameters(), gradients, strict=True):
            parameter.sub_(RATE * gradient)


if __name__ == "__main__":
    main()
