"""Saved views of MLflow's list of runs: columns, order, charts. MLflow keeps a shared view as a tag of the
experiment, and links name it. A link with its own filter shows only the filter, not the view.
"""

from collections.abc import Sequence

from atelier.engine.config.base import Json, JsonObject

TAG = "mlflow.sharedViewState."
MODELS = "atelier"  # the view of all trained models
WHOLE = "atelier.whole"  # tag of the curves to compare: a role's whole training, not only its trunk
COLUMNS = (
    "metrics.`score/loss`",
    "metrics.`score/loss_vs_control`",
    "metrics.`score/bits_per_byte`",
    "metrics.`eval/loss`",
    "params.`role`",
    "params.`optim.lr`",
    "params.`train.steps`",
    "params.`train.seed`",
)


def models_view() -> JsonObject:
    """Trained models with their scores, the lowest loss first."""
    view = _view(f"tags.`{WHOLE}` = 'true'", "metrics.`score/loss`", is_ascending=True)
    return {**view, "selectedColumns": list[Json](COLUMNS)}


def sweep_view(sweep: str, keys: Sequence[str], metric: str, *, is_lower_better: bool) -> JsonObject:
    """The points of a sweep, the best first, and a chart of `metric` by each swept key."""
    where = f"tags.`atelier.sweep` = '{sweep}' AND tags.`atelier.kind` = 'flow'"
    section: JsonObject = {
        "uuid": "sweep",
        "name": "sweep",
        "display": True,
        "isReordered": True,
        "deleted": False,
        "isGenerated": False,
    }
    charts: list[Json] = [
        {
            "uuid": f"sweep-{number}",
            "type": "SCATTER",
            "metricSectionId": "sweep",
            "runsCountToCompare": 100,
            "deleted": False,
            "isGenerated": False,
            "xaxis": {"key": key, "type": "PARAM"},
            "yaxis": {"key": metric, "type": "METRIC"},
        }
        for number, key in enumerate(keys)
    ]
    return {
        **_view(where, f"metrics.`{metric}`", is_ascending=is_lower_better),
        "selectedColumns": [f"metrics.`{metric}`", *(f"params.`{key}`" for key in keys)],
        "compareRunCharts": charts,
        "compareRunSections": [section],
        "isAccordionReordered": True,
    }


def _view(where: str, order: str, *, is_ascending: bool) -> JsonObject:
    return {
        "searchFilter": where,
        "orderByKey": order,
        "orderByAsc": is_ascending,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "modelVersionFilter": "All Runs",
        "datasetsFilter": [],
    }
