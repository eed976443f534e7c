"""Choice between hypotheses about the shift, from nothing at all to a shift of many features."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sees_torch.data import Source, Target
from sees_torch.data.samples import is_population
from sees_torch.errors import IdentificationError
from sees_torch.matching.match import Match, chosen_again, has_graph
from sees_torch.matching.parameters import Parameters
from sees_torch.matching.search import MOST_ENTRIES, SCREENED, Search
from sees_torch.matching.sees_em import SEESem
from sees_torch.statistics.products import MEMORY


@dataclass(frozen=True)
class Auto(Parameters):
    """The simplest hypothesis that the data do not speak against.

    Compares, by a two-sample score: nothing shifted; labels only; labels and one, two, ... features
    (SEES-em); features alone; covariates only; labels and many features (SEES-c). The simplest one
    within 1.5 standard errors of the best, or within 2 % of its score (so much p(y|x) may be wrong
    by), is chosen if it is as clearly ahead of "nothing"; all are kept as evidence. When even more
    than three features improve the score, the shift is not sparse, and one of the last two
    hypotheses is chosen. The choice says which features moved. The gap is an average over all
    hypotheses, each by its odds given the data beyond those of its special cases, since a number
    need not wait for the certainty that a name takes. Where the data hardly decide their weights
    the last one shares it by its errors; what none explains is the mean of labels only, covariates
    only and the last one, with an allowance for labels that drift given the features; what is
    known no better than from a few labelled rows is mostly taken for chance. There is no average if
    nothing shifted, less than 0.7 standard errors behind the best, with every feature explained and
    no shift that could hide, or if gradients are asked for. Of more than SCREENED distinct rows, a
    part first tells which feature sets are worth a look at all. Of so many rows, or more than
    MOST_ENTRIES pairs of a level and a label, shifts of many features are only looked at where the
    others leave some feature unexplained; of MOST_UNKNOWNS pairs, or of more pairs than rows (and
    than FEW_ENTRIES), not at all.

    Args:
        memory_budget: bytes that intermediate tensors may take, 256 MiB by default.
    """

    memory_budget: int | None = None

    @property
    def name(self) -> str:
        return "auto"

    def match(self, source: Source, target: Target) -> Match:
        """The weights of the chosen hypothesis, with the comparison as evidence."""
        # Shares jump where a hypothesis enters: a gradient is that of the chosen one alone.
        open_to_average = not has_graph(source, target) and not is_population(source, target)
        with torch.no_grad():
            search = Search(source, target, self.memory_budget or MEMORY)
            search.add_nothing()
            search.add_tables(None)
            misfit, possible = search.misfit(), search.is_dense_cheap()
            dense = possible and search.is_dense()
            hidden = open_to_average and search.doubt_nothing()
            moved = misfit > 1 or search.is_moved() or hidden
            # Of very many rows the misfit says whether more features moved, and costs far less.
            cheap = max(len(source), len(target)) <= SCREENED
            cheap = cheap and search.is_dense_cheap(MOST_ENTRIES)
            if moved and possible and (dense or misfit > 1 or cheap):
                search.add_dense_path()
            average = moved and open_to_average
            found = search.choose(dense, max(misfit, 1.0) ** 2 if average else None)
        return chosen_again(found, source, target)


def choose_tables(method: SEESem, source: Source, target: Target) -> Match:
    """The best table on a number of features that is given, or chosen as well."""
    d = len(source.schema.columns)
    search = Search(source, target, method.memory, method.shrinkage)
    if method.sparsity == "auto":
        search.add_nothing()
        search.add_tables(None)
    else:
        if method.sparsity > d:
            raise IdentificationError(
                f"sparsity={method.sparsity} but there are {d} features: at most {d} can shift."
            )
        search.add_tables(method.sparsity)
    return search.choose()
