"""The parts of a model: those that keep their weights, LoRA adapters, and an encoder that several models
share.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.errors import UserError, extras_required, translated
from bertkit.files import read_json, write_json
from bertkit.text import Json, first_line

if TYPE_CHECKING:
    from torch.nn import Module, Parameter
    from transformers import PreTrainedModel

    from bertkit.models.encoder import Encoder
    from bertkit.sections import Freeze, Lora


CROSS_ATTENTION = "crossattention"  # new where a decoder is made of a BERT, so never frozen


def halves(model: Any) -> list[Any]:
    """The encoder and the decoder of an encoder–decoder; any other model alone."""
    return [model.encoder, model.decoder] if model.config.model_type == "encoder-decoder" else [model]


def freeze(model: PreTrainedModel, spec: Freeze) -> PreTrainedModel:
    """Stop gradients of the embeddings and of the first layers; of an encoder–decoder, those of both halves.

    The decoder's attention to the source is still trained. Raises UserError where there are not so many
    layers, or where they share their weights.
    """
    for half in halves(model):
        base = half.base_model
        count = half.config.num_hidden_layers
        stacks = [stack for stack in _stacks(base) if len(stack) == count]
        if spec.layers and not stacks:
            raise UserError(
                "freeze.layers",
                f"the {count} layers of this model ({half.config.model_type}) share their weights",
                "Set freeze.layers: 0, or train adapters alone, with `peft`.",
            )
        if spec.layers > count:
            raise UserError(
                "freeze.layers",
                f"{spec.layers} layers to freeze, but the encoder has {count}",
                "Freeze fewer.",
            )
        for layer in chain.from_iterable(layers[: spec.layers] for layers in stacks):
            for name, parameter in layer.named_parameters():
                parameter.requires_grad_(CROSS_ATTENTION in name)
        if spec.embeddings:
            base.get_input_embeddings().requires_grad_(False)
            for name, parameter in base.named_parameters():
                # a number: within a layer
                if "emb" in name and not any(part.isdigit() for part in name.split(".")):
                    parameter.requires_grad_(False)
    return model


def recompute_layers(model: PreTrainedModel) -> None:
    """Enable activation checkpointing where transformers has none for the architecture, such as MPNet and
    ALBERT.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    for half in halves(model):
        stacks = _stacks(half.base_model)
        # several lists: not one per layer, as in XLM, whose layers also update a cache
        if half.supports_gradient_checkpointing or len(stacks) > 1:
            continue
        half.supports_gradient_checkpointing = True
        for layer in chain.from_iterable(stacks):
            layer.__class__ = type("Recomputed", (type(layer), GradientCheckpointingLayer), {})


def _stacks(base: Module) -> list[list[Module]]:
    """The modules of each outermost list: of XLM, attention and feed-forward networks by themselves."""
    from torch.nn import ModuleList

    stacks: dict[str, list[Module]] = {}
    for name, module in base.named_modules():
        inner = name.startswith(tuple(f"{outer}." for outer in stacks))
        if isinstance(module, ModuleList) and not inner:
            stacks[name] = list(module)
    return list(stacks.values())


def with_lora(model: PreTrainedModel, spec: Lora, extra_modules: Mapping[str, Module]) -> Any:
    """The model with LoRA adapters; every module outside the encoder is trained and saved.

    Of an encoder–decoder, these are the decoder's attention to the source and its projection to the
    vocabulary. What such a module shares with the encoder, as the masked language model's decoder shares the
    word embeddings, is the encoder's, and frozen.

    extra_modules: for a model that is an encoder without a head, its modules that do not belong to the
    encoder.
    Raises UserError when peft is not installed, knows no targets for this architecture, or does not find
    those given.
    """
    with extras_required():
        from peft import LoraConfig, get_peft_model
    from torch.nn import Linear

    pair = len(halves(model)) > 1
    bare = model.base_model is model
    head = [
        name
        for name, module in model.named_children()
        if name != model.base_model_prefix and [*module.parameters()]
        if not bare or module in extra_modules.values()
    ]
    if pair:
        head = [
            name for name, _ in model.named_modules() if name.rpartition(".")[2] in (CROSS_ATTENTION, "cls")
        ]
    head += sorted(vars(model).get("new_poolers", ()))
    of_head = tuple(f"{name}." for name in head)
    encoder = {
        p for name, p in model.named_parameters(remove_duplicate=False) if not name.startswith(of_head)
    }
    names = [name for name, module in model.named_modules() if isinstance(module, Linear)]
    names = [name for name in names if not f"{name}.".startswith(of_head)]
    layers = spec.layers_to_transform or []
    last = halves(model)[0].config.num_hidden_layers - 1
    if wrong := [layer for layer in layers if not 0 <= layer <= last]:
        raise UserError(
            "peft.layers_to_transform", f"no layer {wrong[0]}", f"Layers of this model: 0 to {last}."
        )
    if layers:  # peft ignores the layers where targets are whole names
        places = ((name, re.search(r"\.(\d+)\.", name)) for name in names)
        names = [name for name, place in places if place and int(place[1]) in layers]
    short = (name.rpartition(".")[2] for name in names)
    linear = dict.fromkeys(name for name in short if not name.isdigit())
    _check_patterns(model, spec, linear)
    targets = names if spec.target_modules == "all-linear" else spec.target_modules
    config = LoraConfig(
        **spec.model_dump(exclude={"target_modules"}),
        target_modules=targets or (["query", "value"] if pair else None),  # peft's choice for BERT
        exclude_modules=rf"({'|'.join(map(re.escape, of_head))}).*" if pair else None,
        modules_to_save=head,
        layers_pattern=["[^.]*"] if layers else None,  # without it, a list of layers must not be at the top
    )
    try:
        with warnings.catch_warnings():  # peft uses a deprecated name of transformers
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
            # refused below
            warnings.filterwarnings("ignore", "Model has `tie_word_embeddings=True`", UserWarning)
            adapted = get_peft_model(model, config)
    except ValueError as error:
        raise UserError(
            "peft",
            first_line(error),
            f"Choose `target_modules` among: {', '.join(linear) or 'none, as it has no linear layers'}.",
        ) from error
    _share_again(adapted, encoder)
    return adapted


def _check_patterns(model: PreTrainedModel, spec: Lora, linear: Iterable[str]) -> None:
    """Raise UserError on a pattern of a rank or alpha that fits no module: peft would ignore it."""
    modules = [name for name, _ in model.named_modules()]
    for key, patterns in (("rank_pattern", spec.rank_pattern), ("alpha_pattern", spec.alpha_pattern)):
        for pattern in patterns:
            with translated(re.error, UserError, f"peft.{key}.{pattern}", "not a regular expression"):
                fits = [name for name in modules if re.fullmatch(rf"(.*\.)?({pattern})", name)]
            if not fits:
                raise UserError(f"peft.{key}.{pattern}", "fits no module", f"Such as: {', '.join(linear)}.")


def save_adapter(adapted: Any, folder: Path, encoder: Encoder) -> None:
    """Write the adapter as peft does. One of a published model names it by its Hub id, not by its folder
    here.
    """
    adapted.save_pretrained(folder)
    (folder / "README.md").unlink()  # peft's card, which has nothing filled in
    file = folder / "adapter_config.json"
    config = dict(read_json(file))
    # of a set, whose order differs between processes
    config["target_modules"] = sorted(config["target_modules"])
    # while it trained, peft would have asked the Hub in each checkpoint
    if encoder.origin in (
        "hub",
        "package",
    ):
        config |= {"base_model_name_or_path": encoder.name, "revision": encoder.revision}
    write_json(file, config)


def merged(adapted: Any) -> Any:
    """The model with its adapters added to its weights.

    peft takes a decoder that was never tied to the word embeddings, as LUKE's, for one that no longer is; the
    model would then be loaded without anything tied.
    """
    tied = adapted.config.to_dict().get("tie_word_embeddings")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Input and output embeddings are no longer tied", UserWarning)
        model = adapted.merge_and_unload()
    if tied is not None:
        model.config.tie_word_embeddings = tied
    return model


def _share_again(adapted: Any, encoder: set[Parameter]) -> None:
    """Put the encoder's own parameters into the copies of the head that peft has made.

    Raises UserError where one has an adapter, which the head would be trained without.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import ModulesToSaveWrapper

    shared: set[Parameter] = set()
    wrappers = [module for module in adapted.modules() if isinstance(module, ModulesToSaveWrapper)]
    for wrapper in wrappers:
        for name, parameter in wrapper.original_module.named_parameters(remove_duplicate=False):
            if parameter in encoder:
                path = name.rpartition(".")
                setattr(wrapper.modules_to_save["default"].get_submodule(path[0]), path[2], parameter)
                shared.add(parameter)
    for name, module in adapted.named_modules():
        if isinstance(module, BaseTunerLayer) and shared.intersection(module.get_base_layer().parameters()):
            raise UserError(
                "peft.target_modules",
                f"{name.rpartition('.')[2]} shares its weights with the head, which has no adapter",
                "Leave it out.",
            )


def encoder_parts(model: Any, attached: Collection[Module]) -> dict[str, Module | Parameter]:
    """The modules and parameters that a model's encoder consists of, by name.

    attached: modules of the model that are not its encoder's, where the model is itself an encoder.
    """
    encoder = model.base_model
    parts = [*encoder.named_children(), *encoder.named_parameters(recurse=False)]
    others = set(map(id, attached))
    return {name: part for name, part in parts if id(part) not in others}


def share_encoder(models: Iterable[tuple[Any, Collection[Module]]]) -> None:
    """Let these models, each with modules of its own as for `encoder_parts`, share the encoder of the first.

    A part that not all encoders have, such as BERT's pooler, is shared by those that have it.
    """
    shared: Json = {}
    for model, attached in models:
        for name, part in encoder_parts(model, attached).items():
            setattr(model.base_model, name, shared.setdefault(name, part))
