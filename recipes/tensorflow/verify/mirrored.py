# /// job
# id: tensorflow.mirrored
# oracle: averaging
# devices: [cpu, gpu]
# title: MultiWorkerMirroredStrategy in a custom loop, exact oracle
# expect: {sum: n*(n+1)//2}
# hint: the workers did not add their gradients
# controls:
#   half a step: [weight_first]
# ///
"""MultiWorkerMirroredStrategy in a custom loop.

TensorFlow adds the gradients of the replicas, so each is divided by N, as a global batch requires. The
division may be a product with 1/N: w is a float64.
"""

import cluster
import envbuild_gpus
import envbuild_job
import tensorflow as tf


def main() -> None:
    """Join the workers, sum over replicas, and average gradients."""
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
    def apply_gradient() -> None:
        def replica() -> None:
            with tf.GradientTape() as tape:
                loss = 0.5 * tf.square(w + float(size * (rank + 1))) / size
            gradient = tape.gradient(loss, w)
            context = tf.distribute.get_replica_context()
            summed = context.all_reduce(tf.distribute.ReduceOp.SUM, gradient)
            # control no averaging: w.assign_sub(gradient)
            # control half a step: w.assign_sub(0.5 * summed)
            w.assign_sub(summed)

        strategy.run(replica)

    def step() -> float:
        apply_gradient()
        return float(tf.cast(w, tf.float32).numpy())

    total = int(added().numpy()[0])
    task = strategy.cluster_resolver.task_id or 0
    envbuild_job.run_averaging(task, size, step, sum=total, gpus=envbuild_gpus.own_ids())


if __name__ == "__main__":
    main()
