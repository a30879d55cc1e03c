"""MultiWorkerMirroredStrategy in a custom loop, with an exact oracle.

The variable w starts at 0; replica r's loss is ½(w + N(r+1))². TensorFlow adds
the replicas' gradients, so each is divided by N, as a global batch wants it:
with a learning rate of 1 the first step ends at exactly -N(N+1)/2, and further
steps leave it there. The division may be a product with 1/N, which is no exact
number for every N: w is a float64, and the float32 nearest to it is exact.
"""

import cluster
import envbuild_job
import tensorflow as tf


def main() -> None:
    """Join the workers, sum over replicas, take three steps, and report."""
    rank, _, port = cluster.start()
    strategy = cluster.strategy()
    port.close()
    size = strategy.num_replicas_in_sync
    with strategy.scope():
        w = tf.Variable(0.0, dtype=tf.float64)

    @tf.function
    def added() -> tf.Tensor:
        def replica() -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            own = tf.constant([rank + 1], dtype=tf.int64)
            return context.all_reduce(tf.distribute.ReduceOp.SUM, own)

        return strategy.run(replica)

    @tf.function
    def step() -> None:
        def replica() -> None:
            with tf.GradientTape() as tape:
                loss = 0.5 * tf.square(w + float(size * (rank + 1))) / size
            gradient = tape.gradient(loss, w)
            context = tf.distribute.get_replica_context()
            w.assign_sub(1.0 * context.all_reduce(tf.distribute.ReduceOp.SUM, gradient))

        strategy.run(replica)

    total = added()
    weights = []
    for _ in range(3):
        step()
        weights.append(float(tf.cast(w, tf.float32).numpy()))

    resolver = strategy.cluster_resolver
    envbuild_job.report(
        rank=resolver.task_id if resolver.task_id is not None else 0,
        size=size,
        gpus=cluster.gpus(),
        sum=int(total.numpy()[0]),
        weight_first=weights[0],
        weight_last=weights[-1],
    )


if __name__ == "__main__":
    main()
