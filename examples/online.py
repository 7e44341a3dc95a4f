"""A model that is served while it is trained on a stream: MovieLens, day by day.

The ratings of MovieLens-100K come in the order of their times, and the model says of
each, before it is trained, whether it has four stars or more. Tables of users and films
grow: a row comes with the first rating, and goes when no rating has named it for long.

The days before `--first-day` are trained at once. From then on three followers are
asked about each rating before it is trained:

- `online` follows a `tfs.keras.Publisher` that publishes every `--every-secs` seconds;
- `daily` gets the model at the end of each day, like one that is exported every night;
- `never` keeps the model of the first morning.

    tf-syncrep launch --workers 2 --ps 2 examples/online.py

Time is compressed: `--rate` ratings come in a second, so that a day is over in seconds.
A follower is best in a process of its own, on another machine. These are in the one
that trains, which asks them and then trains what it asked about.

The data is fetched as by `movielens.py`, which says more about it.
"""

from __future__ import annotations

import argparse
import pathlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import metrics
import movielens_files
import numpy as np
import ps_cluster
import tensorflow as tf
from matplotlib.figure import Figure

import tf_syncrep as tfs

# A rating waits for as many others before it is trained. There is no hurry with those
# that are trained before anybody asks.
BATCH, EARLY_BATCH = 8, 32
# Far more than there are ids. A row takes no memory before a rating names its id.
MOST_ROWS = 100_000
# The AUC is drawn of so many ratings, up to each tenth of them.
WINDOW = 2000


class Stream:
    """The ratings in the order of their times, in batches that are each of one day."""

    signature = (
        {name: tf.TensorSpec([None], tf.int64) for name in ("user", "film")},
        tf.TensorSpec([None, 1], tf.float32),
    )

    def __init__(self, data: movielens_files.MovieLens):
        order = np.argsort(data.times, kind="stable")
        self._ids = {
            "user": data.users[order].astype(np.int64),
            "film": data.items[order].astype(np.int64),
        }
        self._liked = (data.ratings[order] >= 4).astype(np.float32)[:, np.newaxis]
        days, begins = np.unique(data.times[order] // 86400, return_index=True)
        self.dates = days.astype("datetime64[D]")
        self._begins = np.append(begins, len(order))

    def batches(
        self, day: int, size: int = BATCH
    ) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
        """Yields ids, and whether the user liked the film, of the ratings of a day."""
        end = self._begins[day + 1]
        for begin in range(self._begins[day], end, size):
            some = slice(begin, min(begin + size, end))
            yield {name: x[some] for name, x in self._ids.items()}, self._liked[some]

    def before(self, day: int) -> tf.data.Dataset:
        """Returns all batches before a day."""
        return tf.data.Dataset.from_generator(
            lambda: (x for d in range(day) for x in self.batches(d, EARLY_BATCH)),
            output_signature=self.signature,
        )


class Answers:
    """What followers have said of each rating, and by which version."""

    def __init__(self, followers: Mapping[str, tfs.serving.Follower]):
        self.names = list(followers)
        self._followers = followers
        self._said: list[dict[str, np.ndarray]] = []

    def ask(self, day: int, ids: dict[str, np.ndarray], liked: np.ndarray) -> None:
        """Asks all followers about the ratings of a batch."""
        said = {"day": day, "batch": len(self._said), "liked": liked[:, 0]}
        tensors = {name: tf.constant(x) for name, x in ids.items()}
        for name, follower in self._followers.items():
            with follower.reading() as model:
                (scores,) = model.signatures["serving_default"](**tensors).values()
                version, updates = follower.version, follower.updates
            said |= {name: scores.numpy()[:, 0]}
            said |= {f"{name}_version": version, f"{name}_updates": updates}
        self._said.append({x: np.broadcast_to(y, len(liked)) for x, y in said.items()})

    def columns(self) -> dict[str, np.ndarray]:
        """Returns what was said of all ratings, in their order.

        `<follower>` has the scores, and `<follower>_behind` how many ratings had come
        that the version does not know.
        """
        names = self._said[0]
        found = {x: np.concatenate([said[x] for said in self._said]) for x in names}
        # The first version knows all that came before the first batch.
        first = min(found[f"{name}_updates"].min() for name in self.names)
        for name in self.names:
            missing = found["batch"] - (found[f"{name}_updates"] - first)
            found[f"{name}_behind"] = BATCH * missing
        return found


class Nights(tf.keras.callbacks.Callback):
    """Publishes the model at the end of each day, and tells how the day went."""

    # Under ParameterServerStrategy, Keras 2 asks this of callbacks.
    _supports_tf_logs = True

    def __init__(
        self,
        dates: np.ndarray,
        first_day: int,
        publisher: tfs.keras.Publisher,
        follower: tfs.serving.Follower,
        answers: Answers,
    ):
        super().__init__()
        self.day = first_day
        self._dates, self._answers = dates, answers
        self._publisher, self._follower = publisher, follower

    def on_epoch_end(self, epoch: int, logs: dict | None = None):
        """An epoch is a day."""
        published = self._publisher.publish(wait=True)
        self._follower.wait(published.manifest.number, secs=60)
        found = self._answers.columns()
        of_day = found["day"] == self.day
        print_line(str(self._dates[self.day]), self._answers.names, found, of_day)
        self.day += 1


def print_head(names: list[str]) -> None:
    """Prints what the columns of `print_line` are."""
    print(" " * 21, "AUC".ljust(9 * len(names)), "ratings that were not known")
    print(f"{'':10}  ratings  ", *(f"{x:>8}" for x in 2 * names), flush=True)


def print_line(
    title: str, names: list[str], found: dict[str, np.ndarray], chosen: np.ndarray
) -> None:
    """Prints the AUC of each follower on some ratings, and how far it was behind."""
    aucs, behind = [], []
    for name in names:
        aucs.append(metrics.auc(found["liked"][chosen], found[name][chosen]))
        behind.append(int(np.median(found[f"{name}_behind"][chosen])))
    cells = [f"{x:8.4f}" for x in aucs] + [f"{x:8,d}" for x in behind]
    print(f"{title:10}  {chosen.sum():7,d}  ", *cells, flush=True)


def build_model(options: argparse.Namespace) -> tf.keras.Model:
    """Makes a model of `{"user": ids, "film": ids}` that gives the odds' logarithm."""
    size = tfs.keras.Dynamic(MOST_ROWS, unused_for=options.unused_for)
    # Rows, of which each is trained now and then, take larger steps than the rest.
    adam = tfs.keras.AdamAsync(options.learning_rate)
    tables = {
        name: tfs.keras.TableConfig(f"{name}s", size, options.width, optimizer=adam)
        for name in ("user", "film")
    }
    ids = {name: tf.keras.Input((), dtype="int64", name=name) for name in tables}
    embedding = tfs.keras.DistributedEmbedding(
        {name: tfs.keras.FeatureConfig(name, table) for name, table in tables.items()},
        name="tables",
    )
    vectors = list(embedding(ids).values())
    features = [*vectors, tf.keras.layers.Multiply()(vectors)]
    score = tf.keras.layers.Dense(1, name="score")
    model = tf.keras.Model(ids, score(tf.keras.layers.Concatenate()(features)))
    model.compile(
        tfs.keras.TableOptimizers(tfs.keras.AdamAsync(options.learning_rate / 20)),
        loss=tf.keras.losses.BinaryCrossentropy(from_logits=True),
    )
    return model


def train(strategy: Any, stream: Stream, options: argparse.Namespace) -> Answers:
    """Trains, publishes and asks; returns what was answered."""
    with strategy.scope():
        tf.keras.utils.set_random_seed(options.seed)
        model = build_model(options)
    tfs.keras.fit(model, stream.before(options.first_day), verbose=2)

    folders = {name: options.output / name for name in ("online", "daily")}
    always = tfs.keras.Publisher(
        folders["online"],
        every_secs=options.every_secs,
        full_every=1000,  # Nobody begins to follow later, and needs a SavedModel.
        model=model,
    )
    nightly = tfs.keras.Publisher(folders["daily"], model=model)
    numbers = [x.publish(wait=True).manifest.number for x in (always, nightly)]
    with (
        tfs.serving.Follower(folders["online"], poll_secs=0.05) as online,
        tfs.serving.Follower(folders["daily"]) as daily,
        tfs.serving.Follower(folders["daily"]) as never,
    ):
        followers = {"online": online, "daily": daily, "never": never}
        online.wait(numbers[0], secs=60)
        daily.wait(numbers[1], secs=60)
        never.wait(numbers[1], secs=60)
        never.close()  # It goes on answering.
        answers = Answers(followers)
        nights = Nights(stream.dates, options.first_day, nightly, daily, answers)

        def ratings_of_the_day() -> Iterator[Any]:
            begin = time.monotonic()
            for number, (ids, liked) in enumerate(stream.batches(nights.day)):
                due = begin + number * BATCH / options.rate
                time.sleep(max(0.0, due - time.monotonic()))
                answers.ask(nights.day, ids, liked)
                yield ids, liked

        ratings = tf.data.Dataset.from_generator(
            ratings_of_the_day, output_signature=stream.signature
        )
        print_head(answers.names)
        tfs.keras.fit(
            model, ratings, epochs=options.days, callbacks=[always, nights], verbose=0
        )
        print_costs(online, model)
    return answers


def print_costs(follower: tfs.serving.Follower, model: tf.keras.Model) -> None:
    """Prints what was sent to a follower, and what became of the tables."""
    sent, tables = follower.numbers(), model.get_layer("tables").table_stats()
    print(
        f"online: {sent['deltas']:,.0f} publications of {sent['rows']:,.0f} rows, "
        f"{sent['bytes'] / 1e6:.1f} MB; requests waited {1e3 * sent['apply_secs']:.1f} "
        f"ms for the last one. {sent['failures']:.0f} failures."
    )
    for name, table in tables.items():
        print(f"{name}: {table['rows']:,} rows, {table['evicted']:,} evicted")


def plot(found: dict[str, np.ndarray], names: list[str], path: pathlib.Path) -> None:
    """Draws AUC, and what versions did not know, over the ratings as a PNG."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    auc_axes, behind_axes = figure.subplots(2, sharex=True, height_ratios=[3, 2])
    liked = found["liked"]
    ends = np.arange(min(WINDOW, len(liked)), len(liked) + 1, WINDOW // 10)
    for name, colour in zip(names, ("tab:blue", "tab:orange", "0.5"), strict=True):
        windows = [slice(max(0, end - WINDOW), end) for end in ends]
        aucs = [metrics.auc(liked[some], found[name][some]) for some in windows]
        whole = metrics.auc(liked, found[name])
        auc_axes.plot(ends, aucs, color=colour, label=f"{name}: {whole:.3f} in all")
        behind = np.maximum(found[f"{name}_behind"], 1)  # The axis is of logarithms.
        behind_axes.plot(behind, color=colour, linewidth=1)
    auc_axes.set_ylabel(f"AUC of the last {WINDOW:,}")
    auc_axes.set_title(
        "MovieLens-100K, each rating predicted before it is trained", loc="left"
    )
    auc_axes.legend(frameon=False)
    behind_axes.set_yscale("log")
    behind_axes.set_ylabel("ratings not known")
    behind_axes.set_xlabel("ratings since the first morning")
    behind_axes.xaxis.set_major_formatter("{x:,.0f}")
    for axes in (auc_axes, behind_axes):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def parse_options() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description="Trains on a stream of ratings, and serves what it has learned."
    )
    add, positive = parser.add_argument, ps_cluster.positive
    add("--data", type=pathlib.Path, help="a folder that has MovieLens-100K already")
    add("--first-day", type=positive, default=100, help="days that are trained at once")
    add("--days", type=positive, default=30, help="days that come as a stream")
    add("--rate", type=float, default=50, help="ratings a second")
    add("--every-secs", type=float, default=0.2, help="how often to publish")
    add("--unused-for", type=positive, default=1500, help="batches until a row goes")
    add("--width", type=positive, default=16, help="elements of a vector")
    add("--learning-rate", type=float, default=2e-2, help="of tables")
    add("--seed", type=int, default=0)
    add("--output", type=pathlib.Path, default="build/online")
    return parser.parse_args()


def main() -> None:
    """Trains and serves; prints and draws who was right how often."""
    options = parse_options()
    # This comes before anything is fetched, since there may be no cluster.
    strategy, _ = ps_cluster.connect(
        "tf-syncrep launch --workers 2 --ps 2 examples/online.py"
    )
    folder = options.data or movielens_files.fetch(options.output / "data")
    stream = Stream(movielens_files.read(folder))
    if options.first_day + options.days > len(stream.dates):
        raise SystemExit(
            f"--first-day and --days must be {len(stream.dates)} at most together. "
            f"Received: {options.first_day} and {options.days}"
        )
    answers = train(strategy, stream, options)
    found = answers.columns()
    print_line("all", answers.names, found, np.ones(len(found["day"]), bool))
    written = [options.output / name for name in ("answers.npz", "online.png")]
    np.savez(written[0], **found)  # pyright: ignore[reportArgumentType]
    plot(found, answers.names, written[1])
    print("Wrote {} and {}.".format(*written))


if __name__ == "__main__":
    main()
