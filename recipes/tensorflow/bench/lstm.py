# /// job
# id: tensorflow.lstm
# devices: [cpu, gpu]
# title: words per second of an LSTM language model
# expect: {steps: "10"}
# same_on_all_ranks: [parameter_hash]
# measures:
#   words_weak: {unit: words/s, scaling: weak}
#   words_strong: {unit: words/s, scaling: strong}
#   communication: {unit: "%", higher_is_better: false}
# hint: the workers did not add their gradients
# ///
"""Words per second of an LSTM language model with MultiWorkerMirroredStrategy.

Model and corpus are those of `pytorch.lstm`: two layers of 200 units, a vocabulary of 10,000, 20 sequences of
20 words. With weak scaling each worker has 20 sequences, with strong scaling all workers together. The share
of communication is what the sum of gradients adds to a step: the time of steps with it against those without.
"""

import hashlib
import os
import time
from collections.abc import Callable

import cluster
import corpus
import envbuild_gpus
import envbuild_job
import tensorflow as tf

UNITS, LAYERS, SEQUENCES, WORDS = 200, 2, 20, 20
WARM_UP = 3
STEPS = 10


class Model:
    """Embedding, LSTM and a projection onto the vocabulary."""

    def __init__(self) -> None:
        random = tf.random.Generator.from_seed(2026)

        def variable(*shape: int) -> tf.Variable:
            return tf.Variable(random.uniform(shape, -0.1, 0.1))

        self.embedding = variable(corpus.VOCABULARY, UNITS)
        self.cells = [(variable(2 * UNITS, 4 * UNITS), variable(4 * UNITS)) for _ in range(LAYERS)]
        self.projection = variable(UNITS, corpus.VOCABULARY)
        self.offset = variable(corpus.VOCABULARY)

    @property
    def parameters(self) -> "list[tf.Variable]":
        """All of them."""
        of_cells = [parameter for cell in self.cells for parameter in cell]
        return [self.embedding, *of_cells, self.projection, self.offset]

    def loss(self, words: tf.Tensor, following: tf.Tensor) -> tf.Tensor:
        """Return the mean loss of the words that follow words, both of the shape (sequences, WORDS)."""
        inputs = tf.unstack(tf.gather(self.embedding, words), axis=1)
        for weights, offset in self.cells:
            hidden = cell = tf.zeros_like(inputs[0])
            outputs = []
            for step in inputs:
                gates = tf.matmul(tf.concat([step, hidden], axis=1), weights) + offset
                entry, forget, new, out = tf.split(gates, 4, axis=1)
                cell = tf.sigmoid(forget) * cell + tf.sigmoid(entry) * tf.tanh(new)
                hidden = tf.sigmoid(out) * tf.tanh(cell)
                outputs.append(hidden)
            inputs = outputs
        states = tf.reshape(tf.stack(inputs, axis=1), (-1, UNITS))
        scores = tf.matmul(states, self.projection) + self.offset
        labels = tf.reshape(following, (-1,))
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores))


def main() -> None:
    """Train with weak and with strong scaling and report."""
    threads = min(int(os.environ["OMP_NUM_THREADS"]), len(os.sched_getaffinity(0)))
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    rank, size, port = cluster.start()
    strategy = cluster.strategy()
    port.close()
    with strategy.scope():
        model = Model()
    words = corpus.words(rank)

    def step_with(*, averages: bool) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
        @tf.function
        def step(batch: tf.Tensor, following: tf.Tensor) -> tf.Tensor:
            def replica(batch: tf.Tensor, following: tf.Tensor) -> tf.Tensor:
                with tf.GradientTape() as tape:
                    loss = model.loss(batch, following)
                gradients = [tf.convert_to_tensor(each) for each in tape.gradient(loss, model.parameters)]
                if averages:
                    context = tf.distribute.get_replica_context()
                    gradients = context.all_reduce(tf.distribute.ReduceOp.MEAN, gradients)
                for parameter, gradient in zip(model.parameters, gradients, strict=True):
                    parameter.assign_sub(0.1 * gradient)
                return loss

            return strategy.run(replica, args=(batch, following))

        return step

    def seconds(sequences: int, step: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]) -> float:
        for number in range(WARM_UP + STEPS):
            if number == WARM_UP:
                started = time.perf_counter()
            first = number * SEQUENCES * WORDS % (len(words) - SEQUENCES * WORDS - 1)
            shape = (sequences, WORDS)
            batch = tf.reshape(tf.constant(words[first : first + sequences * WORDS]), shape)
            following = tf.reshape(tf.constant(words[first + 1 : first + sequences * WORDS + 1]), shape)
            # Read, so that a GPU has ended its step.
            step(batch, following).numpy()
        return time.perf_counter() - started

    averaging = step_with(averages=True)
    weak_s = seconds(SEQUENCES, averaging)
    share = max(1, SEQUENCES // size)
    # With one worker it is the same.
    strong_s = seconds(share, averaging) if size > 1 else weak_s
    digest = hashlib.sha256()
    for parameter in model.parameters:
        digest.update(parameter.numpy().tobytes())
    # Parameters differ from here on.
    alone_s = seconds(SEQUENCES, step_with(averages=False)) if size > 1 else weak_s
    envbuild_job.report(
        rank=strategy.cluster_resolver.task_id or 0,
        size=strategy.num_replicas_in_sync,
        gpus=envbuild_gpus.own_ids(),
        steps=STEPS,
        parameter_hash=digest.hexdigest(),
        words_weak=size * STEPS * SEQUENCES * WORDS / weak_s,
        words_strong=size * STEPS * share * WORDS / strong_s,
        communication=100 * max(0.0, 1 - alone_s / weak_s),
    )


if __name__ == "__main__":
    main()
