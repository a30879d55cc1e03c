"""Run: each task is a process of Ray, the first on its own cluster of one node.

In a Slurm job, let each rank start a node first: recipes/ray/verify/nodes.py.
"""

import ray


@ray.remote
def square(number: int) -> int:
    """Return the square of a number."""
    return number * number


ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
print(f"sum of squares below 100: {sum(ray.get([square.remote(number) for number in range(100)]))}")
ray.shutdown()
