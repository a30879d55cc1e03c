"""One module for each verb, and modules that verbs share.

Each is imported on first use (PEP 562), so the command line can import this package at the top of its files,
while help and completion load none of it.
"""

import importlib.util
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envbuild.workflows import activity as activity
    from envbuild.workflows import arguments as arguments
    from envbuild.workflows import bench as bench
    from envbuild.workflows import bench_bisect as bench_bisect
    from envbuild.workflows import bench_page as bench_page
    from envbuild.workflows import bench_report as bench_report
    from envbuild.workflows import build as build
    from envbuild.workflows import cache as cache
    from envbuild.workflows import check as check
    from envbuild.workflows import choices as choices
    from envbuild.workflows import collect as collect
    from envbuild.workflows import configuration as configuration
    from envbuild.workflows import doctor as doctor
    from envbuild.workflows import edit as edit
    from envbuild.workflows import explain as explain
    from envbuild.workflows import export as export
    from envbuild.workflows import export_pods as export_pods
    from envbuild.workflows import export_script as export_script
    from envbuild.workflows import extend as extend
    from envbuild.workflows import fetch as fetch
    from envbuild.workflows import fit as fit
    from envbuild.workflows import forecast as forecast
    from envbuild.workflows import forecast_page as forecast_page
    from envbuild.workflows import hosting as hosting
    from envbuild.workflows import images as images
    from envbuild.workflows import import_file as import_file
    from envbuild.workflows import init as init
    from envbuild.workflows import inputs as inputs
    from envbuild.workflows import inspect as inspect
    from envbuild.workflows import kernel as kernel
    from envbuild.workflows import launch as launch
    from envbuild.workflows import layer as layer
    from envbuild.workflows import lock as lock
    from envbuild.workflows import members as members
    from envbuild.workflows import module as module
    from envbuild.workflows import module_changes as module_changes
    from envbuild.workflows import names as names
    from envbuild.workflows import nodes as nodes
    from envbuild.workflows import observe as observe
    from envbuild.workflows import observe_page as observe_page
    from envbuild.workflows import packages as packages
    from envbuild.workflows import pages as pages
    from envbuild.workflows import plan as plan
    from envbuild.workflows import pull as pull
    from envbuild.workflows import push as push
    from envbuild.workflows import push_oci as push_oci
    from envbuild.workflows import recipe_check as recipe_check
    from envbuild.workflows import recipe_new as recipe_new
    from envbuild.workflows import recipes as recipes
    from envbuild.workflows import references as references
    from envbuild.workflows import reproduce as reproduce
    from envbuild.workflows import sbom as sbom
    from envbuild.workflows import schema as schema
    from envbuild.workflows import settings as settings
    from envbuild.workflows import sign as sign
    from envbuild.workflows import sites as sites
    from envbuild.workflows import specs as specs
    from envbuild.workflows import status as status
    from envbuild.workflows import submit as submit
    from envbuild.workflows import test as test
    from envbuild.workflows import worker as worker


def __getattr__(name: str) -> ModuleType:
    full_name = f"{__name__}.{name}"
    if importlib.util.find_spec(full_name) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(full_name)
