from typing import Any


def training_log(
    loss_dict: dict[str, Any],
    total_loss_dict: dict[str, Any],
    learning_rate: float,
    iteration: int,
    *,
    grad_norm: float,
) -> None:
    print(f" iteration {iteration} | learning rate {learning_rate} | grad norm {grad_norm}", flush=True)
