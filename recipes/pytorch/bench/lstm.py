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
200 units, a vocabulary of 10,000, 20 sequences of 20 words.
"""

import corpus
import group
import torch
import training

UNITS, LAYERS, SEQUENCES, WORDS = 200, 2, 20, 20


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
    """Train on this rank's words."""
    rank, _ = training.start()
    words = torch.tensor(corpus.words(rank), device=group.device())

    def loss_of(model: torch.nn.Module, step: int, sequences: int) -> torch.Tensor:
        first = step * SEQUENCES * WORDS % (len(words) - SEQUENCES * WORDS - 1)
        batch = words[first : first + sequences * WORDS + 1]
        scores = model(batch[:-1].view(sequences, WORDS))
        return torch.nn.functional.cross_entropy(scores, batch[1:])

    training.measure("words", WORDS, SEQUENCES, Model().to(group.device()), loss_of)


if __name__ == "__main__":
    main()
