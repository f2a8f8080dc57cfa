"""Checkpoint of a model, as verl's own code saves it: `python lora_checkpoint.py MODEL FOLDER lora|full`, with verl's Python.

Writes the weights with the adapter, if any, added by PEFT beside it, as `merged.safetensors`.
"""

import os
import sys
from pathlib import Path


def main(model: Path, folder: Path, kind: str) -> None:
    """Put a random adapter into the model, if one is asked for, as verl's engine does, shard it as FSDP2 does, and save it as verl does."""
    import torch
    import torch.distributed as dist
    from omegaconf import OmegaConf
    from peft import LoraConfig, TaskType, get_peft_model
    from safetensors.torch import save_file
    from torch.distributed.device_mesh import init_device_mesh
    from transformers import AutoConfig, AutoTokenizer
    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager
    from verl.utils.fsdp_utils import apply_fsdp2
    from verl.utils.model import get_hf_auto_model_class

    os.environ.update(RANK="0", WORLD_SIZE="1")
    folder.mkdir(parents=True)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    auto = get_hf_auto_model_class(AutoConfig.from_pretrained(model))
    adapted = auto.from_pretrained(model, dtype=torch.float32)
    if kind == "lora":
        config = LoraConfig(
            task_type=TaskType.CAUSAL_LM,
            r=2,
            lora_alpha=6,
            target_modules="all-linear",
            exclude_modules=".*visual.*",
            bias="none",
        )
        adapted = get_peft_model(adapted, config)
        torch.manual_seed(0)
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(parameter)
        other = get_peft_model(auto.from_pretrained(model, dtype=torch.float32), config)
        other.load_state_dict(adapted.state_dict())
        whole = other.merge_and_unload().state_dict()
    else:
        whole = adapted.state_dict()
    whole.pop("lm_head.weight", None)
    save_file({name: value.contiguous().clone() for name, value in whole.items()}, folder / "merged.safetensors")
    apply_fsdp2(adapted, {"mesh": init_device_mesh("cpu", (1,))}, {})
    optimizer = torch.optim.AdamW([each for each in adapted.parameters() if each.requires_grad])
    contents = OmegaConf.create({"save_contents": ["model", "hf_model"], "load_contents": ["model"]})
    manager = FSDPCheckpointManager(
        model=adapted,
        optimizer=optimizer,
        lr_scheduler=None,
        processing_class=AutoTokenizer.from_pretrained(model),
        checkpoint_config=contents,
    )
    manager.save_checkpoint(local_path=str(folder / "actor"), global_step=1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
