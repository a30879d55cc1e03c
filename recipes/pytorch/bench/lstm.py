# /// job
# id: pytorch.lstm
# launcher: any
# devices: [cpu, gpu]
# title: words per second of an LSTM language model
# expect: {steps: "10"}
# same_on_all_ranks: [parameter_hash]
# measures:
#   words_weak: {unit: words/s, scaling: weak}
#   words_strong: {unit: words/s, scaling: strong}
#   communication: {unit: "%", higher_is_better: false}
# hint: gradients were not averaged over all ranks
# ///
"""Words per second of an LSTM language model with DistributedDataParallel.

The model is the small one of Zaremba et al., Recurrent Neural Network Regularization (2014): two layers of
200 units, a vocabulary of 10,000, 20 sequences of 20 words. With weak scaling each rank has 20 sequences,
with strong scaling all ranks together. The share of communication is what the averaging of gradients adds to
a step: the time of steps with it against those without (`no_sync`). Where it overlaps with computing, it is
small.
"""

import contextlib
import hashlib
import os
import time

import corpus
import envbuild_job
import group
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

UNITS, LAYERS, SEQUENCES, WORDS = 200, 2, 20, 20
WARM_UP = 3
STEPS = 10


class Model(torch.nn.Module):
    """Embedding, LSTM and a projection onto the vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(corpus.VOCABULARY, UNITS)
        self.lstm = torch.nn.LSTM(UNITS, UNITS, LAYERS, batch_first=True)
        self.projection = torch.nn.Linear(UNITS, corpus.VOCABULARY)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return the scores of all words at each position, one row a position."""
        states, _ = self.lstm(self.embedding(words))
        return self.projection(states).flatten(0, 1)


def main() -> None:
    """Train with weak and with strong scaling and report."""
    rank, size = group.start()
    torch.set_num_threads(min(int(os.environ["OMP_NUM_THREADS"]), len(os.sched_getaffinity(0))))
    device = group.device()
    words = torch.tensor(corpus.words(rank), device=device)
    torch.manual_seed(2026)
    local = Model().to(device)
    model = DistributedDataParallel(local)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def seconds(sequences: int, steps: int, averaging: contextlib.AbstractContextManager) -> float:
        with averaging:
            for step in range(WARM_UP + steps):
                if step == WARM_UP:
                    synchronize(device)
                    started = time.perf_counter()
                first = step * SEQUENCES * WORDS % (len(words) - SEQUENCES * WORDS - 1)
                batch = words[first : first + sequences * WORDS + 1]
                optimizer.zero_grad()
                scores = model(batch[:-1].view(sequences, WORDS))
                torch.nn.functional.cross_entropy(scores, batch[1:]).backward()
                optimizer.step()
            synchronize(device)
        return time.perf_counter() - started

    weak_s = seconds(SEQUENCES, STEPS, contextlib.nullcontext())
    share = max(1, SEQUENCES // size)
    # With one rank it is the same.
    strong_s = seconds(share, STEPS, contextlib.nullcontext()) if size > 1 else weak_s
    digest = hashlib.sha256()
    for parameter in local.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    # Parameters differ from here on.
    alone_s = seconds(SEQUENCES, STEPS, model.no_sync()) if size > 1 else weak_s
    envbuild_job.report(
        rank=rank,
        size=size,
        gpus=group.gpus(),
        steps=STEPS,
        parameter_hash=digest.hexdigest(),
        words_weak=size * STEPS * SEQUENCES * WORDS / weak_s,
        words_strong=size * STEPS * share * WORDS / strong_s,
        communication=100 * max(0.0, 1 - alone_s / weak_s),
    )
    dist.destroy_process_group()


def synchronize(device: torch.device) -> None:
    """Wait for the work of a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
