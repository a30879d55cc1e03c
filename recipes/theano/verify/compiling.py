"""Import Theano so that each process compiles in a directory of its own."""

import atexit
import importlib
import os
import shutil
import tempfile
import types


def imported() -> types.ModuleType:
    """Return the module; what it compiles, quickly, is removed at the end of the process."""
    directory = tempfile.mkdtemp(prefix="theano-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    # Theano reads its flags when it is imported. Processes that share a directory wait for each other.
    flags = {"base_compiledir": directory, "device": "cpu", "floatX": "float64", "gcc.cxxflags": "-O0"}
    os.environ["THEANO_FLAGS"] = ",".join(f"{name}={value}" for name, value in flags.items())
    return importlib.import_module("theano")
