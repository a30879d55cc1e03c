"""pytorch: its jobs, spoiled."""

from functools import partial

from tests.recipes.spoil import SINGLETONS, control

_ddp = partial(control, "pytorch", "ddp")
_train = partial(control, "pytorch", "train")
_cuda = partial(control, "pytorch", "built_for")
_torchrun = partial(control, "pytorch", "torchrun")
_tensor = partial(control, "pytorch", "tensor_parallel")
_pipeline = partial(control, "pytorch", "pipeline")

CONTROLS = (
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
)
