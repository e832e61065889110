import subprocess
import sys
import xml.dom.minidom

import pytest
from benchmarks import place_labels, render, result_files, roofline, roofline_points
from benchmarks.place_labels import Box
from benchmarks.roofline_points import Point, Share

from .made_up import kernel, kernels, rates, step, steps
from .product_cases import PRODUCT_CASES

MACHINE = "some-cpu-avx2"
SHARE = {"median": 0.5, "lowest": 0.4, "highest": 0.6}
GEMM = kernel("gemm", "x W^T fp32 128 x 512 x 256", gflops=100.0, precision="fp32")
GLU = kernel("glu", gigabytes_per_second=10.0, share_of_bandwidth=SHARE, mix="write")
FILES = [rates(), steps(step(), step(accumulate=8)), kernels(GEMM, GLU, "rope")]


@pytest.fixture(scope="module", autouse=True)
def _matplotlib():
    pytest.importorskip("matplotlib")


@pytest.mark.parametrize(
    ("precision", "accumulate", "bytes_of_a_parameter"),
    [
        ("fp32", 1, 8 + 4 + 8 + 24),  # read twice; gradient written, read twice; weight and moments in and out
        ("bf16", 1, 4 + 2 + 4 + 24),
        ("fp32", 3, 3 * 8 + 4 + 2 * 8 + 8 + 24),
        ("bf16", 3, 3 * 4 + 4 + 2 * 8 + 8 + 24),  # sums of gradients are fp32
    ],
)
def test_bytes_of_a_step_are_counted_by_parameter(precision, accumulate, bytes_of_a_parameter):
    assert roofline_points.step_bytes(1000, precision, accumulate) == 1000 * bytes_of_a_parameter


def test_a_step_lies_at_its_operations_over_its_bytes():
    [point, _] = roofline_points.step_points(FILES[1])
    assert point == Point("mlp", 8e9 / (44 * 10_000_000), 80.0, "fp32")


@pytest.mark.parametrize(
    ("op", "case", "num_bytes"),
    [
        ("gemm", "g^T x fp32 128 x 512 x 256", 4 * (128 * 512 + 512 * 256 + 128 * 256)),
        ("gemm", "x W^T bf16 8 x 4 x 2", 2 * (32 + 8 + 16)),
        ("linear", "relu by native, forward+backward fp32 8 x 4 x 2", 3 * 4 * (32 + 8 + 16)),
        ("linear_cross_entropy", "forward+backward fp32 8 x 4 x 2, 0% ignored", 3 * 4 * (32 + 8)),  # no logits
        ("linear_cross_entropy", "forward+backward fp32 1024 x 4 x 2, 85% ignored", 3 * 4 * (154 * 4 + 8)),
        ("attention", "causal bf16 forward+backward 1 x 2 x 8 x 4", 12 * 2 * 64),
        ("conv1d", "relu, forward+backward bf16 2 x 10, 4 to 3, 5 taps", 3 * 2 * (20 * 4 + 4 * 3 * 5 + 20 * 3)),
        ("patches", "forward+backward fp32 2 x 3 x 8 x 8, 5 of 4 x 4", 3 * 4 * (8 * 48 + 48 * 5 + 8 * 5)),
        ("contrastive_loss", "forward+backward fp32 8 images, 6 texts, 4 wide", 3 * 4 * (32 + 24 + 48)),
        ("gemm", "of some other kind", None),
        ("glu", "fp32 8 x 8", None),
    ],
)
def test_bytes_of_products_are_their_operands_and_results(op, case, num_bytes):
    assert roofline_points.operand_bytes(op, case) == num_bytes


def test_every_product_of_the_kernel_benchmark_is_counted():
    """Else its dot would be missing: the names of cases are read."""
    assert {op for op, _ in PRODUCT_CASES} == {*roofline_points._CASES}
    assert [own for own in PRODUCT_CASES if roofline_points.operand_bytes(*own) is None] == []


def test_every_product_of_the_committed_results_is_counted():
    for file in result_files.load_all():
        if file.suite in ("kernels", "kernels_heap_kept"):
            assert roofline_points.kernel_points([row for _, row in result_files.rows(file)])[1] == [], file.path


def test_the_kernel_benchmark_still_names_its_cases_so():
    """Looks at the first of each op."""
    import importlib

    for op in roofline_points._CASES:
        rows = importlib.import_module(f"fullstride.bench.kernels.rows.{op}").rows()
        assert roofline_points.operand_bytes(op, next(rows).case), op


def test_kernels_that_wait_for_memory_stand_by_their_share():
    found = roofline_points.content_of(FILES, MACHINE)
    assert found.shares == [Share("glu", 0.5, "write")]
    assert [point.name for point in found.kernels] == ["gemm"]
    assert found.kernels[0].intensity == pytest.approx(100e9 * 2e-3 / (4 * (128 * 512 + 512 * 256 + 128 * 256)))


def test_a_product_whose_bytes_nobody_counted_is_named():
    odd = [kernel("gemm", case, gflops=1.0) for case in ("odd", "even")]
    found = roofline_points.content_of([rates(), kernels(GEMM, *odd)], MACHINE)
    assert found.without == ["gemm even", "gemm odd"]  # and not those of which the same op has others
    assert roofline.caption_of(found).endswith("bytes of gemm even; gemm odd were not counted.")


def test_of_a_kernel_that_was_measured_twice_the_kept_heap_counts():
    kept = kernels(kernel("glu", "kept"), suite="kernels_heap_kept")
    rows = roofline_points.kernel_rows(kernels("glu", "rope"), kept)
    assert [(row["op"], row["case"]) for row in rows] == [("glu", "kept"), ("rope", "fp32 8 x 8")]


def test_the_picture_names_roofs_steps_and_kernels():
    picture = roofline.draw(roofline_points.content_of(FILES, MACHINE))
    xml.dom.minidom.parseString(picture)
    names = ("mlp accumulate 8", ">gemm<", ">glu<", "step, Fullstride")
    for text in ("bf16 products, 300 GFLOP/s", "update, 50.0 GB/s", *names):
        assert text in picture


def test_the_same_results_give_the_same_picture():
    content = roofline_points.content_of(FILES, MACHINE)
    assert roofline.draw(content) == roofline.draw(content)


def test_without_a_bandwidth_there_are_steps_under_a_roof():
    content = roofline_points.content_of([steps()], MACHINE)
    xml.dom.minidom.parseString(roofline.draw(content))
    assert "no bandwidth was measured" in roofline.caption_of(content)


def test_a_machine_without_steps_and_products_has_no_picture(tmp_path):
    files = [kernels("glu"), rates()]
    assert not roofline_points.has_picture(files, MACHINE)
    assert roofline.write_all(files, tmp_path) == []
    assert "Nothing was measured yet." in render.rendered("<!-- begin: roofline -->\n<!-- end -->", files)


def test_main_draws_into_the_documents_images(tmp_path, capsys):
    result_files.write(steps(), tmp_path)
    render.main(tmp_path)
    assert f"drawn: docs/images/roofline-{MACHINE}.svg" in capsys.readouterr().out
    assert (tmp_path / "docs" / "images" / f"roofline-{MACHINE}.svg").read_text().startswith("<svg")


def test_drawing_needs_no_torch():
    code = "import sys; sys.modules['torch'] = None; import benchmarks.roofline as r; r.write_all([], r.ROOT)"
    done = subprocess.run([sys.executable, "-c", code], cwd=result_files.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# ---- names beside dots ---------------------------------------------------------------------------------------------


def test_names_lie_neither_on_each_other_nor_on_dots_nor_outside():
    dots = [(100.0 + 7 * i, 100.0 + 5 * (i % 3)) for i in range(12)]
    labels = [(f"kernel {i}", x, y) for i, (x, y) in enumerate(dots)]
    boxes = place_labels.place(labels, dots, (300.0, 250.0), 7.5)
    around = [Box(x - 2, y - 2, x + 2, y + 2) for x, y in dots]
    for i, box in enumerate(boxes):
        assert not any(box.meets(other) for other in (*boxes[:i], *around))
        assert box.left >= 0
        assert box.right <= 300
        assert box.bottom >= 0
        assert box.top <= 250


def test_a_name_keeps_off_what_is_taken():
    taken = Box(54.0, 40.0, 300.0, 60.0)
    [box] = place_labels.place([("name", 50.0, 50.0)], [(50.0, 50.0)], (300.0, 100.0), 7.5, [taken])
    assert not box.meets(taken)
