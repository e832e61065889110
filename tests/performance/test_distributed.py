"""Tables and pictures of docs/distributed.md, from made-up results."""

import re
import xml.etree.ElementTree as ET

import pytest
from benchmarks import figures, render
from benchmarks.distributed import pictures
from benchmarks.result_files import File, part

from .made_up import CONDITIONS

MACHINE = "some-cpu-avx2"
NODES = [1, 2, 4, 8, 16, 32, 64]
WAYS = ("gradients in fp32", "islands, 20 steps")


def spread(median, lowest, highest):
    return {"median": median, "lowest": lowest, "highest": highest, "unit": "ms"}


def file(suite, *results, **more):
    return File(MACHINE, suite, [part("command", {"conditions": CONDITIONS, "results": list(results), **more})])


def gain(median, lowest, highest):
    return {"median": median, "lowest": lowest, "highest": highest}


PROCESSES = file("processes", {
    "recipe": "llama", "rounds": 3, "one": spread(200.0, 190.0, 210.0), "two": spread(80.0, 70.0, 90.0),
    "gain": gain(2.5, 2.11, 3.0), "sent_mb": 12.5, "exposed_ms": 3.25,
})  # fmt: skip
AVERAGING = file("averaging", {
    "recipe": "llama", "rounds": 3, "apart": spread(50.0, 49.0, 51.0), "together": spread(55.0, 54.0, 56.0),
    "ratio": gain(1.1, 1.08, 1.12), "exposed_ms": 2.5,
})  # fmt: skip
SHARDING = file("sharding", {
    "recipe": "mlp",
    "processes": {
        "2": {"whole_mb": 1500.4, "sharded_mb": 1100.6, "equal": True},
        "4": {"whole_mb": 1500.4, "sharded_mb": 900.1, "equal": False},
    },
})  # fmt: skip
LINK = {"fp32": {"latency": 123e-6, "bandwidth": 111e6, "work": 1e-9}}
TWO_HOSTS = file(
    "two_hosts",
    {
        "link": "1 Gbit/s", "recipe": "llama-char", "way": "gradients in fp32", "sent_mb": 3.39,
        "milliseconds": gain(100.0, 90.0, 130.0), "predicted_ms": 93.0, "error": {"share": -0.07},
    },
    links={"1 Gbit/s": LINK},
    ahead=[
        {"recipe": "llama", "gigabits": rate, "way": way, "nodes": NODES, "alone_ms": 50.0,
         "share": [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4]}
        for rate in (1, 10) for way in WAYS
    ],
)  # fmt: skip
POINTS = [{"step": 100 * i, "loss": 3.0 - 0.25 * i, "sent_mb": 4.0 * i, "seconds": 10.0 * i} for i in range(1, 6)]
LOCAL_UPDATES = file(
    "local_updates", *({"side": way, "points": POINTS} for way in WAYS), recipe="llama-char", steps=500, mbit=200.0
)
FILES = [PROCESSES, AVERAGING, SHARDING, TWO_HOSTS, LOCAL_UPDATES]


def rows(name):
    """Of the table that a block shows of the made-up results."""
    text = render.rendered(f"<!-- begin: {name} -->\n<!-- end -->", FILES)
    assert figures.problems(text, FILES) == []
    assert "### Some CPU, AVX2 only" in text
    return [line for line in text.splitlines() if line.startswith("| ")][1:]


def test_processes_have_times_gain_and_what_is_sent():
    (row,) = rows("processes")
    times = "| 200 ms [190..210] | 80.0 ms [70.0..90.0] | **2.50x [2.11..3.00]**"
    assert row.startswith(f"| llama, 3 rounds {times} | 12 MB | 3.2 ms | 0123456")


def test_averaging_is_told_as_the_time_of_a_step():
    (row,) = rows("averaging")
    assert "| 50.0 ms [49.0..51.0] | 55.0 ms [54.0..56.0] | **1.10x [1.08..1.12]** | 2.5 ms |" in row


def test_sharding_says_whether_losses_are_equal():
    two, four = rows("sharding")
    assert two.startswith("| mlp | 2 | 1,500 MB | **1,101 MB** | equal to the bit |")
    assert four.startswith("| mlp | 4 | 1,500 MB | **900 MB** | not equal |")


def test_a_link_has_what_was_measured_beside_what_was_predicted():
    (row,) = rows("links")
    assert row == "| 1 Gbit/s | llama-char | gradients in fp32 | 3.39 | 100 ms [90..130] | 93.0 ms | -7 % |"
    text = render.rendered("<!-- begin: links -->\n<!-- end -->", FILES)
    assert "1 Gbit/s: 123 us and 111 MB/s in fp32 (0123456" in text


def test_predictions_are_shown_of_a_few_and_of_many_nodes():
    assert rows("ahead") == [f"| llama | {way} | 70 % | 40 % | 70 % | 40 % |" for way in WAYS]


def test_islands_are_shown_with_their_last_loss_and_what_it_took():
    assert rows("local_updates") == [f"| {way} | 1.7500 | 20 MB | 50 s |" for way in WAYS]


@pytest.mark.parametrize(
    ("draw", "content", "words"),
    [
        (pictures.scaling, TWO_HOSTS, ("1 Gbit/s", "10 Gbit/s", "nodes", *WAYS)),
        (pictures.local_updates, LOCAL_UPDATES, ("megabytes sent by each host", "loss (nats)", *WAYS)),
    ],
)
def test_a_picture_is_an_svg_with_its_words(draw, content, words):
    text = draw(content.parts[0])
    shown = " ".join(" ".join(ET.fromstring(text).itertext()).split())
    assert [word for word in words if word not in shown] == []
    assert text == draw(content.parts[0])  # the same results give the same picture


def test_pictures_are_written_for_each_machine(tmp_path):
    written = pictures.write_all(FILES, tmp_path)
    assert [path.name for path in written] == [f"scaling-{MACHINE}.svg", f"local-updates-{MACHINE}.svg"]
    assert all(re.match("<svg ", (tmp_path / path).read_text()) for path in written)
