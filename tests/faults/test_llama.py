"""A language model whose training is killed: text, tokenizer and samples of tokens come back as they were."""

import signal

from fullstride import recipes
from fullstride.run_folder.folder import RunFolder

from .processes import until


def tiny(text):
    model = {"width": 16, "layers": 1, "heads": 2, "hidden": 24, "context": 16}
    return recipes.llama_char().replace(
        steps=40, micro_batch=2, model=model, data={"path": str(text), "workers": 0}, samples={"tokens": 4}, threads=1,
        evaluation={"every": 20}, checkpoints={"every": 5}, logging={"every": 1}, precision="fp32",
    )  # fmt: skip


def test_a_killed_run_resumes_to_the_same_weights(commands, run, monkeypatch):
    monkeypatch.setenv("FULLSTRIDE_DATA", str(run.with_name("data")))
    text, whole = run.with_name("text.txt"), run.with_name("whole")
    text.write_text("the king went out, and the queen\nwent in.\n" * 20)
    code, said = commands.train(whole, tiny(text)).wait()
    assert code == 0, said
    killed = commands.train(run, tiny(text))
    until(lambda: any(run.glob("checkpoints/step-*")) or not killed.is_alive, "a checkpoint")
    killed.send(signal.SIGKILL)
    assert killed.wait()[0] == -signal.SIGKILL
    commands.finish(run)
    assert RunFolder.read(run).config_yaml == RunFolder.read(whole).config_yaml
    for name in ("model", "optimizer"):
        file = f"checkpoints/step-00000040/{name}.safetensors"
        assert (run / file).read_bytes() == (whole / file).read_bytes()
