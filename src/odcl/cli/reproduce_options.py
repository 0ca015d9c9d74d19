"""What ``odcl reproduce`` understands."""

from __future__ import annotations

from typing import Any

from odcl.cli.option_values import at_least_0, jobs, positive, sizes
from odcl.cli.parser import Parser, command, path, quiet, seed

_ABOUT = """\
Make the paper's figures and tables again, beside its own numbers.

FOLDER gets rows.jsonl (every number with its seed, version and time), and for
each NAME a page NAME.md and, but for table-methods, a figure NAME.png and
NAME.svg. An interrupted run goes on where it stopped."""

_EXAMPLES = """\
NAME is all, or one of
  table-methods       rounds and samples that the theory asks for
  figure-mse          error against samples per user, linear models
  table-rounds        rounds until IFCA has the error of one round
  figure-ifca         IFCA round by round
  figure-clusterpath  convex clustering with and without the true lambda
  figure-inexact      error against steps of local SGD
  figure-logistic     logistic models: error and number of clusters
  table-accuracy      MNIST, CIFAR10 and noisy CIFAR10 (needs --data)

examples:
  odcl reproduce all --quick
  odcl reproduce figure-mse --runs 10 --jobs 2
  odcl reproduce table-accuracy --data data
  odcl reproduce figure-mse --methods mine.py
  odcl reproduce table-methods --sizes 40,30,20,10 --separation 2 --rows 500

DATA holds MNIST's four files (.gz or not) in DATA/mnist, and CIFAR-10 as it is
unpacked (cifar-10-batches-bin or cifar-10-batches-py), or train.bin and test.bin
of two classes in DATA/cifar10-two-classes. Nothing is downloaded.

mine.py registers methods: from odcl.baselines import register; register("mine",
FUNCTION, "n_clusters"). help(odcl.baselines.register) says what FUNCTION gets
and gives. They join figure-mse, figure-clusterpath, figure-logistic and
table-accuracy: their page, their figure and rows.jsonl."""


def add_reproduce(some: Any) -> Parser:
    usage = "NAME [options]"
    parser = command(some, "reproduce", usage, _ABOUT, _EXAMPLES)
    group = parser.add_argument_group("arguments")
    group.add_argument("name", metavar="NAME", help="all, or an experiment of the list below")
    group = parser.add_argument_group("options")
    group.add_argument(
        "--runs",
        metavar="N",
        type=positive,
        help="runs with seeds SEED, SEED + 1, ... [default: the paper's 10, or 20 for logistic]",
    )
    group.add_argument(
        "--jobs",
        metavar="N",
        type=jobs,
        default=-1,
        help="processes; -1: one a core [default: %(default)s]",
    )
    path(group, "--data", "DATA", "folder with the images of table-accuracy")
    path(group, "--out", "FOLDER", "folder for rows, pages and figures", default="reproduction")
    group.add_argument(
        "--sizes", metavar="N,N,...", type=sizes, help="for table-methods: users of each cluster"
    )
    group.add_argument(
        "--separation", metavar="D", type=at_least_0, help="for table-methods: between the optima"
    )
    group.add_argument(
        "--rows", metavar="N", type=positive, help="for table-methods: samples of a user"
    )
    path(group, "--methods", "FILE", "Python file that registers methods of your own")
    group.add_argument(
        "--quick",
        action="store_true",
        help="smaller set-ups, one or two runs: a look, in seconds to a minute each",
    )
    group.add_argument(
        "--force", action="store_true", help="forget the rows of NAME in FOLDER and start again"
    )
    seed(group)
    quiet(group)
    return parser
