"""Variables that specs, recipes, sites and `extend` leave alone, each with its reason.

Sources: ld.so(8), `unsecvars.h` of glibc; "Environment variables" of CPython's documentation; bash(1); the
documentation of Hydra, Open MPI and Slurm.
"""

from __future__ import annotations

COMMON_LOCALE = "C.UTF-8"
"""The locale that every image has."""

_RUNTIME = "belongs to the runtime"
_USER = "belongs to the user who starts the image"
_LOADER = "decides which libraries programs load"
_PYTHON = "decides which code Python runs"
_SHELL = "decides which code shells run"
_MPI = "decides where MPI finds its programs, or which program starts ranks"
_RANKS = "is set for each rank by what starts it"

# Name → reason.
_NAMES = {
    # glibc loads converters of character sets, and locales, from these.
    **dict.fromkeys(("GCONV_PATH", "GLIBC_TUNABLES", "LOCPATH", "GETCONF_DIR", "NIS_PATH"), _LOADER),
    **dict.fromkeys(("MALLOC_TRACE", "RESOLV_HOST_CONF", "HOSTALIASES"), _LOADER),
    **dict.fromkeys(("PYTHONHOME", "PYTHONUSERBASE", "PYTHONNOUSERSITE", "PYTHONPLATLIBDIR"), _PYTHON),
    **dict.fromkeys(("PYTHONSTARTUP", "PYTHONEXECUTABLE", "PYTHONPYCACHEPREFIX"), _PYTHON),
    **dict.fromkeys(("PYTHONBREAKPOINT", "PYTHONCASEOK", "PYTHONINSPECT", "PYTHON_PRESITE"), _PYTHON),
    **dict.fromkeys(("BASH_ENV", "ENV", "IFS", "SHELLOPTS", "BASHOPTS", "PS4", "PROMPT_COMMAND"), _SHELL),
    **dict.fromkeys(("CDPATH", "ZDOTDIR", "FPATH", "BASH_LOADABLES_PATH"), _SHELL),
    **dict.fromkeys(("HOME", "USER", "LOGNAME", "PWD", "OLDPWD", "SHELL"), _USER),
    **dict.fromkeys(("OPAL_PREFIX", "OPAL_LIBDIR", "OPAL_BINDIR", "PMIX_PREFIX", "PRTE_PREFIX"), _MPI),
    **dict.fromkeys(("OMPI_MCA_mca_base_component_path", "OMPI_MCA_plm_rsh_agent"), _MPI),
    **dict.fromkeys(("PRTE_MCA_plm_ssh_agent", "PMIX_MCA_mca_base_component_path"), _MPI),
    **dict.fromkeys(("I_MPI_HYDRA_BOOTSTRAP", "I_MPI_HYDRA_BOOTSTRAP_EXEC"), _MPI),
    **dict.fromkeys(("PMI_RANK", "PMI_SIZE", "PMI_FD", "PMI_PORT", "PMIX_RANK", "PMIX_NAMESPACE"), _RANKS),
    **dict.fromkeys(("MPI_LOCALNRANKS", "MPI_LOCALRANKID"), _RANKS),
}
# Beginning of names → reason.
_BEGINNINGS = {
    "APPTAINER": _RUNTIME,
    "SINGULARITY": _RUNTIME,
    "ENVBUILD_": _RUNTIME,
    "BASH_FUNC_": _SHELL,
    "LD_": _LOADER,
    "OPAL_": _MPI,
    "HYDRA_": _MPI,
    "OMPI_COMM_WORLD_": _RANKS,
    "SLURM_": _RANKS,
}
# It is a search path, to which a directory may be added.
_FREE = "LD_LIBRARY_PATH"


def reserved_pattern(*, of_host: bool = False) -> str:
    """Return a regular expression of reserved names, for JSON Schema; see `reason_to_reserve`."""
    beginnings = (name for name, why in _BEGINNINGS.items() if not (of_host and why == _MPI))
    names = (name for name, why in _NAMES.items() if not (of_host and why == _MPI))
    return rf"^(?!{_FREE}$)(?:{'|'.join(sorted(beginnings))}|(?:{'|'.join(sorted(names))})$)"


def reason_to_reserve(name: str, *, of_host: bool = False) -> str:
    """Return why nothing may set a variable, as the end of a sentence; empty for other variables.

    `of_host`: a site file sets it for the host's libraries, and says where the host's MPI is.
    """
    if name == _FREE:
        return ""
    of_beginning = (why for beginning, why in _BEGINNINGS.items() if name.startswith(beginning))
    reason = _NAMES.get(name) or next(of_beginning, "")
    return "" if of_host and reason == _MPI else reason


def lacks_locale(name: str, value: str) -> bool:
    """Return whether a variable names a locale that a Debian image has only with `locales-all`."""
    is_locale = name == "LANG" or (name.startswith("LC_") and name.isupper())
    return is_locale and value.lower().replace("-", "") not in ("", "c", "posix", "c.utf8")
