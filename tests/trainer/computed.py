"""How a step was computed, where a test needs one that says so and asks for nothing special."""

from dagrpo.trainer.state.digest_table import Computed

COMPUTED = Computed(
    processes=1,
    copies=1,
    threads=2,
    micro_batch_size=256,
    micro_batch_tokens=0,
    micro_batch_patches=0,
    head_chunk_tokens=0,
    layout="padded",
    share_prompts=False,
    reduce_gradients="each_mini_batch",
    compiled=False,
    device="cpu",
    hashed_by="sha256",
)
