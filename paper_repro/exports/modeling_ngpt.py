"""nGPT as a model of transformers, which opens it with ``trust_remote_code=True`` from a folder that holds this file.

``exports.huggingface`` copies this file and those of the model beside the weights, with relative imports.

Legend: B sequences, T tokens, V vocabulary.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from paper_repro.models.ngpt import NGPT


class NGPTConfig(PreTrainedConfig):
    """``arguments`` are those of ``NGPT``."""

    model_type = "paper_repro_ngpt"

    def __init__(self, arguments: Mapping[str, Any] | None = None, **others: Any) -> None:
        self.arguments = dict(arguments or {})
        super().__init__(**others)


class NGPTForCausalLM(PreTrainedModel, GenerationMixin):
    """nGPT with the arguments and the output of transformers.

    To train it on, call ``model.project()`` of this model's ``model`` after each optimiser step.
    """

    config_class = NGPTConfig
    base_model_prefix = "model"

    def __init__(self, config: NGPTConfig) -> None:
        super().__init__(config)
        self.model = NGPT(**config.arguments)
        for part in self.model.modules():
            for name, buffer in [*part.named_buffers(recurse=False, remove_duplicate=False)]:
                part.register_buffer(name, buffer)  # persistent: transformers fills with what is stored alone
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Change nothing: NGPT starts its own weights."""

    def get_input_embeddings(self) -> nn.Module:
        return self.model.token_embedding

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None, **_: Any
    ) -> CausalLMOutput:
        """Return the logits (B, T, V) of the tokens after input_ids (B, T), and the mean loss in nats of labels (B, T).

        Labels are the ids themselves, -100 where none counts; they are shifted here.

        Raises:
            ValueError: attention_mask (B, T) hides a first token, or T exceeds the model's block length.
        """
        if attention_mask is not None and not bool(attention_mask[:, 0].all()):
            raise ValueError("attention_mask hides first tokens: nGPT has no mask, pad on the right")
        logits = self.model(input_ids)  # (B, T, V)
        if labels is None:
            return CausalLMOutput(logits=logits)
        loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return CausalLMOutput(loss=loss, logits=logits)

    def prepare_inputs_for_generation(  # type: ignore[override]  # the others are of caches that nGPT does not have
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Return the last tokens, which the model sees at once; transformers reads the name ``kwargs``."""
        seen = slice(-self.model.block_length, None)
        mask = None if attention_mask is None else attention_mask[:, seen]
        return {"input_ids": input_ids[:, seen], "attention_mask": mask}
