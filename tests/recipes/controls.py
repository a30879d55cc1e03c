"""Negative controls: each spoils a copy of a shipped job in one way, and the judge must see it.

The shipped jobs know nothing of this: no hook that could weaken them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

RECIPES = Path(__file__).resolve().parents[2] / "recipes"

SINGLETONS = """\
import os
for name in list(os.environ):
    if name.startswith(("PMI", "OMPI")):
        del os.environ[name]
"""

# Alone, and each with an address of its own to publish: the ranks share a directory of results.
RECLUSES = (
    SINGLETONS
    + """\
import envbuild_job, pathlib, tempfile
own = pathlib.Path(tempfile.mkdtemp())
envbuild_job.publish = lambda name, text: (own / name).write_text(text)
envbuild_job.await_published = lambda name, **_: (own / name).read_text()
"""
)


@dataclass(frozen=True, kw_only=True)
class Control:
    """A spoiled job.

    Attributes
    ----------
    changes : tuple of (str, str)
        Text that stands once in the job → what stands there instead.
    before : str
        What runs before the job's own text.
    fails : tuple of str
        Ids of findings that must fail; others may fail too.
    """

    name: str
    recipe: str
    file: str
    fails: tuple[str, ...]
    changes: tuple[tuple[str, str], ...] = ()
    before: str = ""

    def text(self) -> str:
        """Return the spoiled job."""
        text = (RECIPES / self.recipe / "verify" / self.file).read_text()
        for old, new in self.changes:
            assert text.count(old) == 1, f"{self.name}: `{old}` stands {text.count(old)} times in {self.file}"
            text = text.replace(old, new)
        return self.before + text


def _of(
    recipe: str, stem: str, name: str, fails: str, *changes: tuple[str, str], before: str = ""
) -> Control:
    return Control(
        name=f"{recipe}/{stem}: {name}",
        recipe=recipe,
        file=f"{stem}.py",
        fails=tuple(fails.split()),
        changes=changes,
        before=before,
    )


_mpi = partial(_of, "mpich", "collectives")
_mpi_by_name = partial(_of, "openmpi-debian", "collectives")
_caffe = partial(_of, "caffe", "averaged")
_caffe_train = partial(_of, "caffe", "train")
_theano = partial(_of, "theano", "averaged")
_theano_train = partial(_of, "theano", "train")
_cntk = partial(_of, "cntk", "learner")
_cntk_train = partial(_of, "cntk", "train")
_ddp = partial(_of, "pytorch", "ddp")
_train = partial(_of, "pytorch", "train")
_cuda = partial(_of, "pytorch", "built_for")
_torchrun = partial(_of, "pytorch", "torchrun")
_tensor = partial(_of, "pytorch", "tensor_parallel")
_pipeline = partial(_of, "pytorch", "pipeline")
_mirrored = partial(_of, "tensorflow", "mirrored")
_workers = partial(_of, "tensorflow", "train")
_averaged = partial(_of, "tensorflow-mpi", "averaged")
_jax = partial(_of, "jax", "distributed")
_jax_train = partial(_of, "jax", "train")
_keras = partial(_of, "keras", "backends")
_horovod = partial(_of, "horovod", "averaged")
_horovod_train = partial(_of, "horovod", "train")
_kvstore = partial(_of, "mxnet", "kvstore")
_mxnet = partial(_of, "mxnet", "averaged")
_mxnet_train = partial(_of, "mxnet", "averaged_train")
_onnx = partial(_of, "onnxruntime", "models")
_tracking = partial(_of, "mlflow", "tracking")
_notebook = partial(_of, "jupyterlab", "notebook")
_spark = partial(_of, "spark", "sums")
_logistic = partial(_of, "spark", "logistic")
_chainer = partial(_of, "chainer", "averaged")
_chainer_train = partial(_of, "chainer", "train")
_mpi4jax = partial(_of, "mpi4jax", "averaged")
_mpi4jax_train = partial(_of, "mpi4jax", "summed_train")
_mpi_train = partial(_of, "tensorflow-mpi", "averaged_train")


# Of each job the first after the singletons leaves the averaging out, and the suite runs that one.
# The single run of a comparison is spoiled as well; what differs with the number of ranks still shows.
CONTROLS = (
    _mpi("singletons", "D0/D1.mpi D1.mpi/sum D1.mpi/payload_least", before=SINGLETONS),
    _mpi("a wrong addend", "D1.mpi/sum", ("np.array([rank + 1]", "np.array([rank]")),
    _mpi("another operation", "D1.mpi/sum", ("total, op=MPI.SUM", "total, op=MPI.MAX")),
    _mpi("bits of one rank", "D1.mpi/bor", ("comm.Allreduce(words, united, op=MPI.BOR)", "united = words")),
    _mpi("senders mixed up", "D1.mpi/alltoall", ("comm.Alltoall(sent, received)", "received = sent")),
    _mpi("cells in another order", "D1.mpi/alltoall", ("enumerate(received)", "enumerate(received[::-1])")),
    _mpi(
        "no large message",
        "D1.mpi/payload_least",
        ("comm.Allreduce(MPI.IN_PLACE, large, op=MPI.SUM)", "pass"),
    ),
    _mpi("one wrong element", "D1.mpi/payload_most", ("factors = ", "large[-1] += 1e7\n    factors = ")),
    _mpi("a small message", "D1.mpi/payload_bytes", ("ELEMENTS = 8 * 1024 * 1024", "ELEMENTS = 1024")),
    _mpi("a rank that calls itself 0", "D0/D1.mpi", ("rank=rank,", "rank=0,")),
    _mpi("a size that is not", "D0/D1.mpi", ("size=size,", "size=size + 1,")),
    _mpi(
        "a rank without a report",
        "D0/D1.mpi",
        ("    envbuild_job.report(", "    rank == 1 or envbuild_job.report("),
    ),
    _mpi("a rank that dies", "D1.mpi/end", ("    main()\n", "    main()\n    raise SystemExit(3)\n")),
    _mpi_by_name("singletons", "D0/D1.mpi D1.mpi/sum D1.mpi/payload_least", before=SINGLETONS),
    _mpi_by_name("a wrong addend", "D1.mpi/sum", ("(rank + 1), total", "(rank), total")),
    _mpi_by_name(
        "bits of one rank",
        "D1.mpi/bor",
        ('call("MPI_Allreduce", words, united, len(words), INT64, BOR, WORLD)', "united = words"),
    ),
    _mpi_by_name(
        "senders mixed up",
        "D1.mpi/alltoall",
        ('call("MPI_Alltoall", sent, 1, INT64, received, 1, INT64, WORLD)', "received = sent"),
    ),
    _mpi_by_name(
        "no large message",
        "D1.mpi/payload_least D1.mpi/payload_most",
        ('call("MPI_Allreduce", IN_PLACE, large, ELEMENTS, DOUBLE, SUM, WORLD)', "pass"),
    ),
    _mpi_by_name("a small message", "D1.mpi/payload_bytes", ("ELEMENTS = 1024 * 1024", "ELEMENTS = 1024")),
    _ddp(
        "singletons",
        "D0/D2.ddp D2.ddp/sum D2.ddp/weight_first D2.ddp/weight_last",
        before=SINGLETONS,
    ),
    # A wrapper with the same shape that averages nothing.
    _ddp(
        "no averaging",
        "D2.ddp/weight_first D2.ddp/weight_last",
        ("= DistributedDataParallel(", "= torch.nn.DataParallel("),
    ),
    _ddp("another operation", "D2.ddp/sum", ("op=dist.ReduceOp.SUM", "op=dist.ReduceOp.MAX")),
    _ddp("bits of one rank", "D2.ddp/bor", ("dist.all_reduce(words, op=dist.ReduceOp.BOR)", "pass")),
    _ddp("half a step", "D2.ddp/weight_first", ("lr=1.0", "lr=0.5")),
    _ddp("steps that go on", "D2.ddp/weight_last", ("optimizer.zero_grad()", "pass")),
    _ddp("a rank that calls itself 0", "D0/D2.ddp", ("rank=rank,", "rank=0,")),
    _cuda("a rank that calls itself 0", "D0/D2.cuda", ("rank=rank,", "rank=0,")),
    _cuda(
        "a build for another CUDA",
        "D2.cuda/cuda",
        ("torch._C._cuda_getCompiledVersion()", "12080"),
    ),
    _cuda(
        "a build for the CPU",
        "D2.cuda/nccl D2.cuda/sm_80 D2.cuda/sm_90 D2.cuda/sm_100",
        ("torch._C._cuda_getArchFlags()", "''"),
        ("dist.is_nccl_available()", "False"),
    ),
    _torchrun(
        "singletons",
        "D0/D2.torchrun D2.torchrun/sum D2.torchrun/weight",
        ('"gloo")', '"gloo", store=dist.HashStore(), rank=0, world_size=1)'),
    ),
    _torchrun(
        "no averaging", "D2.torchrun/weight", ("= DistributedDataParallel(", "= torch.nn.DataParallel(")
    ),
    _torchrun(
        "not started by torchrun",
        "D2.torchrun/elastic D2.torchrun/local_ranks",
        before="import os\ndel os.environ['TORCHELASTIC_RUN_ID'], os.environ['LOCAL_WORLD_SIZE']\n",
    ),
    _tensor(
        "singletons",
        "D0/D2.tensor-parallel D2.tensor-parallel/output_first D2.tensor-parallel/output_last",
        before=SINGLETONS,
    ),
    _tensor(
        "the whole network on every rank",
        "D2.tensor-parallel/weights_held D2.tensor-parallel/columns_sum D2.tensor-parallel/rows_sum",
        ("parallelize_module(network(UNITS_PER_RANK * size), mesh, plan)", "network(UNITS_PER_RANK * size)"),
        ("parameter.to_local().detach()", "parameter.detach()"),
    ),
    _tensor(
        "partial sums not added",
        "D2.tensor-parallel/output_first D2.tensor-parallel/output_last",
        ("RowwiseParallel()", "RowwiseParallel(output_layouts=Partial())"),
        before="from torch.distributed.tensor import Partial\n",
    ),
    _tensor(
        "half a step", "D2.tensor-parallel/columns_sum D2.tensor-parallel/rows_sum", ("lr=1.0", "lr=0.5")
    ),
    _pipeline(
        "singletons",
        "D0/D2.pipeline D2.pipeline/sum_first D2.pipeline/sum_last D2.pipeline/weight",
        before=SINGLETONS,
    ),
    _pipeline(
        "gradients summed over microbatches",
        "D2.pipeline/weight D2.pipeline/sum_last",
        ("loss_fn=loss)", "loss_fn=loss, scale_grads=False)"),
    ),
    _pipeline(
        "stages in another order",
        "D2.pipeline/sum_first D2.pipeline/weight",
        ("Shear(rank + 1)", "Shear(size - rank)"),
    ),
    _pipeline(
        "a rank with two stages",
        "D2.pipeline/stages_held",
        ("module = Shear(rank + 1)", "module = Shear(rank + 1)\n    module.other = Shear(0)"),
    ),
    _pipeline(
        "microbatches of one rank", "D2.pipeline/sum_first", ("dist.broadcast(end, src=size - 1)", "pass")
    ),
    # Each alone does exactly what one rank does: only the count of ranks tells.
    _train("singletons", "D0/D7.train", before=SINGLETONS),
    _train(
        "no averaging",
        "D7.train/parameter_hash D7.train/losses-as-one-rank D7.train/parameters-as-one-rank",
        ("= DistributedDataParallel(", "= torch.nn.DataParallel("),
    ),
    _train(
        "all on one share",
        "D7.train/losses-as-one-rank D7.train/parameters-as-one-rank",
        ("slice(rank * ROWS // size, (rank + 1) * ROWS // size)", "slice(0, ROWS // size)"),
    ),
    _train(
        "gradients not weighed",
        "D7.train/losses-as-one-rank D7.train/parameters-as-one-rank",
        ("squares * size / ROWS", "squares / ROWS"),
    ),
    _train("fewer steps", "D7.train/steps", ("STEPS = 64, 8, 16, 25", "STEPS = 64, 8, 16, 24")),
    _train("a hash of its own", "D7.train/parameter_hash", ("parameters.numpy().tobytes()", "bytes([rank])")),
    _mirrored(
        "singletons",
        "D0/D3.mirrored D3.mirrored/sum D3.mirrored/weight_first D3.mirrored/weight_last",
        before=SINGLETONS,
    ),
    _mirrored(
        "gradients not added",
        "D3.mirrored/weight_first D3.mirrored/weight_last",
        ("context.all_reduce(tf.distribute.ReduceOp.SUM, gradient)", "gradient"),
    ),
    _mirrored(
        "own share alone", "D3.mirrored/sum", ("context.all_reduce(tf.distribute.ReduceOp.SUM, own)", "own")
    ),
    _workers("singletons", "D0/D3.train", before=SINGLETONS),
    _workers(
        "gradients not added",
        "D3.train/parameter_hash D3.train/losses-as-one-rank D3.train/parameters-as-one-rank",
        ("gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)", "pass"),
    ),
    _workers(
        "all on one share",
        "D3.train/losses-as-one-rank D3.train/parameters-as-one-rank",
        ("slice(rank * ROWS // size, (rank + 1) * ROWS // size)", "slice(0, ROWS // size)"),
    ),
    _workers("fewer steps", "D3.train/steps", ("STEPS = 64, 8, 16, 25", "STEPS = 64, 8, 16, 24")),
    _averaged("singletons", "D0/D3.mpi D3.mpi/weight_first D3.mpi/weight_last", before=SINGLETONS),
    _averaged(
        "no averaging",
        "D3.mpi/weight_first D3.mpi/weight_last",
        ("comm.Allreduce(MPI.IN_PLACE, gradient, op=MPI.SUM)", "gradient *= size"),
    ),
    _mpi_train("singletons", "D0/D3.mpi-train", before=SINGLETONS),
    _mpi_train(
        "gradients not added",
        "D3.mpi-train/parameter_hash D3.mpi-train/losses-as-one-rank D3.mpi-train/parameters-as-one-rank",
        ("comm.Allreduce(MPI.IN_PLACE, gradient, op=MPI.SUM)", "pass"),
    ),
    _mpi_train(
        "all on one share",
        "D3.mpi-train/losses-as-one-rank D3.mpi-train/parameters-as-one-rank",
        ("slice(rank * ROWS // size, (rank + 1) * ROWS // size)", "slice(0, ROWS // size)"),
    ),
    _mpi_train("fewer steps", "D3.mpi-train/steps", ("STEPS = 64, 8, 16, 25", "STEPS = 64, 8, 16, 24")),
    _jax(
        "singletons",
        "D0/D8.jax D8.jax/sum D8.jax/weight_first D8.jax/weight_last",
        before=RECLUSES,
    ),
    _jax(
        "no averaging",
        "D8.jax/weight_first D8.jax/weight_last",
        ('jax.lax.pmean(gradient, "ranks")', "gradient"),
    ),
    _jax("own share alone", "D8.jax/sum", ('jax.lax.psum(number[0], "ranks")', "number[0]")),
    _jax_train("a process that calls itself 0", "D0/D8.jax-train", ("rank=rank,", "rank=0,")),
    _jax_train(
        "gradients not added",
        "D8.jax-train/parameter_hash D8.jax-train/losses-as-one-rank D8.jax-train/parameters-as-one-rank",
        ('gradients = jax.lax.psum(gradients, "ranks")', "pass"),
    ),
    _jax_train(
        "all on one share",
        "D8.jax-train/losses-as-one-rank D8.jax-train/parameters-as-one-rank",
        ("share(rows, rank, size)", "share(rows, 0, size)"),
    ),
    _jax_train("fewer steps", "D8.jax-train/steps", ("STEPS = 64, 8, 16, 25", "STEPS = 64, 8, 16, 24")),
    _keras("singletons", "D0/D9.keras", before=SINGLETONS),
    _keras(
        "gradients not added",
        "D9.keras/parameter_hash D9.keras/losses-as-one-rank D9.keras/parameters-as-one-rank",
        ("comm.Allreduce(MPI.IN_PLACE, array, op=MPI.SUM)", "pass"),
    ),
    _keras(
        "other backends on each rank",
        "D9.keras/backends",
        ("backends=backends,", "backends=backends[comm.rank :],"),
    ),
    _keras("fewer losses", "D9.keras/steps", ("steps=sum(", "steps=-1 + sum(")),
    _horovod("singletons", "D0/D4.horovod D4.horovod/sum D4.horovod/weight_first", before=SINGLETONS),
    _horovod(
        "no averaging",
        "D4.horovod/weight_first D4.horovod/weight_last",
        (
            'hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), named_parameters=[("w", w)])',
            "torch.optim.SGD([w], lr=1.0)",
        ),
    ),
    _horovod(
        "ranks that begin elsewhere",
        "D4.horovod/weight_first",
        ('hvd.broadcast_parameters({"w": w.data}, root_rank=0)', "pass"),
        ("lr=1.0", "lr=0.5"),
    ),
    _horovod("not over MPI", "D4.horovod/mpi", ("hvd.mpi_enabled()", "hvd.gloo_enabled()")),
    _horovod("another operation", "D4.horovod/sum", ("op=hvd.Sum)", "op=hvd.Max)")),
    _horovod("what rank 0 has", "D4.horovod/from_last", ("root_rank=size - 1", "root_rank=0")),
    _horovod_train("singletons", "D0/D4.horovod-train", before=SINGLETONS),
    _horovod_train(
        "no averaging",
        "D4.horovod-train/parameter_hash D4.horovod-train/losses-as-one-rank "
        "D4.horovod-train/parameters-as-one-rank",
        (
            "hvd.DistributedOptimizer(\n        torch.optim.SGD(model.parameters(), lr=0.05),"
            " named_parameters=model.named_parameters()\n    )",
            "torch.optim.SGD(model.parameters(), lr=0.05)",
        ),
    ),
    _horovod_train(
        "all on one share",
        "D4.horovod-train/losses-as-one-rank D4.horovod-train/parameters-as-one-rank",
        ("slice(rank * ROWS // size, (rank + 1) * ROWS // size)", "slice(0, ROWS // size)"),
    ),
    _horovod_train(
        "fewer steps", "D4.horovod-train/steps", ("STEPS = 64, 8, 16, 25", "STEPS = 64, 8, 16, 24")
    ),
    _kvstore(
        "singletons",
        "D0/D5.kvstore D5.kvstore/sum D5.kvstore/sum_again D5.kvstore/weight_first D5.kvstore/weight_last",
        before=RECLUSES,
    ),
    _kvstore(
        "own share alone",
        "D5.kvstore/sum D5.kvstore/sum_again",
        ('store.pull("number", out=total)', "total[:] = factor * (rank + 1)"),
    ),
    _kvstore("the same sum twice", "D5.kvstore/sum_again", ("in (1, 2)", "in (1, 1)")),
    _kvstore(
        "gradients not added",
        "D5.kvstore/weight_first D5.kvstore/weight_last",
        ('store.push("weight", w.grad / size)', "w[:] -= w.grad"),
        ('store.pull("weight", out=w)', "pass"),
    ),
    _kvstore("half a step", "D5.kvstore/weight_first D5.kvstore/weight_last", ("rate=1.0", "rate=0.5")),
    _kvstore(
        "a server that fails",
        "D5.kvstore/worst_exit_code",
        ("= cluster.start()", '= [*cluster.start(), subprocess.Popen(["false"])]'),
        before="import subprocess\n",
    ),
    _mxnet("singletons", "D0/D5.mpi D5.mpi/weight_first D5.mpi/weight_last", before=SINGLETONS),
    _mxnet(
        "no averaging",
        "D5.mpi/weight_first D5.mpi/weight_last",
        ("comm.Allreduce(MPI.IN_PLACE, gradient, op=MPI.SUM)", "gradient *= size"),
    ),
    _mxnet_train("singletons", "D0/D5.mpi-train", before=SINGLETONS),
    _mxnet_train(
        "gradients not added",
        "D5.mpi-train/parameter_hash D5.mpi-train/losses-as-one-rank D5.mpi-train/parameters-as-one-rank",
        ("comm.Allreduce(MPI.IN_PLACE, gradient, op=MPI.SUM)", "pass"),
    ),
    _mxnet_train(
        "all on one share",
        "D5.mpi-train/losses-as-one-rank D5.mpi-train/parameters-as-one-rank",
        ("slice(rank * ROWS // size, (rank + 1) * ROWS // size)", "slice(0, ROWS // size)"),
    ),
    _mxnet_train("fewer steps", "D5.mpi-train/steps", ("STEPS = 64, 8, 16, 25", "STEPS = 64, 8, 16, 24")),
    _onnx("singletons", "D0/A1.onnxruntime", before=SINGLETONS),
    _onnx(
        "units that are not rectified",
        "A1.onnxruntime/below_least A1.onnxruntime/above_most",
        ('"Relu"', '"Identity"'),
    ),
    _onnx(
        "units negated instead", "A1.onnxruntime/below_most A1.onnxruntime/above_least", ('"Relu"', '"Neg"')
    ),
    # Of an image that holds PyTorch.
    _onnx(
        "exported without rectifiers",
        "A1.onnxruntime/below_least A1.onnxruntime/above_most",
        ("torch.nn.ReLU()", "torch.nn.Identity()"),
    ),
    _onnx("other writers on each rank", "A1.onnxruntime/writers", ("=writers,", "=writers[rank:],")),
    _tracking("singletons", "D0/A2.mlflow", before=SINGLETONS),
    _tracking(
        "another run beside it",
        "A2.mlflow/runs",
        (
            "    with mlflow.start_run(",
            "    with mlflow.start_run(experiment_id=experiment):\n        pass\n    with mlflow.start_run(",
        ),
    ),
    _tracking(
        "a run that failed",
        "A2.mlflow/finished",
        ('"notes.txt")\n\n\n', '"notes.txt")\n        mlflow.end_run("FAILED")\n\n\n'),
    ),
    _tracking("the parameter of rank 0", "A2.mlflow/parameter", ('("rank", rank)', '("rank", 0)')),
    _tracking(
        "a step left out", "A2.mlflow/metric_steps A2.mlflow/metric_sum", ("range(1, 11)", "range(1, 10)")
    ),
    _tracking("a rounded metric", "A2.mlflow/large_metric", ("2**53 - 1 - rank", "2**53 - 2**20")),
    _tracking("a shorter artifact", "A2.mlflow/artifact_bytes", ("(1000 + rank)", "(999 + rank)")),
    _notebook("singletons", "D0/A3.jupyterlab", before=SINGLETONS),
    _notebook(
        "a server that is open to everybody",
        "A3.jupyterlab/without_token",
        ('"--no-browser",', '"--IdentityProvider.token=", "--ServerApp.disable_check_xsrf=True",'),
    ),
    _notebook("a page that is not there", "A3.jupyterlab/lab_page", ('"/lab")', '"/laboratory")')),
    _notebook("another cell", "A3.jupyterlab/answer", ("{rank} + 2", "{rank} + 1")),
    _notebook(
        "a kernel that stays",
        "A3.jupyterlab/kernels_left",
        ('status(port, f"/api/kernels/{kernel}", "DELETE")', "pass"),
    ),
    _notebook(
        "a server that is killed",
        "A3.jupyterlab/exit_code",
        ('status(port, "/api/shutdown", "POST")', "pass"),
        ("exit_code = process.wait(60)", "process.kill()\n            exit_code = process.wait(60)"),
    ),
    _cntk("singletons", "D0/D10.cntk D10.cntk/weight_first D10.cntk/weight_last", before=SINGLETONS),
    _cntk(
        "gradients not added",
        "D10.cntk/weight_first D10.cntk/weight_last",
        ("[data_parallel_distributed_learner(local)]", "[local]"),
    ),
    _cntk_train("singletons", "D0/D10.cntk-train", before=SINGLETONS),
    _cntk_train(
        "gradients not added",
        "D10.cntk-train/losses-as-one-rank D10.cntk-train/parameters-as-one-rank "
        "D10.cntk-train/parameter_hash",
        ("[data_parallel_distributed_learner(local)]", "[local]"),
    ),
    _cntk_train(
        "all on one share",
        "D10.cntk-train/losses-as-one-rank D10.cntk-train/parameters-as-one-rank",
        ("slice(rank * ROWS // size, (rank + 1) * ROWS // size)", "slice(0, ROWS // size)"),
    ),
    _cntk_train("fewer steps", "D10.cntk-train/steps", ("STEPS = 64, 8, 16, 25", "STEPS = 64, 8, 16, 24")),
    _spark("singletons", "D0/D6.spark D6.spark/sum D6.spark/gathered D6.spark/workers", before=RECLUSES),
    _spark("own share alone", "D6.spark/gathered", ('sum(seen["shares"])', 'seen["shares"][0]')),
    _spark("a rank that calls itself 0", "D0/D6.spark", ('rank=seen["worker"]', "rank=0")),
    _spark(
        "one partition alone",
        "D6.spark/sum",
        (").sum()", ").mapPartitionsWithIndex(lambda at, part: () if at else part).sum()"),
    ),
    _spark("one worker alone", "D6.spark/workers", ('set(seen["workers"])', 'seen["workers"][:1]')),
    _spark("hosts of one's own", "D6.spark/hosts", ('sorted(set(seen["hosts"]))', 'seen["worker"]')),
    _logistic("singletons", "D0/D6.logistic D6.logistic/workers D6.logistic/holders", before=RECLUSES),
    _logistic(
        "a fit to a share of the rows",
        "D6.logistic/off_newton_ppm D6.logistic/fit-as-one-rank D6.logistic/loss-as-one-rank",
        ("solver.fit(frame)", "solver.fit(frame.limit(ROWS // place.size))"),
    ),
    _logistic(
        "all rows on one worker",
        "D6.logistic/holders",
        ("createDataFrame(spread,", "createDataFrame(spread.coalesce(1),"),
    ),
    _logistic("one worker alone", "D6.logistic/workers", ('set(seen["workers"])', 'seen["workers"][:1]')),
    _logistic("own loss alone", "D6.logistic/loss-as-one-rank", ('sum(seen["losses"])', 'seen["losses"][0]')),
    _logistic("fewer rows", "D6.logistic/rows", ("FEATURES = 240, 3", "FEATURES = 239, 3")),
    _chainer(
        "singletons",
        "D0/D13.chainer D13.chainer/sum D13.chainer/weight_first D13.chainer/weight_last",
        before=SINGLETONS,
    ),
    _chainer("own share alone", "D13.chainer/sum", ("comm.allreduce_obj(rank + 1)", "rank + 1")),
    _chainer(
        "no averaging",
        "D13.chainer/weight_begun D13.chainer/weight_first D13.chainer/weight_last",
        (
            "chainermn.create_multi_node_optimizer(chainer.optimizers.SGD(lr=1.0), comm)",
            "chainer.optimizers.SGD(lr=1.0)",
        ),
    ),
    _chainer_train("singletons", "D0/D13.chainer-train", before=SINGLETONS),
    _chainer_train(
        "no averaging",
        "D13.chainer-train/parameter_hash D13.chainer-train/losses-as-one-rank "
        "D13.chainer-train/parameters-as-one-rank",
        (
            "chainermn.create_multi_node_optimizer(chainer.optimizers.SGD(lr=0.05), comm)",
            "chainer.optimizers.SGD(lr=0.05)",
        ),
        # The first update has something to do then.
        ("    model.cleargrads()\n    optimizer.update()\n", ""),
    ),
    _chainer_train(
        "all on one share",
        "D13.chainer-train/losses-as-one-rank D13.chainer-train/parameters-as-one-rank",
        ("slice(rank * ROWS // size, (rank + 1) * ROWS // size)", "slice(0, ROWS // size)"),
    ),
    _chainer_train(
        "fewer steps", "D13.chainer-train/steps", ("STEPS = 64, 8, 16, 25", "STEPS = 64, 8, 16, 24")
    ),
    _mpi4jax(
        "singletons",
        "D0/D8.mpi4jax D8.mpi4jax/sum D8.mpi4jax/weight_first D8.mpi4jax/weight_last",
        before=SINGLETONS,
    ),
    _mpi4jax(
        "no averaging",
        "D8.mpi4jax/weight_first D8.mpi4jax/weight_last",
        ("mpi4jax.allreduce(jax.grad(loss)(w), op=MPI.SUM, comm=comm) / size", "jax.grad(loss)(w)"),
    ),
    _mpi4jax(
        "another operation",
        "D8.mpi4jax/sum",
        ("allreduce(number, op=MPI.SUM", "allreduce(number, op=MPI.MAX"),
    ),
    _mpi4jax("what rank 0 has", "D8.mpi4jax/from_last", ("bcast(number, size - 1,", "bcast(number, 0,")),
    _mpi4jax_train("singletons", "D0/D8.mpi4jax-train", before=SINGLETONS),
    _mpi4jax_train(
        "gradients not added",
        "D8.mpi4jax-train/parameter_hash D8.mpi4jax-train/losses-as-one-rank "
        "D8.mpi4jax-train/parameters-as-one-rank",
        ("[mpi4jax.allreduce(each, op=MPI.SUM, comm=comm) for each in gradients]", "list(gradients)"),
    ),
    _mpi4jax_train(
        "all on one share",
        "D8.mpi4jax-train/losses-as-one-rank D8.mpi4jax-train/parameters-as-one-rank",
        ("slice(rank * ROWS // size, (rank + 1) * ROWS // size)", "slice(0, ROWS // size)"),
    ),
    _mpi4jax_train(
        "fewer steps", "D8.mpi4jax-train/steps", ("STEPS = 64, 8, 16, 25", "STEPS = 64, 8, 16, 24")
    ),
    _caffe("singletons", "D0/D11.caffe D11.caffe/weight_first D11.caffe/weight_last", before=SINGLETONS),
    _caffe(
        "no averaging",
        "D11.caffe/weight_first D11.caffe/weight_last",
        ("comm.Allreduce(MPI.IN_PLACE, gradient, op=MPI.SUM)", "gradient *= size"),
    ),
    _caffe_train("singletons", "D0/D11.caffe-train", before=SINGLETONS),
    _caffe_train(
        "gradients not added",
        "D11.caffe-train/losses-as-one-rank D11.caffe-train/parameters-as-one-rank "
        "D11.caffe-train/parameter_hash",
        ("comm.Allreduce(MPI.IN_PLACE, gradient, op=MPI.SUM)", "pass"),
    ),
    _caffe_train(
        "all on one share",
        "D11.caffe-train/losses-as-one-rank D11.caffe-train/parameters-as-one-rank",
        ("slice(rank * ROWS // size, (rank + 1) * ROWS // size)", "slice(0, ROWS // size)"),
    ),
    _caffe_train("fewer steps", "D11.caffe-train/steps", ("STEPS = 64, 8, 16, 25", "STEPS = 64, 8, 16, 24")),
    _theano("singletons", "D0/D12.theano D12.theano/weight_first D12.theano/weight_last", before=SINGLETONS),
    _theano(
        "no averaging",
        "D12.theano/weight_first D12.theano/weight_last",
        ("comm.Allreduce(MPI.IN_PLACE, gradient, op=MPI.SUM)", "gradient *= size"),
    ),
    _theano(
        "without a compiler",
        "D12.theano/compiled",
        ("theano = compiling.imported()\n", 'theano = compiling.imported()\ntheano.config.cxx = ""\n'),
    ),
    _theano_train("singletons", "D0/D12.theano-train", before=SINGLETONS),
    _theano_train(
        "gradients not added",
        "D12.theano-train/losses-as-one-rank D12.theano-train/parameters-as-one-rank "
        "D12.theano-train/parameter_hash",
        ("comm.Allreduce(MPI.IN_PLACE, gradient, op=MPI.SUM)", "pass"),
    ),
    _theano_train(
        "all on one share",
        "D12.theano-train/losses-as-one-rank D12.theano-train/parameters-as-one-rank",
        ("slice(rank * ROWS // size, (rank + 1) * ROWS // size)", "slice(0, ROWS // size)"),
    ),
    _theano_train(
        "fewer steps", "D12.theano-train/steps", ("STEPS = 64, 8, 16, 25", "STEPS = 64, 8, 16, 24")
    ),
)
