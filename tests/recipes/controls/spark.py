"""spark: its jobs, spoiled."""

from functools import partial

from tests.recipes.spoil import RECLUSES, control

_spark = partial(control, "spark", "sums")
_logistic = partial(control, "spark", "logistic")

CONTROLS = (
    _spark("singletons", "D0/D6.spark D6.spark/sum D6.spark/gathered D6.spark/workers", before=RECLUSES),
    _spark("own share alone", "D6.spark/gathered", ('sum(seen["shares"])', 'seen["shares"][0]')),
    _spark("a rank that calls itself 0", "D0/D6.spark", ('rank=seen["worker"]', "rank=0")),
    _spark(
        "one partition alone",
        "D6.spark/sum",
        (").sum()", ").mapPartitionsWithIndex(lambda at, part: () if at else part).sum()"),
    ),
    _spark("one worker alone", "D6.spark/workers", ('set(seen["workers"])', 'seen["workers"][:1]')),
    _spark("hosts of one's own", "D6.spark/hosts", ('sorted(set(seen["hosts"]))', 'seen["worker"]')),
    _logistic("singletons", "D0/D6.logistic D6.logistic/workers D6.logistic/holders", before=RECLUSES),
    _logistic(
        "a fit to a share of the rows",
        "D6.logistic/off_newton_ppm D6.logistic/fit-as-one-rank D6.logistic/loss-as-one-rank",
        ("solver.fit(frame)", "solver.fit(frame.limit(ROWS // place.size))"),
    ),
    _logistic(
        "all rows on one worker",
        "D6.logistic/holders",
        ("createDataFrame(spread,", "createDataFrame(spread.coalesce(1),"),
    ),
    _logistic("one worker alone", "D6.logistic/workers", ('set(seen["workers"])', 'seen["workers"][:1]')),
    _logistic("own loss alone", "D6.logistic/loss-as-one-rank", ('sum(seen["losses"])', 'seen["losses"][0]')),
    _logistic("fewer rows", "D6.logistic/rows", ("FEATURES = 240, 3", "FEATURES = 239, 3")),
)
