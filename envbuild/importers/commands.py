"""The commands of installers and of builds: what their words mean."""

from __future__ import annotations

import re

APT_OPTION_WITH_VALUE = re.compile(r"-[toc]|--(?:target-release|default-release|option)")
PIP_OPTION_WITH_VALUE = re.compile(
    r"-[rcifetpCbP]|--(?:requirements?|constraints?|(?:extra-)?index-url|(?:default-)?index|find-links|editable"
    r"|trusted-host|allow-insecure-host|target|prefix|root(?:-user-action)?|timeout|(?:resume-)?retries"
    r"|progress-bar|no-binary|only-binary|python(?:-version|-platform)?|cache-dir|proxy|cert|client-cert|header"
    r"|password|token|auth|username|keyring-provider|src|log|abi|implementation|platform|report|exists-action"
    r"|upgrade-strategy|upgrade-package|reinstall-package|config-settings?|global-option|build-option"
    r"|install-option|build-constraints?|overrides?|use-feature|use-deprecated|group|extra|index-strategy"
    r"|torch-backend|exclude-newer|resolution|prerelease|link-mode|config-file|directory|project)"
)
IGNORED_PIP_OPTION = re.compile(
    r"-[UIqvy]+|--(?:no-cache(?:-dir)?|upgrade|quiet|system|break-system-packages|root-user-action|timeout"
    r"|(?:resume-)?retries|progress-bar|force-reinstall|ignore-installed|user|prefer-binary|no-build-isolation"
    r"|no-warn-script-location|disable-pip-version-check|compile-bytecode|only-binary|verbose|no-input|cache-dir)"
)
CONDA_OPTION_WITH_VALUE = re.compile(
    r"-[ncpfr]|--(?:name|channel|prefix|root-prefix|file|solver|experimental-solver|platform|repodata-fn|revision)"
)

_PATH = r"(?:\S*/)?"
INSTALL = re.compile(
    rf"{_PATH}(?:(?P<apt>apt(?:-get|itude)?)|(?:python[\d.]* (?:-\S+ )*-m )?pip[\d.]*|uv pip)"
    r"(?: \S+)*? install(?: |$)"
)
CONDA_INSTALL = re.compile(
    rf"{_PATH}(?:conda|mamba|micromamba)(?: env)?(?: -\S+)* (?:install|create|update)(?: |$)"
)
OTHER_INSTALL = re.compile(
    rf"{_PATH}(?:(?P<family>apk|dnf|microdnf|tdnf|yum|zypper|pacman)(?: -\S+)*"
    r" (?:add|in|install|localinstall|group-?install|group install|-Sy?u?)(?: |$))"
)
PROJECT_INSTALL = re.compile(rf"{_PATH}(?:poetry|pdm|uv)(?: -\S+)* (?:install|sync)(?: .*)?")
REMOVAL = re.compile(
    rf"{_PATH}(?:(?P<apt>apt(?:-get|itude)?)(?: -\S+)* (?:remove|purge|autoremove)"
    r"|(?:(?:python[\d.]* (?:-\S+ )*-m )?pip[\d.]*|uv pip)(?: -\S+)* uninstall)(?: |$)"
)
# Words in front of a command that change nothing of what it installs.
PREFIX_OF_OTHERS = re.compile(
    rf"(?:(?:sudo|time|nice|env|command|exec|xvfb-run)(?: -\S+)* |{_PATH}(?:conda|mamba|micromamba) run"
    r"(?: (?:-[np]|--name|--prefix) \S+| --\S+| -\S+)* |--\S+ )+"
)
SETUP_OF_PYTHON = re.compile(
    r".*(?:(?:mini|ana)conda|miniforge|mambaforge|micromamba|micro\.mamba|get-pip\.py|astral\.sh/uv|uv/install).*",
    re.IGNORECASE,
)
DOWNLOAD = re.compile(rf"{_PATH}(?:wget|curl|git clone|git -\S+ clone|aria2c)(?: |$).*")
BUILD_STEP = re.compile(
    rf"{_PATH}(?:tar|unzip|gunzip|bunzip2|xz|configure|autogen\.sh|bootstrap|autoreconf|automake|cmake|make|gmake"
    r"|ninja|meson|git (?:checkout|submodule|fetch|-C)|patch|sed|cp|mv|strip)(?: |$).*"
    r"|\./\S*configure(?: |$).*"
)
TRIVIAL = re.compile(
    rf"{_PATH}(?:apt(?:-get|itude)?(?: -\S+(?: \S+=\S+)?)* (?:update|(?:dist-|full-)?upgrade|(?:auto)?clean)"
    r"|rm(?: -\S+)*(?: (?:/(?:var/(?:lib/apt|cache|tmp|log)|tmp|root/\.cache)|~/\.cache)\S*)+$"
    r"|rm(?: -\S+)*(?: [^-\s/$~][^\s/$~]*)+$"
    r"|rm(?: -\S+)*(?: \S+\.(?:tgz|tar(?:\.\w+)?|gz|bz2|xz|zip|deb|rpm|run))+$"
    r"|apt-mark|find \S+(?: -\S+(?: [^-\s]\S*)*)* -delete$|[^\s/]+ --version$|python[\d.]* -m ensurepip"
    r"|(?:update-alternatives|ln)(?: -\S+)*(?: \S*(?:python|pip|python-config)[\d.]*|/usr/bin/?| \d+)+$"
    r"|(?:apk|dnf|microdnf|yum|zypper)(?: -\S+)* (?:clean|update|upgrade|makecache|refresh|ref|check-update)"
    r"|(?:conda|mamba|micromamba)(?: -\S+)* (?:clean|init|config|activate|deactivate|info|list|shell)"
    r"|activate"
    r"|pip[\d.]* (?:cache|list|check|show|freeze|config|--version)|python[\d.]* (?:-m venv|--version|-V$)"
    r"|git (?:lfs install|config)|nvidia-smi|test|which|printf|sleep|date|env|type|stat|file|nproc|uname"
    r"|set|true|false|:|echo|ldconfig|exit|cd|pwd|ls|umask|hash|virtualenv|mkdir|chmod|chown|touch|pushd|popd|unset|alias"
    r"|useradd|groupadd|adduser|addgroup|usermod|chsh|shopt|trap|return|wait|locale|\[\[?|source|\.)(?: |$).*"
)
# They only show or check the output of another command.
FILTER = re.compile(rf"{_PATH}(?:sort|uniq|head|tail|grep|egrep|wc|cut|tr|less|(?:md5|sha\d+)sum)")
_MPI_RELEASE = re.compile(r"(?<![a-z])(openmpi|mpich)-v?(\d+(?:\.\d+)+)")
_MPI_PROJECT = re.compile(r"/(ompi|openmpi|mpich)(?:\.git)?(?:/archive/\S*?v?(\d+(?:\.\d+)+)|(?=[\s/]|$))")
_MPI_BRANCH = re.compile(r"\s(?:-b|--branch)[ =](?:tags/)?v?(\d+(?:\.\d+)+)")

_NOT_DEBIAN = (
    "base images are Debian: name its packages under `packages.system`; `apt-cache search WORD` finds them"
)
_PROJECT = (
    "write its packages to a file: `envbuild init -r pyproject.toml`, or `uv export -o requirements.txt`"
)
ONLY_ACTIVATES = re.compile(
    r"(?:\.|source) \S*(?:conda|mamba|activate)\S*(?: .*)?|(?:conda|mamba|micromamba) activate(?: .*)?"
)
_RUN = "an image runs the command that it is given"
_LABEL = "set it under `labels`"
EARLIER = "only the last stage makes the image"
CHANNELS = "wheels come from the index of Python packages, all else from Debian"
ADDRESSES = "addresses are settings of the site, not of a spec"
HASHES = "hashes are not taken over, here and below; `envbuild init -r FILE` keeps them"
REASONS = {
    "earlier stage": EARLIER,
    "left out": "an image does not get it: name its packages under `packages.python`",
    "LABEL": _LABEL,
    "%labels": _LABEL,
    "%help": "set it under `summary`",
    **dict.fromkeys(("CMD", "ENTRYPOINT", "%runscript", "%startscript", "%apprun"), _RUN),
    "%files": "it comes from another stage or image: keep files beside the spec",
    **dict.fromkeys(("%setup", "%pre"), "it runs outside of the image"),
    "%test": "the jobs of the recipes test an image",
    "channels:": CHANNELS,
    "prefix:": "an image has its environment in /opt/env",
    **dict.fromkeys(("apk", "dnf", "microdnf", "tdnf", "yum", "zypper", "pacman", "rpm"), _NOT_DEBIAN),
    "spack": "name its packages under `packages.system` or `packages.python`; a program that only Spack has"
    " needs a recipe with `source`",
    **dict.fromkeys(("poetry", "pdm", "pipenv", "uv", "pixi", "hatch"), _PROJECT),
    **dict.fromkeys(("conda", "mamba", "micromamba"), "name its packages under `packages.python`"),
    **dict.fromkeys(("R", "Rscript"), "name Debian's packages of R under `packages.system`: `r-cran-NAME`"),
    **dict.fromkeys(
        ("add-apt-repository", "apt-key", "apt-add-repository"),
        "Debian's archive is the only source of packages",
    ),
    **dict.fromkeys(
        ("make", "cmake", "ninja", "configure", "wget", "curl", "git"),
        "a program that is built needs a recipe with `source`; keep a downloaded file beside the spec",
    ),
}
SECONDARY = frozenset(
    (
        EARLIER,
        _LABEL,
        _RUN,
        CHANNELS,
        ADDRESSES,
        HASHES,
        *(REASONS[key] for key in ("%help", "%test", "prefix:")),
    )
)
"""Reasons for parts that hardly change how an image works."""


def mpi_source(text: str) -> tuple[str, str]:
    """Return the MPI that a command downloads, and its version; empty for other commands."""
    if not DOWNLOAD.fullmatch(text) and "://" not in text:
        return "", ""
    if releases := list(_MPI_RELEASE.finditer(text)):
        return releases[-1][1], releases[-1][2]  # the file's name; directories above may name a series
    match = _MPI_PROJECT.search(text)
    if match is None:
        return "", ""
    branch = _MPI_BRANCH.search(text)
    return "openmpi" if match[1] == "ompi" else match[1], match[2] or (branch[1] if branch else "")
