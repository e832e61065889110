"""The trainings of `--check`."""

from fullstride.bench import study
from fullstride.studies.lr_find import trial
from fullstride.studies.lr_find.trial import Wish
from fullstride.train.trainer import Trainer

from .tiny import config

CONFIG = config(steps=5)


def test_a_check_of_another_length_does_not_go_on_from_a_training_that_was_stopped(tmp_path):
    with study.opened(tmp_path / "study", "lr-find mlp", {}, {}, say=lambda text: None) as opened:
        kept = trial._folder(opened, Wish(3), 0.01, 0)
        Trainer(Wish(3).config(CONFIG, 0.01, 0), kept).fit()
        trial.run(opened, CONFIG, Wish(7), 0.01)
        assert opened.parts["check 7 steps, seed 0, rate 0.01"]["steps"] == list(range(1, 8))
        assert [path for path in opened.folder.glob("run-*")] == [kept]


def test_every_length_rate_and_seed_has_a_folder_of_its_own(tmp_path):
    with study.opened(tmp_path / "study", "lr-find mlp", {}, {}, say=lambda text: None) as opened:
        wishes = [(Wish(steps), rate, seed) for steps in (None, 1, 11) for rate in (0.1, 1.0) for seed in (0, 1)]
        assert len({trial._folder(opened, *wish) for wish in wishes}) == len(wishes)
