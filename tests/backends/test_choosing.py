"""That the choice follows what was found, and that nothing is chosen that does not work."""

import time
from dataclasses import replace

import pytest
import torch

from fullstride.backends import cache, choosing
from fullstride.backends.cache import Findings
from fullstride.backends.trials import parent, verdicts
from fullstride.machine import load, onednn
from fullstride.ops import products

BACKENDS = {"fp32": ("torch", "onednn"), "bf16": ("torch",), "fp16": ("torch",)}
DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def everywhere(**rates):
    """The same at all shapes."""
    return {shape: dict(rates) for shape in products.SHAPES}


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """Where the cache is, with nothing in it."""
    monkeypatch.setenv("FULLSTRIDE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FULLSTRIDE_PRECISION", raising=False)
    monkeypatch.setattr(cache, "_here", {})
    monkeypatch.setattr(load, "is_high", lambda: False)
    return tmp_path / "cache"


class Machine:
    """What the child process will find, and what it was asked for."""

    def __init__(self):
        self.asked: list[list[str]] = []
        self.tried: list[list[str]] = []
        self.backends = dict(BACKENDS)
        self.rates = {"fp32": everywhere(torch=100.0, onednn=200.0), "bf16": everywhere(torch=20.0)}
        self.rates["fp16"] = everywhere(torch=5.0)
        self.bad: dict[str, str] = {}
        self.trouble = ""
        self.spread = 0.0

    def run(self, tries, racers, threads, environment):
        self.tried.append(list(tries))
        self.asked.append(list(dict.fromkeys(precision for precision, _ in racers)))
        if self.trouble:
            return parent.Report(trouble=self.trouble)
        report = parent.Report({name: self.bad.get(name, "fine") for name in tries}, {}, self.spread)
        for precision, backend in racers:
            for shape, rates in self.rates[precision].items():
                if verdicts.product_name(precision, backend) not in self.bad and backend in rates:
                    report.rates.setdefault(precision, {}).setdefault(shape, {})[backend] = rates[backend]
        return report


@pytest.fixture
def machine(monkeypatch, folder):
    machine = Machine()
    monkeypatch.setattr(parent, "run", machine.run)
    monkeypatch.setattr(products, "built", lambda dtype: machine.backends[DTYPES[dtype]])
    monkeypatch.setattr(load.Watch, "busy", lambda watch, spread: "load 9.0 on 2 cores" if spread > 0.3 else "")
    return machine


def taken(seconds_ago: float) -> None:
    """The findings that are kept were."""
    found = cache.recall(torch.get_num_threads())
    assert found is not None
    cache.keep(replace(found, taken=time.time() - seconds_ago), torch.get_num_threads())


# ---- the choice ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fp32", "bf16", "precision"),
    [(100.0, 114.0, "fp32"), (100.0, 115.0, "bf16"), (150.0, 24.0, "fp32"), (9.0, 0.0, "fp32")],
)
def test_auto_takes_bf16_only_where_it_wins_by_the_margin(machine, fp32, bf16, precision):
    machine.rates.update(fp32=everywhere(torch=1.0, onednn=fp32), bf16=everywhere(torch=bf16))
    choice = choosing.choose()
    assert choice.precision == precision
    assert f"bf16 products reach {bf16:.0f} GFLOP/s (torch)" in choice.reason
    assert f"fp32's {fp32:.0f} GFLOP/s (onednn)" in choice.reason
    assert "from 1.15x on" in choice.reason


def test_auto_compares_the_time_of_the_same_work_at_every_shape(machine):
    machine.rates["fp32"] = everywhere(onednn=100.0)
    machine.rates["bf16"] = {"few rows": {"torch": 40.0}, "many rows": {"torch": 300.0}, "wide head": {"torch": 300.0}}
    choice = choosing.choose()
    assert choice.precision == "fp32"  # 3 / (1/40 + 1/300 + 1/300) = 95, though two of three shapes are faster
    assert choice.gflops("bf16") == pytest.approx(94.7, abs=0.1)
    assert choice.peak("bf16") == 300.0


def test_ours_is_taken_where_it_is_as_good_as_the_fastest(machine):
    machine.backends["bf16"] = ("torch", "native")
    machine.rates["bf16"] = {
        "few rows": {"torch": 100.0, "native": 96.0}, "many rows": {"torch": 100.0, "native": 95.0},
        "wide head": {"torch": 100.0, "native": 110.0},
    }  # fmt: skip
    assert choosing.choose().backends["bfloat16"] == {
        "few rows": "native", "many rows": "torch", "wide head": "native",
    }  # fmt: skip


def test_a_matrix_unit_that_fails_is_left_alone_by_all_kernels(machine, monkeypatch):
    machine.backends["bf16"] = ("torch", "native")
    machine.rates["bf16"] = everywhere(torch=20.0, native=500.0)
    machine.bad["our bf16 product"] = "dies with SIGILL"
    isas = ["avx512_bf16", "amx"]

    def fall_back():
        isas.pop()
        machine.bad.clear()  # it was the matrix unit
        return True

    monkeypatch.setattr(choosing._native, "step_up", lambda: True)
    monkeypatch.setattr(choosing._native, "isa", lambda: isas[-1])
    monkeypatch.setattr(choosing._native, "fall_back", fall_back)
    choice = choosing.choose()
    assert isas == ["avx512_bf16"]
    assert choice.precision == "bf16"
    assert choice.backends["bfloat16"] == dict.fromkeys(products.SHAPES, "native")
    assert "without amx, whose bf16 product dies with SIGILL" in choice.notes


def test_fastest_backend_of_each_dtype_and_shape_is_taken(machine):
    machine.backends["bf16"] = ("torch", "native")
    machine.rates["bf16"] = {
        "few rows": {"torch": 90.0, "native": 80.0}, "many rows": {"torch": 90.0, "native": 95.0},
        "wide head": {"torch": 10.0},
    }  # fmt: skip
    choice = choosing.choose()
    assert choice.backends == {
        "float32": dict.fromkeys(products.SHAPES, "onednn"),
        "bfloat16": {"few rows": "torch", "many rows": "native", "wide head": "torch"},
    }
    assert "(few rows torch, many rows native, wide head torch)" in choice.reason
    assert choice.lines() == [
        "fp32: few rows onednn 200 GFLOP/s, many rows onednn 200 GFLOP/s, wide head onednn 200 GFLOP/s",
        "bf16: few rows torch 90 GFLOP/s, many rows native 95 GFLOP/s, wide head torch 10 GFLOP/s",
    ]


def test_a_shape_that_there_was_no_time_for_goes_with_many_rows(machine, monkeypatch):
    machine.rates["fp32"] = {"many rows": {"torch": 100.0, "onednn": 200.0}}
    run = machine.run

    def skip(*arguments):
        report = run(*arguments)
        report.skipped = ["few rows", "wide head"]
        return report

    monkeypatch.setattr(parent, "run", skip)
    choice = choosing.choose()
    assert set(choice.backends["float32"].values()) == {"onednn"}
    assert choice.notes[0].startswith("taken under load (no time for few rows, no time for wide head)")


def test_a_choice_is_applied_to_the_whole_process(machine):
    machine.backends["bf16"] = ("torch", "native")
    machine.rates["bf16"] = everywhere(native=80.0) | {"wide head": {"native": 1.0}}
    machine.bad["torch's bf16 product"] = "gives wrong numbers: off by 1"
    choice = choosing.choose()
    choice.apply()
    assert [products.backend(torch.bfloat16, shape) for shape in products.SHAPES] == ["native"] * 3
    assert "torch" not in products.backends(torch.bfloat16)
    assert products.backend(torch.float32, "wide head") == "onednn"


@pytest.mark.parametrize("wish", ["fp32", "bf16", "fp16"])
def test_wish_is_honoured_and_its_reason_says_what_was_measured(machine, wish):
    choice = choosing.choose(wish)
    assert choice.precision == wish
    assert choice.reason.startswith("as asked for; products measured: fp32 200 GFLOP/s (onednn), bf16 20 GFLOP/s")
    assert ("fp16 5 GFLOP/s" in choice.reason) == (wish == "fp16")
    assert choice.backends.keys() == {"float32", "bfloat16"}  # fp16 has no choice


def test_environment_says_what_auto_means_and_an_argument_wins(machine, monkeypatch):
    monkeypatch.setenv("FULLSTRIDE_PRECISION", "bf16")
    assert choosing.choose().precision == "bf16"
    assert choosing.choose().reason.startswith("FULLSTRIDE_PRECISION=bf16; ")
    assert choosing.choose("fp32").precision == "fp32"
    monkeypatch.setenv("FULLSTRIDE_PRECISION", "half")
    with pytest.raises(ValueError, match=r"expected auto, fp32, bf16, fp16; got 'half' \(FULLSTRIDE_PRECISION=half\)"):
        choosing.choose()


def test_unknown_precision_is_refused(machine):
    with pytest.raises(ValueError, match=r"expected auto, fp32, bf16, fp16; got 'int8' \(as asked for\)"):
        choosing.choose("int8")


# ---- what does not work --------------------------------------------------------------------------------------------


@pytest.fixture
def fast(machine):
    """bf16 would be taken."""
    machine.backends["bf16"] = ("torch", "native")
    machine.rates["bf16"] = everywhere(torch=900.0, native=800.0)
    assert choosing.choose(use_cache=False).precision == "bf16"
    return machine


def test_a_library_that_dies_is_not_chosen_and_named(fast):
    fast.bad["torch's bf16 product"] = "dies with SIGILL"
    choice = choosing.choose()
    assert choice.precision == "bf16"  # by our own products, and torch's other operations are fine
    assert set(choice.backends["bfloat16"].values()) == {"native"}
    assert verdicts.lines(choice.verdicts) == ["torch's bf16 product: dies with SIGILL here"]


@pytest.mark.parametrize("verdict", ["dies with SIGILL", "hangs: no result within 20 s", "gives wrong numbers: by 1"])
def test_bf16_is_not_taken_where_an_operation_of_torch_s_would_end_the_training(fast, verdict, monkeypatch):
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    fast.bad["torch's bf16 convolution"] = verdict
    choice = choosing.choose()
    assert choice.precision == "fp32"
    assert choice.reason.startswith(f"bf16 cannot be used here: torch's bf16 convolution: {verdict}")
    with pytest.raises(ValueError, match=r"^precision: bf16 \(as asked for\) cannot be used here: torch's bf16 c") as e:
        choosing.choose("bf16")
    assert str(e.value).endswith("; or take fp32")
    assert ("set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 before Python starts" in str(e.value)) == ("SIGILL" in verdict)
    assert "\n" not in str(e.value)


def test_an_operation_that_torch_refuses_is_left_to_whoever_calls_it(fast):
    fast.bad["torch's bf16 LSTM"] = "refused by torch: not implemented"
    choice = choosing.choose()
    assert choice.precision == "bf16"
    assert verdicts.lines(choice.verdicts) == ["torch's bf16 LSTM: refused by torch: not implemented"]


def test_bf16_without_any_product_is_refused(fast):
    fast.bad |= {"torch's bf16 product": "dies with SIGILL", "our bf16 product": "dies with SIGSEGV"}
    assert choosing.choose().precision == "fp32"
    with pytest.raises(ValueError, match=r"torch's bf16 product: dies with SIGILL here, our bf16 product: dies"):
        choosing.choose("bf16")


def test_fp16_that_does_not_work_is_refused(machine):
    machine.bad["torch's fp16 product"] = "refused by torch: no"
    with pytest.raises(ValueError, match=r"fp16 \(as asked for\) cannot be used here: torch's fp16 product: refused"):
        choosing.choose("fp16")


def test_what_is_condemned_is_never_tried_again(fast):
    fast.bad["torch's bf16 product"] = "dies with SIGILL"
    fast.spread = 0.5
    choosing.choose()
    taken(4000)
    fast.bad.clear()
    fast.spread = 0.0
    choice = choosing.choose(renew=True)
    assert choice.verdicts["torch's bf16 product"] == "dies with SIGILL"
    assert fast.tried[-1] == []
    assert "torch" not in choice.rates["bf16"]["few rows"]


def test_a_cap_that_came_too_late_keeps_bf16_out(fast, monkeypatch):
    monkeypatch.setattr(onednn, "is_late", lambda: True)
    choice = choosing.choose()
    assert choice.precision == "fp32"
    assert "import fullstride first, or set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16" in choice.reason
    choice.apply()
    assert products.backends(torch.bfloat16) == ("native",)
    for wish in ("bf16", "fp16"):
        with pytest.raises(ValueError, match="torch had multiplied before fullstride was imported: import fu"):
            choosing.choose(wish)


def test_without_a_child_process_it_is_torch_in_fp32(machine):
    machine.trouble = "[Errno 11] Resource temporarily unavailable"
    choice = choosing.choose()
    assert choice.precision == "fp32"
    assert choice.reason == (
        "bf16 cannot be used here: it could not be tried in a child process ([Errno 11] Resource temporarily"
        " unavailable); `fullstride info` tries it, too"
    )
    assert {name for by_shape in choice.backends.values() for name in by_shape.values()} == {"torch"}
    assert choosing.choose("fp32").reason.startswith("as asked for; nothing was measured: [Errno 11]")
    with pytest.raises(ValueError, match="it could not be tried in a child process"):
        choosing.choose("bf16")
    assert choice.gflops("fp32") == choice.peak("fp32") == 0.0
    assert len(machine.asked) == 1  # one failure is enough for a process


def test_the_next_process_tries_what_this_one_could_not(machine, monkeypatch):
    machine.trouble = "no processes left"
    choosing.choose()
    machine.trouble = ""
    monkeypatch.setattr(cache, "_here", {})
    assert choosing.choose().gflops("fp32") == pytest.approx(200.0)


def test_info_shows_a_wish_that_cannot_be_granted(fast, monkeypatch):
    fast.bad["torch's bf16 convolution"] = "dies with SIGILL"
    monkeypatch.setenv("FULLSTRIDE_PRECISION", "bf16")
    for measure in (True, False):
        choice = choosing.describe(measure)
        assert choice is not None
        assert choice.precision == "fp32"
        assert "bf16 (FULLSTRIDE_PRECISION=bf16) cannot be used here" in choice.reason


# ---- when it is measured -------------------------------------------------------------------------------------------


def test_rates_are_measured_once(machine):
    assert choosing.recall() is None
    first = choosing.choose()
    assert choosing.choose() == choosing.recall() == choosing.choose(renew=True) == first
    assert len(machine.asked) == 1


def test_without_the_cache_rates_are_measured_each_time_and_not_kept(machine, folder):
    choosing.choose(use_cache=False)
    choosing.choose(use_cache=False)
    assert len(machine.asked) == 2
    assert not folder.exists()


def test_fp16_is_measured_only_when_asked_for(machine):
    choosing.choose()
    choosing.choose("fp16")
    choosing.choose("fp16")
    assert machine.asked == [["fp32", "bf16"], ["fp16"]]


def test_asking_for_fp16_changes_nothing_of_the_others(machine):
    before = choosing.choose()
    machine.rates.update(fp32=everywhere(torch=1.0, onednn=1.0), bf16=everywhere(torch=9.0))  # as on a busy machine
    assert choosing.choose("fp16").rates == before.rates | {"fp16": everywhere(torch=5.0)}
    assert choosing.choose().precision == before.precision


def test_backend_that_is_new_is_measured(machine):
    choosing.choose()
    machine.rates["fp32"] = everywhere(torch=100.0, onednn=200.0, native=300.0)
    machine.backends["fp32"] = ("torch", "onednn", "native")
    assert set(choosing.choose().backends["float32"].values()) == {"native"}
    assert machine.tried[-1] == ["our fp32 product"]


def test_rates_of_a_busy_machine_are_used_and_taken_again_later(machine, monkeypatch):
    machine.spread = 0.5
    choice = choosing.choose(renew=True)
    assert choice.notes == ["taken under load (load 9.0 on 2 cores); will be taken again when the machine is quiet"]
    choosing.choose(renew=True)
    assert len(machine.asked) == 1  # not within the hour
    taken(4000)
    choosing.choose()
    assert len(machine.asked) == 1  # not but by prepare()
    monkeypatch.setattr(load, "is_high", lambda: True)
    choosing.choose(renew=True)
    assert len(machine.asked) == 1  # not while it is as busy
    monkeypatch.setattr(load, "is_high", lambda: False)
    machine.spread = 0.0
    machine.rates["bf16"] = everywhere(torch=500.0)
    choice = choosing.choose(renew=True)
    assert (choice.precision, choice.notes) == ("bf16", [])
    taken(4000)
    choosing.choose(renew=True)
    assert len(machine.asked) == 2  # a quiet minute is enough


def test_rates_that_came_out_worse_again_do_not_replace_the_better_ones(machine):
    machine.spread = 0.4
    before = choosing.choose()
    taken(4000)
    machine.spread, machine.rates["fp32"] = 0.6, everywhere(torch=1.0, onednn=1.0)
    assert choosing.choose(renew=True).rates == before.rates
    choosing.choose(renew=True)
    assert len(machine.asked) == 2  # and the hour begins anew


def test_findings_that_could_not_be_kept_serve_this_process(machine, folder):
    folder.write_text("a file where the folder should be")
    assert choosing.choose().notes[0].startswith(f"not kept: {folder}/machine.json cannot be written (")
    choosing.choose()
    assert len(machine.asked) == 1


def test_a_process_that_waited_for_another_takes_its_findings(machine, monkeypatch):
    found = Findings({verdicts.product_name(p, b): "fine" for p in BACKENDS for b in BACKENDS[p]}, machine.rates, 1.0)

    class Lock:
        def __enter__(self):
            cache.keep(found, torch.get_num_threads())  # by the other, while this one waits

        def __exit__(self, *error):
            pass

    monkeypatch.setattr(cache, "lock", Lock)
    assert choosing.choose().gflops("fp32") == pytest.approx(200.0)
    assert machine.asked == []
