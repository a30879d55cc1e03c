"""Run: `envbuild launch IMAGE -n 2 -- python tutorial.py`."""

import os

import deepspeed
import torch

# One process alone; `envbuild launch` and torchrun set these for each rank.
ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
for name, value in ALONE.items():
    os.environ.setdefault(name, value)
# Asking MPI needs `hostname -I`, which the image lacks.
deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
network = torch.nn.Linear(4, 1)
engine, *_ = deepspeed.initialize(
    model=network,
    optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
    config={"train_micro_batch_size_per_gpu": 1},
)
for _ in range(10):
    loss = (engine(torch.ones(1, 4)) - 1).square().mean()
    engine.backward(loss)
    engine.step()
print(f"loss after 10 steps: {float(loss):.2e}")
torch.distributed.destroy_process_group()
