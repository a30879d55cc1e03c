"""Facts of an image's Python packages: versions, and what their modules were compiled for."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from envbuild.elf.read import ElfObject
from envbuild.preflight.compiled import cxx11_abi, numpy_major
from envbuild.preflight.distributions import libraries_of_record, metadata_header, read_distributions
from envbuild.preflight.package_facts import package_facts
from envbuild.preflight.report import examine_files
from envbuild.preflight.scan import FileSystemScan, ScannedFile, scan_host_file
from envbuild.rules.facts import Fact, Value
from envbuild.rules.from_site import stack_facts
from tests.support.elves import Elf

SITE = "/opt/env/lib/python3.11/site-packages"
LIB = "/usr/lib/x86_64-linux-gnu"
NEW_ABI = "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
OLD_ABI = "_ZN3c105ErrorC2ENS_14SourceLocationESs"
NUMPY_1, NUMPY_2 = b"\0numpy.core._multiarray_umath\0", b"\0numpy._core._multiarray_umath\0"


class Image:
    """An image's files, below a directory of this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.scan = FileSystemScan()
        self.metadata: dict[str, str] = {}

    def add(self, path: str, **fields: Any) -> None:
        """Add an ELF file."""
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(Elf(**fields).bytes())
        scanned = scan_host_file(place)
        assert scanned is not None
        self.scan.objects[path] = scanned

    def install(self, name: str, version: str, *files: str, requires: tuple[str, ...] = ()) -> None:
        """Add the metadata of a distribution with these files."""
        directory = f"{SITE}/{name}-{version}.dist-info"
        needs = "".join(f"Requires-Dist: {line}\n" for line in requires)
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}\n"
        self.metadata[f"{directory}/METADATA"] = metadata_header(f"{directory}/METADATA", text)
        record = "".join(f"{file},sha256=x,1\n" for file in files)
        for path in libraries_of_record(f"{directory}/RECORD", record):
            self.scan.owners[path] = f"{directory}/METADATA"

    def done(self) -> FileSystemScan:
        self.scan.distributions = read_distributions(self.metadata)
        parents = {str(parent) for path in self.scan.objects for parent in PurePosixPath(path).parents}
        self.scan.directories = sorted(parents)
        return self.scan

    def facts(self) -> dict[str, Value]:
        return {path: fact.value for path, fact in package_facts(self.done()).items()}


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return Image(tmp_path)


def full_image(root: Path) -> FileSystemScan:
    """Return an image whose files say all that files can say."""
    image = Image(root)
    image.add("/opt/env/bin/python3.11", interpreter="/lib64/ld-linux-x86-64.so.2", needed=("libc.so.6",))
    image.add(f"{LIB}/libc.so.6", soname="libc.so.6")
    image.add(f"{LIB}/libstdc++.so.6", soname="libstdc++.so.6", versions_defined=("GLIBCXX_3.4.30",))
    symbols = ("MPI_Init", "ompi_mpi_comm_world")
    image.add(f"{LIB}/libmpi.so.40", soname="libmpi.so.40", defined=symbols)
    image.add(f"{LIB}/libamdhip64.so.6", soname="libamdhip64.so.6")
    image.add("/usr/local/cuda/compat/libcuda.so.575.57.08", soname="libcuda.so.1")
    libraries = (("nccl", "nccl", "libnccl.so.2"), ("cudnn", "cudnn", "libcudnn.so.9"))
    for name, directory, soname in (*libraries, ("cuda_runtime", "cuda_runtime", "libcudart.so.12")):
        image.add(f"{SITE}/nvidia/{directory}/lib/{soname}", soname=soname)
        version = {"nccl": "2.27.3", "cudnn": "9.10.2.21", "cuda_runtime": "12.8.90"}[name]
        image.install(f"nvidia_{name}_cu12", version, f"nvidia/{directory}/lib/{soname}")
    image.add(f"{SITE}/torch/lib/libc10.so", soname="libc10.so", defined=(NEW_ABI,))
    image.add(
        f"{SITE}/torch/_C.cpython-311-x86_64-linux-gnu.so",
        needed=("libnccl.so.2", "libcudnn.so.9", "libcudart.so.12"),
        constants=NUMPY_2,
    )
    image.install(
        "torch",
        "2.8.0+cu128",
        "torch/_C.cpython-311-x86_64-linux-gnu.so",
        requires=("nvidia-nccl-cu12==2.27.3",),
    )
    image.add(f"{SITE}/xformers/_C.so", needed=("libc10.so",), undefined=(NEW_ABI,))
    image.install("xformers", "0.0.32", "xformers/_C.so", requires=("torch==2.8.0",))
    image.add(
        f"{SITE}/mpi4py/MPI.cpython-311-x86_64-linux-gnu.so",
        needed=("libmpi.so.40",),
        undefined=("ompi_mpi_comm_world", "MPI_Init"),
    )
    image.install("mpi4py", "4.0.0", "mpi4py/MPI.cpython-311-x86_64-linux-gnu.so")
    return image.done()


def facts_of_files(root: Path) -> dict[str, Fact]:
    """Return the facts of that image, as the rules get them."""
    report = examine_files(full_image(root), (set(), 0), architecture="amd64", library_path=[])
    return stack_facts(report.facts)


def test_a_plug_in_beside_the_modules_binds_a_package_to_no_mpi(image: Image) -> None:
    """NVSHMEM has a bootstrap for each MPI and PMI, and loads what there is."""
    library = "nvidia/nvshmem/lib/nvshmem_bootstrap_mpi.so.3"
    image.add(f"{SITE}/{library}", needed=("libmpi.so.40",), undefined=("ompi_mpi_comm_world",))
    image.install("nvidia_nvshmem_cu13", "3.4.5", library)
    assert "packages.nvidia-nvshmem-cu13.mpi_abi" not in image.facts()


def test_what_an_image_s_packages_were_compiled_for(tmp_path: Path) -> None:
    facts = {path: fact.value for path, fact in facts_of_files(tmp_path).items()}
    expected = {
        "packages.torch": "2.8.0+cu128",
        "packages.torch.toolkit": "12.8",
        "packages.torch.numpy": "2",
        "packages.torch.python": "3.11",
        "packages.xformers.framework": "2.8.0",
        "packages.xformers.cxx11_abi": True,
        "packages.mpi4py.mpi_abi": "openmpi-40",
        "frameworks": ("pytorch",),
        "frameworks.pytorch.version": "2.8.0+cu128",
        "frameworks.pytorch.accelerator": "cuda",
        "frameworks.pytorch.cxx11_abi": True,
        "nccl.built": "2.27.3",
        "nccl.loaded": "2.27.3",
        "cudnn.loaded": "9.10.2.21",
        "cuda.toolkit": "12.8",
        "cuda.majors": ("12",),
        "cuda.compat": "575.57.08",
        "cuda.forward_compat": True,
        "cuda.driver_library": "host",
        "libc.family": "glibc",
        "python.free_threaded": False,
    }
    assert {path: facts.get(path) for path in expected} == expected


def test_a_module_for_numpy_1_decides(image: Image) -> None:
    image.add(f"{SITE}/old/a.cpython-311-x86_64-linux-gnu.so", constants=NUMPY_2)
    image.add(f"{SITE}/old/b.cpython-311-x86_64-linux-gnu.so", constants=NUMPY_1)
    image.add(f"{SITE}/new/a.abi3.so", constants=NUMPY_2 + NUMPY_1)
    image.install(
        "old", "1.0", "old/a.cpython-311-x86_64-linux-gnu.so", "old/b.cpython-311-x86_64-linux-gnu.so"
    )
    image.install("new", "1.0", "new/a.abi3.so")
    facts = image.facts()
    assert (facts["packages.old.numpy"], facts["packages.new.numpy"]) == ("1", "2")
    assert "packages.new.python" not in facts, "one for any Python is for none"


def test_the_list_of_files_says_whose_a_module_is(image: Image) -> None:
    image.add(f"{SITE}/flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so", needed=("libcudart.so.12",))
    image.install("flash_attn", "2.8.3", "flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so")
    assert image.facts()["packages.flash-attn.toolkit"] == "12"


def test_what_modules_disagree_on_and_packages_in_two_versions_are_unknown(image: Image) -> None:
    for major in ("11.0", "12"):
        image.add(f"{SITE}/bits/cuda_{major}.so", needed=(f"libcudart.so.{major}",))
    image.install("bits", "1.0", "bits/cuda_11.0.so", "bits/cuda_12.so")
    image.install("twice", "1.0")
    image.install("twice", "2.0")
    facts = image.facts()
    assert facts["packages"] == ("bits", "twice")
    assert facts.keys() & {"packages.bits.toolkit", "packages.twice"} == set()


def test_a_plug_in_for_a_release_of_cuda_decides_nothing(image: Image) -> None:
    image.add(f"{SITE}/onnx/libproviders_cuda.so", needed=("libcudart.so.12",))
    image.install("onnx", "1.0", "onnx/libproviders_cuda.so")
    assert "packages.onnx.toolkit" not in image.facts()


def test_a_c_library_by_the_loader_of_programs(image: Image) -> None:
    image.add("/bin/busybox", interpreter="/lib/ld-musl-x86_64.so.1")
    report = examine_files(image.done(), (set(), 0), architecture="amd64", library_path=[])
    assert report.facts["libc.family"].value == "musl"


def test_a_libcuda_on_the_library_path_wins_over_the_hosts(image: Image) -> None:
    image.add("/usr/local/cuda/compat/libcuda.so.1", soname="libcuda.so.1")
    path = ["/usr/local/cuda/compat"]
    report = examine_files(image.done(), (set(), 0), architecture="amd64", library_path=path)
    assert report.facts["cuda.driver_library"].value == "image"


@pytest.mark.parametrize(
    ("symbols", "abi"),
    [
        ([NEW_ABI], True),
        ([OLD_ABI], False),
        (["_ZN3c106detail14torchCheckFailEPKcS2_jRKSs"], False),
        (["_ZNK3c104Type3strB5cxx11Ev"], True),
        (["_ZN3c106detail14torchCheckFailEPKcS2_jS2_"], None),
        ([NEW_ABI, OLD_ABI], None),
    ],
)
def test_the_cxx_abi_of_symbols(symbols: list[str], abi: bool | None) -> None:
    assert cxx11_abi(symbols) is abi


def test_the_numpy_of_constants() -> None:
    majors = [numpy_major(constants) for constants in (NUMPY_1, NUMPY_2, b"numpy.core.multiarray\0")]
    assert majors == ["1", "2", ""]


def test_a_record_leads_nowhere_else() -> None:
    record = f"{SITE}/x-1.dist-info/RECORD"
    lines = (
        "../../../bin/tool,,\nx/a.so,sha256=1,2\nx/a.py,,\n../../../lib/libx.so.1,,\n"
        + "a" * 5000
        + ".so,,\n"
    )
    assert list(libraries_of_record(record, lines)) == [f"{SITE}/x/a.so", "/opt/env/lib/libx.so.1"]


def test_a_package_without_a_list_of_files_is_known_by_its_directory(image: Image) -> None:
    module = f"{SITE}/mamba_ssm/x.cpython-310-x86_64-linux-gnu.so"
    image.scan.objects[module] = ScannedFile(ElfObject(machine="amd64"))
    image.install("mamba_ssm", "2.0")
    assert image.facts()["packages.mamba-ssm.python"] == "3.10"
