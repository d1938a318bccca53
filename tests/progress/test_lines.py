"""What is read from standard output: lines as the tools print them, and anything else."""

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.progress.lines import LINE_BYTES_MAX, Lines, OutputReader, text_of
from headway.progress.names import MetricNames
from headway.progress.told import Merge, Point, Source, Told


def read(*lines: str, loss: str = "loss", accuracy: str = "", total: int | None = None, unit: str = "step") -> list[Point]:
    """The reports that follow from lines of rank 0."""
    reader, merge = OutputReader(MetricNames(loss, accuracy), 0, total), Merge(unit == "epoch")
    told = [reader.read(text_of(line.encode())) for line in lines]
    return [point for each in told if each is not None and (point := merge.take(each)) is not None]


def point(step: float, loss: float | None = None, accuracy: float | None = None) -> Point:
    return Point(step, loss, accuracy)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("step=10 loss=0.5", point(10, 0.5)),
        ("step=10, loss=0.5, acc=0.25", point(10, 0.5, 0.25)),
        ("Step: 10 | Loss: 1.5e-3", point(10, 0.0015)),
        ("[INFO] 2026-01-02 03:04:05 iteration 300 loss 2.25", point(300, 2.25)),
        ("step 10/100 loss: 0.5 acc: 93.5%", point(10, 0.5, 0.935)),
        ("global_step=7 train/loss=.25 val/accuracy=0.5", point(7, 0.25, 0.5)),
        ("{'step': 5, 'loss': 1.25}", point(5, 1.25)),
        ('{"step": 5, "loss": 1.25, "accuracy": 0.5}', point(5, 1.25, 0.5)),
        ("step=3 loss=tensor(0.5000)", point(3, 0.5)),
        ("step=4 loss=0.6931 (0.7012)", point(4, 0.6931)),
        ("step=4 loss=0.5 loss=0.9", point(4, 0.5)),
        ("\x1b[32mstep\x1b[0m=\x1b[1m4\x1b[0m loss=0.5", point(4, 0.5)),
        ("étape α step=4 loss=0.5 ✓", point(4, 0.5)),
        ("Epoch 3 loss=0.5", point(3, 0.5)),
        ("Epoch: [2][ 10/391]\tTime  0.1 ( 0.2)\tLoss 6.9e+00 (7.0e+00)\tAcc@1  12.50 (  0.5)", point(792, 6.9, 0.125)),
        ("  5%|▌         | 73/1300 [00:48<13:57,  1.47it/s, loss=3.4, acc=0.5]", point(73, 3.4, 0.5)),
        ("Epoch 2:  10%|█  | 73/1300 [00:48<13:57, 1.47it/s, v_num=0, train_loss=3.40]", point(2673, 3.4)),
        ("Epoch 1/10:  10%|█  | 73/1300 [00:48<13:57, 1.47it/s, loss=3.40]", point(73, 3.4)),
        (" 45/100 ━━━━━━━━━━━━━━━━━━━━ 1s 5ms/step - accuracy: 0.5000 - loss: 1.2500", point(45, 1.25, 0.5)),
        ("train: 100%|██████████| 20/20 [00:01<00:00, 15.0it/s]", point(20)),
    ],
)
def test_a_line(line: str, expected: Point) -> None:
    assert read(line) == [expected]


@pytest.mark.parametrize(
    "line",
    [
        "", "hello", "loss", "loss=", "loss=0.5", "step=-3 loss", "step=nan", "lossy=0.5 footstep=3", "version 2.3.1",
        "Map: 100%|██████████| 1000/1000 [00:01<00:00, 900 examples/s]", "Downloading: 12%|█ | 12/100 [00:01<00:09, 9.9MB/s]",
        "Validation DataLoader 0:  50%|█████     | 5/10 [00:00<00:00, 80.0it/s]", "step=10k", "it took 3.5 hours",
    ],
)  # fmt: skip
def test_a_line_that_tells_nothing(line: str) -> None:
    assert read(line) == []


def test_hugging_face() -> None:
    """The trainer's bar tells the step, its dictionaries the loss; the final summary's mean loss is another metric."""
    lines = [
        "  0%|          | 0/30 [00:00<?, ?it/s]",
        " 33%|███▎      | 10/30 [00:02<00:04,  4.20it/s]",
        "{'loss': 1.49, 'grad_norm': 2.1, 'learning_rate': 5e-05, 'epoch': 0.33}",
        "100%|██████████| 8/8 [00:00<00:00, 90.0it/s]",
        "{'eval_loss': 1.2, 'eval_accuracy': 0.75, 'epoch': 0.33}",
        " 67%|██████▋   | 20/30 [00:04<00:02,  4.20it/s]",
        "{'loss': '1.25', 'grad_norm': '1.9', 'epoch': '0.67'}",
        "{'train_runtime': 7.1, 'train_loss': 1.37, 'epoch': 1.0}",
    ]
    expected = [point(0), point(10), point(10, 1.49), point(10, None, 0.75), point(20), point(20, 1.25)]
    assert read(*lines) == expected


def test_a_bar_that_begins_again_counts_on() -> None:
    lines = [f" 50%|█ | {at}/4 [00:00<00:00, 9.0it/s, loss={at}.0]" for at in (1, 4, 0, 1, 4, 2)]
    assert [each.step for each in read(*lines)] == [1, 4, 4, 5, 8, 10]


def test_epochs_count_where_the_job_says_so() -> None:
    lines = ["epoch 1 step 100 loss 0.5", "epoch 2 step 200 loss 0.4"]
    assert read(*lines, unit="epoch") == [point(1, 0.5), point(2, 0.4)]
    assert read(*lines) == [point(100, 0.5), point(200, 0.4)]


def test_the_jobs_own_names() -> None:
    assert read("step=1 loss=9 mse=0.5 f1=0.75", loss="mse", accuracy="f1") == [point(1, 0.5, 0.75)]
    assert read("step=1 val_acc=0.5 train_acc=0.9 acc=0.7") == [point(1, None, 0.5)]


def test_nan_and_infinity_are_told() -> None:
    (nan, inf) = read("step=1 loss=nan", "step=2 loss=-inf")
    assert nan.loss != nan.loss and inf.loss == float("-inf")


def test_steps_may_go_back() -> None:
    assert [each.step for each in read("step=10 loss=1", "step=4 loss=2")] == [10, 4]


def test_groups_of_the_jobs_own_pattern_come_first() -> None:
    reader, merge = OutputReader(MetricNames()), Merge()
    own = reader.matched({"step": "12", "loss": "0.5", "accuracy": "50%", "speed": "3.5", "bad": "x"})
    built_in = reader.read("step=99 loss=9")
    assert own is not None and built_in is not None
    assert own.other == (("speed", 3.5),)
    assert [merge.take(own), merge.take(built_in)] == [point(12, 0.5, 0.5), None]


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=8))
def test_lines_are_the_same_however_they_are_cut(data: bytes, cuts: list[int]) -> None:
    whole, parts = Lines(), Lines()
    expected = whole.feed(data) + whole.rest()
    edges = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    got = [line for begin, end in pairwise(edges) for line in parts.feed(data[begin:end])] + parts.rest()
    assert got == expected == [line for line in data.replace(b"\r", b"\n").split(b"\n") if line]


def test_a_line_of_a_hundred_megabytes_costs_no_memory_and_the_next_counts() -> None:
    lines, block = Lines(), b"x" * (1 << 20)
    for _ in range(100):
        assert lines.feed(block) == []
    first, second = lines.feed(b"\nstep=1 loss=2\n")
    assert len(first) == LINE_BYTES_MAX and second == b"step=1 loss=2"


@given(st.text(max_size=500))
def test_any_text_is_read_without_an_error(text: str) -> None:
    reader = OutputReader(MetricNames())
    reader.read(text_of(text.encode("utf-8", "surrogatepass")))
    reader.read(text_of(text.encode("utf-16", "surrogatepass")))


@given(
    st.integers(0, 10**9), st.floats(allow_nan=False, allow_infinity=False), st.floats(0, 1),
    st.sampled_from(["step={} loss={} acc={}", "{{'step': {}, 'loss': {}, 'accuracy': {}}}", "Step: {} | Loss: {} | Acc: {}"]),
)  # fmt: skip
def test_numbers_come_through_as_they_were_printed(step: int, loss: float, accuracy: float, form: str) -> None:
    assert read(form.format(step, loss, accuracy)) == [point(step, loss, accuracy)]


@pytest.mark.parametrize(
    "text", ["a" * 4096, "a=" * 2048, "loss=1" * 600, "| 1/2 [" * 500, "1/2 [0:0<" * 400, " " * 4096, "'" * 4096]
)
def test_no_line_takes_long(text: str) -> None:
    began = time.perf_counter()
    OutputReader(MetricNames()).read(text)
    assert time.perf_counter() - began < 0.5


# -- who is believed -----------------------------------------------------------------------------------------------------


def told(source: Source, rank: int, step: float | None, loss: float | None = None, accuracy: float | None = None) -> Told:
    return Told(source, rank, step, None, loss, accuracy)


def test_the_most_trusted_source_takes_over() -> None:
    merge = Merge()
    assert merge.take(told(Source.TENSORBOARD, 0, 5, 1.0)) == point(5, 1.0)
    assert merge.take(told(Source.OUTPUT, 0, 6, 2.0)) == point(6, 2.0)
    assert merge.take(told(Source.TENSORBOARD, 0, 7, 1.5, 0.5)) == point(6, None, 0.5)  # nobody else tells the accuracy
    assert merge.take(told(Source.SDK, 0, 100)) == point(100)
    assert merge.take(told(Source.OUTPUT, 0, 8, 1.75)) == point(100, 1.75)


def test_rank_0_counts_unless_only_others_speak() -> None:
    merge = Merge()
    assert merge.take(told(Source.SDK, 3, 1, 1.0)) == point(1, 1.0)
    assert merge.take(told(Source.SDK, 2, 2, 2.0)) == point(2, 2.0)
    assert merge.take(told(Source.SDK, 3, 3, 3.0)) is None
    assert merge.take(told(Source.SDK, 0, 4)) == point(4)
    assert merge.take(told(Source.SDK, 2, 5, 5.0)) == point(4, 5.0)  # the last stage alone knows the loss
