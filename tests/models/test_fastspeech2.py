import ast
import math
from pathlib import Path

import pytest
import torch

from fullstride.models import fastspeech2
from fullstride.models.fastspeech2 import frames_of, losses, predict, repeat

SHAPE = {
    "phonemes": 12, "width": 16, "encoder_layers": 1, "decoder_layers": 2, "heads": 2, "hidden": 24, "mel_bins": 6,
    "variance_bins": 8,
}  # fmt: skip


def model(**changes):
    torch.manual_seed(0)
    return fastspeech2.build(**{**SHAPE, **changes}).eval()


def sentence(num_phonemes, seed, speaker=0, mel_bins=6):
    random = torch.Generator().manual_seed(seed)
    durations = torch.randint(0, 5, (1, num_phonemes), generator=random)
    durations[0, 0] = 3  # so that there are frames
    return (
        torch.randint(1, 12, (1, num_phonemes), generator=random),
        torch.tensor([speaker]),
        durations,
        torch.randn(1, num_phonemes, generator=random),
        torch.randn(1, num_phonemes, generator=random),
        torch.randn(1, int(durations.sum()), mel_bins, generator=random),
    )


def padded(sentences, beyond=0):
    """One batch of them, as the data set makes it; `beyond`: padding that not even the longest needs."""
    columns = []
    for column in zip(*sentences, strict=True):
        if column[0].dim() == 1:
            columns.append(torch.cat(column))
            continue
        whole = column[0].new_zeros(len(column), max(x.shape[1] for x in column) + beyond, *column[0].shape[2:])
        for row, x in zip(whole, column, strict=True):
            row[: x.shape[1]] = x[0]
        columns.append(whole)
    return tuple(columns)


def by_hand(x, durations, length):
    """The length regulator as a loop."""
    rows = []
    for sentence, frames in zip(x, durations.tolist(), strict=True):
        said = [phoneme for phoneme, count in zip(sentence, frames, strict=True) for _ in range(count)]
        rows.append(torch.stack(said + [torch.zeros_like(x[0, 0])] * (length - len(said))))
    return torch.stack(rows)


# ---- padding ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"postnet": True}, {"speakers": 3}, {"kernel": 5, "predictor_kernel": 5}])
def test_a_sentence_is_the_same_alone_and_in_a_padded_batch(changes):
    net = model(**changes)
    sentences = [sentence(4, 1), sentence(9, 2, speaker=2 if "speakers" in changes else 0), sentence(1, 3)]
    together = predict(net, padded(sentences, beyond=3))
    for i, one in enumerate(sentences):
        alone = predict(net, one)
        num_phonemes, num_frames = one[0].shape[1], one[5].shape[1]
        for name in ("log_durations", "pitch", "energy"):
            torch.testing.assert_close(getattr(together, name)[i, :num_phonemes], getattr(alone, name)[0])
        torch.testing.assert_close(together.final_mel[i, :num_frames], alone.final_mel[0], rtol=1e-5, atol=1e-5)


def test_a_sentence_that_is_predicted_is_the_same_alone_and_in_a_padded_batch():
    net, sentences = model(), [sentence(5, 1), sentence(11, 2)]
    batch = padded(sentences)
    with torch.no_grad():
        net.duration_predictor.output.bias += 1.0  # about two frames a phoneme
        together = net(batch[0], batch[1])
        for i, one in enumerate(sentences):
            alone = net(one[0], one[1])
            assert torch.equal(together.durations[i, : one[0].shape[1]], alone.durations[0])
            assert not together.durations[i, one[0].shape[1] :].any()
            num_frames = int(alone.durations.sum())
            torch.testing.assert_close(together.mel[i, :num_frames], alone.mel[0, :num_frames], rtol=1e-5, atol=1e-5)


def test_padding_gives_no_gradient_and_no_loss():
    net, sentences = model(), [sentence(4, 1), sentence(9, 2)]
    values = []
    for beyond in (0, 4):
        net.zero_grad()
        loss = fastspeech2.loss(net, padded(sentences, beyond))
        loss.backward()
        values.append([loss.detach(), *(p.grad.clone() for p in net.parameters())])
    for a, b in zip(*values, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


# ---- the length regulator --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "durations",
    [[[2, 1, 3]], [[0, 2, 0], [1, 0, 4]], [[0, 0, 5]], [[3]], [[1], [4]], [[1, 1, 1, 1], [0, 0, 0, 1]]],
    ids=["plain", "zeros", "zeros first", "one phoneme", "one phoneme each", "one frame"],
)
def test_the_length_regulator_is_a_loop_over_phonemes_forward_and_backward(durations):
    durations = torch.tensor(durations)
    x = torch.randn(*durations.shape, 3, dtype=torch.float64, requires_grad=True)
    length = int(durations.sum(1).max())
    found, is_frame = repeat(x, durations)
    expected = by_hand(x, durations, length)
    assert torch.equal(found, expected)
    assert is_frame.sum(1).tolist() == durations.sum(1).tolist()
    weights = torch.randn_like(expected)
    gradients = [torch.autograd.grad((y * weights).sum(), x)[0] for y in (found, expected)]
    torch.testing.assert_close(*gradients)


def test_a_given_number_of_frames_pads_with_zeros():
    x, durations = torch.randn(2, 3, 4), torch.tensor([[1, 2, 0], [2, 2, 1]])
    found, is_frame = repeat(x, durations, 9)
    assert torch.equal(found, by_hand(x, durations, 9))
    assert is_frame.sum(1).tolist() == [3, 5]


def test_phonemes_that_all_last_nothing_give_one_frame_of_zeros():
    found, is_frame = repeat(torch.randn(1, 3, 4), torch.zeros(1, 3, dtype=torch.int64))
    assert found.shape == (1, 1, 4)
    assert not found.any()
    assert not is_frame.any()


def test_a_sentence_without_frames_spoils_nothing():
    net, (phonemes, speakers, durations, *rest) = model(postnet=True), padded([sentence(4, 1), sentence(5, 2)])
    durations[0] = 0
    batch = (phonemes, speakers, durations, *rest)
    loss = fastspeech2.loss(net, batch)
    loss.backward()
    assert predict(net, batch).final_mel.isfinite().all()
    assert loss.isfinite()
    assert all(p.grad.isfinite().all() for p in net.parameters())


# ---- durations, pitch, energy ----------------------------------------------------------------------------------------


def test_rounding_of_durations_does_not_add_up():
    lengths = torch.full((1, 1000), 2.4)
    assert abs(int(frames_of(torch.log1p(lengths)).sum()) - 2400) <= 1
    assert set(frames_of(torch.log1p(lengths))[0].tolist()) == {2, 3}


def test_whole_durations_come_back_from_their_logarithms():
    durations = torch.randint(0, 40, (3, 50), generator=torch.Generator().manual_seed(0))
    assert torch.equal(frames_of(torch.log1p(durations.float())), durations)


def test_no_duration_is_below_zero_and_none_without_end():
    found = frames_of(torch.tensor([[-5.0, -0.1, 100.0, float("inf")]]))
    assert found[0, :2].tolist() == [0, 0]
    assert found.max() <= math.exp(6)


@pytest.mark.parametrize(("speed", "factor"), [(0.5, 2.0), (2.0, 0.5), (0.9, 1 / 0.9)])
def test_speed_divides_durations(speed, factor):
    logs = torch.log1p(torch.rand(1, 200, generator=torch.Generator().manual_seed(0)) * 10)
    plain = (logs.exp() - 1).sum().item()
    assert int(frames_of(logs, speed).sum()) == pytest.approx(plain * factor, abs=1)


@pytest.mark.parametrize("name", ["pitch", "energy"])
def test_values_are_cut_into_bins_between_edges_four_deviations_off(name):
    """8 bins have 7 edges: -4, -2.67, -1.33, 0, 1.33, 2.67, 4; a value on an edge is of the bin below it."""
    net, (phonemes, speakers, durations, *_) = model(), sentence(7, 1)
    seen = []
    getattr(net, f"{name}_embedding").register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    values = torch.tensor([[-1e9, -4.0, -3.99, -0.01, 0.01, 4.0, 1e9]])
    net(phonemes, speakers, durations, **{name: values})
    assert seen[0].tolist() == [[0, 0, 1, 3, 4, 6, 7]]


@pytest.mark.parametrize("name", ["pitch", "energy"])
def test_raising_moves_what_is_embedded_and_not_what_is_predicted(name):
    net, (phonemes, speakers, durations, *_) = model(variance_bins=256), sentence(7, 1)
    seen = []
    getattr(net, f"{name}_embedding").register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    plain = net(phonemes, speakers, durations)
    raised = net(phonemes, speakers, durations, **{f"raise_{name}": 1.0})
    given = net(phonemes, speakers, durations, **{name: getattr(plain, name) + 1.0})
    assert torch.equal(getattr(raised, name), getattr(plain, name))
    assert torch.equal(raised.mel, given.mel)
    width = 8 / 254  # deviations a bin
    assert (seen[1] - seen[0]).double().mean().item() == pytest.approx(1 / width, abs=1)


def test_speakers_differ_and_one_alone_has_no_embedding():
    phonemes, _, durations, pitch, energy, _ = sentence(6, 1)
    net = model(speakers=3)
    mels = [net(phonemes, torch.tensor([i]), durations, pitch, energy).mel for i in range(3)]
    assert not any(torch.allclose(mels[i], mels[j]) for i, j in [(0, 1), (1, 2), (0, 2)])
    assert model().speakers is None


# ---- losses ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("postnet", [False, True])
def test_losses_are_means_over_what_is_no_padding(postnet):
    net, sentences = model(postnet=postnet), [sentence(4, 1), sentence(9, 2)]
    batch = padded(sentences, beyond=2)
    found = predict(net, batch)
    parts = losses(found, batch)
    mel, refined, duration, pitch, energy = [], [], [], [], []
    for i, (phonemes, _, durations, true_pitch, true_energy, true_mel) in enumerate(sentences):
        count, frames = phonemes.shape[1], true_mel.shape[1]
        mel += (found.mel[i, :frames] - true_mel[0]).abs().flatten().tolist()
        refined += (found.final_mel[i, :frames] - true_mel[0]).abs().flatten().tolist()
        for p in range(count):
            duration.append((found.log_durations[i, p].item() - math.log(1 + durations[0, p].item())) ** 2)
            pitch.append((found.pitch[i, p] - true_pitch[0, p]).item() ** 2)
            energy.append((found.energy[i, p] - true_energy[0, p]).item() ** 2)
    expected = {"mel": mel, "duration": duration, "pitch": pitch, "energy": energy}
    expected |= {"refined": refined} if postnet else {}
    means = {name: sum(values) / len(values) for name, values in expected.items()}
    assert {name: value.item() for name, value in parts.items()} == pytest.approx(means, rel=1e-5)
    assert fastspeech2.loss(net, batch).item() == pytest.approx(sum(means.values()), rel=1e-5)


def test_the_post_net_adds_to_the_mel_and_is_what_is_heard():
    net, batch = model(postnet=True), sentence(6, 1)
    found = predict(net, batch)
    assert found.final_mel is found.refined
    assert not torch.allclose(found.refined, found.mel)
    with torch.no_grad():
        net.postnet.layers[-1].weight.zero_()
        net.postnet.layers[-1].bias.zero_()
    again = predict(net, batch)
    assert torch.equal(again.refined, again.mel)


def test_gradients_reach_every_parameter():
    net = model(postnet=True, speakers=2).train()
    fastspeech2.loss(net, padded([sentence(9, 1), sentence(9, 2, speaker=1)])).backward()
    without = [name for name, p in net.named_parameters() if p.grad is None or not p.grad.any()]
    assert without == []


# ---- the file --------------------------------------------------------------------------------------------------------


def test_the_defaults_have_about_ten_million_parameters():
    with torch.device("meta"):
        count = sum(p.numel() for p in fastspeech2.build(phonemes=80).parameters())
    assert 9e6 < count < 11e6


def test_the_file_imports_nothing_but_torch_and_python():
    tree = ast.parse(Path(fastspeech2.__file__).read_text())
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0] if not node.level else ".")
    assert found <= {"math", "collections", "typing", "torch"}
