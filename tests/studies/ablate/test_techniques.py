"""How each technique is switched, without a process."""

import subprocess
import sys
from dataclasses import replace

import pytest

from fullstride import cli, preparation
from fullstride.rewriting import SWITCHES
from fullstride.studies.ablate.outcome import TOGETHER
from fullstride.studies.ablate.run import choose
from fullstride.studies.ablate.switching import ADDED, ALL, ALL_FP32, ALONE, LEFT_OUT, NOTHING, STOCK, Subject, Trial
from fullstride.studies.ablate.techniques import TECHNIQUES

from ...cli.commands import one_line
from . import tiny

EVERYTHING = Subject(tiny.mlp(), "bf16", frozenset(SWITCHES), frozenset({"attention", "norms"}), threads=2)


def test_the_techniques_that_were_asked_for_are_there():
    asked = {
        "heap", "threads", "bf16", "products", "activations", "norms", "attention", "loss", "lazy-logits", "fusion",
        "optimizer", "states-bf16", "states-8bit", "lookahead", "lamb", "freezing", "accumulation", "overlap",
        "compile",
    }  # fmt: skip
    assert asked <= TECHNIQUES.keys()


@pytest.mark.parametrize("name", TECHNIQUES)
def test_each_is_switched_both_ways_where_there_is_everything(name):
    technique = TECHNIQUES[name]
    alone, within = technique.alone(EVERYTHING), technique.within(EVERYTHING)
    assert isinstance(alone, Trial)
    assert (alone.way, alone.reference) == (ALONE, STOCK)
    assert alone.has_it
    if name != "kept-activations":  # which have 16 bits in bf16 already
        assert isinstance(within, Trial)
        assert within.way == (ADDED if within.has_it else LEFT_OUT)
        assert within.reference in (ALL, ALL_FP32)
    assert set(technique.needs) <= TECHNIQUES.keys()
    assert bool(technique.needs) == ("whose gain is in it" in alone.note)


@pytest.mark.parametrize("name", TECHNIQUES)
def test_prepare_would_take_the_options(name):
    for ask in (TECHNIQUES[name].alone, TECHNIQUES[name].within):
        trial = ask(EVERYTHING)
        if isinstance(trial, Trial):
            options = {"precision": trial.settings.get("fullstride", "fp32")} | trial.settings.get("options", {})
            preparation.check_options(**options)


@pytest.mark.parametrize("name", TECHNIQUES)
def test_alone_nothing_else_is_on(name):
    trial = TECHNIQUES[name].alone(EVERYTHING)
    if not trial.settings.get("fullstride"):
        return  # stock PyTorch itself, or after an import
    on = SWITCHES.keys() - set(trial.settings["options"]["without"])
    own = {
        "bf16": {"optimizer"}, "products": {"products", "linear"}, "lazy-logits": {"lazy_logits"},
        "fusion": {"gates", "residuals", "norms"}, "tied-gradients": {"tied_gradients", "lazy_logits", "embedding"},
        "states-bf16": {"optimizer"}, "states-8bit": {"optimizer"}, "overlap": {"overlap", "linear", "products"},
        "kept-activations": set(),
    }.get(name, {name})  # fmt: skip
    calls_functions = bool(own & EVERYTHING.functions)
    assert on == own | {"class_swap", "probes", "fusion"} | ({"function_mode"} if calls_functions else set())
    assert trial.settings["environment"] == {"FULLSTRIDE_HEAP": "0"}
    assert trial.settings["over_stock"]


def test_a_recipe_that_has_a_technique_is_measured_without_it():
    config = tiny.mlp(optimizer={"name": "lamb", "lookahead": True, "state_precision": "bf16"}, accumulate=4)
    found = tiny.subject(config.replace(freeze={"enabled": True}))
    changes = {
        "lamb": {"optimizer": {"name": "adamw"}}, "lookahead": {"optimizer": {"lookahead": False}},
        "freezing": {"freeze": {"enabled": False}}, "accumulation": {"micro_batch": 32, "accumulate": 1},
    }  # fmt: skip
    for name, expected in changes.items():
        for trial in (TECHNIQUES[name].alone(found), TECHNIQUES[name].within(found)):
            assert (trial.changes, trial.has_it) == (expected, False)
        assert TECHNIQUES[name].within(found).way == LEFT_OUT
    states = TECHNIQUES["states-bf16"].within(found)
    assert (states.way, states.changes) == (LEFT_OUT, {"optimizer": {"state_precision": "fp32"}})
    assert TECHNIQUES["states-8bit"].within(found).note == "instead of bf16"


def test_the_optimizer_is_left_out_in_fp32_where_bf16_needs_it():
    fine, split = (TECHNIQUES["optimizer"].within(tiny.subject(precision=name)) for name in ("fp32", "bf16"))
    assert (fine.reference, split.reference) == (ALL, ALL_FP32)
    assert split.settings["fullstride"] == "fp32"
    assert "both in fp32" in split.note


def test_bf16_is_added_where_auto_did_not_take_it():
    added, left = (TECHNIQUES["bf16"].within(tiny.subject(precision=name)) for name in ("fp32", "bf16"))
    assert (added.way, added.has_it, added.settings["fullstride"]) == (ADDED, True, "bf16")
    assert (left.way, left.has_it, left.settings["fullstride"]) == (LEFT_OUT, False, "fp32")


def test_what_a_recipe_has_no_use_for_is_not_measured():
    trials, skipped = choose(tiny.subject(), list(TECHNIQUES))
    for name in ("norms", "attention", "rotary", "embedding", "dropout", "convolutions", "fusion"):
        assert skipped[name] == f"{NOTHING}: the model has none"
    assert skipped["lazy-logits"] == f"{NOTHING}: the model has no large head"
    assert not [name for name in trials if name.startswith(("norms", "lazy-logits"))]
    assert {"heap, alone", "heap, left out", "lamb, alone", "lamb, added", TOGETHER} <= trials.keys()


def test_one_way_may_be_possible_where_the_other_is_not():
    _, skipped = choose(tiny.subject(precision="bf16"), ["kept-activations"])
    assert skipped == {"kept-activations, in all": f"{NOTHING}: in bf16 they have 16 bits already"}


def test_a_micro_batch_of_one_cannot_be_halved():
    _, skipped = choose(tiny.subject(tiny.mlp(micro_batch=1)), ["accumulation"])
    assert skipped == {"accumulation": "a micro-batch of 1 cannot be halved"}


def test_other_micro_batches_are_not_tried_where_they_would_be_another_training():
    found = replace(tiny.subject(), micro_batch_matters="its samples know each other")
    trials, skipped = choose(found, ["accumulation"])
    assert skipped == {"accumulation": "another training: its samples know each other"}
    assert list(trials) == [TOGETHER]


def test_only_the_technique_of_states_has_states_of_few_bits_over_stock():
    config = tiny.mlp(optimizer={"state_precision": "bf16"})
    for name, expected in (("optimizer", "fp32"), ("norms", "fp32"), ("states-bf16", "bf16"), ("states-8bit", "8bit")):
        trial = TECHNIQUES[name].alone(replace(EVERYTHING, config=config))
        assert trial.settings["options"]["state_precision"] == expected


def test_parts_against_the_same_reference_follow_each_other():
    trials, _ = choose(tiny.subject(precision="bf16"), list(TECHNIQUES))
    references = [trial.reference for trial in trials.values()]
    assert [name for i, name in enumerate(references) if references[:i].count(name) == 0] == [STOCK, ALL, ALL_FP32]
    assert references == sorted(references, key=[STOCK, ALL, ALL_FP32].index)


def test_an_unknown_name_gets_one_line_with_the_list(capsys):
    assert cli.main(["ablate", "mlp", "--only", "heap", "hepp"]) == 2
    line = one_line(capsys.readouterr().err)
    assert line.startswith("fullstride: --only: expected names of heap, threads, bf16, ")
    assert line.endswith("; got 'hepp'")


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "soon"])
def test_impossible_minutes_are_refused(minutes, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["ablate", "mlp", "--minutes", minutes])
    assert ended.value.code == 2
    assert f"expected minutes above 0, got '{minutes}'" in one_line(capsys.readouterr().err)


def test_without_a_recipe_it_says_what_it_expects(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["ablate", "--only", "heap"])
    assert ended.value.code == 2
    assert "expected a recipe or --config FILE" in one_line(capsys.readouterr().err)


def test_the_list_shows_every_technique_and_what_it_is(capsys):
    assert cli.main(["ablate", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(TECHNIQUES)
    assert all(technique.what in line for technique, line in zip(TECHNIQUES.values(), lines, strict=True))


def test_bad_names_and_the_list_do_not_wait_for_torch():
    code = (
        "import sys; from fullstride import cli; cli.main(['ablate', '--list']);"
        " cli.main(['ablate', 'mlp', '--only', 'x']); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
