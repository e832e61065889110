"""That the choice follows the rates, and that rates are kept for what they were measured on."""

import json

import pytest
import torch

from fullstride.machine import products
from fullstride.ops import linear


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """Where the cache is, with nothing in it."""
    monkeypatch.setenv("FULLSTRIDE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FULLSTRIDE_PRECISION", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def measured(monkeypatch, folder):
    """(what measure() was asked for, the rates it will find, the backends there are)."""
    asked: list[list[str]] = []
    rates = {"fp32": {"torch": 100.0, "onednn": 200.0}, "bf16": {"torch": 20.0}, "fp16": {"torch": 5.0}}
    backends = {torch.float32: ("torch", "onednn"), torch.bfloat16: ("torch",), torch.float16: ("torch",)}

    def measure(precisions):
        asked.append(list(precisions))
        return {name: rates[name] for name in precisions}

    monkeypatch.setattr(products, "measure", measure)
    monkeypatch.setattr(linear, "backends", backends.__getitem__)
    return asked, rates, backends


@pytest.mark.parametrize(
    ("fp32", "bf16", "precision"),
    [(100.0, 114.0, "fp32"), (100.0, 115.0, "bf16"), (150.0, 24.0, "fp32"), (9.0, 0.0, "fp32")],
)
def test_auto_takes_bf16_only_where_it_wins_by_the_margin(measured, fp32, bf16, precision):
    measured[1].update(fp32={"torch": 1.0, "onednn": fp32}, bf16={"torch": bf16})
    choice = products.choose()
    assert choice.precision == precision
    assert f"bf16 products reach {bf16:.0f} GFLOP/s (torch)" in choice.reason
    assert f"fp32's {fp32:.0f} GFLOP/s (onednn)" in choice.reason
    assert "from 1.15x on" in choice.reason


def test_fastest_backend_of_each_dtype_is_taken(measured):
    measured[1].update(bf16={"torch": 20.0, "native": 80.0})
    assert products.choose().backends == {"float32": "onednn", "bfloat16": "native"}


@pytest.mark.parametrize("wish", ["fp32", "bf16", "fp16"])
def test_wish_is_honoured_and_its_reason_says_what_was_measured(measured, wish):
    choice = products.choose(wish)
    assert choice.precision == wish
    assert choice.reason.startswith("as asked for; products measured: fp32 200 GFLOP/s (onednn), bf16 20 GFLOP/s")
    assert ("fp16 5 GFLOP/s" in choice.reason) == (wish == "fp16")
    assert choice.backends.keys() == {"float32", "bfloat16"}  # fp16 has no choice


def test_fp16_is_measured_only_when_asked_for(measured):
    products.choose()
    products.choose("fp16")
    products.choose("fp16")
    assert measured[0] == [["fp32", "bf16"], ["fp32", "bf16", "fp16"]]


def test_asking_for_fp16_changes_nothing_of_the_others(measured):
    before = products.choose()
    measured[1].update(fp32={"torch": 1.0, "onednn": 1.0}, bf16={"torch": 9.0})  # as on a busy machine
    assert products.choose("fp16").rates == before.rates | {"fp16": {"torch": 5.0}}
    assert products.choose().precision == before.precision


def test_environment_says_what_auto_means_and_an_argument_wins(measured, monkeypatch):
    monkeypatch.setenv("FULLSTRIDE_PRECISION", "bf16")
    assert products.choose().precision == "bf16"
    assert products.choose().reason.startswith("FULLSTRIDE_PRECISION=bf16; ")
    assert products.choose("fp32").precision == "fp32"
    monkeypatch.setenv("FULLSTRIDE_PRECISION", "half")
    with pytest.raises(ValueError, match=r"expected auto, fp32, bf16, fp16; got 'half' \(FULLSTRIDE_PRECISION=half\)"):
        products.choose()


def test_unknown_precision_is_refused(measured):
    with pytest.raises(ValueError, match=r"expected auto, fp32, bf16, fp16; got 'int8' \(as asked for\)"):
        products.choose("int8")


def test_rates_are_measured_once(measured):
    assert products.recall() is None
    first = products.choose()
    assert products.choose() == products.recall() == first
    assert len(measured[0]) == 1


def test_without_the_cache_rates_are_measured_each_time_and_not_kept(measured, folder):
    products.choose(cache=False)
    products.choose(cache=False)
    assert len(measured[0]) == 2
    assert not folder.exists()


def test_rates_hold_for_one_machine_and_its_versions_only(measured, folder, monkeypatch, num_threads):
    products.choose()
    monkeypatch.setattr(products, "__version__", "9.9")
    products.choose()
    num_threads(torch.get_num_threads() + 1)
    products.choose()
    assert len(measured[0]) == 3
    keys = list(json.loads((folder / "products.json").read_text()))
    assert len(set(keys)) == 3
    for part in (products.cpu.describe().model, products._native.isa(), "threads", torch.__version__, "fullstride 9.9"):
        assert part in keys[-1]


def test_backend_that_is_new_is_measured(measured):
    products.choose()
    measured[1]["fp32"]["native"] = 300.0
    measured[2][torch.float32] = ("torch", "onednn", "native")
    assert products.choose().backends["float32"] == "native"


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "[1, 2]", '{"KEY": 3}', '{"KEY": {"fp32": [1]}}', '{"KEY": {"fp32": {"torch": "fast"}}}',
                '{"KEY": {"fp32": {"torch": NaN, "onednn": 1.0}, "bf16": {"torch": 1.0}}}', b"\xff\xfe\x00"]
)  # fmt: skip
def test_broken_cache_is_measured_anew(measured, folder, content):
    folder.mkdir()
    file = folder / "products.json"
    content = content if isinstance(content, bytes) else content.replace("KEY", products._key()).encode()
    file.write_bytes(content)
    assert products.choose().precision == "fp32"
    assert json.loads(file.read_text())[products._key()]["fp32"] == {"torch": 100.0, "onednn": 200.0}
    assert [path.name for path in folder.iterdir()] == ["products.json"]


def test_what_is_kept_for_other_conditions_stays(measured, folder):
    folder.mkdir()
    (folder / "products.json").write_text('{"another machine": {"fp32": {"torch": 1.0}}}')
    products.choose()
    assert json.loads((folder / "products.json").read_text())["another machine"] == {"fp32": {"torch": 1.0}}


def test_cache_that_cannot_be_written_is_no_error(measured, folder):
    folder.write_text("a file where the folder should be")
    assert products.choose().precision == "fp32"
    folder.unlink()
    (folder / "products.json").mkdir(parents=True)  # nor replaced
    assert products.choose().precision == "fp32"
    assert [path.name for path in folder.iterdir()] == ["products.json"]


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({"FULLSTRIDE_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a/products.json"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/fullstride/products.json"),
        ({"XDG_CACHE_HOME": "relative"}, "/h/.cache/fullstride/products.json"),
        ({}, "/h/.cache/fullstride/products.json"),
    ],
)
def test_place_of_the_cache(monkeypatch, environment, place):
    for name in ("FULLSTRIDE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (environment | {"HOME": "/h"}).items():
        monkeypatch.setenv(name, value)
    assert str(products._file()) == place


@pytest.fixture
def small(monkeypatch, folder):
    monkeypatch.setattr(products, "_SHAPES", ((3, 5, 7), (2, 9, 4)))
    monkeypatch.setattr(products, "_SECONDS", 0.0)


def test_every_backend_is_measured(small):
    rates = products.measure(["fp32", "bf16", "fp16"])
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)):
        assert rates[name].keys() == set(linear.backends(dtype))


def test_measuring_leaves_no_trace(small):
    torch.manual_seed(1)
    expected = torch.rand(3)
    before = linear.backend(torch.float32), linear.backend(torch.bfloat16)
    torch.manual_seed(1)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert products.measure(["fp32", "bf16"])["fp32"]["torch"] >= 0
    assert torch.equal(torch.rand(3), expected)
    assert (linear.backend(torch.float32), linear.backend(torch.bfloat16)) == before


def test_what_cannot_run_has_no_rate(small, monkeypatch):
    def refuse(x, weight):
        if x.dtype is torch.bfloat16:
            raise RuntimeError("not here")
        return x @ weight.t()

    monkeypatch.setattr(linear, "linear", refuse)
    assert set(products.measure(["fp32", "bf16"])["bf16"].values()) == {0.0}


def test_hopeless_candidate_is_called_only_as_often_as_it_takes_to_know(small, monkeypatch):
    calls: list[tuple[torch.dtype, int]] = []

    def once(run):
        run()
        return 1.0 if calls[-1][0] is torch.bfloat16 else 0.01

    def record(x, weight):
        calls.append((x.dtype, x.shape[0]))
        return x @ weight.t()

    monkeypatch.setattr(products, "_once", once)
    monkeypatch.setattr(linear, "linear", record)
    monkeypatch.setattr(linear, "backends", lambda dtype: ("torch",))
    monkeypatch.setattr(products, "_SHAPES", ((300, 500, 700), (200, 900, 400)))
    rates = products.measure(["fp32", "bf16"])
    assert [rows for dtype, rows in calls if dtype is torch.bfloat16] == [8, 300, 300]
    assert len([rows for dtype, rows in calls if dtype is torch.float32 and rows == 200]) > 2
    assert rates["bf16"]["torch"] == pytest.approx(6 * 300 * 500 * 700 / 1e9, abs=0.05)
