"""Figures in prose, taken from the results.

A page names a figure by a comment right after it:

    takes 150 to 210<!--figure:adam/keras--> times as long

so that the figure is written anew with the results, and no page can say another one. (A
comment before it might begin a line, where Markdown takes it for a block of HTML.) In
place of a new figure a page has a question mark.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

# The measurements of all results, by the benchmark's name.
Results = Mapping[str, Sequence[Mapping[str, Any]]]

_NUMBER = r"\d[\d.,]*"
_MARK = re.compile(rf"(?:{_NUMBER}(?:\s+to\s+{_NUMBER})?|\?)<!--figure:([^>]+)-->")

_AT_ONCE = ", 16 steps at once"
_OURS = "tfs.keras.AdamAsync"
_TABLES = "DistributedEmbedding"
_SYNC = "tfs.keras.SyncReplicas, AdamAsync"
_ASYNC = "asynchronous, AdamAsync"
_MIRRORED = "MultiWorkerMirrored, AdamAsync"
_MIRRORED_ADAM = "MultiWorkerMirrored, Keras Adam"
_DENSE = {"model": "10M parameters in dense layers"}
_EMBEDDING = {"model": "embedding of 500k x 64, 4096 ids"}
_ALL_OF_EACH = "5 of 5 gradients, strict"
_V1_SYNC = "tf_syncrep's SyncReplicas, AdamAsync"
_V1_TENSORFLOW = "TensorFlow's SyncReplicas, Adam"
_V1_TABLE = {"model": "embedding of 1M x 64, 4096 ids"}
_UNBOUNDED = {"max MB/s": 0}
_GAP = "longest gap meanwhile"
_STOPPED = "tf.train.Checkpoint, training stopped"
# Each short name stands for the model, the score that counts, and the prediction
# without a model.
_SCORES = {
    "neumf any": ("NeuMF, any film of each user", "HR@10", "the most popular"),
    "neumf last": ("NeuMF, each user's last film", "HR@10", "the most popular"),
    "mf": ("matrix factorisation with biases", "RMSE", "each film's mean"),
    "dcn": ("DCN V2, all features", "AUC", "each film's share"),
}
_WAYS = {
    "one process": "one process",
    "async": "asynchronous, 2 workers",
    "sync": "synchronous, 2 workers",
    "backup": "synchronous, 2 of 3 workers",
    "growing": "growing tables, one process",
    "growing async": "growing tables, asynchronous, 2 workers",
}


def with_figures(page: str, results: Results) -> str:
    """The page with each figure from the results.

    Raises ValueError: if the page names a figure that does not exist.
    """

    def replace(match: re.Match[str]) -> str:
        name = match[1]
        if name not in FIGURES:
            raise ValueError(f"there is no figure {name!r}; there are {list(FIGURES)}")
        return f"{FIGURES[name](results)}<!--figure:{name}-->"

    return _MARK.sub(replace, page)


def names_in(page: str) -> list[str]:
    """The figures that a page names."""
    return _MARK.findall(page)


def _found(
    results: Results, benchmark: str, contender: str, where: Mapping[str, Any]
) -> Iterator[Mapping[str, Any]]:
    """Measurements of a contender at all points that have these coordinates."""
    found = [
        m
        for m in results[benchmark]
        if m["contender"] == contender and where.items() <= m["point"].items()
    ]
    if not found:
        raise ValueError(f"{benchmark} has no {contender!r} at {dict(where)}")
    yield from found


def _range(values: Sequence[float]) -> str:
    """The lowest and the highest number, in two digits."""

    def show(value: float) -> str:
        rounded = float(f"{value:.2g}")
        if rounded >= 10:
            return f"{rounded:,.0f}"
        return f"{rounded:.1f}" if rounded >= 1 else f"{rounded:.2g}"

    low, high = show(min(values)), show(max(values))
    return low if low == high else f"{low} to {high}"


def _slower(
    benchmark: str, contender: str, other: str, **where: Any
) -> Callable[[Results], str]:
    """How many times as long the other one takes for the same work."""

    def figure(results: Results) -> str:
        others = {
            tuple(m["point"].items()): _seconds(m)
            for m in _found(results, benchmark, other, where)
        }
        ratios = [
            others[point] / _seconds(m)
            for m in _found(results, benchmark, contender, where)
            if (point := tuple(m["point"].items())) in others
        ]
        return _range(ratios)

    return figure


def _seconds(measurement: Mapping[str, Any]) -> float:
    """The time of a measurement; if that counts examples, the time of one example."""
    counts = measurement["counts"] or {}
    return measurement["median"] / counts.get("examples", 1)


def _median(
    benchmark: str, contender: str, scale: float, **where: Any
) -> Callable[[Results], str]:
    """A measurement's median, in units of `scale`."""
    return lambda results: _range(
        [m["median"] / scale for m in _found(results, benchmark, contender, where)]
    )


def _cpu_share(
    benchmark: str, contender: str, other: str, **where: Any
) -> Callable[[Results], str]:
    """The processor time of a contender, as a share of the other one's."""

    def figure(results: Results) -> str:
        others = {
            tuple(m["point"].items()): m["cpu"]
            for m in _found(results, benchmark, other, where)
        }
        return _range(
            [
                m["cpu"] / others[tuple(m["point"].items())]
                for m in _found(results, benchmark, contender, where)
            ]
        )

    return figure


def _calls(contender: str) -> Callable[[Results], str]:
    return lambda results: _range(
        [m["sent"]["calls"] for m in _found(results, "fit_cluster", contender, {})]
    )


def _of_batches() -> dict[str, Callable[[Results], str]]:
    """How much faster one process is than a cluster, by the examples of a batch."""
    found = {}
    for examples in (512, 2048, 8192):
        for at_once, name in (("", ""), (_AT_ONCE, ", 16")):
            found[f"fit/one process, {examples}{name}"] = _slower(
                "fit_cluster",
                f"one process{at_once}",
                f"asynchronous{at_once}",
                examples=examples,
            )
    return found


def _messages(contender: str) -> Callable[[Results], str]:
    return lambda results: _range(
        [
            m["sent"]["messages"]
            for m in _found(results, "embedding_cluster", contender, {})
        ]
    )


def _of_scores(
    model: str, contender: str, name: str, statistic: Callable[[Any], float], shown: str
) -> Callable[[Results], str]:
    """A statistic of one of the scores of trainings; "?" where none was made."""

    def figure(results: Results) -> str:
        for found in results["movielens_scores"]:
            if (found["contender"], found["point"]["model"]) == (contender, model):
                return format(statistic(found["scores"][name]), shown)
        return "?"

    return figure


def _score_figures() -> dict[str, Callable[[Results], str]]:
    """Mean, standard deviation and seconds of each model by each way of training."""
    found = {}
    for short, (model, name, baseline) in _SCORES.items():
        ways = dict(_WAYS)
        if name == "HR@10":
            ways["PyTorch"] = "PyTorch, one process"
            ways["TFRA"] = "TFRA, one process"
        for way, contender in ways.items():
            begin = f"scores/{short}/{way}"
            for what, score, statistic, shown in (
                ("mean", name, statistics.fmean, ".3f"),
                ("sd", name, statistics.stdev, ".3f"),
                ("seconds", "seconds", statistics.median, ".0f"),
            ):
                found[f"{begin}/{what}"] = _of_scores(
                    model, contender, score, statistic, shown
                )
            if name == "HR@10":
                found[f"{begin}/NDCG@10"] = _of_scores(
                    model, contender, "NDCG@10", statistics.fmean, ".3f"
                )
        found[f"scores/{short}/{baseline}"] = _of_scores(
            model, baseline, name, statistics.fmean, ".3f"
        )
    return found


def _seeds(results: Results) -> str:
    (seeds,) = {len(m["samples"]) for m in results["movielens_scores"]}
    return str(seeds)


def _fewer_bytes(results: Results) -> str:
    """How much smaller the changes are than the whole of the largest checkpoint."""
    written = {
        (m["contender"], m["point"]["GB"]): m["counts"]["MB written"]
        for m in results["checkpoint"]
        if m["counts"] and m["point"].items() >= _UNBOUNDED.items()
    }
    size = max(size for _, size in written)
    changed = written["ours, what has changed", size]
    return _range([written["ours, full", size] / changed])


FIGURES: dict[str, Callable[[Results], str]] = {
    # A gradient for some rows of a table, Adam's time over AdamAsync's.
    "adam/keras": _slower("sparse_apply", _OURS, "Keras 3 Adam"),
    "adam/tf_keras": _slower("sparse_apply", _OURS, "tf_keras Adam"),
    "adam/v1": _slower(
        "sparse_apply", "tfs.train.AdamAsyncOptimizer", "tf.compat.v1 Adam"
    ),
    "adam/ms": _median("sparse_apply", _OURS, 1e-3),
    "adam/keras ms": _median("sparse_apply", "Keras 3 Adam", 1e-3),
    "adam/dense": _slower("dense_apply", _OURS, "Keras 3 Adam"),
    # 26 tables.
    "tables/layers": _slower("embedding_cluster", _TABLES, "a layer for each table"),
    "tables/layers, synchronous": _slower(
        "embedding_cluster",
        f"{_TABLES}, SyncReplicas",
        "a layer for each table, SyncReplicas",
    ),
    "tables/tf_keras": _slower(
        "embedding_cluster", _TABLES, "tf_keras, Keras' Embedding and Adam"
    ),
    "tables/messages": _messages(_TABLES),
    "tables/messages of layers": _messages("a layer for each table"),
    # The same by `fit`.
    **_of_batches(),
    "fit/16": _slower(
        "fit_cluster", f"asynchronous{_AT_ONCE}", "asynchronous", examples=512
    ),
    "fit/cpu of 16": _cpu_share(
        "fit_cluster", f"asynchronous{_AT_ONCE}", "asynchronous", examples=512
    ),
    "fit/gRPC": _slower(
        "fit_cluster", "asynchronous", "asynchronous, by gRPC", examples=512
    ),
    "fit/gRPC, synchronous": _slower(
        "fit_cluster", "SyncReplicas", "SyncReplicas, by gRPC", examples=512
    ),
    "fit/cpu of gRPC": _cpu_share(
        "fit_cluster", "asynchronous", "asynchronous, by gRPC", examples=512
    ),
    "fit/cpu of gRPC, synchronous": _cpu_share(
        "fit_cluster", "SyncReplicas", "SyncReplicas, by gRPC", examples=512
    ),
    "fit/calls": _calls("asynchronous"),
    "fit/calls, 16": _calls(f"asynchronous{_AT_ONCE}"),
    "fit/calls, synchronous": _calls("SyncReplicas"),
    "tables/fbgemm": _slower(
        "embedding_cluster",
        "PyTorch, fbgemm's row-wise Adagrad, one process",
        f"{_TABLES}, one process",
    ),
    # Tables that grow, and TFRA's.
    "growing/tfra find": _slower(
        "dynamic_table", "keys found and read", "keys found and read, TFRA"
    ),
    "growing/tfra train": _slower(
        "dynamic_table",
        "keys found, read and moved",
        "keys found, read and moved, TFRA with Adam",
    ),
    # Synchronous training.
    "sync/backup": _slower("sync_backup", "4 of 5 gradients", _ALL_OF_EACH),
    "sync/spares": _slower("sync_backup", "5 of 5 gradients", _ALL_OF_EACH),
    "tls/step": _slower("tls_cluster", "without", "with --tls"),
    "sync/without": _slower("keras_cluster", _ASYNC, _SYNC),
    "sync/mirrored, dense, 2": _slower(
        "keras_cluster", _SYNC, _MIRRORED, **_DENSE, workers=2
    ),
    "sync/mirrored, dense, 4": _slower(
        "keras_cluster", _SYNC, _MIRRORED, **_DENSE, workers=4
    ),
    "sync/mirrored, table": _slower("keras_cluster", _SYNC, _MIRRORED, **_EMBEDDING),
    "sync/mirrored Adam, table": _slower(
        "keras_cluster", _SYNC, _MIRRORED_ADAM, **_EMBEDDING
    ),
    "sync/v1 table": _slower("sync_cluster", _V1_SYNC, _V1_TENSORFLOW, **_V1_TABLE),
    "sync/v1 gRPC": _slower(
        "sync_cluster", _V1_SYNC, f"{_V1_SYNC}, by gRPC", model="six layers of 64 x 64"
    ),
    "sync/v1 dense": _slower(
        "sync_cluster", _V1_SYNC, _V1_TENSORFLOW, model="six layers of 64 x 64"
    ),
    "sync/update ms, 4": _median(
        "sync_latency", "tfs.keras.SyncReplicas", 1e-3, workers=4
    ),
    "async/update ms, 4": _median("sync_latency", "asynchronous", 1e-3, workers=4),
    "sync/loss": _median(
        "sync_staleness", "tfs.keras.SyncReplicas", 1, **{"learning rate": 32.0}
    ),
    "async/loss": _median(
        "sync_staleness", "asynchronous", 1, **{"learning rate": 32.0}
    ),
    # Checkpoints.
    "checkpoint/gap": _slower("checkpoint", _GAP, _STOPPED, **_UNBOUNDED),
    "checkpoint/gap ms": _median("checkpoint", _GAP, 1e-3, **_UNBOUNDED),
    "checkpoint/steps": _slower(
        "checkpoint", "a step meanwhile", "a step", **_UNBOUNDED
    ),
    "checkpoint/slow steps": _slower(
        "checkpoint", "a step meanwhile", "a step", **{"max MB/s": 50}
    ),
    "checkpoint/steps beside plain writes": _slower(
        "checkpoint",
        "a step while the bytes are written alone",
        "a step",
        **_UNBOUNDED,
    ),
    "checkpoint/fewer bytes": _fewer_bytes,
    # Scores on MovieLens.
    **_score_figures(),
    "scores/seeds": _seeds,
}
