"""The sections of a study's page, one file each.

A file defines ``ORDER``, its place on the page, and ``section(study)``, which returns a Section or None if the study
has nothing to show there. Files are found by name: a new section needs no other edit.
"""

import sys
from importlib import import_module

from holdfast.members import names
from holdfast.report.page import Section
from holdfast.report.study import Study


def sections(study: Study) -> list[Section]:
    """The sections that have something to show, in their order."""
    modules = [import_module(f"{__name__}.{name}") for name in names(sys.modules[__name__])]
    found = [module.section(study) for module in sorted(modules, key=lambda module: module.ORDER)]
    return [section for section in found if section is not None]
