"""The names of kernels: each is a directory below a user's own."""

from __future__ import annotations

import pytest

from envbuild.activate.kernel import check_kernel_name
from envbuild.errors import RequestError


@pytest.mark.parametrize("name", ["a b", "..", ".", "a/b", "", "/abs", "-x", ".hidden", "a\n", "a" * 129])
def test_a_name_that_is_no_directory_of_its_own_is_refused(name: str) -> None:
    with pytest.raises(RequestError, match="cannot name a kernel"):
        check_kernel_name(name)


@pytest.mark.parametrize("name", ["a", "3d", "torch-2.11_cuda", "a" * 128])
def test_a_name_of_one_directory_is_taken(name: str) -> None:
    check_kernel_name(name)
