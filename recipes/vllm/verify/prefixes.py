# /// job
# id: vllm.prefixes
# title: each rank imports vLLM; prompts share the blocks of the KV cache that hold their common beginning
# expect:
#   blocks: 20 + r
#   shared: 10 + r
#   later: 0
# same_on_all_ranks: [digests]
# hint: vLLM does not know again what it has computed, so that ranks would compute or send it twice
# controls:
#   one seed for each rank: {fails: [digests], least_ranks: 2}
#   prompts of another user: [shared]
#   a later block is taken for the same: [later]
# ///
"""Prompts that begin alike share the blocks of the KV cache that hold this beginning.

vLLM names each full block of a prompt by a hash over its tokens and the name of the block before, and looks
blocks up by these names. Here two prompts have 10 + r blocks in common, differ in one token, and then go on
alike: their later blocks may not be taken for the same. No GPU is needed, and no model.
"""

import os

import envbuild_job

# One seed makes the names those of all ranks, as where ranks exchange blocks.
# control one seed for each rank: os.environ["PYTHONHASHSEED"] = str(envbuild_job.launched()[0])
os.environ["PYTHONHASHSEED"] = "0"

from vllm import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

BLOCK_TOKENS = 16


def blocks_of(name: str, tokens: "list[int]", salt: "str | None" = None) -> "list[bytes]":
    """Return the names of the full blocks of a prompt; prompts with different salts share none."""
    request = Request(
        request_id=name,
        prompt_token_ids=tokens,
        sampling_params=SamplingParams(max_tokens=1),
        pooling_params=None,
        cache_salt=salt,
        block_hasher=get_request_block_hasher(BLOCK_TOKENS, sha256),
    )
    return list(request.block_hashes)


def main() -> None:
    """Name the blocks of two prompts, and report how many they share."""
    rank, size = envbuild_job.launched()
    init_none_hash(sha256)
    first = list(range((20 + rank) * BLOCK_TOKENS + BLOCK_TOKENS // 2))
    second = list(first)
    second[(10 + rank) * BLOCK_TOKENS] += 1
    ours = blocks_of("first", first)
    # control prompts of another user: theirs = blocks_of("second", second, salt="another")
    theirs = blocks_of("second", second)
    shared = 0
    while shared < len(ours) and ours[shared] == theirs[shared]:
        shared += 1
    envbuild_job.report(
        rank=rank,
        size=size,
        blocks=len(ours),
        shared=shared,
        # control a later block is taken for the same: later=len({*ours[shared:]} & {*theirs, ours[-1]}),
        later=len({*ours[shared:]} & {*theirs[shared:]}),
        digests=[name.hex() for name in ours[:10]],
    )


if __name__ == "__main__":
    main()
