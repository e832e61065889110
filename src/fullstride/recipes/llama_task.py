"""What recipe `llama` trains: the next token of a text."""

from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor, nn

from ..data import sources
from ..data.corpus import load_corpus
from ..data.token_dataset import TokenDataset
from ..models import llama
from ..tokens import Tokenizer
from . import llama_files
from .task import Stock, Task

if TYPE_CHECKING:
    from .llama import LlamaConfig


class LlamaTask(Task):
    unit = "tokens"

    def __init__(self, config: "LlamaConfig") -> None:
        self.config, data, shape = config, config.data, config.model.shape()
        path = sources.default_folder("shakespeare") if data.path is None else Path(data.path)
        corpus = load_corpus(path, self._given_tokenizer() or data.tokenizer, data.vocabulary, data.valid_share)
        self.tokenizer: Tokenizer | None = corpus.tokenizer
        self.fingerprint = corpus.fingerprint
        self.vocabulary = self._vocabulary(corpus.vocabulary)
        self.units_per_sample = context = shape["context"]
        self.train_data = TokenDataset(corpus.train, context, self.vocabulary, config.seed, shift=True)
        self.valid_data = TokenDataset(corpus.valid, context, self.vocabulary, config.seed, shift=False)

    def _given_tokenizer(self) -> Tokenizer | None:
        """That of the file to start from, if no other was asked for."""
        config = self.config
        if config.init is None or config.data.tokenizer != config.init:
            return None
        tokenizer = llama_files.read(Path(config.init)).tokenizer
        if tokenizer is None:
            raise ValueError(f"init: {config.init} comes without its tokenizer; give that by --data.tokenizer FILE")
        return tokenizer

    def _vocabulary(self, of_data: int) -> int:
        """Of the model. That of a file to start from may be larger than its tokenizer's."""
        config = self.config
        if config.init is None:
            return of_data
        if of_data > config.data.vocabulary:
            raise ValueError(
                f"data.tokenizer: expected one of at most {config.data.vocabulary} tokens, as {config.init} has, got"
                f" {of_data} in {config.data.tokenizer}; give the tokenizer that it was trained with"
            )
        return config.data.vocabulary

    def build_model(self) -> nn.Module:
        return llama.build(**self.stock().arguments)

    def stock(self) -> Stock:
        return Stock("llama", {"vocabulary": self.vocabulary, **self.config.model.shape()})

    def load_weights(self, model: nn.Module) -> None:
        if self.config.init is not None:
            tensors, own = llama_files.read(Path(self.config.init)).tensors, model.state_dict()
            if {name: tensor.shape for name, tensor in tensors.items()} != {name: own[name].shape for name in own}:
                raise ValueError(
                    f"init: the weights of {self.config.init} do not fit the model that is asked for; leave --model and"
                    " --data.vocabulary to the file"
                )
            model.load_state_dict(tensors)

    def write_files(self, folder: Path) -> None:
        if self.tokenizer is not None:
            self.tokenizer.save(folder)

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return llama.loss(model, batch)

    def score(self, model: nn.Module, batch: tuple[Tensor, ...]) -> dict[str, float]:
        count = int((batch[1] != llama.IGNORED).sum())
        return {"loss": llama.loss(model, batch).item() * count, "count": count}

    def sample(self, model: nn.Module) -> str | None:
        wish, tokenizer = self.config.samples, self.tokenizer
        if tokenizer is None or not wish.tokens:
            return None
        from ..generation import generate

        prompt = [tokenizer.bos, *tokenizer.encode(wish.prompt)]
        new = generate(model, prompt, wish.tokens, wish.temperature, wish.top_p, self.config.seed, stop=tokenizer.bos)
        return tokenizer.decode([*prompt[1:], *(token for token in new if token < tokenizer.size)])  # see _vocabulary
