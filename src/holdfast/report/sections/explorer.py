"""The map of features along the attack."""

from holdfast.report.explorer import explorer
from holdfast.report.page import Section
from holdfast.report.study import Study

ORDER = 33


def section(study: Study) -> Section | None:
    """The map of the first seed of each model."""
    found = explorer({title: runs[0] for title, runs in study.analyzed().items()})
    return None if found is None else Section(id="map", title="Map of features", explorers=[found])
